"""List the names in a folder in batches, as the kernel returns them.

`os.scandir` releases Python's global lock for every name; two threads that list and unlink then spend their time
passing it to each other. Here it is released once for about a thousand names.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.kernel.system_calls import getdents64

if TYPE_CHECKING:
    from collections.abc import Iterator

BUFFER_BYTES: Final = 32 * 1024
IS_A_FOLDER: Final = 4
_HEAD: Final = struct.Struct("=16xHB")  # after inode and offset: length of the record, kind; the name follows
_NAME_AT: Final = 19


@dataclass(frozen=True, slots=True)
class Entries:
    """A batch of names. On file systems that do not report kinds, folders are in `others`."""

    folders: list[bytes]
    others: list[bytes]


def entries_in_batches(folder: int) -> Iterator[Entries]:
    """Yield each name that exists from beginning to end once; entries may be removed meanwhile."""
    os.lseek(folder, 0, os.SEEK_SET)
    buffer = ctypes.create_string_buffer(BUFFER_BYTES)
    while length := getdents64(folder, buffer):
        yield _parsed(ctypes.string_at(buffer, length))


def _parsed(records: bytes) -> Entries:
    entries = Entries([], [])
    at, end = 0, len(records)
    while at < end:
        length, kind = _HEAD.unpack_from(records, at)
        name = records[at + _NAME_AT : records.index(0, at + _NAME_AT)]
        at += length
        if name not in {b".", b".."}:
            (entries.folders if kind == IS_A_FOLDER else entries.others).append(name)
    return entries
