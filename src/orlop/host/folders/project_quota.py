"""Project quotas of XFS and ext4: a folder gets a number, and what is below it counts against that number's limits.

An empty folder gets the number, and everything created in it inherits it. Limits are hard: on XFS a write beyond
them fails with ENOSPC, for everybody; on ext4 with EDQUOT, and not for processes that have CAP_SYS_RESOURCE. statvfs on
the folder then reports the limit as its size. Quota guards against accidents: an owner can set another number
(`project_strays` finds them). Limits of number 0 become the default of every number without its own, on XFS.

Check first whether a file system enforces limits (`why_not_enforced`); a remount cannot enable them. Usage falls some
milliseconds after files are removed, so a number is used again only when its usage is zero.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.folders.folder_entries import entries_in_batches
from orlop.host.host_errors import HostError
from orlop.host.kernel.system_calls import quotactl_fd

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_PROJECT: Final = 2**32 - 2
GET_ATTRIBUTES: Final = 0x801C581F
SET_ATTRIBUTES: Final = 0x401C5820
INHERIT: Final = 0x200
_ATTRIBUTES: Final = struct.Struct("=IIIII8x")  # flags, extent size, extents, project, extent size when copied

_PROJECT_QUOTA: Final = 2
_GET_QUOTA, _SET_LIMITS, _GET_STATE, _GET_NEXT_QUOTA = 0x5803, 0x5804, 0x5805, 0x5809
_LIMIT_FIELDS: Final = 1 | 2 | 4 | 8  # soft and hard, of inodes and of blocks
_QUOTA_BLOCK: Final = 512
# version, kind, fields, project, blocks hard and soft, inodes hard and soft, blocks and inodes used, timers and more
_QUOTA: Final = struct.Struct("=bbHIQQQQQQiiHHbbbbQQQiHh8x")
_REST_OF_QUOTA: Final = (0,) * 16
_STATE: Final = struct.Struct("=bxH")
_STATE_BYTES: Final = 128
_PROJECTS_COUNTED, _PROJECTS_ENFORCED = 0x10, 0x20
_UNKNOWN_PROJECT: Final = frozenset({errno.ENOENT, errno.ESRCH})


@dataclass(frozen=True, slots=True)
class ProjectTag:
    """The project number of a file; for a folder, also whether new entries inherit it."""

    project: int
    is_inherited: bool


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """Limits of a project; None is no limit. Bytes are rounded up: to 4 KiB on XFS, to 1 KiB on ext4."""

    bytes: int | None
    inodes: int | None

    def __post_init__(self) -> None:
        if any(limit is not None and limit <= 0 for limit in (self.bytes, self.inodes)):
            raise ValueError("a limit of a project is above zero, or None for no limit")


NO_LIMITS: Final = ProjectLimits(None, None)


@dataclass(frozen=True, slots=True)
class FolderQuota:
    """The project number of a folder, and its limits."""

    project: int
    limits: ProjectLimits


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    project: int
    bytes: int
    inodes: int
    limits: ProjectLimits

    @property
    def is_nothing(self) -> bool:
        """Return whether no file has the number, so that a folder can get it."""
        return not self.bytes and not self.inodes


def why_not_enforced(folder: int) -> str | None:
    """Return why the file system of this folder does not enforce limits of projects; None if it does."""
    answer = ctypes.create_string_buffer(_STATE_BYTES)
    try:
        quotactl_fd(folder, _command(_GET_STATE), 0, answer)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return f"The kernel has no project quota for this file system ({error.strerror}). {_ELSEWHERE}"
        return f"The file system has no project quota ({error.strerror}). {_REMEDY}"
    _version, flags = _STATE.unpack_from(answer)
    if not flags & _PROJECTS_ENFORCED:
        counted = "counts projects without limiting them" if flags & _PROJECTS_COUNTED else "has no project quota"
        return f"The file system {counted}. {_REMEDY}"
    return None


_REMEDY: Final = "Mount it with prjquota (XFS, and ext4 made with -O quota,project); a remount is not enough."
_ELSEWHERE: Final = "No mount option adds it: use XFS or ext4, with a kernel that is built with quotas for it."


def project_of(descriptor: int) -> ProjectTag:
    """Return the tag of an open file or folder. Raises OSError if the file system has no projects."""
    flags, _extent_size, _extents, project, _copied = _attributes(descriptor)
    return ProjectTag(project, bool(flags & INHERIT))


def assign_project(folder: int, project: int) -> None:
    """Assign a number to an empty folder, inherited by everything created in it. Idempotent."""
    _refuse_unfit(project)
    if any(entries.folders or entries.others for entries in entries_in_batches(folder)):
        raise HostError(
            errno.ENOTEMPTY, "A folder that is not empty cannot get a project: what is in it would not count. Empty it."
        )
    try:
        flags, extent_size, extents, _project, copied = _attributes(folder)
        fcntl.ioctl(folder, SET_ATTRIBUTES, _ATTRIBUTES.pack(flags | INHERIT, extent_size, extents, project, copied))
    except OSError as error:
        raise HostError.because(error, f"The folder cannot get the project {project}") from error


def hold_to(folder: int, quota: FolderQuota) -> None:
    """Limit an empty folder: first the limits of its number, then the number. EOPNOTSUPP: nothing would be enforced."""
    reason = why_not_enforced(folder)
    if reason is not None:
        raise HostError(errno.EOPNOTSUPP, reason)
    # Limits first: once the folder has its number, everything written into it counts against them.
    set_limits(folder, quota.project, quota.limits)
    assign_project(folder, quota.project)


def set_limits(folder: int, project: int, limits: ProjectLimits) -> None:
    """Set limits on the file system of this folder. A higher limit counts at once; one below the usage stops writes."""
    blocks = -(-(limits.bytes or 0) // _QUOTA_BLOCK)
    numbers = (blocks, 0, limits.inodes or 0, 0)
    record = ctypes.create_string_buffer(
        _QUOTA.pack(1, _PROJECT_QUOTA, _LIMIT_FIELDS, project, *numbers, *_REST_OF_QUOTA), _QUOTA.size
    )
    try:
        quotactl_fd(folder, _command(_SET_LIMITS), project, record)
    except OSError as error:
        raise HostError.because(error, f"The limits of the project {project} cannot be set") from error


def usage_of(folder: int, project: int) -> ProjectUsage:
    """Return usage and limits of a number; zero and no limits if it was never used."""
    usage = _read_quota(folder, _GET_QUOTA, project)
    return usage or ProjectUsage(project, 0, 0, NO_LIMITS)


def projects(folder: int) -> Iterator[ProjectUsage]:
    """Yield every number in use on the file system of this folder, 0 included, in ascending order."""
    number = 0
    while number <= LARGEST_PROJECT and (usage := _read_quota(folder, _GET_NEXT_QUOTA, number)) is not None:
        yield usage
        number = usage.project + 1


def _read_quota(folder: int, command: int, project: int) -> ProjectUsage | None:
    record = ctypes.create_string_buffer(_QUOTA.size)
    try:
        quotactl_fd(folder, _command(command), project, record)
    except OSError as error:
        if error.errno in _UNKNOWN_PROJECT:
            return None
        raise HostError.because(error, f"The usage of the project {project} cannot be read") from error
    values = _QUOTA.unpack_from(record)
    number, hard_blocks, hard_inodes, blocks, inodes = values[3], values[4], values[6], values[8], values[9]
    limits = ProjectLimits(hard_blocks * _QUOTA_BLOCK or None, hard_inodes or None)
    return ProjectUsage(number, blocks * _QUOTA_BLOCK, inodes, limits)


def _attributes(descriptor: int) -> tuple[int, ...]:
    return _ATTRIBUTES.unpack(fcntl.ioctl(descriptor, GET_ATTRIBUTES, bytes(_ATTRIBUTES.size)))


def _command(command: int) -> int:
    return command << 8 | _PROJECT_QUOTA


def _refuse_unfit(project: int) -> None:
    if not 0 < project <= LARGEST_PROJECT:
        raise HostError(errno.EINVAL, f"{project} cannot be a project: it is a number from 1 to {LARGEST_PROJECT}.")
