"""The volume host of this machine: see `volume_host`. Every name is opened below a directory that is held open."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self, TypeVar

from onenode.host import local_disks, volume_mounts
from onenode.host.host_paths import kind_at, opened_host_path
from onenode.host.payload_files import FileKind, HostPath, Names
from onenode.host.volume_host import VolumeHost
from onenode.host.volume_ownership import OwnershipReport, give_to_group, is_given
from orlop.host.block import loop_devices
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths
from orlop.host.kernel.confined_paths import READ_FLAGS, DescriptorUse, Mounts, opened_below, reopen
from orlop.host.mounts import mount_table, mounts
from orlop.host.mounts.mounts import MountOptions

T = TypeVar("T")
FOLDER_MODE: Final = 0o750
FILE_MODE: Final = 0o666  # less the umask, as kubelet has it
NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
UNFINISHED: Final = ".new"
"""What the name of a file ends with while it is written."""
NOT_A_FOLDER: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class LinuxVolumeHost:
    """`path` may lead over symbolic links; they are followed when it is opened, and never again. To be closed."""

    def __init__(self, path: str) -> None:
        self._root = confined_paths.open_root(path)
        self._path = os.readlink(f"/proc/self/fd/{self._root}")

    def path_of(self, names: Names) -> str:
        return "/".join((self._path.rstrip("/"), *names))

    def make_folders(self, folder: Names) -> None:
        for depth in range(1, len(folder) + 1):
            with self._opened(folder[: depth - 1]) as parent:
                confined_paths.make_folder(parent, folder[depth - 1], FOLDER_MODE)

    def names_in(self, folder: Names) -> frozenset[str] | None:
        try:
            with opened_below(self._root, folder, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as opened:
                return frozenset(confined_paths.names_in(opened))
        except HostError as error:
            return _if_missing(error, None)

    def is_there(self, names: Names) -> bool:
        try:
            with self._parent_of(names) as parent:
                os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except HostError as error:
            return _if_missing(error, False)
        except OSError as error:
            raise HostError.because(error, f"{'/'.join(names)} cannot be looked at") from error
        return True

    def is_mounted(self, names: Names) -> bool:
        try:
            with self._parent_of(names) as parent:
                return mounts.is_mount_point(parent, names[-1])
        except HostError as error:
            return _if_missing(error, False)

    def mounted_elsewhere(self, target: Names) -> tuple[str, ...]:
        if not self.is_mounted(target):
            return ()
        with opened_below(self._root, target, DescriptorUse.HANDLE, Mounts.CROSSED) as mounted:
            return mount_table.other_mounts_of(mounted)

    def write_file(self, file: Names, content: bytes) -> None:
        unfinished = f"{file[-1]}{UNFINISHED}"
        with self._parent_of(file) as parent:
            try:
                _write(parent, unfinished, content)
                os.rename(unfinished, file[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                raise HostError.because(error, f"The file {'/'.join(file)} cannot be written") from error

    def read_file(self, file: Names, most: int) -> bytes | None:
        try:
            with opened_below(self._root, file, DescriptorUse.HANDLE, Mounts.CROSSED) as place:
                return _content(place, most)
        except HostError as error:
            return _if_missing(error, None)

    def remove_file(self, file: Names) -> bool:
        try:
            with self._parent_of(file) as parent:
                _remove(parent, f"{file[-1]}{UNFINISHED}")
                return _remove(parent, file[-1])
        except HostError as error:
            return _if_missing(error, False)

    def remove_folder(self, folder: Names) -> bool:
        try:
            with self._parent_of(folder) as parent:
                return confined_paths.remove_empty_folder(parent, folder[-1])
        except HostError as error:
            if error.errno == errno.ENOENT:
                return False
            raise

    def give_to_group(
        self,
        volume: Names,
        group: int,
        *,
        unless_root_is: bool,
        report: OwnershipReport,
        should_stop: Callable[[], bool],
    ) -> None:
        with opened_below(self._root, volume, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as root:
            if unless_root_is and is_given(os.fstat(root), group):
                report.skipped = True
                return
            give_to_group(root, group, report, should_stop)

    def mount_subpath(self, volume: Names | HostPath, parts: tuple[str, ...], target: Names) -> None:
        self.make_folders(target[:-1])
        with (
            self._opened_volume(volume) as top,
            volume_mounts.opened_within(top, parts) as source,
            self._parent_of(target) as parent,
        ):
            volume_mounts.mount_within(source, parent, target[-1])

    def unmount_subpath(self, target: Names) -> None:
        try:
            with self._parent_of(target) as parent:
                volume_mounts.unmount_within(parent, target[-1])
        except HostError as error:
            _if_missing(error, None)

    # ---- local volumes -------------------------------------------------------------------------------------------

    def kind_at(self, path: HostPath) -> FileKind | None:
        return kind_at(path)

    def bind(self, source: Names | HostPath, target: Names, options: MountOptions) -> None:
        with self._opened_volume(source) as opened, self._parent_of(target) as parent:
            volume_mounts.bind_within(opened, parent, target[-1], options)

    def mount_disk(self, disk: HostPath, target: Names, fs_type: str, options: Sequence[str]) -> None:
        with opened_host_path(disk) as opened, self._parent_of(target) as parent:
            local_disks.mount_disk(opened, parent, target[-1], fs_type, options)

    # ---- raw block volumes ---------------------------------------------------------------------------------------

    def device_at(self, place: Names) -> str:
        with self._parent_of(place) as parent, volume_mounts.opened_device(parent, place[-1]) as device:
            return volume_mounts.resolved_path(device)

    def make_file(self, file: Names) -> None:
        with self._parent_of(file) as parent:
            volume_mounts.make_file(parent, file[-1])

    def mount_device(self, place: Names, file: Names) -> None:
        with (
            self._parent_of(place) as published,
            volume_mounts.opened_device(published, place[-1]) as device,
            self._parent_of(file) as parent,
        ):
            volume_mounts.mount_device(device, parent, file[-1])

    def unmount(self, place: Names) -> None:
        try:
            with self._parent_of(place) as parent:
                mounts.unmount(parent, place[-1])
        except HostError as error:
            _if_missing(error, None)

    def hold_device(self, file: Names) -> str:
        with self._parent_of(file) as parent, volume_mounts.opened_device(parent, file[-1]) as device:
            return loop_devices.hold(device, self.path_of(file))

    def release_device(self, file: Names) -> bool:
        return loop_devices.release(self.path_of(file))

    def link(self, link: Names, path: str) -> None:
        unfinished = f"{link[-1]}{UNFINISHED}"
        with self._parent_of(link) as parent:
            _remove(parent, unfinished)
            try:
                os.symlink(path, unfinished, dir_fd=parent)
                os.rename(unfinished, link[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except OSError as error:
                raise HostError.because(error, f"The link {'/'.join(link)} cannot be made") from error

    def remove_link(self, link: Names) -> bool:
        try:
            with self._parent_of(link) as parent:
                _remove(parent, f"{link[-1]}{UNFINISHED}")
                return _is_link(parent, link[-1]) and _remove(parent, link[-1])
        except HostError as error:
            return _if_missing(error, False)

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def _opened_volume(self, volume: Names | HostPath) -> AbstractContextManager[int]:
        if isinstance(volume, HostPath):
            return opened_host_path(volume)
        return opened_below(self._root, volume, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED)

    def _opened(self, folder: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, folder, DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)

    def _parent_of(self, names: Names) -> AbstractContextManager[int]:
        return self._opened(names[:-1])


def as_volume_host(host: LinuxVolumeHost) -> VolumeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _write(parent: int, name: str, content: bytes) -> None:
    with contextlib.closing(os.fdopen(os.open(name, NEW_FILE_FLAGS, FILE_MODE, dir_fd=parent), "wb")) as opened:
        opened.write(content)


def _content(place: int, most: int) -> bytes | None:
    if not stat.S_ISREG(os.fstat(place).st_mode):
        return None
    with contextlib.closing(os.fdopen(reopen(place, READ_FLAGS), "rb")) as opened:
        return opened.read(most)


def _remove(parent: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"The file {name} cannot be removed") from error
    return True


def _is_link(parent: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"{name} cannot be looked at") from error


def _if_missing(error: HostError, answer: T) -> T:
    """What stands behind something that is no folder is missing too; every other error stays one."""
    if error.errno not in NOT_A_FOLDER:
        raise error
    return answer
