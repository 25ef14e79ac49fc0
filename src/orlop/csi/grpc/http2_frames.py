"""HTTP/2 frames (RFC 9113), for client and server: bytes in, events out. Pure.

All input is untrusted. A frame is reported when it is complete; the longest allowed has 16 KiB, so that is the most
that is buffered, and a length that is only announced reserves nothing. A block of headers is reported when it is
complete too, and has its own limit. Bytes that break the protocol raise `Http2ProtocolError` with the code to send to
the peer, after the events before them; nothing can be read after that.

This module does not know which streams are open, or what headers mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_FRAME: Final = 16_384
"""HTTP/2's default, which our settings do not change."""
LONGEST_BLOCK: Final = 16 << 10
MOST_CONTINUATIONS: Final = 8
"""More than the longest block needs; more frames than this are an attack."""
LARGEST_WINDOW: Final = (1 << 31) - 1
_LARGEST_FRAME_OF_ALL: Final = (1 << 24) - 1
_STREAM_BITS: Final = (1 << 31) - 1
_HEADER: Final = struct.Struct(">HBBBL")
_SETTING: Final = struct.Struct(">HL")
_TWO_NUMBERS: Final = struct.Struct(">LL")
_PRIORITY_BYTES, _PING_BYTES, _GOAWAY_BYTES, _NUMBER_BYTES = 5, 8, 8, 4

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20


