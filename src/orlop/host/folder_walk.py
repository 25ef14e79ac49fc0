"""A walk through all that is below a folder, confined to it: in the order of names, of any depth, in bounded memory.

No symbolic link is followed, no mount is entered, and nothing but folders is opened: what is met is handed over as a
place (O_PATH), which the receiver may look at and, if it is a plain file, open by `confined_paths.reopen`. What cannot
be looked at becomes a remark, and the walk goes on. It changes nothing.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orlop.host.confined_paths import FOLDER_FLAGS, open_place, reopen
from orlop.host.descent import Descent
from orlop.host.folder_entries import entries_in_batches

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from orlop.host.remarks import Remarks

MOST_NAMES_AT_ONCE: Final = 50_000


@dataclass(frozen=True, slots=True)
class Enter:
    """A folder; what follows, up to its `Leave`, is in it. The descriptor is its own."""

    name: str
    status: os.stat_result
    descriptor: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The folder that was entered last and not left; its descriptor is still open."""

    status: os.stat_result
    descriptor: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Anything else. The place is closed when the walk goes on."""

    name: str
    status: os.stat_result
    place: int


Step = Enter | Leave | Meet


@dataclass(slots=True)
class _Names:
    """The names of one folder that are still to come, the next at the end."""

    name: str
    status: os.stat_result
    waiting: list[bytes] = field(default_factory=list)
    last: bytes = b""
    is_read_to_the_end: bool = False


class FolderWalk:
    """`folder` stays the caller's; the walk can be made once."""

    def __init__(self, folder: int, remarks: Remarks) -> None:
        self._remarks = remarks
        self._descent = Descent(folder)
        self._levels = [_Names("", os.fstat(folder))]

    def path(self) -> str:
        """Of the folder the walk is in, below where it began; empty there."""
        return "/".join(level.name for level in self._levels[1:])

    def path_to(self, name: str) -> str:
        return "/".join([*(level.name for level in self._levels[1:]), name])

    def steps(self) -> Generator[Step]:
        with self._descent:
            while True:
                name = self._next_name()
                if name is not None:
                    yield from self._meet(os.fsdecode(name))
                elif len(self._levels) > 1:
                    yield Leave(self._levels[-1].status, self._descent.descriptor)
                    self._descent.up()
                    self._levels.pop()
                else:
                    return

    def skip(self) -> None:
        """Of the folder that was just entered: nothing in it is met."""
        self._levels[-1].waiting.clear()
        self._levels[-1].is_read_to_the_end = True

    def _next_name(self) -> bytes | None:
        level = self._levels[-1]
        if not level.waiting and not level.is_read_to_the_end:
            try:
                self._read_names(level)
            except OSError as error:
                self._remarks.add_error(self.path() or ".", "It cannot be listed", error)
                level.is_read_to_the_end = True
        if not level.waiting:
            return None
        level.last = level.waiting.pop()
        return level.last

    def _read_names(self, level: _Names) -> None:
        names = names_after(self._descent.descriptor, level.last, MOST_NAMES_AT_ONCE)
        level.is_read_to_the_end = len(names) < MOST_NAMES_AT_ONCE
        level.waiting = names[::-1]

    def _meet(self, name: str) -> Iterator[Step]:
        try:
            place = open_place(self._descent.descriptor, name)
        except FileNotFoundError:
            return
        except OSError as error:
            self._remarks.add(self.path_to(name), _why_not(error))
            return
        try:
            status = os.fstat(place)
            if not stat.S_ISDIR(status.st_mode):
                yield Meet(name, status, place)
                return
            entered = self._enter(name, status, place)
        finally:
            os.close(place)
        if entered:
            yield Enter(name, status, self._descent.descriptor)

    def _enter(self, name: str, status: os.stat_result, place: int) -> bool:
        try:
            self._descent.down_to(reopen(place, FOLDER_FLAGS & ~os.O_NOFOLLOW))
        except OSError as error:
            self._remarks.add_error(self.path_to(name), "It cannot be opened", error)
            return False
        self._levels.append(_Names(name, status))
        return True


def names_after(folder: int, last: bytes, count: int) -> list[bytes]:
    """The first so many names in their order that come after the last one."""
    batches = (entries.folders + entries.others for entries in entries_in_batches(folder))
    names = (name for name in itertools.chain.from_iterable(batches) if name > last)
    first = list(itertools.islice(names, count + 1))
    return sorted(first) if len(first) <= count else heapq.nsmallest(count, itertools.chain(first, names))


def kind_of(file_type: int) -> str:
    """Such as `a fifo`."""
    return {
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFREG: "a file",
    }.get(file_type, "of an unknown kind")


def _why_not(error: OSError) -> str:
    if error.errno == errno.EXDEV:
        return "Something is mounted there, which is not entered."
    return f"It cannot be looked at: {error.strerror}."
