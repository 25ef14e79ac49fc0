"""Walk through everything below a folder without leaving it: in the order of names, of any depth, in bounded memory.

No symbolic link is followed, no mount is entered, and nothing but folders is opened: what is met is handed over as a
place (O_PATH), which the receiver may stat and, if it is a plain file, open by `confined_paths.reopen`. An entry that
cannot be read becomes a problem, and the walk goes on. It changes nothing.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import os
import stat
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import FOLDER_FLAGS, open_child_folder, open_parent_folder, open_place, reopen

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MOST_PROBLEMS: Final = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One entry that was left out, and why. In `path`, surrogates stand for bytes that are not UTF-8."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.sentence}"


@dataclass(slots=True)
class Problems:
    """What a walk left out, and why: the first hundred, and the count of all."""

    first: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, path: str, sentence: str) -> None:
        self.count += 1
        if len(self.first) < MOST_PROBLEMS:
            self.first.append(Problem(path, sentence))

    def add_error(self, path: str, what: str, error: OSError) -> None:
        self.add(path, f"{what}: {error.strerror or error}.")


LEVELS_KEPT_OPEN: Final = 32
CLOSED: Final = -1


@dataclass(slots=True)
class _Level:
    identity: tuple[int, int]
    descriptor: int


class Descent:
    """A position in a tree that moves one level at a time, and holds few descriptors however deep it is.

    The last levels stay open. A level that was closed is opened again as the parent of the one below it, and must then
    be the folder it was: a tenant that moves folders while we are in them ends the walk, and cannot lead it elsewhere.
    The top folder belongs to the caller, who closes it.
    """

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
        """Enter a subfolder that is open already; the descent closes it from now on."""
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
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


MOST_NAMES_AT_ONCE: Final = 50_000


@dataclass(frozen=True, slots=True)
class Enter:
    """A folder was entered; everything up to its `Leave` is in it. The walk owns the descriptor."""

    name: str
    status: os.stat_result
    descriptor: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The innermost folder is left; its descriptor is still open."""

    status: os.stat_result
    descriptor: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Anything but a folder. The walk closes the handle before the next event."""

    name: str
    status: os.stat_result
    place: int


WalkEvent = Enter | Leave | Meet


@dataclass(slots=True)
class _Names:
    """The names of one folder that the walk has not visited yet; `waiting` has the next one last."""

    name: str
    status: os.stat_result
    waiting: list[bytes] = field(default_factory=list)
    last: bytes = b""
    is_read_to_the_end: bool = False


class FolderWalk:
    """A walk below `folder`, which the caller closes. It can be iterated once."""

    def __init__(self, folder: int, problems: Problems) -> None:
        self._problems = problems
        self._descent = Descent(folder)
        self._levels = [_Names("", os.fstat(folder))]

    def path(self) -> str:
        """Return the path of the current folder, below the top; empty at the top."""
        return "/".join(level.name for level in self._levels[1:])

    def path_to(self, name: str) -> str:
        return "/".join([*(level.name for level in self._levels[1:]), name])

    def steps(self) -> Generator[WalkEvent]:
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
        """Skip everything in the folder that was just entered."""
        self._levels[-1].waiting.clear()
        self._levels[-1].is_read_to_the_end = True

    def _next_name(self) -> bytes | None:
        level = self._levels[-1]
        if not level.waiting and not level.is_read_to_the_end:
            try:
                self._read_names(level)
            except OSError as error:
                self._problems.add_error(self.path() or ".", "It cannot be listed", error)
                level.is_read_to_the_end = True
        if not level.waiting:
            return None
        level.last = level.waiting.pop()
        return level.last

    def _read_names(self, level: _Names) -> None:
        names = names_after(self._descent.descriptor, level.last, MOST_NAMES_AT_ONCE)
        level.is_read_to_the_end = len(names) < MOST_NAMES_AT_ONCE
        level.waiting = names[::-1]

    def _meet(self, name: str) -> Iterator[WalkEvent]:
        try:
            place = open_place(self._descent.descriptor, name)
        except FileNotFoundError:
            return
        except OSError as error:
            self._problems.add(self.path_to(name), _why_not(error))
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
            self._problems.add_error(self.path_to(name), "It cannot be opened", error)
            return False
        self._levels.append(_Names(name, status))
        return True


def names_after(folder: int, last: bytes, count: int) -> list[bytes]:
    """Return the first `count` names, in their order, that come after `last`."""
    batches = (entries.folders + entries.others for entries in entries_in_batches(folder))
    names = (name for name in itertools.chain.from_iterable(batches) if name > last)
    first = list(itertools.islice(names, count + 1))
    return sorted(first) if len(first) <= count else heapq.nsmallest(count, itertools.chain(first, names))


def kind_of(file_type: int) -> str:
    """Return the kind of a file in words, such as `a fifo`."""
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
    return f"It cannot be accessed: {error.strerror}."