class ErrorCode(IntEnum):
    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class Http2ProtocolError(ValueError):
    """A peer broke the protocol; its connection is closed with `code`."""

    def __init__(self, sentence: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
        super().__init__(sentence)
        self.code = code


# ---- what comes ------------------------------------------------------------------------------------------------------


class Headers(NamedTuple):
    stream: int
    block: bytes
    ends_stream: bool


class Data(NamedTuple):
    """`size` counts against the windows: it includes the padding."""

    stream: int
    data: bytes
    size: int
    ends_stream: bool


class SettingsFrame(NamedTuple):
    values: Mapping[int, int]


class SettingsAck(NamedTuple):
    """The peer applied our settings."""


class WindowUpdate(NamedTuple):
    """Stream 0 is the connection."""

    stream: int
    increment: int


class Ping(NamedTuple):
    data: bytes
    ack: bool


class Reset(NamedTuple):
    stream: int
    code: int


class GoAway(NamedTuple):
    """`last_stream` is the last one that the peer will process."""

    code: int
    last_stream: int = 0


class Ignored(NamedTuple):
    """A priority, or a frame of an unknown kind."""

    kind: int


FrameEvent: TypeAlias = Headers | Data | SettingsFrame | SettingsAck | WindowUpdate | Ping | Reset | GoAway | Ignored


class Http2FrameReader:
    """Reads the frames of one connection, from its first byte on."""

    def __init__(self, *, expects_preface: bool = True) -> None:
        """`expects_preface`: the peer is a client, which begins with one."""
        self._unread = b""
        self._preface_read = not expects_preface
        self._settings_read = False
        self._block: _Block | None = None

    @property
    def greeted(self) -> bool:
        """Return whether the peer has sent its first SETTINGS frame."""
        return self._settings_read

    def feed(self, data: bytes) -> Iterator[FrameEvent]:
        """Yield the events in these bytes and those fed before. The iterator must be exhausted."""
        unread = self._unread + data if self._unread else data
        at = 0 if self._preface_read else self._read_preface(unread)
        while self._preface_read and len(unread) - at >= _HEADER.size:
            high, low, kind, flags, stream = _HEADER.unpack_from(unread, at)
            begin = at + _HEADER.size
            end = begin + self._checked_length(high << 8 | low, kind, flags)
            if len(unread) < end:
                break
            at = end
            event = self._event(kind, flags, stream & _STREAM_BITS, unread[begin:end])
            if event is not None:
                yield event
        self._unread = unread[at:]

    def _read_preface(self, unread: bytes) -> int:
        if not unread.startswith(PREFACE[: len(unread)]):
            raise Http2ProtocolError("this is no HTTP/2")
        self._preface_read = len(unread) >= len(PREFACE)
        return len(PREFACE) if self._preface_read else 0

    def _checked_length(self, length: int, kind: int, flags: int) -> int:
        """Return the length of a frame. Raises before its payload is buffered."""
        if not self._settings_read and (kind != SETTINGS or flags & ACK):
            raise Http2ProtocolError("settings come first")
        if length > LARGEST_FRAME:
            raise Http2ProtocolError(f"a frame has at most {LARGEST_FRAME} bytes", ErrorCode.FRAME_SIZE_ERROR)
        if self._block is not None and kind != CONTINUATION:
            raise Http2ProtocolError("headers that are not complete are followed by nothing but the rest of them")
        return length

    def _event(self, kind: int, flags: int, stream: int, payload: bytes) -> FrameEvent | None:
        if kind == DATA:
            return _data(flags, stream, payload)
        if kind == HEADERS:
            return self._headers(flags, stream, payload)
        if kind == CONTINUATION:
            return self._continuation(flags, stream, payload)
        if kind == SETTINGS:
            self._settings_read = True
        read = _OTHERS.get(kind)
        return Ignored(kind) if read is None else read(flags, stream, payload)

    def _headers(self, flags: int, stream: int, payload: bytes) -> FrameEvent | None:
        _must_have_stream(stream, "headers")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise Http2ProtocolError("headers are too short for their priority", ErrorCode.FRAME_SIZE_ERROR)
            payload = payload[_PRIORITY_BYTES:]
        ends_stream = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            return Headers(stream, payload, ends_stream)
        self._block = _Block(stream, payload, ends_stream)
        return None

    def _continuation(self, flags: int, stream: int, payload: bytes) -> FrameEvent | None:
        if self._block is None or self._block.stream != stream:
            raise Http2ProtocolError("there are no headers to continue")
        self._block.add(payload)
        if not flags & END_HEADERS:
            return None
        block, self._block = self._block, None
        return Headers(stream, block.data, block.ends_stream)


class _Block:
    """Headers that a CONTINUATION frame must complete."""

    def __init__(self, stream: int, data: bytes, ends_stream: bool) -> None:  # noqa: FBT001 - a frame's flag
        self.stream = stream
        self.data = data
        self.ends_stream = ends_stream
        self._continuations = 0

    def add(self, data: bytes) -> None:
        self._continuations += 1
        self.data += data
        if len(self.data) > LONGEST_BLOCK or self._continuations > MOST_CONTINUATIONS:
            raise Http2ProtocolError("the headers are too long", ErrorCode.ENHANCE_YOUR_CALM)


def _data(flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_have_stream(stream, "data")
    data = _without_padding(payload) if flags & PADDED else payload
    return Data(stream, data, len(payload), bool(flags & END_STREAM))


def _without_padding(payload: bytes) -> bytes:
    if not payload:
        raise Http2ProtocolError("the length of the padding is missing", ErrorCode.FRAME_SIZE_ERROR)
    padding = payload[0]
    if padding >= len(payload):
        raise Http2ProtocolError("there is more padding than frame")
    return payload[1 : len(payload) - padding]


def _settings(flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_be_of_connection(stream, "settings")
    if flags & ACK:
        _must_have_size(payload, 0, "an acknowledgement of settings")
        return SettingsAck()
    if len(payload) % _SETTING.size:
        raise Http2ProtocolError("settings have six bytes each", ErrorCode.FRAME_SIZE_ERROR)
    values = dict(_SETTING.iter_unpack(payload))
    if values.get(Setting.ENABLE_PUSH, 0) > 1:
        raise Http2ProtocolError("pushing is on or off")
    if values.get(Setting.INITIAL_WINDOW_SIZE, 0) > LARGEST_WINDOW:
        raise Http2ProtocolError("no window is so large", ErrorCode.FLOW_CONTROL_ERROR)
    if not LARGEST_FRAME <= values.get(Setting.MAX_FRAME_SIZE, LARGEST_FRAME) <= _LARGEST_FRAME_OF_ALL:
        raise Http2ProtocolError("frames cannot be of this size")
    return SettingsFrame(values)


def _ping(flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_be_of_connection(stream, "a ping")
    _must_have_size(payload, _PING_BYTES, "a ping")
    return Ping(payload, bool(flags & ACK))


def _window_update(_flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_have_size(payload, _NUMBER_BYTES, "a window update")
    increment = int.from_bytes(payload, "big") & _STREAM_BITS
    if not increment:
        raise Http2ProtocolError("a window that grows by nothing")
    return WindowUpdate(stream, increment)


def _reset(_flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_have_stream(stream, "a reset")
    _must_have_size(payload, _NUMBER_BYTES, "a reset")
    return Reset(stream, int.from_bytes(payload, "big"))


def _go_away(_flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_be_of_connection(stream, "a farewell")
    if len(payload) < _GOAWAY_BYTES:
        raise Http2ProtocolError("a farewell is too short", ErrorCode.FRAME_SIZE_ERROR)
    last_stream, code = _TWO_NUMBERS.unpack_from(payload)
    return GoAway(code, last_stream & _STREAM_BITS)


def _priority(_flags: int, stream: int, payload: bytes) -> FrameEvent:
    _must_have_stream(stream, "a priority")
    _must_have_size(payload, _PRIORITY_BYTES, "a priority")
    return Ignored(PRIORITY)


def _push_promise(_flags: int, _stream: int, _payload: bytes) -> FrameEvent:
    raise Http2ProtocolError("nothing is to be pushed")


_OTHERS: Final[Mapping[int, Callable[[int, int, bytes], FrameEvent]]] = {
    PRIORITY: _priority,
    RST_STREAM: _reset,
    SETTINGS: _settings,
    PUSH_PROMISE: _push_promise,
    PING: _ping,
    GOAWAY: _go_away,
    WINDOW_UPDATE: _window_update,
}


def _must_have_stream(stream: int, what: str) -> None:
    if not stream:
        raise Http2ProtocolError(f"{what} must belong to a stream")


def _must_be_of_connection(stream: int, what: str) -> None:
    if stream:
        raise Http2ProtocolError(f"{what} cannot belong to a stream")


def _must_have_size(payload: bytes, size: int, what: str) -> None:
    if len(payload) != size:
        raise Http2ProtocolError(f"{what} has {size} bytes", ErrorCode.FRAME_SIZE_ERROR)


# ---- what is sent ----------------------------------------------------------------------------------------------------


def header(kind: int, flags: int, stream: int, length: int) -> bytes:
    """Return the header of a frame; the caller appends the payload."""
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return header(kind, flags, stream, len(payload)) + payload


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")


def ping_ack(data: bytes) -> bytes:
    return frame(PING, ACK, 0, data)


def reset_frame(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, code.to_bytes(_NUMBER_BYTES, "big"))


def window_update_frame(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(_NUMBER_BYTES, "big"))


def go_away_frame(last_stream: int, code: ErrorCode, sentence: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_NUMBERS.pack(last_stream, code) + sentence.encode())
