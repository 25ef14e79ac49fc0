"""One command run inside a container for somebody, on pipes or a terminal: `kubectl exec` without the transport.

Order: pipes → the command runs with one end of each → what is typed goes in and what is printed comes out, as fast as
both sides take it and no faster → the command ends → the rest of its output → the exit code. Cancelling it kills the
command. A daemon that the command left in the container may hold its output open for ever: that is not waited for.

A terminal is one descriptor for all streams. It is closed before the command is killed: the kernel's SIGHUP lets a
shell end what it has begun.

Pipes are read and written by their descriptors alone. Event loops have transports for pipes, but not all of them agree
on who closes the descriptor: one that was closed twice may have been somebody else's the second time. Here it is closed
by the code that made the pipe, after the last read or write.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from onenode.containers.container_request import Command, WindowSize
from onenode.containers.terminals import set_window
from onenode.kubelet.pods.container_runtime import CommandInside, ContainerRefused, RunningContainer, Streams
from orlop.foundation.clock import Clock
from orlop.foundation.task_group import TaskGroup

ONE_READ: Final = 64 << 10


async def read_pipe(descriptor: int) -> bytes:
    """The next piece; empty at the end, of a terminal when nobody has it any more. The descriptor must not block."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, ONE_READ)
        except BlockingIOError:
            await _until(descriptor, loop.add_reader, loop.remove_reader)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""


