"""Unlink everything in one tree, in several threads: choose the next folder, and empty it.

To sweep a folder means: unlink its files, put its subfolders on a stack, and remove the folder when the last subfolder
is gone. The newest folder on the stack is next, so that few folders are open at a time. If too many are open,
subfolders are moved aside instead of entered. A folder that never becomes empty is swept a bounded number of times.

No function recurses. Workers wait only for each other and for the pauses that the caller asks for.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from orlop.host.erase.erasure import Erasure, ErasureReport
from orlop.host.erase.obstacles import OWNER_ONLY, Obstacles
from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.kernel.confined_paths import open_child_folder
from orlop.host.kernel.system_calls import RENAME_NO_REPLACE, renameat2

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

MOST_OPEN: Final = 96
"""Folders open at a time; a process may have 1,024 descriptors."""
MOST_SUBFOLDERS_AT_ONCE: Final = 10_000
MOST_STEPS_OF_A_SWEEP: Final = 1_000_000
MOST_SWEEPS: Final = 8
STEPS_BETWEEN_PAUSES: Final = 256
MOST_NAMES_TRIED: Final = 10_000
CLOSED: Final = -1
NOT_A_FOLDER: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class UnlinkOutcome(Enum):
    GONE = auto()
    STAYS = auto()
    AGAIN = auto()


class WalkFolder:
    """A folder to erase. `parent` stays open as long as it has unfinished subfolders."""

    __slots__ = ("descriptor", "name", "parent", "stuck", "sweep_again", "sweeps", "unfinished")

    def __init__(self, parent: WalkFolder | None, name: str, descriptor: int = CLOSED) -> None:
        self.parent = parent
        self.name = name
        self.descriptor = descriptor
        self.unfinished = 0  # subfolders on the stack or with a worker
        self.sweeps = 0  # sweeps after which the folder was not empty
        self.stuck = False  # an entry cannot be erased, and is in the report
        self.sweep_again = False  # the last sweep ended at its limit, before the last entry

    def path(self) -> str:
        names: list[str] = []
        folder: WalkFolder | None = self
        while folder is not None and folder.parent is not None and folder.parent.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return "/".join(reversed(names)) or "."

    def path_to(self, name: str) -> str:
        return f"{self.path()}/{name}".removeprefix("./")


class UnlinkWalk:
    def __init__(self, trash: int, rest_name: str, stop: threading.Event, pause_seconds: Callable[[], float]) -> None:
        self._top = WalkFolder(None, "", trash)
        self._root = self._top
        self._rest_name = rest_name
        self._rest = CLOSED
        self._stop = stop
        self._pause_seconds = pause_seconds
        self._report = ErasureReport()
        self._obstacles = Obstacles()
        self._numbers = itertools.count()
        self._open: set[WalkFolder] = set()
        self._waiting: list[WalkFolder] = []
        self._busy = 0
        self._failed = False
        self._changed = threading.Condition()

    def begin(self, name: str) -> None:
        """Choose the entry of the trash that `run` erases next."""
        self._root = WalkFolder(self._top, name)
        self._waiting.append(self._root)

    def run(self) -> None:
        """Erase folders until none is left or the walk is stopped. Each worker calls it."""
        while (folder := self._take()) is not None:
            try:
                self._work_on(folder)
            except BaseException:
                self._failed = True  # the other workers end too, and the caller gets the error
                raise
            finally:
                self._put_down()

    def report(self) -> Erasure:
        stopped = self._stop.is_set() and bool(self._waiting or self._open)
        report = self._report
        detached = self._obstacles.mounts_detached
        return Erasure(report.removed, detached, tuple(report.left), report.left_count, stopped)

    # ---- sharing the work --------------------------------------------------------------------------------------------

    def _take(self) -> WalkFolder | None:
        with self._changed:
            while self._busy and not self._waiting and not self._failed:
                self._changed.wait()
            if self._failed or not self._waiting or self._stop.is_set():
                return None
            self._busy += 1
            return self._waiting.pop()

    def _put_down(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def _hand_out(self, folder: WalkFolder, names: list[str]) -> None:
        with self._changed:
            folder.unfinished = len(names)
            self._waiting.extend(WalkFolder(folder, name) for name in names)
            self._changed.notify_all()

    def _settle(self, folder: WalkFolder, outcome: UnlinkOutcome) -> WalkFolder | None:
        """Record the outcome of a folder; return its parent if this was the parent's last unfinished subfolder."""
        parent = folder.parent
        if outcome is UnlinkOutcome.AGAIN:
            with self._changed:
                self._waiting.append(folder)
            return None
        self._close(folder)
        if parent is None or parent is self._top:
            return None
        with self._changed:
            parent.stuck |= outcome is UnlinkOutcome.STAYS
            parent.unfinished -= 1
            return None if parent.unfinished else parent

    # ---- one folder --------------------------------------------------------------------------------------------------

    def _work_on(self, folder: WalkFolder) -> None:
        outcome = self._enter(folder)
        if outcome is UnlinkOutcome.AGAIN:
            subfolders = self._move_aside_if_many(folder, self._sweep(folder))
            if self._stop.is_set():
                return
            if subfolders:
                self._hand_out(folder, subfolders)
                return
            outcome = self._remove(folder)
        # Not by recursion: the last of 20,000 levels finishes all above it.
        above = self._settle(folder, outcome)
        while above is not None and not self._stop.is_set():
            above = self._settle(above, self._remove(above))

    def _enter(self, folder: WalkFolder) -> UnlinkOutcome:
        """Open a folder; return AGAIN if it can be swept now, else its final outcome."""
        if folder.descriptor != CLOSED:
            return UnlinkOutcome.AGAIN
        above = _parent(folder)
        try:
            descriptor = self._obstacles.overcome(
                above.descriptor, folder.name, lambda: open_child_folder(above.descriptor, folder.name)
            )
        except FileNotFoundError:
            return UnlinkOutcome.GONE
        except OSError as error:
            return self._not_entered(folder, error)
        folder.descriptor = descriptor
        self._open.add(folder)
        return UnlinkOutcome.AGAIN

    def _not_entered(self, folder: WalkFolder, error: OSError) -> UnlinkOutcome:
        if error.errno in NOT_A_FOLDER:
            self._unlink_all(_parent(folder), [os.fsencode(folder.name)])
            return UnlinkOutcome.GONE
        self._report.note(folder.path(), _reason(error))
        return UnlinkOutcome.STAYS

    def _sweep(self, folder: WalkFolder) -> list[str]:
        """Unlink everything but folders; return the names of the subfolders."""
        subfolders: list[str] = []
        steps = 0
        folder.sweep_again = False
        try:
            for entries in entries_in_batches(folder.descriptor):
                subfolders += map(os.fsdecode, entries.folders)
                subfolders += self._unlink_all(folder, entries.others)
                steps += len(entries.others)
                folder.sweep_again = len(subfolders) >= MOST_SUBFOLDERS_AT_ONCE
                if folder.sweep_again or steps >= MOST_STEPS_OF_A_SWEEP or self._stop.is_set():
                    break
        except FileNotFoundError:
            pass  # the tenant removed the folder
        except OSError as error:
            folder.stuck = True
            self._report.note(folder.path(), _reason(error))
        return subfolders

    def _unlink_all(self, folder: WalkFolder, names: list[bytes]) -> list[str]:
        """Unlink these entries; return the names that turned out to be folders."""
        subfolders: list[str] = []
        unlink = partial(os.unlink, dir_fd=folder.descriptor)
        tried = refused = 0
        while tried < len(names) and not self._stop.is_set():
            try:
                # No call of our own in this loop: the other worker waits while we hold Python's global lock.
                for _ in map(unlink, names[tried : tried + STEPS_BETWEEN_PAUSES]):
                    tried += 1
            except OSError as error:
                if error.errno == errno.EISDIR:
                    subfolders.append(os.fsdecode(names[tried]))
                refused += not self._unlink_stubborn(folder, os.fsdecode(names[tried]), error)
                tried += 1
            self._pause()
        self._report.count(tried - refused)
        return subfolders

    def _unlink_stubborn(self, folder: WalkFolder, name: str, error: OSError) -> bool:
        """Remove what made unlink fail with this error, and retry; return whether the entry was unlinked."""
        if error.errno in {errno.EISDIR, errno.ENOENT}:
            return False
        try:
            self._obstacles.overcome(folder.descriptor, name, lambda: os.unlink(name, dir_fd=folder.descriptor))
        except FileNotFoundError:
            return False
        except OSError as refusal:
            folder.stuck = True
            self._report.note(folder.path_to(name), _reason(refusal))
            return False
        return True

    def _remove(self, folder: WalkFolder) -> UnlinkOutcome:
        # rmdir of a folder with a stuck entry would fail, and would be reported as if a tenant still wrote into it.
        if folder.stuck:
            return UnlinkOutcome.STAYS
        if folder.sweep_again:
            return UnlinkOutcome.AGAIN
        above = _parent(folder).descriptor
        try:
            self._obstacles.overcome(above, folder.name, lambda: os.rmdir(folder.name, dir_fd=above))
        except OSError as error:
            return self._not_removed(folder, error)
        self._report.count(1)
        return UnlinkOutcome.GONE

    def _not_removed(self, folder: WalkFolder, error: OSError) -> UnlinkOutcome:
        if error.errno in {errno.ENOENT, *NOT_A_FOLDER}:
            return UnlinkOutcome.GONE  # or moved elsewhere in the tree: the sweep of a folder above finds it there
        if error.errno in NOT_EMPTY and folder.sweeps < MOST_SWEEPS:
            folder.sweeps += 1
            _take_ownership(folder.descriptor)
            return UnlinkOutcome.AGAIN
        reason = f"it is not empty after {MOST_SWEEPS} sweeps: a process writes into it, or it is very large."
        self._report.note(folder.path(), reason if error.errno in NOT_EMPTY else _reason(error))
        return UnlinkOutcome.STAYS

    def _pause(self) -> None:
        if seconds := self._pause_seconds():
            self._stop.wait(seconds)

    # ---- trees that are too deep -------------------------------------------------------------------------------------

    def _move_aside_if_many(self, folder: WalkFolder, subfolders: list[str]) -> list[str]:
        """Move subfolders aside if too many folders are open; return the names of those that were not moved."""
        if len(self._open) < MOST_OPEN:
            return subfolders
        return [name for name in subfolders if self._stop.is_set() or not self._move_aside(folder, name)]

    def _move_aside(self, folder: WalkFolder, name: str) -> bool:
        """Move a subfolder to `.rest-<name>`; return False if that fails, as on a full disk: it is entered in place."""
        try:
            rest = self._open_rest()
            self._obstacles.overcome(folder.descriptor, name, lambda: self._rename(folder.descriptor, name, rest))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        self._root.sweep_again |= self._root.name == self._rest_name
        return True

    def _rename(self, folder: int, name: str, rest: int) -> None:
        # An erasure that was killed may have left the same numbers there. A plain rename would replace an empty folder.
        for number in itertools.islice(self._numbers, MOST_NAMES_TRIED):
            try:
                renameat2(folder, name, rest, str(number), RENAME_NO_REPLACE)
            except FileExistsError:
                continue
            return
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _open_rest(self) -> int:
        with self._changed:
            if self._rest == CLOSED:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._rest_name, OWNER_ONLY, dir_fd=self._top.descriptor)
                self._rest = open_child_folder(self._top.descriptor, self._rest_name)
            return self._rest

    # ---- descriptors -------------------------------------------------------------------------------------------------

    def _close(self, folder: WalkFolder) -> None:
        if folder.descriptor != CLOSED:
            self._open.discard(folder)
            os.close(folder.descriptor)
            folder.descriptor = CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for folder in tuple(self._open):
            os.close(folder.descriptor)
        if self._rest != CLOSED:
            os.close(self._rest)


def _parent(folder: WalkFolder) -> WalkFolder:
    if folder.parent is None:
        raise ValueError("the trash itself is never erased")
    return folder.parent


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}."


def _take_ownership(descriptor: int) -> None:
    """Become the folder's owner, with mode 0700: a tenant that is not root can no longer write into it."""
    with contextlib.suppress(OSError):
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, OWNER_ONLY)
