"""Errors of the machine that show whether a drive fails.

The error of a call may come from the drive, from kubelet's folder, or from the file system inside one image. Only the
first proves that the drive fails: `errors_of_drive` marks it, and it counts at once. A cached or lucky read must not
hide it: a disk with some unreadable blocks passes every probe. Any other disk error is a reason to probe the drive.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeAlias

from orlop.host.host_errors import HostError

DISK_ERRORS: Final = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.EUCLEAN, errno.ESHUTDOWN})
"""Errors of a drive that fails."""
DriveErrorListener: TypeAlias = Callable[[str, BaseException], object]
"""Gets the id of a drive and the error of a call that used it. Must not block."""


class DriveFailure(HostError):
    """The file system of a drive has failed, not that of kubelet's folder or of one image."""


@contextmanager
def errors_of_drive(numbers: frozenset[int] = DISK_ERRORS) -> Iterator[None]:
    """Raise DriveFailure for a disk error in this context, which uses only the drive's own file system."""
    try:
        yield
    except HostError as error:
        if error.errno not in numbers or isinstance(error, DriveFailure):
            raise
        raise DriveFailure(error.errno, str(error)) from error


def io_errors_of_drive() -> AbstractContextManager[None]:
    """As `errors_of_drive`, for a context that reads an image, whose own file system may be damaged or unknown."""
    return errors_of_drive(frozenset({errno.EIO}))


def disk_error_behind(error: BaseException | None) -> HostError | None:
    """Return the disk error behind the error of a call; None if there is none."""
    while error is not None:
        if isinstance(error, HostError):
            return error if error.errno in DISK_ERRORS else None
        error = error.__cause__
    return None
