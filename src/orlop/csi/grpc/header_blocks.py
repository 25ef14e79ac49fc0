"""HPACK: headers as they come, and those that we send, which are constants but for a time. The only one with hpack.

What comes is read by the library, which keeps the table that a client builds up; here are the limits, and a short way
for what everybody sends from its second call on: references to that table of one byte each, and short values.

What is sent refers to nothing that could change: no table is kept for it. A client that wants ours to be smaller than
the 4096 bytes everybody begins with must get one update about it: `TABLE_GIVEN_UP` before the next block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes

import hpack
from hpack.huffman_table import decode_huffman

from orlop.csi.error_codes import Code, CsiError
from orlop.csi.grpc.http2_frames import LONGEST_BLOCK, ErrorCode, Http2ProtocolError

TABLE_BYTES: Final = 4096
"""Of either side's table, as long as nobody asks for another."""
LARGEST_HEADER_LIST: Final = LONGEST_BLOCK
ENTRY_OVERHEAD: Final = 32
"""What an entry counts besides its name and its value (RFC 7541, 4.1)."""
LONGEST_MESSAGE: Final = 7 << 10
"""Of an error, in its encoded form: clients take blocks of 8 KiB."""
TABLE_GIVEN_UP: Final = b"\x20"

_INDEXED, _LONG_INDEX, _LITERAL, _LONG_NAME, _SIZE_UPDATE = 0x80, 0xFF, 0x40, 0x7F, 0x20
_HUFFMAN, _SEVEN_BITS = 0x80, 0x7F
_UNKEPT: Final = frozenset((0x00, 0x10))
"""What is spelled out and kept in no table, as we send it ourselves."""

Fields = Sequence[tuple[bytes, bytes]]


