"""A little room on a disk that is kept for the moment when there is none.

On a full disk a folder cannot even be renamed into another one, if that has to grow for its name: nothing could be
buried, and so nothing be erased. A file of its own holds the room; who gets ENOSPC gives it back and tries again. It
is filled again when there is room for much more.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

NAME: Final = ".reserve"
BYTES: Final = 1 << 20
ENOUGH: Final = 16
"""How many times its size must be free before the reserve is filled."""
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class RoomReserve:
    """In the folder `root`, which stays the caller's. Never fails: where nothing can be kept, nothing is kept."""

    def __init__(self, root: int, size: int = BYTES) -> None:
        self._root = root
        self._size = size
        self._is_full = False

    @property
    def is_full(self) -> bool:
        return self._is_full

    def fill(self, free_bytes: int) -> None:
        if self._is_full or free_bytes < ENOUGH * self._size:
            return
        with contextlib.suppress(OSError):
            file = os.open(NAME, _FLAGS, 0o600, dir_fd=self._root)
            try:
                os.posix_fallocate(file, 0, self._size)
                self._is_full = True
            finally:
                os.close(file)

    def give_back(self) -> bool:
        """Whether there is a little more room now."""
        with contextlib.suppress(OSError):
            file = os.open(NAME, _FLAGS, 0o600, dir_fd=self._root)
            try:
                had = os.fstat(file).st_blocks
                os.ftruncate(file, 0)
                os.fsync(file)
            finally:
                os.close(file)
            self._is_full = False
            return had > 0
        return False
