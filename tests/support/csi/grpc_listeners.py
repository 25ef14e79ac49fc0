"""The gRPC server on a socket, with a handler of many moods, and clients of it: grpcio, and bare bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import Code, NotFound
from orlop.csi.grpc.grpc_server import GrpcListener
from orlop.csi.transport import Shape
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import line_log
from support.csi.grpcio_client import GrpcioConnection
from support.csi.http2_bytes import END_STREAM, GREETING, HEADERS, Answers

ECHO, LARGE, WAIT, BREAK, COUNT = "/t.T/Echo", "/t.T/Large", "/t.T/Wait", "/t.T/Break", "/t.T/Count"


class Handler:
    """Of methods that do what they are called."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = 0
        self.left = 0
        self.counted = 0
        self.error: BaseException = NotFound("gone")

    def shape_of(self, path: str) -> Shape | None:
        if path == COUNT:
            return Shape.STREAMING
        return Shape.UNARY if path in {ECHO, LARGE, WAIT, BREAK} else None

    async def answer(self, path: str, message: bytes) -> bytes:
        if path == LARGE:
            return bytes(int(message))
        if path == BREAK:
            raise self.error
        if path == WAIT:
            await self._wait()
        return message

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.waiting -= 1

    async def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.counted += 1
                yield b"%d " % self.counted * int(message)
                await asyncio.sleep(0)
        finally:
            self.left += 1


class Served:
    """A listener on a socket, and clients of it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "t.sock")
        self.handler = Handler()
        self.lines: list[str] = []
        self.listener = GrpcListener(self.handler, line_log(self.lines.append, now=SystemClock().now))

    async def listen(self) -> None:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(self.path)
        await self.listener.listen(bound)

    @asynccontextmanager
    async def grpcio(self) -> AsyncIterator[GrpcioConnection]:
        client = GrpcioConnection(UnixEndpoint(self.path))
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def raw(self, greeting: bytes = GREETING) -> AsyncIterator[Raw]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        try:
            writer.write(greeting)
            yield Raw(reader, writer)
        finally:
            writer.transport.abort()


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames: list[tuple[int, int, int, Any]] = []
        self._answers = Answers()

    def say(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    async def hear(self, kind: int, *, flags: int = 0) -> tuple[int, int, int, Any]:
        """The next frame of a kind."""
        while True:
            for place, each in enumerate(self.frames):
                if each[0] == kind and each[1] & flags == flags:
                    del self.frames[: place + 1]
                    return each
            received = await self.reader.read(1 << 16)
            assert received, "the connection was closed"
            self.frames.extend(self._answers.read(received))

    async def status(self) -> Code:
        return Code(int((await self.hear(HEADERS, flags=END_STREAM))[3]["grpc-status"]))

    async def until_closed(self) -> list[tuple[int, int, int, Any]]:
        with suppress(ConnectionError):
            while received := await self.reader.read(1 << 16):
                self.frames.extend(self._answers.read(received))
        return self.frames
