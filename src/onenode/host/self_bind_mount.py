"""A folder that is a shared mount of its own, whatever it lies on: bound on itself, and taken apart again.

What is mounted below it is seen by all who see the folder, also when `/` is private. Order: a clone of the folder with
all that is mounted below it → made shared, while nobody sees it → attached on the folder itself. Back: what is mounted
below goes first, the innermost before the rest, then the folder's own mount. Dying in between leaves a folder that is
bound, or not: calling again is right.

Must not unmount what is mounted at the folder and is not the folder itself: that is the admin's own. Nothing is
detached lazily.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, opened_root
from orlop.host.mounts import mount_table, mounts
from orlop.host.mounts.mount_table import MountLine, folder_of_path


def bind_on_itself(path: str) -> bool:
    """Whether that was done now; one that is a shared mount already is left as it is."""
    with opened_root(path) as folder:
        if _is_bound(folder) and mount_table.mount_of(folder).is_shared:
            return False
        try:
            tree = system_calls.clone_whole_tree(folder)
        except OSError as error:
            raise HostError.because(error, f"The folder {path} cannot be bound on itself") from error
        try:
            # Private first: else it would share with what it was cloned from, and each mount appear below it too.
            for propagation in (system_calls.PROPAGATION_PRIVATE, system_calls.PROPAGATION_SHARED):
                system_calls.set_attributes_of_whole_tree(tree, 0, propagation)
            system_calls.attach_tree(tree, folder)
        except OSError as error:
            raise HostError.because(error, f"The folder {path} cannot be made a shared mount") from error
        finally:
            os.close(tree)
    return True


def is_bound_on_itself(path: str) -> bool:
    with opened_root(path) as folder:
        return _is_bound(folder)


def unbind(path: str) -> bool:
    """Whether it was bound on itself. EBUSY: somebody uses it, or something is mounted below it; it stays."""
    was_bound = False
    with _parent_of(path) as (parent, name):
        while _is_bound_at(parent, name):
            _unmount_topmost(parent, name, path)
            was_bound = True
    return was_bound


def unmount_below(path: str) -> list[str]:
    """Everything mounted below the folder, and the paths of what that was; HostError where something is in use."""
    done: list[str] = []
    with opened_root(path) as folder:
        while (names := _innermost(folder)) is not None:
            with opened_below(folder, names[:-1], DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as parent:
                if not mounts.unmount(parent, names[-1]):
                    raise HostError(errno.EBUSY, f"{'/'.join(names)} below {path} is mounted, and cannot be reached.")
            done.append("/".join(names))
    return done


def mounted_below(path: str) -> bool:
    with opened_root(path) as folder:
        return _innermost(folder) is not None


def _innermost(folder: int) -> tuple[str, ...] | None:
    """The names that lead to the innermost mount below the folder.

    Not those that our own mount of the folder covers: they have such paths, and cannot be reached by them.
    """
    top = PurePath(_path_of(folder))
    points = [PurePath(line.mount_point) for line in _mounts_upon(mount_table.mount_of(folder).mount_id)]
    below = [point for point in points if point != top and point.is_relative_to(top)]
    return max(below, key=lambda point: len(point.parts)).relative_to(top).parts if below else None


def _mounts_upon(mount_id: int) -> Iterator[MountLine]:
    """Those that stand on the mount, and on those in turn."""
    upon: dict[int, list[MountLine]] = {}
    for line in mount_table.all_mounts():
        upon.setdefault(line.parent_id, []).append(line)
    waiting = [mount_id]
    while waiting:
        found = upon.pop(waiting.pop(), [])
        waiting += [line.mount_id for line in found]
        yield from found


def _is_bound(folder: int) -> bool:
    """Whether the mount that an open folder lies on is the folder itself, bound on itself."""
    own = mount_table.mount_of(folder)
    if own.mount_point != _path_of(folder):
        return False
    below = next((line for line in mount_table.all_mounts() if line.mount_id == own.parent_id), None)
    return below is not None and _shows_itself(own, below)


def _shows_itself(own: MountLine, below: MountLine) -> bool:
    return own.root == folder_of_path(below, own.mount_point)


def _is_bound_at(parent: int, name: str) -> bool:
    try:
        with opened_below(parent, (name,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as folder:
            return _is_bound(folder)
    except HostError as error:
        if error.errno == errno.ENOENT:
            return False
        raise


def _unmount_topmost(parent: int, name: str, path: str) -> None:
    try:
        system_calls.umount2(f"/proc/self/fd/{parent}/{name}", system_calls.UNMOUNT_NO_FOLLOW)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise HostError.because(error, f"{path} cannot be unmounted") from error
        who = "a process stands in it, has a file of it open or listens on a socket there"
        why = f"something is mounted below it, or {who}. End that, and try again"
        raise HostError(errno.EBUSY, f"{path} cannot be unmounted: {why}.") from error


@contextmanager
def _parent_of(path: str) -> Iterator[tuple[int, str]]:
    """By the path that the folder has without any links."""
    with opened_root(path) as folder:
        real = PurePath(_path_of(folder))
    with opened_root(str(real.parent)) as parent:
        yield parent, real.name


def _path_of(folder: int) -> str:
    return os.readlink(f"/proc/self/fd/{folder}")