async def write_pipe(descriptor: int, data: bytes) -> None:
    """All of it, as fast as it is read; `BrokenPipeError` where nobody reads any more."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _until(descriptor, loop.add_writer, loop.remove_writer)
        except OSError as error:
            raise (BrokenPipeError() if error.errno == errno.EIO else error) from None


async def _until(descriptor: int, begin: Callable[[int, Callable[[], None]], Any], end: Callable[[int], Any]) -> None:
    ready = asyncio.get_running_loop().create_future()

    def tell() -> None:
        end(descriptor)
        if not ready.done():
            ready.set_result(None)

    begin(descriptor, tell)
    try:
        await ready
    finally:
        end(descriptor)


LAST_WORDS_SECONDS: Final = 1.0
HANG_UP_SECONDS: Final = 1.0

Output = Callable[[str, bytes], Awaitable[None]]
"""Is given `stdout` or `stderr`, and a piece; while it waits, the command does."""


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """`typed` ends when the standard input does; None: there is none. `sizes`: the command gets a terminal."""

    command: Command
    typed: AsyncIterator[bytes] | None
    output: Output
    sizes: WindowSizes | None = None


class WindowSizes:
    """The newest size of a window, for one who waits for the next."""

    def __init__(self) -> None:
        self._size: WindowSize | None = None
        self._changed = asyncio.Event()

    def put(self, size: WindowSize) -> None:
        self._size = size
        self._changed.set()

    async def next(self) -> WindowSize:
        while self._size is None:
            self._changed.clear()
            await self._changed.wait()
        size, self._size = self._size, None
        return size


async def run_in_container(container: RunningContainer, request: ExecCommand, clock: Clock) -> int:
    """The exit code; raises `ContainerRefused` where the command cannot be run."""
    if request.sizes is not None:
        running = await container.run_inside(request.command, None)
        terminal = running.take_terminal()
        if terminal is None:
            raise ContainerRefused("The command has got no terminal: leave out -t (--tty).")
        return await _Session(running, _Pipes.of_terminal(terminal), request, clock).to_the_end()
    pipes = _Pipes.made(with_stdin=request.typed is not None)
    try:
        running = await container.run_inside(request.command, pipes.theirs)
    except BaseException:
        pipes.close_ours()
        raise
    finally:
        pipes.close_theirs()
    return await _Session(running, pipes, request, clock).to_the_end()


@dataclass(slots=True)
class _Pipes:
    """Ours do not block, and are closed by `close_ours` alone; of standard input also before."""

    theirs: Streams | None
    stdin: int | None
    stdout: int
    stderr: int | None

    @classmethod
    def made(cls, *, with_stdin: bool) -> _Pipes:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        in_read, in_write = os.pipe() if with_stdin else (os.open(os.devnull, os.O_RDONLY), None)
        for ours in (in_write, out_read, err_read):
            if ours is not None:
                os.set_blocking(ours, False)
        return cls(Streams(in_read, out_write, err_write), in_write, out_read, err_read)

    @classmethod
    def of_terminal(cls, terminal: int) -> _Pipes:
        return cls(None, terminal, terminal, None)

    @property
    def is_terminal(self) -> bool:
        return self.theirs is None

    def close_theirs(self) -> None:
        if self.theirs is not None:
            for descriptor in (self.theirs.stdin, self.theirs.stdout, self.theirs.stderr):
                os.close(descriptor)

    def close_stdin(self) -> None:
        """A terminal stays open for what is printed, as it has no end of its input."""
        if self.stdin is not None and not self.is_terminal:
            os.close(self.stdin)
        self.stdin = None

    def close_ours(self) -> None:
        self.close_stdin()
        os.close(self.stdout)
        if self.stderr is not None:
            os.close(self.stderr)


class _Session:
    def __init__(self, running: CommandInside, pipes: _Pipes, request: ExecCommand, clock: Clock) -> None:
        self._running = running
        self._pipes = pipes
        self._request = request
        self._clock = clock
        self._telling: set[str] = set()
        self._told = 0
        """How many pieces."""

    async def to_the_end(self) -> int:
        try:
            async with TaskGroup() as tasks:
                descriptors = {"stdout": self._pipes.stdout, "stderr": self._pipes.stderr}
                printed = [
                    tasks.start(self._print(name, descriptor), name=f"{name} of a command")
                    for name, descriptor in descriptors.items()
                    if descriptor is not None
                ]
                typing = tasks.start(self._type(), name="stdin of a command")
                resizing = tasks.start(self._resize(), name="window of a command")
                code = await self._running.ended()
                typing.cancel()
                resizing.cancel()
                await self._last_words(printed)
            return code
        finally:
            self._pipes.close_ours()
            if self._pipes.is_terminal:
                await self._hung_up()
            self._running.kill()

    async def _hung_up(self) -> None:
        with suppress(TimeoutError):
            async with self._clock.timeout(HANG_UP_SECONDS):
                await self._running.ended()

    async def _resize(self) -> None:
        if self._request.sizes is not None:
            while True:
                set_window(self._pipes.stdout, await self._request.sizes.next())

    async def _last_words(self, printed: list[asyncio.Task[None]]) -> None:
        """Wait until all that was printed is sent, however slowly the client reads; end when nothing more comes."""
        is_silent = False
        while not is_silent and not all(task.done() for task in printed):
            before = self._told
            with suppress(TimeoutError):
                async with self._clock.timeout(LAST_WORDS_SECONDS):
                    await asyncio.wait(printed)
            is_silent = not self._telling and self._told == before
        for task in printed:
            task.cancel()

    async def _print(self, name: str, descriptor: int) -> None:
        with suppress(ConnectionError):  # the client has left; that ends the command elsewhere
            while piece := await read_pipe(descriptor):
                self._telling.add(name)
                await self._request.output(name, piece)
                self._telling.discard(name)
                self._told += 1

    async def _type(self) -> None:
        """What the command does not read any more is dropped."""
        if self._pipes.stdin is None or self._request.typed is None:
            return
        try:
            with suppress(BrokenPipeError):
                async for piece in self._request.typed:
                    await write_pipe(self._pipes.stdin, piece)
        finally:
            self._pipes.close_stdin()
            await _closed(self._request.typed)


async def _closed(typed: AsyncIterator[bytes]) -> None:
    """Close the input, so that its sender notices that nothing reads it any more."""
    close = getattr(typed, "aclose", None)
    if close is not None:
        await close()