class HeaderReader:
    """Of one connection: each block must be read, in order, also those of calls that are refused."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(LARGEST_HEADER_LIST)
        self._decoder.max_allowed_table_size = TABLE_BYTES

    def read(self, block: bytes) -> Fields:
        try:
            fields, at = self._known(block)
            if at < len(block):
                fields.extend(self._decoded(block, at))
        except hpack.OversizedHeaderListError:
            raise _too_large() from None
        except hpack.HPACKError:  # which would quote them
            raise Http2ProtocolError("the headers cannot be read", ErrorCode.COMPRESSION_ERROR) from None
        return fields

    def _known(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int]:
        """The short fields that the block begins with, and how many bytes they take."""
        table = self._decoder.header_table
        fields: list[tuple[bytes, bytes]] = []
        at = size = 0
        while at < len(block):
            byte = block[at]
            if _INDEXED <= byte < _LONG_INDEX:
                field = table.get_by_index(byte ^ _INDEXED)
                at += 1
            elif _LITERAL < byte < _LONG_NAME and (value_ends := _end_of_text(block, at + 1)):
                field = table.get_by_index(byte ^ _LITERAL)[0], _read_text(block[at + 1 : value_ends])
                table.add(*field)
                at = value_ends
            elif byte in _UNKEPT and (name_ends := _end_of_text(block, at + 1)):
                if not (value_ends := _end_of_text(block, name_ends)):
                    break
                field = _read_text(block[at + 1 : name_ends]), _read_text(block[name_ends:value_ends])
                at = value_ends
            else:
                break
            fields.append(field)
            # A byte can stand for the whole of the table, so the limit is on what it says.
            size += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
            if size > LARGEST_HEADER_LIST:
                raise _too_large()
        return fields, at

    def _decoded(self, block: bytes, at: int) -> Fields:
        if at and block[at] & (_INDEXED | _LITERAL | _SIZE_UPDATE) == _SIZE_UPDATE:
            raise Http2ProtocolError("the size of the table changes within headers", ErrorCode.COMPRESSION_ERROR)
        return self._decoder.decode(block[at:], raw=True)  # type: ignore[return-value]  # raw: they are bytes


def _end_of_text(block: bytes, at: int) -> int:
    """0 where the text is not as short as most are, or not all there."""
    if at >= len(block):
        return 0
    length = block[at] & _SEVEN_BITS
    end = at + 1 + length
    return end if length < _SEVEN_BITS and end <= len(block) else 0


def _read_text(text: bytes) -> bytes:
    return decode_huffman(text[1:]) if text[0] & _HUFFMAN else text[1:]


def _too_large() -> Http2ProtocolError:
    return Http2ProtocolError("the headers are too large", ErrorCode.ENHANCE_YOUR_CALM)


# ---- what is sent ----------------------------------------------------------------------------------------------------

_READABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def _text(value: bytes) -> bytes:
    if len(value) < _SEVEN_BITS:
        return bytes([len(value)]) + value
    length, size = len(value) - _SEVEN_BITS, bytearray([_SEVEN_BITS])
    while length >= 0x80:  # noqa: PLR2004 - seven bits of a length in each byte
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*size, length]) + value


def _field(name: bytes, value: bytes) -> bytes:
    """Spelled out, and kept in no table."""
    return b"\0" + _text(name) + _text(value)


_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10" + _text(b"application/grpc")
"""Its name is the 31st that everybody knows."""

ANSWER_BEGINS: Final = _STATUS_200 + _CONTENT_TYPE
_STATUS_FIELDS: Final = {code: _field(b"grpc-status", b"%d" % code) for code in Code}
ANSWER_ENDS: Final = _STATUS_FIELDS[Code.OK]
ACCEPTED_ENCODING: Final = _field(b"grpc-accept-encoding", b"identity")


_POST, _HTTP, _PATH, _AUTHORITY = b"\x83", b"\x86", b"\x04", b"\x01"
"""Of the headers everybody knows: whole ones, and the names of some."""
_REQUEST_BEGINS: Final = _POST + _HTTP + _AUTHORITY + _text(b"localhost")
_REQUEST_ENDS: Final = _CONTENT_TYPE + _field(b"te", b"trailers") + _field(b"user-agent", b"orlop")
_MOST_DIGITS: Final = 10**8
_UNITS: Final = ((1e6, b"u"), (1e3, b"m"), (1.0, b"S"), (1 / 3600, b"H"))


@lru_cache(maxsize=256)
def request_block(path: str, within: float) -> bytes:
    """Of a call; there are a few different ones. `:authority` is what kubelet and the Go sidecars say."""
    timeout = _field(b"grpc-timeout", timeout_text(within))
    return _REQUEST_BEGINS + _PATH + _text(path.encode()) + _REQUEST_ENDS + timeout


def timeout_text(seconds: float) -> bytes:
    """In the finest unit that needs no more than eight digits."""
    for in_a_second, unit in _UNITS:
        count = max(1, int(seconds * in_a_second)) if seconds < _MOST_DIGITS / in_a_second else _MOST_DIGITS
        if count < _MOST_DIGITS:
            return b"%d" % count + unit
    return b"%dH" % (_MOST_DIGITS - 1)


def http_status(number: int) -> bytes:
    """How a block of an answer begins that is no answer of gRPC's."""
    return b"\x08" + _text(b"%d" % number) + _CONTENT_TYPE


def failure(error: CsiError) -> bytes:
    return _STATUS_FIELDS[error.code] + _field(b"grpc-message", encoded_message(error.message))


def encoded_message(message: str) -> bytes:
    """As gRPC has it: UTF-8, with what is not readable ASCII in percent signs; one that is too long is cut."""
    text = message.encode(errors="replace")
    encoded = quote_from_bytes(text, safe=_READABLE)
    if len(encoded) > LONGEST_MESSAGE:
        whole_characters = text[: LONGEST_MESSAGE // len("%00")].decode(errors="ignore").encode()
        encoded = quote_from_bytes(whole_characters, safe=_READABLE)
    return encoded.encode()
