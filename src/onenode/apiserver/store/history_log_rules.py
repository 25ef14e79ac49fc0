"""Find out from the bytes of SQLite's write-ahead log whether it was damaged.

https://www.sqlite.org/fileformat2.html#walformat
SQLite reads a log up to the first frame that is not sound and forgets the rest, since that is how a power loss leaves
the end of one. But what a power loss can take is only the last transaction: each is on disk before the next begins.
Each frame holds a checksum that goes on from the one before it. So a transaction whose last frame is followed by one
that goes on from it was complete, and when something of it is unsound, it was damaged later.

What transactions that failed have left behind the end is never taken for that: nothing ever went on from them.

Pure: bytes in, an answer out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HEADER: Final = struct.Struct(">8I")
FRAME: Final = struct.Struct(">6I")
MAGIC: Final = (0x377F0682, 0x377F0683)  # the second: checksums over big-endian words
MASK: Final = 0xFFFFFFFF

Sums = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _WalFrame:
    page: int
    commits: bool
    sums: Sums
    checked: bytes
    """Empty for one of another life of the log."""


@dataclass(frozen=True, slots=True)
class _Header:
    order: str
    page_size: int
    salts: Sums
    sums: Sums


def has_sound_header(log: bytes) -> bool:
    return _header(log) is not None


def is_damaged_inside(log: bytes) -> bool:
    """Only for a log whose header is sound."""
    header = _header(log)
    if header is None:
        return False
    before: _WalFrame | None = None
    sums, sound = header.sums, True
    for frame in _frames(log, header):
        goes_on = bool(frame.checked) and frame.sums == _summed(frame.checked, sums, header.order)
        sound = sound and goes_on
        if not sound and goes_on and before is not None and before.commits and not _repeats(frame, before):
            return True
        before, sums = frame, frame.sums
    return False


def _repeats(frame: _WalFrame, before: _WalFrame) -> bool:
    """Where sectors are large, SQLite fills them with the last frame of the same transaction."""
    return frame.commits and frame.page == before.page


def _header(log: bytes) -> _Header | None:
    if len(log) < HEADER.size:
        return None
    magic, _version, page_size, _sequence, *salts_and_sums = HEADER.unpack_from(log)
    if magic not in MAGIC or page_size < 512 or page_size > 65536 or page_size & (page_size - 1):  # noqa: PLR2004 - SQLite's
        return None
    order = ">" if magic & 1 else "<"
    sums = (salts_and_sums[2], salts_and_sums[3])
    if _summed(log[:24], (0, 0), order) != sums:
        return None
    return _Header(order, page_size, (salts_and_sums[0], salts_and_sums[1]), sums)


def _frames(log: bytes, header: _Header) -> Iterator[_WalFrame]:
    """Those of this life of the log: a new one begins with other salts, in the same file."""
    size = FRAME.size + header.page_size
    for at in range(HEADER.size, len(log) - size + 1, size):
        page, pages_after_commit, salt1, salt2, sum1, sum2 = FRAME.unpack_from(log, at)
        salted = (salt1, salt2) == header.salts
        content = log[at : at + 8] + log[at + FRAME.size : at + size] if salted else b""
        yield _WalFrame(page, salted and pages_after_commit > 0, (sum1, sum2), content)


def _summed(content: bytes, sums: Sums, order: str) -> Sums:
    first, second = sums
    for one, two in struct.iter_unpack(f"{order}2I", content):
        first = (first + one + second) & MASK
        second = (second + two + first) & MASK
    return first, second
