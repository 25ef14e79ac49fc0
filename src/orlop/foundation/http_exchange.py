"""One HTTP/1.1 exchange on one connection, over asyncio's streams: for trusted peers on unix sockets.

Both ends are here: heads are limited in size, bodies are read in pieces and written as chunks. After the exchange the
connection is closed, or belongs to the protocol it was upgraded to. Not here: keep-alive, compression, request bodies,
and timeouts, which callers add.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

LONGEST_HEAD: Final = 256 << 10
"""The buffer limit with which streams must be created."""
ONE_READ: Final = 64 << 10
LAST_CHUNK: Final = b"0\r\n\r\n"
_END: Final = b"\r\n\r\n"
_VERSION: Final = "HTTP/1.1"
_WORDS: Final = 3


class NotHttp(ConnectionError):
    """The data is not HTTP/1.1, or is incomplete."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A head. Header names are in lower case; repeated headers are joined with commas."""

    method: str
    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    status: int
    headers: Mapping[str, str]


# ---- reading ---------------------------------------------------------------------------------------------------------


async def read_request(reader: asyncio.StreamReader) -> RequestHead | None:
    """Read a request; None if the peer closed the connection without one."""
    lines = await _head_lines(reader)
    if lines is None:
        return None
    words = lines[0].split(" ")
    if len(words) != _WORDS or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise NotHttp("the first line is no request of HTTP/1.1")
    return RequestHead(words[0], words[1], _headers(lines[1:]))


async def read_answer(reader: asyncio.StreamReader) -> AnswerHead:
    lines = await _head_lines(reader)
    if lines is None:
        raise NotHttp("the connection was closed without an answer")
    words = lines[0].split(" ", 2)
    if len(words) < _WORDS - 1 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise NotHttp("the first line is no answer of HTTP/1.1")
    return AnswerHead(int(words[1]), _headers(lines[1:]))


async def _head_lines(reader: asyncio.StreamReader) -> list[str] | None:
    try:
        head = await reader.readuntil(_END)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise NotHttp("the connection was closed in the middle of a head") from None
    except asyncio.LimitOverrunError:
        raise NotHttp("the head is too long") from None
    return head[: -len(_END)].decode("latin-1").split("\r\n")


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise NotHttp("a header has no name, or no value")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


async def body_pieces(head: AnswerHead, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the body in pieces; raise `NotHttp` if it is incomplete."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        while size := await _chunk_size(reader):
            async for piece in _exactly(reader, size):
                yield piece
            await _line(reader)
        await _line(reader)
    elif "content-length" in head.headers:
        async for piece in _exactly(reader, _number(head.headers["content-length"], 10)):
            yield piece
    else:
        while piece := await reader.read(ONE_READ):
            yield piece


async def _exactly(reader: asyncio.StreamReader, count: int) -> AsyncIterator[bytes]:
    while count:
        piece = await reader.read(min(count, ONE_READ))
        if not piece:
            raise NotHttp("the body broke off")
        count -= len(piece)
        yield piece


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    return _number((await _line(reader)).partition(b";")[0].decode("latin-1"), 16)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n"))[:-2]
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise NotHttp("the body broke off") from None


def _number(text: str, base: int) -> int:
    if not text or not text.isalnum():
        raise NotHttp("a length is no number")
    try:
        return int(text, base)
    except ValueError:
        raise NotHttp("a length is no number") from None


# ---- writing ---------------------------------------------------------------------------------------------------------


def request_bytes(head: RequestHead) -> bytes:
    return _head_bytes(f"{head.method} {head.target} {_VERSION}", head.headers)


def answer_bytes(head: AnswerHead) -> bytes:
    return _head_bytes(f"{_VERSION} {head.status} {_phrase(head.status)}", head.headers)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _head_bytes(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a head cannot hold the end of a line")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
