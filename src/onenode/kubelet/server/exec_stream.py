"""One command inside a container, over one WebSocket: the transport of `kubectl exec`.

Order: the upgrade was answered → what the client types goes to the command and what the command prints to the client,
each as fast as the other side takes it → the command ends → its status on the channel of errors → a close → the client
closes too, or is given up. A client that leaves, breaks the protocol or closes ends the command.

Who types faster than the command reads is not read from meanwhile, so its pings are not either: as long as that lasts,
it is sent pongs unasked, which the protocol allows and clients count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from onenode.containers.container_request import Command, WindowSize
from onenode.kubelet.pods.container_runtime import ContainerRefused, RunningContainer
from onenode.kubelet.pods.exec_session import ExecCommand, WindowSizes, run_in_container
from onenode.kubelet.server import channel_rules as channels
from onenode.kubelet.server.channel_rules import ChannelReader, FromClient, Typed, TypedAll
from orlop.foundation import websocket_frames as frames
from orlop.foundation.clock import Clock
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.websocket_frames import Close, Opcode, Piece, Ping, WebSocketFrameReader, WebSocketProtocolError

ONE_READ: Final = 64 << 10
MOST_TYPED_PIECES: Final = 4
MOST_UNSENT_FOR_PONGS: Final = 256 << 10
UNASKED_PONG_SECONDS: Final = 5.0
FAREWELL_SECONDS: Final = 2.0
NUMBERS: Final = {"stdout": channels.STDOUT, "stderr": channels.STDERR}


@dataclass(frozen=True, slots=True)
class ExecWanted:
    container: RunningContainer
    command: Command
    protocol: str
    stdin: bool
    shown: frozenset[str]
    """Of stdout and stderr, those the client asked for."""
    has_terminal: bool = False


class _ClientLeft(Exception):
    """It is gone, or is to go, with this close."""

    def __init__(self, code: int | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code


class ExecStream:
    def __init__(
        self, wanted: ExecWanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, clock: Clock
    ) -> None:
        self._wanted = wanted
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._typed: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_TYPED_PIECES)
        self._typing_is_over = not wanted.stdin
        self._sizes = WindowSizes() if wanted.has_terminal else None
        self._room = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """To the end of the command, or of the client."""
        try:
            async with TaskGroup() as tasks:
                listening = tasks.start(self._listen(), name="what a client types")
                await self._say(channels.ERROR, await self._status())
                await self._farewell(listening)
        except _ClientLeft as left:
            if left.code is not None:
                self._writer.write(frames.close_frame(left.code, str(left)))
        except ConnectionError:
            return

    async def _status(self) -> bytes:
        typed = self._typed_pieces() if self._wanted.stdin else None
        request = ExecCommand(self._wanted.command, typed, self._print, self._sizes)
        try:
            code = await run_in_container(self._wanted.container, request, self._clock)
        except ContainerRefused as refusal:
            return channels.refused_status(str(refusal))
        return channels.ended_status(code)

    async def _farewell(self, listening: asyncio.Task[None]) -> None:
        self._ended.set()
        self._drop_typed()
        self._writer.write(frames.close_frame(frames.NORMAL))
        with suppress(TimeoutError):
            async with self._clock.timeout(FAREWELL_SECONDS):
                await asyncio.wait([listening])
        listening.cancel()

    # ---- to the client -----------------------------------------------------------------------------------------------

    async def _print(self, name: str, piece: bytes) -> None:
        if name in self._wanted.shown:
            await self._say(NUMBERS[name], piece)

    async def _say(self, channel: int, data: bytes) -> None:
        self._writer.write(frames.header(Opcode.BINARY, 1 + len(data)) + bytes([channel]))
        self._writer.write(data)
        await self._writer.drain()

    def _pong(self, data: bytes = b"") -> None:
        """Only the newest ping counts, so a client that does not read may miss some."""
        if self._writer.transport.get_write_buffer_size() < MOST_UNSENT_FOR_PONGS:
            self._writer.write(frames.pong_frame(data))

    # ---- from the client ---------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Returns when there is nothing to listen for any more; before the command's end that ends the command."""
        try:
            await self._hear_all()
        except _ClientLeft:
            if not self._ended.is_set():
                raise
        except ConnectionError:
            if not self._ended.is_set():
                raise _ClientLeft from None

    async def _hear_all(self) -> None:
        incoming, messages = WebSocketFrameReader(), ChannelReader(self._wanted.protocol)
        while data := await self._reader.read(ONE_READ):
            try:
                events = incoming.feed(data)
            except WebSocketProtocolError as error:
                raise _ClientLeft(error.code, str(error)) from None
            for event in events:
                match event:
                    case Piece():
                        await self._take(messages.take(event))
                    case Ping(payload):
                        self._pong(payload)
                    case Close():
                        raise _ClientLeft(frames.NORMAL)
        raise _ClientLeft

    async def _take(self, message: FromClient | None) -> None:
        match message:
            case Typed(data) if not self._typing_is_over:
                await self._put(data)
            case TypedAll() if not self._typing_is_over:
                self._typing_is_over = True
                await self._put(None)
            case WindowSize() if self._sizes is not None:
                self._sizes.put(message)

    async def _put(self, data: bytes | None) -> None:
        while True:
            if not self._typed.full():
                self._typed.put_nowait(data)
                return
            self._room.clear()
            try:
                async with self._clock.timeout(UNASKED_PONG_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                self._pong()
                if self._writer.transport.is_closing():  # noticed by writing: nobody reads just now
                    raise _ClientLeft from None

    async def _typed_pieces(self) -> AsyncGenerator[bytes, None]:
        """Closed when the command has closed its end; what is typed after that goes nowhere."""
        try:
            while (piece := await self._next_typed()) is not None:
                yield piece
        finally:
            self._drop_typed()

    async def _next_typed(self) -> bytes | None:
        piece = await self._typed.get()
        self._room.set()
        return piece

    def _drop_typed(self) -> None:
        self._typing_is_over = True
        while not self._typed.empty():
            self._typed.get_nowait()
        self._room.set()
