"""Remove what keeps an entry of a folder from being unlinked: flags, mounts and missing permissions.

`Obstacles.overcome` acts on an entry. When the kernel refuses, it removes the obstacle and retries, a bounded number of
times: a tenant that still runs may restore the obstacle. A mount is detached from its mount point and never entered. If
an obstacle cannot be removed, the kernel's own error is raised.
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
    """Removes obstacles and counts the mounts it detached. Safe for any number of threads."""

    def __init__(self) -> None:
        self.mounts_detached = 0
        self._lock = threading.Lock()

    def overcome(self, folder: int, name: str, act: Callable[[], T]) -> T:
        """Call `act`, which acts on the entry `name` of `folder`; retry it after each obstacle that was removed."""
        for _ in range(MOST_TRIES):
            try:
                return act()
            except OSError as error:
                if error.errno not in OBSTACLES:
                    raise
                if not self._remove_obstacle(folder, name, error):
                    break  # nothing to remove: another thread may have removed the obstacle since
        return act()

    def _remove_obstacle(self, folder: int, name: str, error: OSError) -> bool:
        """Remove the obstacle that this error stands for; return whether anything was removed."""
        match error.errno:
            case errno.EBUSY | errno.EXDEV:
                return self._detach_mounts(folder, name)
            case errno.EPERM:
                return _clear_flags(folder, name)
            case _:
                return _grant_owner_access(folder, name)

    def _detach_mounts(self, folder: int, name: str) -> bool:
        # Mounts may be stacked on one place: umount2 detaches the topmost, which uncovers the next.
        detached = 0
        with contextlib.suppress(OSError):
            while detached < MOST_MOUNTS_ON_ONE_PLACE:
                umount2(f"{path_of(folder)}/{name}", UNMOUNT_LAZILY | UNMOUNT_NO_FOLLOW)
                detached += 1
        with self._lock:
            self.mounts_detached += detached
        return detached > 0


def _clear_flags(folder: int, name: str) -> bool:
    """Clear the immutable and append-only flags of an entry and its folder; return whether any was set."""
    # The folder's own flags matter too: nothing can be removed from an immutable or append-only folder.
    changed = False
    with contextlib.suppress(OSError):
        changed = make_open_file_erasable(folder)
    with contextlib.suppress(OSError):
        changed = make_erasable(folder, name) or changed
    return changed


def _grant_owner_access(folder: int, name: str) -> bool:
    """Set mode 0700 on the folder, and on the entry if it is a folder, for a process without CAP_DAC_OVERRIDE."""
    changed = _make_accessible(folder)
    with contextlib.suppress(OSError):
        place = open_place(folder, name)
        try:
            changed = _make_accessible(place) or changed
        finally:
            os.close(place)
    return changed


def _make_accessible(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISDIR(mode) or mode & OWNER_ONLY == OWNER_ONLY:
        return False
    with contextlib.suppress(OSError):
        os.chmod(path_of(descriptor), OWNER_ONLY)
        return True
    return False
