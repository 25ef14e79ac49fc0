"""WebSocket frames (RFC 6455) for a server: bytes in, events out. Pure.

A message is reported in pieces as its bytes arrive. Only the beginning of a header and a control frame are buffered, so
a length that a client announces reserves nothing. Bytes that break the protocol raise `WebSocketProtocolError`, with
the code and reason for the client; nothing is read after it, nor after a close. Text and extensions are not supported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

KEY_BYTES: Final = 16
MOST_CONTROL_BYTES: Final = 125
LONGEST_REASON: Final = MOST_CONTROL_BYTES - 2
NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED, INTERNAL_ERROR = 1000, 1001, 1002, 1003, 1011
NO_CODE: Final = 1005
_HANDSHAKE: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FIN, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_SHORT_LENGTH, _LONG_LENGTH = 126, 127
_TWO_BYTES: Final = 1 << 16
_CONTROL: Final = 0x8
_HEADER, _MASK = 2, 4


class Opcode(IntEnum):
    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


class WebSocketProtocolError(ValueError):
    """A client broke the protocol, or uses a feature that is not supported."""

    def __init__(self, sentence: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(sentence)
        self.code = code


# ---- what comes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a binary message, which may be empty."""

    data: bytes
    begins: bool
    ends: bool


@dataclass(frozen=True, slots=True)
class Ping:
    data: bytes


@dataclass(frozen=True, slots=True)
class Pong:
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    code: int


WebSocketEvent: TypeAlias = Piece | Ping | Pong | Close


@dataclass(slots=True)
class _Frame:
    """The frame that is being read."""

    opcode: Opcode
    last: bool
    begins: bool
    mask: bytes
    left: int


class WebSocketFrameReader:
    """The reader of one connection."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._frame: _Frame | None = None
        self._in_message = False
        self._closed = False

    def feed(self, data: bytes) -> list[WebSocketEvent]:
        """Return the events in these bytes and those fed before."""
        self._unread += data
        events: list[WebSocketEvent] = []
        while not self._closed and (event := self._next()) is not None:
            events.append(event)
        if self._closed:
            self._unread.clear()
        return events

    def _next(self) -> WebSocketEvent | None:
        if self._frame is None:
            self._frame = self._header()
        if self._frame is None:
            return None
        return self._control(self._frame) if self._frame.opcode & _CONTROL else self._piece(self._frame)

    def _piece(self, frame: _Frame) -> WebSocketEvent | None:
        if frame.left and not self._unread:
            return None
        data = self._taken(frame, min(frame.left, len(self._unread)))
        ends_frame = not frame.left
        piece = Piece(data, frame.begins, ends_frame and frame.last)
        frame.begins = False
        if ends_frame:
            self._frame, self._in_message = None, not frame.last
        return piece

    def _control(self, frame: _Frame) -> WebSocketEvent | None:
        if len(self._unread) < frame.left:
            return None
        data = self._taken(frame, frame.left)
        self._frame = None
        if frame.opcode is Opcode.PING:
            return Ping(data)
        if frame.opcode is Opcode.PONG:
            return Pong(data)
        self._closed = True
        return Close(_close_code(data))

    def _taken(self, frame: _Frame, count: int) -> bytes:
        data = _unmasked(bytes(self._unread[:count]), frame.mask)
        del self._unread[:count]
        turn = count % _MASK
        frame.mask = frame.mask[turn:] + frame.mask[:turn]
        frame.left -= count
        return data

    # ---- headers -----------------------------------------------------------------------------------------------------

    def _header(self) -> _Frame | None:
        if len(self._unread) < _HEADER:
            return None
        first, second = self._unread[0], self._unread[1]
        opcode = self._opcode(first)
        if not second & _MASKED:
            raise WebSocketProtocolError("a frame of a client must be masked")
        short = second & _LENGTH
        if opcode & _CONTROL and (short > MOST_CONTROL_BYTES or not first & _FIN):
            raise WebSocketProtocolError("a control frame has at most 125 bytes and is not fragmented")
        more = {_SHORT_LENGTH: 2, _LONG_LENGTH: 8}.get(short, 0)
        size = _HEADER + more + _MASK
        if len(self._unread) < size:
            return None
        length = int.from_bytes(self._unread[_HEADER : _HEADER + more], "big") if more else short
        if length >> 63:
            raise WebSocketProtocolError("no frame is so long")
        mask = bytes(self._unread[size - _MASK : size])
        del self._unread[:size]
        return _Frame(opcode, bool(first & _FIN), opcode is not Opcode.CONTINUATION, mask, length)

    def _opcode(self, first: int) -> Opcode:
        if first & _RESERVED:
            raise WebSocketProtocolError("no extension was agreed upon")
        try:
            opcode = Opcode(first & _OPCODE)
        except ValueError:
            raise WebSocketProtocolError(f"there is no opcode {first & _OPCODE}") from None
        if opcode is Opcode.TEXT:
            raise WebSocketProtocolError("messages here are binary", UNSUPPORTED)
        if opcode is Opcode.CONTINUATION and not self._in_message:
            raise WebSocketProtocolError("there is no message to continue")
        if opcode is Opcode.BINARY and self._in_message:
            raise WebSocketProtocolError("a message begins inside of another")
        return opcode


def _unmasked(data: bytes, mask: bytes) -> bytes:
    """Unmask the payload, as one large integer: the fastest method in pure Python."""
    count = len(data)
    key = (mask * (count // _MASK + 1))[:count]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(count, "little")


def _close_code(data: bytes) -> int:
    if len(data) == 1:
        raise WebSocketProtocolError("a close has a code of two bytes, or none")
    return int.from_bytes(data[:2], "big") if data else NO_CODE


# ---- what is sent ----------------------------------------------------------------------------------------------------


def header(opcode: Opcode, length: int) -> bytes:
    """Return the header of a message in one frame; the payload follows unmasked."""
    first = _FIN | opcode
    if length < _SHORT_LENGTH:
        return struct.pack(">BB", first, length)
    if length < _TWO_BYTES:
        return struct.pack(">BBH", first, _SHORT_LENGTH, length)
    return struct.pack(">BBQ", first, _LONG_LENGTH, length)


def close_frame(code: int, reason: str = "") -> bytes:
    text = reason.encode()[:LONGEST_REASON].decode(errors="ignore").encode()
    return header(Opcode.CLOSE, 2 + len(text)) + code.to_bytes(2, "big") + text


def pong_frame(data: bytes = b"") -> bytes:
    return header(Opcode.PONG, len(data)) + data


# ---- the handshake ---------------------------------------------------------------------------------------------------


def accept_for(key: str) -> str | None:
    """Return `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`, or None if the key is not valid."""
    try:
        decoded = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(decoded) != KEY_BYTES:
        return None
    return base64.b64encode(hashlib.sha1(key.encode() + _HANDSHAKE, usedforsecurity=False).digest()).decode()
