"""HTTP/2 as a client writes and reads it, byte by byte: made here apart from what is tested."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20


def frame(kind: int, payload: bytes = b"", *, stream: int = 0, flags: int = 0, claims: int | None = None) -> bytes:
    length = len(payload) if claims is None else claims
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, b"".join(struct.pack(">HL", *each) for each in values))


def window(increment: int, stream: int = 0) -> bytes:
    return frame(WINDOW, increment.to_bytes(4, "big"), stream=stream)


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST, code.to_bytes(4, "big"), stream=stream)


GREETING = PREFACE + settings()


def padded(payload: bytes, padding: int) -> bytes:
    return bytes([padding]) + payload + bytes(padding)


def message(payload: bytes, *, flag: int = 0, claims: int | None = None) -> bytes:
    """As gRPC wraps one."""
    return bytes([flag]) + (len(payload) if claims is None else claims).to_bytes(4, "big") + payload


def request_headers(path: str, *more: tuple[str, str], **changed: str | None) -> list[tuple[str, str]]:
    """What grpc-go sends; `changed` has names with underscores, and None leaves one out."""
    usual = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "user-agent": "grpc-go/1.82.1",
        "te": "trailers",
    }
    for name, value in changed.items():
        found = name.replace("_", "-")
        found = f":{found}" if f":{found}" in usual else found
        if value is None:
            usual.pop(found)
        else:
            usual[found] = value
    return [*usual.items(), *more]


def request(stream: int, path: str, payload: bytes = b"", **changed: str | None) -> bytes:
    """A whole call, its headers as literals."""
    return headers_frame(stream, request_headers(path, **changed)) + data(stream, message(payload), ends=True)


def headers_frame(stream: int, headers: Iterable[tuple[str, str]], *, ends: bool = False) -> bytes:
    block = hpack.Encoder().encode([(name, value, True) for name, value in headers])
    return frame(HEADERS, block, stream=stream, flags=END_HEADERS | (END_STREAM if ends else 0))


def data(stream: int, payload: bytes, *, ends: bool = False) -> bytes:
    return frame(DATA, payload, stream=stream, flags=END_STREAM if ends else 0)


class Answers:
    """What a server sent, frame by frame."""

    def __init__(self) -> None:
        self._unread = b""
        self._decoder = hpack.Decoder()

    def read(self, received: bytes) -> Iterator[tuple[int, int, int, Any]]:
        """Kind, flags, stream, and the payload: headers as a mapping."""
        self._unread += received
        while len(self._unread) >= 9:
            length = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + length:
                return
            kind, flags = self._unread[3], self._unread[4]
            stream = int.from_bytes(self._unread[5:9], "big")
            payload: Any = self._unread[9 : 9 + length]
            self._unread = self._unread[9 + length :]
            if kind == HEADERS:
                payload = dict(self._decoder.decode(payload))
            yield kind, flags, stream, payload
