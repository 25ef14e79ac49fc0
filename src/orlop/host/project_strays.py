"""Files that left the project of their folder: an owner can give its own files another number, and write on uncounted.

All that is below the folder is looked at, confined as every walk (`folder_walk`); only plain files and folders are
opened. Links, fifos and devices take no room but their inode; they are looked at where the kernel can tell (from Linux
6.17 on). It works without quota being enforced, and changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orlop.host.confined_open import reopen
from orlop.host.folder_walk import Enter, FolderWalk, Leave, Meet
from orlop.host.project_quota import project_of
from orlop.host.system_calls import file_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.host.remarks import Remarks


@dataclass(frozen=True, slots=True)
class Stray:
    """`bytes` is the room it takes on the disk."""

    path: str
    project: int
    bytes: int


def strays(folder: int, project: int, remarks: Remarks) -> Iterator[Stray]:
    """What is below the folder and has another number; what could not be looked at is a remark."""
    walk = FolderWalk(folder, remarks)
    with contextlib.closing(walk.steps()) as steps:
        for step in steps:
            if isinstance(step, Leave):
                continue
            path = walk.path() if isinstance(step, Enter) else walk.path_to(step.name)
            try:
                found = _project(step)
            except OSError as error:
                remarks.add_error(path, "Its project cannot be read", error)
                continue
            if found not in {None, project}:
                yield Stray(path, found or 0, step.status.st_blocks * 512)


def _project(step: Enter | Meet) -> int | None:
    """None when that cannot be known."""
    if isinstance(step, Enter):
        return project_of(step.descriptor).project
    if not stat.S_ISREG(step.status.st_mode):
        with contextlib.suppress(OSError):
            return file_attributes(step.place, "").project
        return None
    file = reopen(step.place)
    try:
        return project_of(file).project
    finally:
        os.close(file)
