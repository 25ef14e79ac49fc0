"""Gives all that is in a volume to a group, as kubelet does for a pod's fsGroup.

Children before their parents, so that a correct root proves that everything below it is correct. Files get at least
0660, folders 0770 and the bit that has new files inherit the group; links are given to the group and never followed;
what is mounted inside is not entered. What is right already is not touched. A file that cannot be changed becomes a
remark; a folder that cannot be listed is an error, since nobody knows what is in it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from orlop.host.folders.read_only_walk import Enter, FolderWalk, Leave, Meet, Problems
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import path_of

FILE_BITS: Final = 0o660
FOLDER_BITS: Final = 0o770 | stat.S_ISGID
KEEP_OWNER: Final = -1


@dataclass(slots=True)
class OwnershipReport:
    """`files` grows during the work: a waiting caller may read it."""

    files: int = 0
    skipped: bool = False
    """The root was right already."""
    remarks: Problems = field(default_factory=Problems)


def is_given(root: os.stat_result, group: int) -> bool:
    bits = FOLDER_BITS
    return stat.S_ISDIR(root.st_mode) and root.st_gid == group and root.st_mode & bits == bits


def give_to_group(root: int, group: int, report: OwnershipReport, should_stop: Callable[[], bool]) -> None:
    """`root` is a descriptor of the volume's top, opened for its content. ECANCELED: stopped on the way."""
    listing = Problems()
    walk = FolderWalk(root, listing)
    for step in walk.steps():
        if should_stop():
            raise HostError(errno.ECANCELED, "The volume was not given to its group: the work was stopped.")
        match step:
            case Enter():
                continue
            case Leave(status, descriptor):
                _give(descriptor, status, group, report)
            case Meet(name, status, place):
                _give(place, status, group, report, shown=walk.path_to(name))
        report.files += 1
    _give(root, os.fstat(root), group, report)
    report.files += 1
    _refuse_unlisted(listing)


def _give(descriptor: int, status: os.stat_result, group: int, report: OwnershipReport, shown: str = ".") -> None:
    """By the descriptor alone: whatever takes the name meanwhile is not what was looked at."""
    path = path_of(descriptor)
    before, after = stat.S_IMODE(status.st_mode), _mode(status)
    try:
        if status.st_gid != group:
            os.chown(path, KEEP_OWNER, group)
            before &= ~(stat.S_ISUID | stat.S_ISGID)  # the kernel takes them off
        if before != after and not stat.S_ISLNK(status.st_mode):
            os.chmod(path, after)
    except OSError as error:
        report.remarks.add_error(shown, "It cannot be given to the group", error)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode) | (FOLDER_BITS if stat.S_ISDIR(status.st_mode) else FILE_BITS)


def _refuse_unlisted(listing: Problems) -> None:
    """A mount inside is passed over; all else that could not be looked at is an error."""
    failed = [remark for remark in listing.first if "mounted there" not in remark.sentence]
    if failed:
        raise HostError(errno.EIO, f"The volume is not wholly its group's: {failed[0]}")
