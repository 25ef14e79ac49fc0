"""Copy the contents of a plain file: shared with the source where the file system can, else with its holes kept.

The first that works is used: a reflink (nothing is read or written), a copy inside the kernel, a copy through the
page cache. A method that a pair of file systems does not support is tried once, not for every file. The caller closes
both descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFLINK: Final = 0x40049409
MOST_AT_ONCE: Final = 16 * 2**20
CANNOT: Final = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EINVAL, errno.EPERM})
NEVER_WILL: Final = CANNOT - {errno.EINVAL, errno.EPERM}


class FileCopier:
    """Copies files between one pair of file systems. `advance` gets each number of bytes copied; it may raise."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._may_reflink = True
        self._may_copy_range = True

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy into an empty file; the copy ends early if the source became shorter."""
        if self._reflink(source, target):
            self._advance(size)
            return
        for start, end in data_ranges(source, size):
            self._copy_range(source, target, start, end)
        os.ftruncate(target, size)

    def _reflink(self, source: int, target: int) -> bool:
        if not self._may_reflink:
            return False
        try:
            fcntl.ioctl(target, REFLINK, source)
        except OSError as error:
            if error.errno not in CANNOT:
                raise
            self._may_reflink = error.errno not in NEVER_WILL
            return False
        return True

    def _copy_range(self, source: int, target: int, start: int, end: int) -> None:
        at = start
        while at < end:
            copied = self._copy_some(source, target, at, min(end - at, MOST_AT_ONCE))
            if not copied:
                return
            at += copied
            self._advance(copied)

    def _copy_some(self, source: int, target: int, at: int, count: int) -> int:
        if self._may_copy_range:
            try:
                return os.copy_file_range(source, target, count, at, at)
            except OSError as error:
                if error.errno not in CANNOT:
                    raise
                self._may_copy_range = False
        os.lseek(target, at, os.SEEK_SET)
        return os.sendfile(target, source, at, count)


def data_ranges(file: int, size: int, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the ranges that hold data, as start and end; the rest are holes. The last of `most` reaches to the end."""
    at, count = 0, 0
    while at < size:
        start = _seek(file, at, os.SEEK_DATA, size)
        if start >= size:
            return
        count += 1
        end = size if count == most else _seek(file, start, os.SEEK_HOLE, size)
        yield start, end
        at = end


def _seek(file: int, at: int, kind: int, size: int) -> int:
    try:
        return min(os.lseek(file, at, kind), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:  # it does not know of holes: all of it is data
            return at if kind == os.SEEK_DATA else size
        raise
