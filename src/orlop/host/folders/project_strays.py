"""Files that left the project of their folder: an owner can give its own files another number, and write on uncounted.

All that is below the folder is looked at, confined as every walk (`read_only_walk`); only plain files and folders are
opened. Who counts them looks at the folder itself too: a pod that runs as root owns it. Links, fifos and devices take
no room but their inode; they are looked at where the kernel can tell (from Linux 6.17 on), and there counting takes one
system call for each file, which is many times as fast. A file that has lost its last name while somebody has it open is
not found. It works without quota being enforced, and changes nothing.
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
    """`bytes` is the room it takes on the disk."""

    path: str
    project: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StrayCount:
    """`first` is the path of one of them, below the folder; `.` is the folder itself."""

    count: int
    bytes: int
    first: str


def count_strays(folder: int, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
    """None: all that could be looked at has the folder's number. ECANCELED: stopped before any was found."""
    found: StrayCount | None = None
    try:
        with contextlib.closing(_itself_and_below(folder, project)) as everything:
            for stray in everything:
                found = _with(found, stray) if stray is not None else found
                if should_stop():
                    break
            else:
                return found
    except OSError as error:
        raise HostError.because(error, "Which projects the files have cannot be found out") from error
    if found is None:
        raise HostError(errno.ECANCELED, "The folder is not looked through, as it was asked to stop.")
    return found


def _itself_and_below(folder: int, project: int) -> Generator[Stray | None]:
    tag = project_of(folder)
    if tag != ProjectTag(project, is_inherited=True):
        yield Stray(".", tag.project, os.fstat(folder).st_blocks * _BLOCK)
    yield from _quickly(folder, project) if _can_tell_by_name(folder) else _looked_at(folder, project, Problems())


def _can_tell_by_name(folder: int) -> bool:
    try:
        file_attributes(folder, "")
    except OSError:
        return False
    return True


def _quickly(folder: int, project: int) -> Generator[Stray | None]:
    names: list[str] = []
    to_enter: list[list[bytes]] = [[]]
    with Descent(folder) as descent:
        yield from _files_quickly(descent.descriptor, project, names, to_enter[-1])
        while names or to_enter[-1]:
            if not to_enter[-1]:
                descent.up()
                names.pop()
                to_enter.pop()
            elif _entered(descent, name := os.fsdecode(to_enter[-1].pop())):
                names.append(name)
                to_enter.append([])
                yield _judged(descent.descriptor, "", project, names)
                yield from _files_quickly(descent.descriptor, project, names, to_enter[-1])


def _files_quickly(folder: int, project: int, names: list[str], folders: list[bytes]) -> Generator[Stray | None]:
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
    with contextlib.suppress(OSError):  # gone, or it cannot be known
        if file_attributes(folder, name).project != project:
            # What is mounted on a name has its own number; only the name's own counts.
            place = open_place(folder, os.fsdecode(name) or ".")
            try:
                found, size = attributes_of_place(place).project, os.fstat(place).st_blocks * _BLOCK
            finally:
                os.close(place)
            path = "/".join([*names, os.fsdecode(name)]) if name else "/".join(names)
            return Stray(path, found, size) if found != project else None
    return None


def _with(before: StrayCount | None, stray: Stray) -> StrayCount:
    if before is None:
        return StrayCount(1, stray.bytes, stray.path)
    return StrayCount(before.count + 1, before.bytes + stray.bytes, before.first)


def strays(folder: int, project: int, problems: Problems) -> Iterator[Stray]:
    """What is below the folder and has another number; what could not be looked at is a problem."""
    return (stray for stray in _looked_at(folder, project, problems) if stray is not None)


def _looked_at(folder: int, project: int, problems: Problems) -> Generator[Stray | None]:
    """Once for everything below; None for what has the number, so that who asks can stop anywhere."""
    walk = FolderWalk(folder, problems)
    with contextlib.closing(walk.steps()) as steps:
        for step in steps:
            if isinstance(step, Leave):
                continue
            try:
                found = _project(step)
            except OSError as error:
                problems.add_error(_path(walk, step), "Its project cannot be read", error)
                continue
            if found in {None, project}:
                yield None
            else:
                yield Stray(_path(walk, step), found or 0, step.status.st_blocks * _BLOCK)


def _path(walk: FolderWalk, step: Enter | Meet) -> str:
    return walk.path() if isinstance(step, Enter) else walk.path_to(step.name)


def _project(step: Enter | Meet) -> int | None:
    """None when that cannot be known."""
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
