"""Kubelet's directory on this machine, held open from the start: targets, what is mounted there, and unmounting."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orlop.host.block.image_devices import LOOP_MAJOR, is_image_removed
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, disk_usage
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below
from orlop.host.mounts import mount_table, mounts
from orlop.host.node_host import Names

if TYPE_CHECKING:
    from orlop.host.kernel.disk_usage import DiskRoom
    from orlop.host.mounts.mounts import MountedAt

T = TypeVar("T")
TARGET_MODE = 0o750
TARGET_FILE_MODE = 0o600


class LinuxKubeletDir:
    """Kubelet's directory. Symbolic links in `path` are followed once, when it is opened, and never again."""

    def __init__(self, path: str) -> None:
        self._opened = ExitStack()
        self._root = confined_paths.open_root(path)
        self._opened.callback(os.close, self._root)
        self._real_path = os.readlink(f"/proc/self/fd/{self._root}")
        self._path = os.path.abspath(path)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self._path, self._real_path)))

    def is_shared(self) -> bool:
        if not mount_table.mount_of(self._root).is_shared:
            self._use_newer_mount()
        return mount_table.mount_of(self._root).is_shared

    def make_target(self, target: Names) -> bool:
        with self._parent_of(target) as parent:
            return confined_paths.make_folder(parent, target[-1], TARGET_MODE)

    def remove_target(self, target: Names) -> bool:
        try:
            with self._parent_of(target) as parent:
                return confined_paths.remove_empty_folder(parent, target[-1])
        except HostError as error:
            return _if_missing(error, False)

    def make_file(self, target: Names) -> bool:
        with self._parent_of(target) as parent:
            return confined_paths.make_file(parent, target[-1], TARGET_FILE_MODE)

    def remove_file(self, target: Names) -> bool:
        try:
            with self._parent_of(target) as parent:
                return confined_paths.remove_empty_file(parent, target[-1])
        except HostError as error:
            return _if_missing(error, False)

    def mounted_at(self, target: Names) -> MountedAt | None:
        try:
            with self._parent_of(target) as parent:
                mounted = mounts.mounted_at(parent, target[-1])
        except HostError as error:
            return _if_missing(error, None)
        # A file system stays mounted after its image was unlinked, and its root looks as before: only the loop device
        # shows that the image is gone.
        if mounted is not None and os.major(mounted.root.device) == LOOP_MAJOR:
            return replace(mounted, is_removed=mounted.is_removed or is_image_removed(mounted.root.device))
        return mounted

    def room_at(self, target: Names) -> DiskRoom:
        with self.opened_target(target) as place:
            try:
                root = confined_paths.reopen(place)
            except OSError as error:
                raise HostError.because(error, f"The volume at {'/'.join(target)} cannot be opened") from error
        try:
            # An XFS that has shut down still reports its size; only this shows that it failed.
            os.fstat(root)
            return disk_usage.room_on(root)
        except HostError:
            raise
        except OSError as error:
            raise HostError.because(error, f"The volume at {'/'.join(target)} cannot be read") from error
        finally:
            os.close(root)

    def unmount(self, target: Names) -> int:
        try:
            with self._parent_of(target) as parent:
                return mounts.unmount(parent, target[-1])
        except HostError as error:
            return _if_missing(error, 0)

    def names_in(self, folder: Names) -> frozenset[str] | None:
        try:
            with opened_below(self._root, folder, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as opened:
                return frozenset(confined_paths.names_in(opened))
        except HostError as error:
            return _if_missing(error, None)

    def opened_target(self, target: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, target, DescriptorUse.HANDLE, Mounts.CROSSED)

    def close(self) -> None:
        self._opened.close()

    def _parent_of(self, target: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, target[:-1], DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)

    def _use_newer_mount(self) -> None:
        """Switch to the mount of a kubelet that started after us: it binds its directory to itself, and hides ours."""
        newer = confined_paths.open_root(self._real_path)
        if mounts.identity_of(newer) == mounts.identity_of(self._root) and mount_table.mount_of(newer).is_shared:
            # The old descriptor stays open until the end: other threads may be using it.
            self._opened.callback(os.close, newer)
            self._root = newer
        else:
            os.close(newer)


def _if_missing(error: HostError, answer: T) -> T:
    """Return `answer` if the error is a missing parent; raise every other error."""
    if error.errno != errno.ENOENT:
        raise error
    return answer
