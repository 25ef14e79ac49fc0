"""What a kubelet has of a fake machine for volumes: keeps the contract of `host/volume_host`."""

from __future__ import annotations

import errno
from collections.abc import Callable

from orlop.host.payload_files import HostPath
from orlop.host.volume_host import Names, VolumeHost
from orlop.host.volume_ownership import OwnershipReport
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import KUBELET_DIR, FakeMachine
from orlop.testing.kill_points import KillPoints

UNFINISHED = ".new"


class FakeVolumeHost:
    """Each change is an effect that a kill may hit."""

    def __init__(self, machine: FakeMachine, points: KillPoints | None = None) -> None:
        self._machine = machine
        self._acts = Acts(machine, points or KillPoints())

    def path_of(self, names: Names) -> str:
        return "/".join((KUBELET_DIR, *names))

    def make_folders(self, folder: Names) -> None:
        for depth in range(1, len(folder) + 1):
            part = folder[:depth]
            if part in self._machine.kubelet_files:
                refuse(errno.ENOTDIR, f"{_shown(part)} is no folder")
            if part not in self._machine.kubelet_folders:
                with self._acts.change("make_folders", f"make folder {_shown(part)}"):
                    self._machine.kubelet_folders.add(part)

    def names_in(self, folder: Names) -> frozenset[str] | None:
        with self._acts.look("names_in"):
            return self._entries(folder) if folder in self._machine.kubelet_folders else None

    def is_there(self, names: Names) -> bool:
        with self._acts.look("is_there"):
            return names in self._machine.kubelet_folders or names in self._machine.kubelet_files

    def is_mounted(self, names: Names) -> bool:
        with self._acts.look("is_mounted"):
            return bool(self._machine.mounts.get(names))

    def mounted_elsewhere(self, target: Names) -> tuple[str, ...]:
        with self._acts.look("mounted_elsewhere"):
            stack = self._machine.mounts.get(target)
            roots = {mount.root for mount in stack[-1:]} if stack else set()
            others = ((at, it[-1].root) for at, it in self._machine.mounts.items() if it and at != target)
            return tuple(self.path_of(at) for at, root in others if root in roots)

    def write_file(self, file: Names, content: bytes) -> None:
        unfinished = _unfinished(file)
        with self._acts.change("write_file", f"write {_shown(unfinished)}"):
            if file[:-1] not in self._machine.kubelet_folders:
                refuse(errno.ENOENT, f"{_shown(file)} cannot be written")
            self._put(unfinished, content)
        with self._acts.effect(f"rename to {_shown(file)}"):
            self._take(unfinished)
            self._put(file, content)

    def read_file(self, file: Names, most: int) -> bytes | None:
        with self._acts.look("read_file"):
            content = self._machine.kubelet_contents.get(file)
            return None if content is None else content[:most]

    def remove_file(self, file: Names) -> bool:
        if _unfinished(file) in self._machine.kubelet_files:
            with self._acts.change("remove_file", f"remove {_shown(_unfinished(file))}"):
                self._take(_unfinished(file))
        if file not in self._machine.kubelet_files:
            return False
        with self._acts.change("remove_file", f"remove {_shown(file)}"):
            self._take(file)
        return True

    def remove_folder(self, folder: Names) -> bool:
        with self._acts.change("remove_folder", f"remove folder {_shown(folder)}"):
            if folder not in self._machine.kubelet_folders:
                if folder in self._machine.kubelet_files:
                    refuse(errno.ENOTDIR, f"{_shown(folder)} is no folder")
                return False
            if self._machine.mounts.get(folder):
                refuse(errno.EBUSY, f"{_shown(folder)} cannot be removed")
            if self._entries(folder):
                refuse(errno.ENOTEMPTY, f"{_shown(folder)} cannot be removed")
            self._machine.kubelet_folders.discard(folder)
            return True

    def give_to_group(
        self,
        volume: Names,
        group: int,
        *,
        unless_root_is: bool,
        report: OwnershipReport,
        should_stop: Callable[[], bool],
    ) -> None:
        with self._acts.change("give_to_group", f"give {_shown(volume)} to {group}"):
            if volume not in self._machine.kubelet_folders:
                refuse(errno.ENOENT, f"{_shown(volume)} cannot be opened")
            if should_stop():
                refuse(errno.ECANCELED, "stopped")
            report.skipped = unless_root_is and self._machine.group_of.get(volume) == group
            if not report.skipped:
                self._machine.group_of[volume] = group
                report.files += 1

    def mount_subpath(self, volume: Names | HostPath, parts: tuple[str, ...], target: Names) -> None:
        self.make_folders(target)
        with self._acts.change("mount_subpath", f"mount {_shown(parts)} at {_shown(target)}"):
            if any(part in {"", ".", ".."} or "/" in part for part in parts):
                refuse(errno.EINVAL, f"{_shown(parts)} is no path")
            self._refuse_missing(volume)
            if not self._machine.mounts.get(target):
                self._machine.mount_something_else(target)

    def unmount_subpath(self, target: Names) -> None:
        if self._machine.mounts.get(target):
            with self._acts.change("unmount_subpath", f"unmount {_shown(target)}"):
                if target in self._machine.busy:
                    refuse(errno.EBUSY, f"{_shown(target)} cannot be unmounted")
                self._machine.mounts.pop(target)
        if target in self._machine.kubelet_folders:
            self.remove_folder(target)

    def _refuse_missing(self, volume: Names | HostPath) -> None:
        if isinstance(volume, HostPath):
            if volume.path not in self._machine.host_files:
                refuse(errno.ENOENT, f"{volume.path} cannot be opened")
        elif volume not in self._machine.kubelet_folders:
            refuse(errno.ENOENT, f"{_shown(volume)} cannot be opened")

    def _entries(self, folder: Names) -> frozenset[str]:
        everything = self._machine.kubelet_folders | self._machine.kubelet_files
        return frozenset(names[-1] for names in everything if names and names[:-1] == folder)

    def _put(self, file: Names, content: bytes) -> None:
        self._machine.kubelet_files.add(file)
        self._machine.kubelet_contents[file] = content

    def _take(self, file: Names) -> None:
        self._machine.kubelet_files.discard(file)
        self._machine.kubelet_contents.pop(file, None)


def as_volume_host(host: FakeVolumeHost) -> VolumeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _unfinished(file: Names) -> Names:
    return *file[:-1], f"{file[-1]}{UNFINISHED}"


def _shown(names: Names) -> str:
    return "/".join(names)
