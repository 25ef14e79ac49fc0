"""Parse an HTTP/1.1 response from the pieces in which it arrives. Pure: bytes in, a head and a body out.

All input is untrusted: what is not HTTP raises `InvalidResponse`, and lengths are limited. There is no decompression,
because we never ask for compressed responses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LONGEST_HEAD: Final = 2**18
"""Warning headers about unknown fields may be many times longer than the usual few hundred bytes."""
LONGEST_CHUNK_LINE: Final = 2**12
FIRST_FINAL: Final = 200
SWITCHING: Final = 101
WITHOUT_BODY: Final = frozenset((204, 304))
_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,15}")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")


class InvalidResponse(ConnectionError):
    """The data is not HTTP/1.1, or is incomplete."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of a response. Header names are in lower case; repeated headers are joined with commas."""

    status: int
    headers: Mapping[str, str]
    keeps_connection: bool


class AnswerParser:
    """The parser of one response. `take_body` returns what `feed` has parsed of the body since the last call."""

    __slots__ = (
        "_chunk_end",
        "_left",
        "_pieces",
        "_read",
        "_rest",
        "_trailers",
        "head",
        "held",
        "is_bodiless",
        "is_over",
        "is_surplus",
    )

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.is_bodiless = False
        """Whether this is the response to a HEAD request, which has no body whatever its headers say."""
        self.is_over = False
        self.is_surplus = False
        """Whether data followed the response; nobody knows what it belongs to."""
        self.held = 0
        """Bytes of the body that were not taken yet."""
        self._rest = b""
        self._pieces: list[bytes] = []
        self._left = 0
        self._chunk_end = self._trailers = False
        self._read = self._read_head

    def feed(self, data: bytes) -> None:
        """Parse more data. Raise `InvalidResponse`; feed nothing after that."""
        if self.is_over:
            self.is_surplus = True
            return
        self._read(self._rest + data if self._rest else data)

    def end(self) -> None:
        """Handle the end of the connection; raise `InvalidResponse` if the response is incomplete."""
        if self.head is not None and self._read == self._read_until_end:
            self.is_over = True
        if not self.is_over:
            raise InvalidResponse("it ended before the response was complete")

    def take_body(self) -> bytes:
        pieces = self._pieces
        self.held = 0
        if len(pieces) == 1:
            return pieces.pop()
        body = b"".join(pieces)
        pieces.clear()
        return body

    # ---- the head ------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        end = data.find(_END)
        if end < 0:
            if len(data) > LONGEST_HEAD:
                raise InvalidResponse(f"the head of the answer has more than {LONGEST_HEAD} bytes")
            self._rest = data
            return
        self._rest = b""
        head = _head_of(data[:end])
        body = data[end + len(_END) :]
        if head.status < FIRST_FINAL:
            self._skip(head.status, body)
            return
        self.head = head
        self._begin_body(head)
        if body:
            self.feed(body)

    def _skip(self, status: int, rest: bytes) -> None:
        """Handle an interim (1xx) response, which another one follows."""
        if status == SWITCHING:
            raise InvalidResponse("the server changes to a protocol that nobody asked for")
        if rest:
            self._read_head(rest)

    def _begin_body(self, head: ResponseHead) -> None:
        headers = head.headers
        if self.is_bodiless or head.status in WITHOUT_BODY:
            self.is_over = True
        elif (coding := headers.get("transfer-encoding")) is not None:
            if coding.lower() != "chunked":
                raise InvalidResponse(f"the answer is encoded as {coding!r}, which nobody asked for")
            self._read = self._read_chunks
        elif (length := headers.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise InvalidResponse(f"the length of the answer is no number: {length!r}")
            self._left = int(length)
            self.is_over = not self._left
            self._read = self._read_fixed
        else:
            self._read = self._read_until_end

    # ---- the body ------------------------------------------------------------------------------------------------

    def _read_fixed(self, data: bytes) -> None:
        mine = data if len(data) <= self._left else data[: self._left]
        self._keep(mine)
        self._left -= len(mine)
        self.is_over = not self._left
        self.is_surplus = len(mine) < len(data)

    def _read_until_end(self, data: bytes) -> None:
        self._keep(data)

    def _read_chunks(self, data: bytes) -> None:
        """Parse chunks, as far as they have arrived."""
        place = 0
        while place < len(data) and not self.is_over:
            if self._left:
                piece = data[place : place + self._left]
                self._keep(piece)
                self._left -= len(piece)
                self._chunk_end = not self._left
                place += len(piece)
                continue
            end = data.find(_LINE_END, place)
            if end < 0:
                break
            self._take_line(data[place:end])
            place = end + len(_LINE_END)
        self._rest = data[place:]
        if self.is_over:
            self.is_surplus, self._rest = bool(self._rest), b""
        elif len(self._rest) > LONGEST_CHUNK_LINE:
            raise InvalidResponse("a line between the chunks of the answer does not end")

    def _take_line(self, line: bytes) -> None:
        if self._chunk_end:
            if line:
                raise InvalidResponse("a chunk of the response is longer than its announced length")
            self._chunk_end = False
        elif self._trailers:
            self.is_over = not line
        else:
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size):
                raise InvalidResponse("a chunk of the answer has no size")
            self._left = int(size, 16)
            self._trailers = not self._left

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)


def _head_of(data: bytes) -> ResponseHead:
    first, *lines = data.decode("utf-8", "surrogateescape").split("\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise InvalidResponse("the first line of the response is not a status line of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise InvalidResponse("a header line of the response has no valid name")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return ResponseHead(int(status_line[2]), headers, _keeps(headers, is_old=status_line[1] == "0"))


def _keeps(headers: Mapping[str, str], *, is_old: bool) -> bool:
    if "transfer-encoding" in headers and "content-length" in headers:
        return False  # Conflicting lengths: two readers would see different responses (request smuggling).
    connection = headers.get("connection", "").lower()
    return "keep-alive" in connection if is_old else "close" not in connection
