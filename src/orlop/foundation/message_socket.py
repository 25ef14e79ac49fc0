"""Messages over a unix stream socket, with a kind, a length, and file descriptors (SCM_RIGHTS).

A frame is one byte for its kind, four for its length, and its body. Descriptors are sent with a frame's first byte;
the receiver owns them, and the kernel closes those beyond the agreed number. The receiver limits the length: a longer
frame ends the connection before any of it is read.

The blocking functions are for clients; `AsyncFrames` is for servers, on any event loop. There are no timeouts here: the
caller adds them.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

MOST_DESCRIPTORS: Final = 4
_HEADER: Final = struct.Struct(">BI")
_CREDENTIALS: Final = struct.Struct("=iii")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
_ONE_READ: Final = 1 << 20


class ConnectionEnded(OSError):
    """The peer closed the connection, or uses another protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message; the receiver must close its descriptors."""

    kind: int
    body: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """The process and user that connected, as the kernel recorded at that moment."""

    process: int
    user: int


def peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return Peer(process, user)


def encoded(kind: int, body: bytes | memoryview) -> bytes:
    return _HEADER.pack(kind, len(body)) + bytes(body)


# ---- a client, which blocks ------------------------------------------------------------------------------------------


def send_frame(connection: socket.socket, kind: int, body: bytes, descriptors: Sequence[int] = ()) -> None:
    data = memoryview(encoded(kind, body))
    sent = connection.sendmsg([data], _rights(descriptors))
    connection.sendall(data[sent:])


def receive_frame(connection: socket.socket, longest: int) -> Frame:
    arriving = _Arriving(longest)
    try:
        while not arriving.is_complete:
            arriving.take(connection)
    except BaseException:
        arriving.close_descriptors()
        raise
    return arriving.frame()


# ---- a server, which does not ----------------------------------------------------------------------------------------


class AsyncFrames:
    """One connection. At any time one task may receive and one may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._loop = asyncio.get_running_loop()

    async def receive(self, longest: int) -> Frame:
        arriving = _Arriving(longest)
        try:
            while not arriving.is_complete:
                try:
                    arriving.take(self._connection)
                except BlockingIOError:
                    await self._ready(self._loop.add_reader, self._loop.remove_reader)
        except BaseException:
            arriving.close_descriptors()
            raise
        return arriving.frame()

    async def send(self, kind: int, body: bytes, descriptors: Sequence[int] = ()) -> None:
        left, beside = memoryview(encoded(kind, body)), _rights(descriptors)
        while left:
            try:
                left = left[self._connection.sendmsg([left], beside) :]
                beside = []
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def until_it_ends(self) -> None:
        """Wait until the peer closes the connection, or its sending half."""
        while True:
            try:
                # No more data is expected: any that comes breaks the protocol, and ends the wait too.
                self._connection.recv(1)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError:
                return
            else:
                return

    async def _ready(self, watch: Callable[..., None], unwatch: Callable[[int], object]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        number = self._connection.fileno()
        watch(number, _set_ready, ready)
        try:
            await ready
        finally:
            unwatch(number)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


# ---- both ------------------------------------------------------------------------------------------------------------


class _Arriving:
    """A frame that is being received."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._header = bytearray()
        self._body = bytearray()
        self._kind = 0
        self._length: int | None = None
        self._descriptors: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self._length is not None and len(self._body) == self._length

    def take(self, connection: socket.socket) -> None:
        """Receive with one system call, and nothing of the next frame."""
        into, missing = self._next_part()
        data, ancillary, _flags, _address = connection.recvmsg(
            min(missing, _ONE_READ), _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        self._descriptors += _received(ancillary)
        if not data:
            raise ConnectionEnded("The peer has closed the connection.")
        if len(self._descriptors) > MOST_DESCRIPTORS:
            raise ConnectionEnded(f"More than {MOST_DESCRIPTORS} descriptors came with one message.")
        into += data
        if self._length is None and len(self._header) == _HEADER.size:
            self._read_header()

    def _next_part(self) -> tuple[bytearray, int]:
        if self._length is None:
            return self._header, _HEADER.size - len(self._header)
        return self._body, self._length - len(self._body)

    def _read_header(self) -> None:
        self._kind, self._length = _HEADER.unpack(self._header)
        if self._length > self._longest:
            raise ConnectionEnded(f"A message of {self._length} bytes came; at most {self._longest} are allowed.")

    def frame(self) -> Frame:
        return Frame(self._kind, bytes(self._body), tuple(self._descriptors))

    def close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]


def _received(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)
