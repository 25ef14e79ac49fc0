"""Remove what keeps an entry of a folder from being unlinked: flags, mounts and missing permissions.

`Obstacles.overcome` acts on an entry, and when the kernel refuses, removes the obstacle and tries again,
a bounded number of times: a tenant that still runs may put it back. A mount is detached from its place, never looked
into. What it cannot remove it raises, as the kernel's own error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from orlop.host.kernel.confined_paths import open_place, path_of
from orlop.host.kernel.file_flags import make_erasable, make_open_file_erasable
from orlop.host.kernel.system_calls import UNMOUNT_LAZILY, UNMOUNT_NO_FOLLOW, umount2

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST_TRIES: Final = 8
MOST_MOUNTS_ON_ONE_PLACE: Final = 10_000
OWNER_ONLY: Final = 0o700
OBSTACLES: Final = frozenset({errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES})


class Obstacles:
    """Counts the mounts it detached; for any number of threads."""

    def __init__(self) -> None:
        self.mounts_detached = 0
        self._lock = threading.Lock()

    def overcome(self, folder: int, name: str, act: Callable[[], T]) -> T:
        for _ in range(MOST_TRIES):
            try:
                return act()
            except OSError as error:
                if error.errno not in OBSTACLES:
                    raise
                if not self._remove_obstacle(folder, name, error):
                    break  # nothing stands there now: another thread may have removed it since
        return act()

    def _remove_obstacle(self, folder: int, name: str, error: OSError) -> bool:
        """Whether there was one that could be removed."""
        match error.errno:
            case errno.EBUSY | errno.EXDEV:
                return self._detach_mounts(folder, name)
            case errno.EPERM:
                return _take_flags_off(folder, name)
            case _:
                return _permit_ourselves(folder, name)

    def _detach_mounts(self, folder: int, name: str) -> bool:
        # Of what is mounted on what, the upper goes first; each one that goes uncovers the next.
        detached = 0
        with contextlib.suppress(OSError):
            while detached < MOST_MOUNTS_ON_ONE_PLACE:
                umount2(f"{path_of(folder)}/{name}", UNMOUNT_LAZILY | UNMOUNT_NO_FOLLOW)
                detached += 1
        with self._lock:
            self.mounts_detached += detached
        return detached > 0


def _take_flags_off(folder: int, name: str) -> bool:
    """Of the entry and of its folder: an immutable folder gives nothing away either."""
    changed = False
    with contextlib.suppress(OSError):
        changed = make_open_file_erasable(folder)
    with contextlib.suppress(OSError):
        changed = make_erasable(folder, name) or changed
    return changed


def _permit_ourselves(folder: int, name: str) -> bool:
    """For processes without the right to pass over permissions: those of the folder, and of a folder in it."""
    changed = _open_up(folder)
    with contextlib.suppress(OSError):
        place = open_place(folder, name)
        try:
            changed = _open_up(place) or changed
        finally:
            os.close(place)
    return changed


def _open_up(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISDIR(mode) or mode & OWNER_ONLY == OWNER_ONLY:
        return False
    with contextlib.suppress(OSError):
        os.chmod(path_of(descriptor), OWNER_ONLY)
        return True
    return False
