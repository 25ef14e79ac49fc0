"""A small reserve of disk space for the moment when the disk is full.

On a full disk a rename fails if the target folder must grow for the new name: nothing could be buried, and so nothing
erased. A file holds the reserve; a caller that gets ENOSPC releases it and tries again. The file is filled again when
much more space is free.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

NAME: Final = ".reserve"
BYTES: Final = 1 << 20
ENOUGH: Final = 16
_SMALLEST: Final = 64 << 10
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class RoomReserve:
    """The reserve in the folder `root`, which the caller closes. Never raises: without space there is no reserve.

    `enough` is how many times its size must be free before it is filled.
    """

    def __init__(self, root: int, size: int = BYTES, enough: int = ENOUGH) -> None:
        self._root = root
        self._size = size
        self._enough = enough
        self._is_full = False

    @property
    def is_full(self) -> bool:
        return self._is_full

    def fill(self, free_bytes: int) -> None:
        if self._is_full or free_bytes < self._enough * self._size:
            return
        with contextlib.suppress(OSError):
            self._allocate(self._size)
            self._is_full = True

    def _allocate(self, size: int) -> None:
        file = os.open(NAME, _FLAGS, 0o600, dir_fd=self._root)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)

    def refill(self) -> None:
        """Take what is left of a reserve that was given back for one change: less than all is better than none."""
        size = self._size
        while not self._is_full and size >= _SMALLEST:
            try:
                self._allocate(size)
            except OSError:
                self.give_back()
                size //= 2
            else:
                self._is_full = size == self._size
                return

    def give_back(self) -> bool:
        """Release the reserve; return whether there was one."""
        with contextlib.suppress(OSError):
            file = os.open(NAME, _FLAGS, 0o600, dir_fd=self._root)
            try:
                blocks = os.fstat(file).st_blocks
                os.ftruncate(file, 0)
                os.fsync(file)
            finally:
                os.close(file)
            self._is_full = False
            return blocks > 0
        return False
