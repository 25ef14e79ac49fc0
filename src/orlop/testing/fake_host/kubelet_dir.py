"""Kubelet's directory on a fake machine, as one process uses it."""

from __future__ import annotations

import errno
from typing import Final

from orlop.host.kernel.disk_usage import DiskRoom
from orlop.host.mounts.mounts import UNKNOWN, MountedAt, MountOptions
from orlop.host.node_host import Names
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import KUBELET_DIR, FakeMount

INODES_OF_AN_IMAGE: Final = 1000


class FakeKubeletDir:
    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._machine = acts.machine

    @property
    def paths(self) -> tuple[str, ...]:
        return (KUBELET_DIR,)

    def is_shared(self) -> bool:
        with self._acts.look("is_shared"):
            return self._machine.kubelet_is_shared

    def make_target(self, target: Names) -> bool:
        with self._acts.change("make_target", f"make target {shown(target)}"):
            if target in self._machine.kubelet_files:
                refuse(errno.ENOTDIR, f"{shown(target)} is no folder")
            if target[:-1] not in self._machine.kubelet_folders:
                refuse(errno.ENOENT, f"{shown(target[:-1])} cannot be opened")
            is_new = target not in self._machine.kubelet_folders
            self._machine.kubelet_folders.add(target)
            return is_new

    def remove_target(self, target: Names) -> bool:
        machine = self._machine
        with self._acts.change("remove_target", f"remove target {shown(target)}"):
            if target in machine.kubelet_files:
                refuse(errno.ENOTDIR, f"{shown(target)} cannot be removed")
            if machine.mounts.get(target):
                refuse(errno.EBUSY, f"{shown(target)} cannot be removed")
            if self._holds_something(target):
                refuse(errno.ENOTEMPTY, f"{shown(target)} cannot be removed")
            was_there = target in machine.kubelet_folders
            machine.kubelet_folders.discard(target)
            return was_there

    def make_file(self, target: Names) -> bool:
        machine = self._machine
        with self._acts.change("make_file", f"make target {shown(target)}"):
            if target in machine.kubelet_folders:
                refuse(errno.EISDIR, f"{shown(target)} is no file")
            if target[:-1] not in machine.kubelet_folders:
                refuse(errno.ENOENT, f"{shown(target[:-1])} cannot be opened")
            is_new = target not in machine.kubelet_files
            machine.kubelet_files.add(target)
            return is_new

    def remove_file(self, target: Names) -> bool:
        machine = self._machine
        with self._acts.change("remove_file", f"remove target {shown(target)}"):
            if target in machine.kubelet_folders:
                refuse(errno.EISDIR, f"{shown(target)} cannot be removed")
            if machine.mounts.get(target):
                refuse(errno.EBUSY, f"{shown(target)} cannot be removed")
            if machine.kubelet_contents.get(target):
                refuse(errno.ENOTEMPTY, f"{shown(target)} cannot be removed")
            was_there = target in machine.kubelet_files
            machine.kubelet_files.discard(target)
            return was_there

    def mounted_at(self, target: Names) -> MountedAt | None:
        with self._acts.look("mounted_at"):
            stack = self._machine.mounts.get(target)
            if not stack:
                return None
            if stack[-1].root.device in self._machine.failed_devices:
                return MountedAt(UNKNOWN, MountOptions(), is_failed=True)
            return MountedAt(stack[-1].root, stack[-1].options, self._is_removed(stack[-1]))

    def room_at(self, target: Names) -> DiskRoom:
        machine = self._machine
        with self._acts.look("room_at"):
            stack = machine.mounts.get(target)
            if not stack:
                refuse(errno.ENOENT, f"{shown(target)} cannot be opened")
            folder = stack[-1].folder
            if folder is None or folder.image is None:
                return DiskRoom(machine.total_bytes, machine.free_bytes(), machine.total_inodes, machine.free_inodes())
            total, used = folder.image.bytes, sum(map(len, folder.files.values()))
            return DiskRoom(total, total - used, INODES_OF_AN_IMAGE, INODES_OF_AN_IMAGE - len(folder.files))

    def unmount(self, target: Names) -> int:
        count = 0
        while self._machine.mounts.get(target):
            with self._acts.change("unmount", f"unmount {shown(target)}"):
                if target in self._machine.busy:
                    refuse(errno.EBUSY, f"{shown(target)} cannot be unmounted")
                self._machine.mounts[target].pop()
            count += 1
        return count

    def names_in(self, folder: Names) -> frozenset[str] | None:
        with self._acts.look("names_in"):
            if folder in self._machine.kubelet_files:
                refuse(errno.ENOTDIR, f"{shown(folder)} cannot be opened")
            if folder not in self._machine.kubelet_folders:
                return None
            return self._names_in(folder)

    def _is_removed(self, mount: FakeMount) -> bool:
        return mount.folder is not None and mount.folder not in self._machine.folders.values()

    def _holds_something(self, target: Names) -> bool:
        return bool(self._names_in(target))

    def _names_in(self, folder: Names) -> frozenset[str]:
        everything = self._machine.kubelet_folders | self._machine.kubelet_files
        return frozenset(names[-1] for names in everything if names and names[:-1] == folder)


def shown(names: Names) -> str:
    return "/".join(names)
