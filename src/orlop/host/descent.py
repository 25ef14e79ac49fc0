"""A place in a tree that moves one level at a time, and holds few descriptors however deep it is.

The last levels stay open. A level that was closed is opened again as the parent of the one below it, and must then be
the folder it was: whoever moves folders about while we are in them ends the walk, and does not lead it elsewhere.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from orlop.host.confined_paths import open_child_folder, open_parent_folder
from orlop.host.errors import HostError

if TYPE_CHECKING:
    from types import TracebackType

LEVELS_KEPT_OPEN: Final = 32
CLOSED: Final = -1


@dataclass(slots=True)
class _Level:
    identity: tuple[int, int]
    descriptor: int


class Descent:
    """Begins at a folder that belongs to the caller, who closes it."""

    def __init__(self, top: int) -> None:
        self._levels = [_Level(_identity(top), top)]

    @property
    def depth(self) -> int:
        return len(self._levels) - 1

    @property
    def descriptor(self) -> int:
        return self._levels[-1].descriptor

    def down(self, name: str) -> None:
        self.down_to(open_child_folder(self.descriptor, name))

    def down_to(self, descriptor: int) -> None:
        """To a folder in this one that is open already; from now on it is ours to close."""
        self._levels.append(_Level(_identity(descriptor), descriptor))
        if self.depth > LEVELS_KEPT_OPEN:
            self._close(self._levels[-1 - LEVELS_KEPT_OPEN])

    def up(self) -> None:
        if not self.depth:
            raise ValueError("there is nothing above the folder a descent begins at")
        below = self._levels.pop()
        try:
            if self.descriptor == CLOSED:
                self._open_again(below.descriptor)
        finally:
            self._close(below)

    def _open_again(self, below: int) -> None:
        descriptor = open_parent_folder(below)
        if _identity(descriptor) != self._levels[-1].identity:
            os.close(descriptor)
            raise HostError(errno.ESTALE, "A folder was moved while it was read. Try again when nobody writes to it.")
        self._levels[-1].descriptor = descriptor

    def _close(self, level: _Level) -> None:
        if level is not self._levels[0] and level.descriptor != CLOSED:
            os.close(level.descriptor)
            level.descriptor = CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for level in self._levels:
            self._close(level)


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
