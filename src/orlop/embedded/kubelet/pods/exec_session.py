"""One command run inside a container for somebody, with pipes to its streams: `kubectl exec` without the transport.

Order: pipes → the command runs with one end of each → what is typed goes in and what is printed comes out, as fast as
both sides take it and no faster → the command ends → the rest of its output → the exit code. Cancelling it kills the
command. A daemon that the command left in the container may hold its output open for ever: that is not waited for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from typing import Final

from orlop.embedded.kubelet.pods.containers import CommandInside, RunningContainer, Streams
from orlop.foundation.clock import Clock
from orlop.foundation.task_group import TaskGroup
from orlop.host.container_request import Command

ONE_READ: Final = 64 << 10
LAST_WORDS_SECONDS: Final = 1.0

Output = Callable[[str, bytes], Awaitable[None]]
"""Is given `stdout` or `stderr`, and a piece; while it waits, the command does."""


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """`typed` ends when the standard input does; None: there is none."""

    command: Command
    typed: AsyncIterator[bytes] | None
    output: Output


async def run_in_container(container: RunningContainer, request: ExecRequest, clock: Clock) -> int:
    """The exit code; raises `ContainerRefused` where the command cannot be run."""
    pipes = _Pipes.made(with_stdin=request.typed is not None)
    try:
        running = await container.run_inside(request.command, pipes.theirs)
    except BaseException:
        pipes.close_ours()
        raise
    finally:
        pipes.close_theirs()
    return await _Session(running, pipes, request, clock).to_the_end()


@dataclass(frozen=True, slots=True)
class _Pipes:
    theirs: Streams
    stdin: int | None
    stdout: int
    stderr: int

    @classmethod
    def made(cls, *, with_stdin: bool) -> _Pipes:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        in_read, in_write = os.pipe() if with_stdin else (os.open(os.devnull, os.O_RDONLY), None)
        return cls(Streams(in_read, out_write, err_write), in_write, out_read, err_read)

    def close_theirs(self) -> None:
        for descriptor in (self.theirs.stdin, self.theirs.stdout, self.theirs.stderr):
            os.close(descriptor)

    def close_ours(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor is not None:
                os.close(descriptor)


class _Session:
    def __init__(self, running: CommandInside, pipes: _Pipes, request: ExecRequest, clock: Clock) -> None:
        self._running = running
        self._pipes = pipes
        self._request = request
        self._clock = clock
        self._stdin: asyncio.WriteTransport | None = None

    async def to_the_end(self) -> int:
        try:
            async with TaskGroup() as tasks:
                printed = [
                    tasks.start(self._print("stdout", self._pipes.stdout), name="stdout of a command"),
                    tasks.start(self._print("stderr", self._pipes.stderr), name="stderr of a command"),
                ]
                typing = tasks.start(self._type(), name="stdin of a command")
                code = await self._running.ended()
                typing.cancel()
                await self._last_words(printed)
            return code
        finally:
            self._running.kill()
            self._drop_unread()

    def _drop_unread(self) -> None:
        """What nobody will read any more would keep its pipe open as long as anybody has the other end."""
        if self._stdin is not None and self._stdin.get_write_buffer_size():
            self._stdin.abort()

    async def _last_words(self, printed: list[asyncio.Task[None]]) -> None:
        with suppress(TimeoutError):
            async with self._clock.timeout(LAST_WORDS_SECONDS):
                await asyncio.wait(printed)
        for task in printed:
            task.cancel()

    async def _print(self, name: str, descriptor: int) -> None:
        reader = asyncio.StreamReader(limit=ONE_READ)
        end = FileIO(descriptor, "rb")  # the transport closes it
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), end)
        try:
            while piece := await reader.read(ONE_READ):
                await self._request.output(name, piece)
        finally:
            transport.close()

    async def _type(self) -> None:
        """What the command does not read any more is dropped."""
        if self._pipes.stdin is None or self._request.typed is None:
            return
        end = FileIO(self._pipes.stdin, "wb")
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, end)
        self._stdin = transport
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                async for piece in self._request.typed:
                    writer.write(piece)
                    await writer.drain()
        finally:
            transport.close()
            await _closed(self._request.typed)


async def _closed(typed: AsyncIterator[bytes]) -> None:
    """So that whoever types knows that nobody reads it any more."""
    close = getattr(typed, "aclose", None)
    if close is not None:
        await close()
