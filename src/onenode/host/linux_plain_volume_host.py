"""The plain volumes of this machine: see `volume_host`. Every name is opened below a directory held open.

Order of a folder on disk: made as `.new-<name>` → given its group and mode → renamed. In memory: an empty folder → a
file system that has group, mode and size from its birth → attached, in one step. So there is no half of either to be
found by the next life; `remove` takes both names.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Final, Self

from onenode.host import host_paths, payload_folder
from onenode.host.payload_files import FileKind, FolderPermissions, HostPath, Names, Payload
from onenode.host.volume_host import PlainVolumeHost
from onenode.host.volume_mounts import attach_within
from orlop.host.erase.erase_folder import REST_PREFIX, erase_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below
from orlop.host.mounts import mounts

PARENT_MODE: Final = 0o750
UNFINISHED: Final = ".new-"
NO_DEVICES: Final = 0x04


class LinuxPlainVolumeHost:
    """`path` may lead over symbolic links; they are followed when it is opened, and never again. To be closed."""

    def __init__(self, path: str) -> None:
        self._root = confined_paths.open_root(path)

    def make_on_disk(self, volume: Names, access: FolderPermissions) -> None:
        self._make_parents(volume)
        with self._parent_of(volume) as parent:
            if not confined_paths.is_folder(parent, volume[-1]):
                _make_finished(parent, volume[-1], access)

    def make_in_memory(self, volume: Names, access: FolderPermissions, most_bytes: int) -> None:
        self._make_parents(volume)
        with self._parent_of(volume) as parent:
            confined_paths.make_folder(parent, volume[-1], PARENT_MODE)
            if not mounts.is_mount_point(parent, volume[-1]):
                _mount_memory(parent, volume[-1], access, most_bytes)

    def write_payload(self, volume: Names, payload: Payload, stamp: str, group: int | None) -> bool:
        with self._top_of(volume) as top:
            return payload_folder.write_payload(top, payload, stamp, group)

    def payload_of(self, volume: Names) -> dict[Names, bytes]:
        with self._top_of(volume) as top:
            return payload_folder.payload_in(top)

    def make_nested_folders(self, volume: Names, folders: Sequence[Names]) -> None:
        with self._top_of(volume) as top:
            payload_folder.make_nested_folders(top, folders)

    def volumes_in(self, folder: Names) -> frozenset[str]:
        try:
            with opened_below(self._root, folder, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as opened:
                return frozenset(_volume_of(name) for name in confined_paths.names_in(opened))
        except HostError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return frozenset()
            raise

    def remove(self, volume: Names, stop: threading.Event) -> None:
        try:
            with opened_below(self._root, volume[:-1], DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as parent:
                mounts.unmount(parent, volume[-1])
                for name in (f"{UNFINISHED}{volume[-1]}", volume[-1]):
                    if not _is_removed_empty(parent, name):
                        _erase(parent, name, stop)
        except HostError as error:
            if error.errno != errno.ENOENT:
                raise

    def kind_at(self, path: HostPath) -> FileKind | None:
        return host_paths.kind_at(path)

    def make_host_folder(self, path: HostPath) -> None:
        host_paths.make_folder_at(path)

    def make_host_file(self, path: HostPath) -> None:
        host_paths.make_file_at(path)

    def close(self) -> None:
        os.close(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make_parents(self, volume: Names) -> None:
        for depth in range(1, len(volume)):
            with opened_below(self._root, volume[: depth - 1], DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as parent:
                confined_paths.make_folder(parent, volume[depth - 1], PARENT_MODE)

    def _parent_of(self, volume: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, volume[:-1], DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)

    def _top_of(self, volume: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, volume, DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED)


def as_plain_volume_host(host: LinuxPlainVolumeHost) -> PlainVolumeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _volume_of(entry: str) -> str:
    for prefix in (UNFINISHED, REST_PREFIX):
        entry = entry.removeprefix(prefix) or entry
    return entry


def _make_finished(parent: int, name: str, access: FolderPermissions) -> None:
    unfinished = f"{UNFINISHED}{name}"
    confined_paths.make_folder(parent, unfinished, 0o700)
    with opened_below(parent, (unfinished,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as made:
        if access.group is not None:
            os.fchown(made, -1, access.group)
        os.fchmod(made, access.mode)
    try:
        system_calls.renameat2(parent, unfinished, parent, name, system_calls.RENAME_NO_REPLACE)
    except OSError as error:
        raise HostError.because(error, f"The volume {name} cannot be made") from error


def _mount_memory(parent: int, name: str, access: FolderPermissions, most_bytes: int) -> None:
    options: dict[str, str | None] = {"size": str(most_bytes), "mode": f"{access.mode:04o}"}
    if access.group is not None:
        options["gid"] = str(access.group)
    try:
        tree = _memory(options)
    except OSError as error:
        raise HostError.because(error, f"The volume {name} cannot be had in memory") from error
    try:
        attach_within(tree, parent, name, f"The volume {name} cannot be mounted")
    finally:
        os.close(tree)


def _memory(options: dict[str, str | None]) -> int:
    """Never swapped out, where the kernel (6.4 or newer) can promise that."""
    try:
        return system_calls.new_file_system("tmpfs", {**options, "noswap": None}, NO_DEVICES)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return system_calls.new_file_system("tmpfs", options, NO_DEVICES)


def _is_removed_empty(parent: int, name: str) -> bool:
    """Most are: what was in memory is empty once it is unmounted."""
    with suppress(OSError):
        os.rmdir(name, dir_fd=parent)
    return not {name, f"{REST_PREFIX}{name}"} & set(confined_paths.names_in(parent))


def _erase(parent: int, name: str, stop: threading.Event) -> None:
    erasure = erase_folder(parent, name, stop, threads=1)
    if erasure.stopped:
        raise HostError(errno.ECANCELED, f"The volume {name} is not erased yet: the work was stopped.")
    if erasure.left:
        raise HostError(errno.EIO, f"The volume {name} is not erased: {erasure.left[0]}.")
