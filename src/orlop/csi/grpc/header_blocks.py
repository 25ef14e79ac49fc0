"""HPACK header blocks: decode those of the peer, build ours. The only module that uses the library `hpack`.

The library decodes, and keeps the table that a peer builds up. This module adds limits, and a fast path for what every
peer sends from its second call on: references of one byte to that table, and short values.

Our own blocks are constants except for the timeout, and refer to no dynamic table, so none is kept for them. A peer
that wants our table smaller than the initial 4096 bytes must get one size update, `TABLE_GIVEN_UP`, before the next
block.
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
"""The initial size of the table, for both directions."""
LARGEST_HEADER_LIST: Final = LONGEST_BLOCK
ENTRY_OVERHEAD: Final = 32
"""Bytes that an entry counts for besides its name and value (RFC 7541, 4.1)."""
LONGEST_MESSAGE: Final = 7 << 10
"""The longest error message, encoded: clients accept blocks of 8 KiB."""
TABLE_GIVEN_UP: Final = b"\x20"

_INDEXED, _LONG_INDEX, _LITERAL, _LONG_NAME, _SIZE_UPDATE = 0x80, 0xFF, 0x40, 0x7F, 0x20
_HUFFMAN, _SEVEN_BITS = 0x80, 0x7F
_UNKEPT: Final = frozenset((0x00, 0x10))
"""Literal fields that are not added to the table; we send only these."""

Fields = Sequence[tuple[bytes, bytes]]


class HeaderReader:
    """Reads the header blocks of one connection.

    Every block must be read, in order, also those of refused calls: each may change the table for the next one.
    """

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(LARGEST_HEADER_LIST)
        self._decoder.max_allowed_table_size = TABLE_BYTES

    def read(self, block: bytes) -> Fields:
        """Return the fields of a block. Raises `Http2ProtocolError`."""
        try:
            fields, at = self._short_fields(block)
            if at < len(block):
                fields.extend(self._decoded(block, at))
        except hpack.OversizedHeaderListError:
            raise _too_large() from None
        except hpack.HPACKError:  # its text would quote the headers, which may be secret
            raise Http2ProtocolError("the headers cannot be read", ErrorCode.COMPRESSION_ERROR) from None
        return fields

    def _short_fields(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], int]:
        """Return the short fields that the block begins with, and how many bytes they take."""
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
            # One byte can refer to an entry of any size, so the limit counts the decoded fields.
            size += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD
            if size > LARGEST_HEADER_LIST:
                raise _too_large()
        return fields, at

    def _decoded(self, block: bytes, at: int) -> Fields:
        if at and block[at] & (_INDEXED | _LITERAL | _SIZE_UPDATE) == _SIZE_UPDATE:
            raise Http2ProtocolError("the size of the table changes within headers", ErrorCode.COMPRESSION_ERROR)
        return self._decoder.decode(block[at:], raw=True)  # type: ignore[return-value]  # raw: they are bytes


def _end_of_text(block: bytes, at: int) -> int:
    """Return where a short text ends; 0 if it is long, or incomplete."""
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
    """Return a literal field that is not added to the table."""
    return b"\0" + _text(name) + _text(value)


_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10" + _text(b"application/grpc")
"""`content-type` is entry 31 of the static table."""

ANSWER_BEGINS: Final = _STATUS_200 + _CONTENT_TYPE
_STATUS_FIELDS: Final = {code: _field(b"grpc-status", b"%d" % code) for code in Code}
ANSWER_ENDS: Final = _STATUS_FIELDS[Code.OK]
ACCEPTED_ENCODING: Final = _field(b"grpc-accept-encoding", b"identity")


_POST, _HTTP, _PATH, _AUTHORITY = b"\x83", b"\x86", b"\x04", b"\x01"
"""Entries of the static table: whole fields, and names."""
_REQUEST_BEGINS: Final = _POST + _HTTP + _AUTHORITY + _text(b"localhost")
_REQUEST_ENDS: Final = _CONTENT_TYPE + _field(b"te", b"trailers") + _field(b"user-agent", b"orlop")
_MOST_DIGITS: Final = 10**8
_UNITS: Final = ((1e6, b"u"), (1e3, b"m"), (1.0, b"S"), (1 / 3600, b"H"))


@lru_cache(maxsize=256)
def request_block(path: str, within: float) -> bytes:
    """Return the headers of a call; there are few different ones. `:authority` is that of kubelet and Go sidecars."""
    timeout = _field(b"grpc-timeout", timeout_text(within))
    return _REQUEST_BEGINS + _PATH + _text(path.encode()) + _REQUEST_ENDS + timeout


def timeout_text(seconds: float) -> bytes:
    """Return a grpc-timeout in the finest unit that needs at most eight digits."""
    for in_a_second, unit in _UNITS:
        count = max(1, int(seconds * in_a_second)) if seconds < _MOST_DIGITS / in_a_second else _MOST_DIGITS
        if count < _MOST_DIGITS:
            return b"%d" % count + unit
    return b"%dH" % (_MOST_DIGITS - 1)


def http_status(number: int) -> bytes:
    """Return the first headers of a response whose HTTP status is not 200."""
    return b"\x08" + _text(b"%d" % number) + _CONTENT_TYPE


def failure(error: CsiError) -> bytes:
    """Return the trailers of a failed call."""
    return _STATUS_FIELDS[error.code] + _field(b"grpc-message", encoded_message(error.message))


def encoded_message(message: str) -> bytes:
    """Return the message as gRPC encodes it: UTF-8, percent-encoded; one that is too long is cut at a character."""
    text = message.encode(errors="replace")
    encoded = quote_from_bytes(text, safe=_READABLE)
    if len(encoded) > LONGEST_MESSAGE:
        whole_characters = text[: LONGEST_MESSAGE // len("%00")].decode(errors="ignore").encode()
        encoded = quote_from_bytes(whole_characters, safe=_READABLE)
    return encoded.encode()
