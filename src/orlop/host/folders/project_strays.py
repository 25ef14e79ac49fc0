"""Find files that left the project of their folder: an owner can change the number of its files and evade its limits.

Everything below the folder is checked, confined as every walk (`read_only_walk`); only plain files and folders are
opened. `count_strays` checks the folder itself too: a pod that runs as root owns it. Links, fifos and devices take only
an inode; they are checked where the kernel reports their number by name (from Linux 6.17 on), which needs one system
call per file and is many times as fast. An open file without a name is not found. This works also where quota is not
enforced, and changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.folders.project_quota import ProjectTag, project_of
from orlop.host.folders.read_only_walk import Descent, Enter, FolderWalk, Leave, Meet, Problems
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import open_place, reopen
from orlop.host.kernel.system_calls import attributes_of_place, file_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Stray:
    """A file or folder with another number; `bytes` is its size on disk."""

    path: str
    project: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StrayCount:
    """The strays of a folder. `first` is the path of one of them; `.` is the folder itself."""

    count: int
    bytes: int
    first: str


def count_strays(folder: int, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
    """Count the strays; None if all that could be read has the folder's number. ECANCELED: stopped before the first."""
    strays_so_far: StrayCount | None = None
    try:
        with contextlib.closing(_itself_and_below(folder, project)) as entries:
            for stray in entries:
                strays_so_far = _with(strays_so_far, stray) if stray is not None else strays_so_far
                if should_stop():
                    break
            else:
                return strays_so_far
    except OSError as error:
        raise HostError.because(error, "The projects of the files in the folder cannot be read") from error
    if strays_so_far is None:
        raise HostError(errno.ECANCELED, "The folder was not searched to the end: the search was stopped.")
    return strays_so_far


def _itself_and_below(folder: int, project: int) -> Generator[Stray | None]:
    tag = project_of(folder)
    if tag != ProjectTag(project, is_inherited=True):
        yield Stray(".", tag.project, os.fstat(folder).st_blocks * _BLOCK)
    by_name = _kernel_reports_by_name(folder)
    yield from _walked_by_name(folder, project) if by_name else _walked_by_opening(folder, project, Problems())


def _kernel_reports_by_name(folder: int) -> bool:
    try:
        file_attributes(folder, "")
    except OSError:
        return False
    return True


def _walked_by_name(folder: int, project: int) -> Generator[Stray | None]:
    """Yield once per entry, as `_walked_by_opening` does, with one system call per file (from Linux 6.17 on)."""
    names: list[str] = []
    to_enter: list[list[bytes]] = [[]]
    with Descent(folder) as descent:
        yield from _files_by_name(descent.descriptor, project, names, to_enter[-1])
        while names or to_enter[-1]:
            if not to_enter[-1]:
                descent.up()
                names.pop()
                to_enter.pop()
            elif _entered(descent, name := os.fsdecode(to_enter[-1].pop())):
                names.append(name)
                to_enter.append([])
                yield _judged(descent.descriptor, "", project, names)
                yield from _files_by_name(descent.descriptor, project, names, to_enter[-1])


def _files_by_name(folder: int, project: int, names: list[str], folders: list[bytes]) -> Generator[Stray | None]:
    for entries in entries_in_batches(folder):
        folders += entries.folders
        for name in entries.others:
            yield _judged(folder, name, project, names)


def _entered(descent: Descent, name: str) -> bool:
    try:
        descent.down(name)
    except OSError:  # gone, or something is mounted there
        return False
    return True


def _judged(folder: int, name: bytes | str, project: int, names: list[str]) -> Stray | None:
    with contextlib.suppress(OSError):  # the entry is gone, or its number cannot be read
        if file_attributes(folder, name).project != project:
            # If a file is mounted on the name, the call above returned the number of that file. It does not count:
            # `open_place` crosses no mount, and fails.
            place = open_place(folder, os.fsdecode(name) or ".")
            try:
                own_project, size = attributes_of_place(place).project, os.fstat(place).st_blocks * _BLOCK
            finally:
                os.close(place)
            path = "/".join([*names, os.fsdecode(name)]) if name else "/".join(names)
            return Stray(path, own_project, size) if own_project != project else None
    return None


def _with(before: StrayCount | None, stray: Stray) -> StrayCount:
    if before is None:
        return StrayCount(1, stray.bytes, stray.path)
    return StrayCount(before.count + 1, before.bytes + stray.bytes, before.first)


def strays(folder: int, project: int, problems: Problems) -> Iterator[Stray]:
    """Yield what has another number below the folder; add what could not be read to the problems."""
    return (stray for stray in _walked_by_opening(folder, project, problems) if stray is not None)


def _walked_by_opening(folder: int, project: int, problems: Problems) -> Generator[Stray | None]:
    """Yield once per entry, None if it has the number, so that the caller can stop after any entry."""
    walk = FolderWalk(folder, problems)
    with contextlib.closing(walk.steps()) as steps:
        for step in steps:
            if isinstance(step, Leave):
                continue
            try:
                entry_project = _project(step)
            except OSError as error:
                problems.add_error(_path(walk, step), "Its project cannot be read", error)
                continue
            if entry_project in {None, project}:
                yield None
            else:
                yield Stray(_path(walk, step), entry_project or 0, step.status.st_blocks * _BLOCK)


def _path(walk: FolderWalk, step: Enter | Meet) -> str:
    return walk.path() if isinstance(step, Enter) else walk.path_to(step.name)


def _project(step: Enter | Meet) -> int | None:
    """Return the number of an entry; None if it is unknown."""
    if isinstance(step, Enter):
        return project_of(step.descriptor).project
    if not stat.S_ISREG(step.status.st_mode):
        with contextlib.suppress(OSError):
            return attributes_of_place(step.place).project
        return None
    file = reopen(step.place)
    try:
        return project_of(file).project
    finally:
        os.close(file)
