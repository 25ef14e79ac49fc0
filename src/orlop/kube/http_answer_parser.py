"""An answer of HTTP/1.1, read from whatever pieces it arrives in. Pure: bytes in, a head and a body out.

Everything is untrusted: what is no HTTP raises `NotHttp`, and what is too long is not kept. Compression is not here, as
nobody asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LONGEST_HEAD: Final = 2**18
"""Warnings of what a server passed over may be many times the usual few hundred bytes."""
LONGEST_CHUNK_LINE: Final = 2**12
FIRST_FINAL: Final = 200
SWITCHING: Final = 101
WITHOUT_BODY: Final = frozenset((204, 304))
_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,15}")
_LENGTH: Final = re.compile(r"[0-9]{1,15}")


class NotHttp(ConnectionError):
    """What came is no HTTP/1.1, or not all of it came."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Names of headers are in lower case; what came more than once is one list, as HTTP has it."""

    status: int
    headers: Mapping[str, str]
    keeps_connection: bool


class AnswerParser:
    """Of one answer. What `feed` has made of the body so far is handed out by `take_body`, once."""

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
        self.head: AnswerHead | None = None
        self.is_bodiless = False
        """Whether a HEAD is answered: what it says of a body is of one that does not come."""
        self.is_over = False
        self.is_surplus = False
        """Whether more came than the answer: nobody knows what that belongs to."""
        self.held = 0
        """Bytes of the body that nobody has taken."""
        self._rest = b""
        self._pieces: list[bytes] = []
        self._left = 0
        self._chunk_end = self._trailers = False
        self._read = self._read_head

    def feed(self, data: bytes) -> None:
        """Raises `NotHttp`; nothing is to be fed after that."""
        if self.is_over:
            self.is_surplus = True
            return
        self._read(self._rest + data if self._rest else data)

    def end(self) -> None:
        """The connection has ended: raises `NotHttp` where the answer has not."""
        if self.head is not None and self._read == self._read_until_end:
            self.is_over = True
        if not self.is_over:
            raise NotHttp("it ended before the answer did")

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
                raise NotHttp(f"the head of the answer has more than {LONGEST_HEAD} bytes")
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
        """One that announces another."""
        if status == SWITCHING:
            raise NotHttp("the server changes to a protocol that nobody asked for")
        if rest:
            self._read_head(rest)

    def _begin_body(self, head: AnswerHead) -> None:
        headers = head.headers
        if self.is_bodiless or head.status in WITHOUT_BODY:
            self.is_over = True
        elif (coding := headers.get("transfer-encoding")) is not None:
            if coding.lower() != "chunked":
                raise NotHttp(f"the answer is encoded as {coding!r}, which nobody asked for")
            self._read = self._read_chunks
        elif (length := headers.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise NotHttp(f"the length of the answer is no number: {length!r}")
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
        """The rest of a chunk, then line after line and what they announce, as far as it has come."""
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
            raise NotHttp("a line between the chunks of the answer does not end")

    def _take_line(self, line: bytes) -> None:
        if self._chunk_end:
            if line:
                raise NotHttp("a chunk of the answer is longer than it was said to be")
            self._chunk_end = False
        elif self._trailers:
            self.is_over = not line
        else:
            size = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(size):
                raise NotHttp("a chunk of the answer has no size")
            self._left = int(size, 16)
            self._trailers = not self._left

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.held += len(piece)


def _head_of(data: bytes) -> AnswerHead:
    first, *lines = data.decode("utf-8", "surrogateescape").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise NotHttp("the first line of the answer is none of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise NotHttp("a header of the answer is none")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return AnswerHead(int(found[2]), headers, _keeps(headers, is_old=found[1] == "0"))


def _keeps(headers: Mapping[str, str], *, is_old: bool) -> bool:
    if "transfer-encoding" in headers and "content-length" in headers:
        return False  # two who disagree about it read different answers
    said = headers.get("connection", "").lower()
    return "keep-alive" in said if is_old else "close" not in said
