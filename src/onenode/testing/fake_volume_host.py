"""What a kubelet has of a fake machine for volumes: keeps the contract of `onenode/host/volume_host`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NoReturn
from zlib import crc32

from onenode.host.payload_files import FileKind, HostPath, Names
from onenode.host.volume_host import VolumeHost
from onenode.host.volume_ownership import OwnershipReport
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from orlop.host.mounts.mounts import FileIdentity, MountOptions
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import KUBELET_DIR, FakeMount
from orlop.testing.kill_points import KillPoints

UNFINISHED = ".new"


class FakeVolumeHost:
    """Each change is an effect that a kill may hit."""

    def __init__(self, machine: FakeKubeletMachine, points: KillPoints | None = None) -> None:
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
            is_device = file in self._machine.devices
            content = None if is_device else self._machine.kubelet_contents.get(file)
            return None if content is None else content[:most]

    def remove_file(self, file: Names) -> bool:
        if _unfinished(file) in self._machine.kubelet_files:
            with self._acts.change("remove_file", f"remove {_shown(_unfinished(file))}"):
                self._take(_unfinished(file))
        if file not in self._machine.kubelet_files:
            return False
        with self._acts.change("remove_file", f"remove {_shown(file)}"):
            self._refuse_mounted(file)
            self._take(file)
        return True

    def remove_folder(self, folder: Names) -> bool:
        with self._acts.change("remove_folder", f"remove folder {_shown(folder)}"):
            if folder not in self._machine.kubelet_folders:
                if folder in self._machine.kubelet_files:
                    refuse(errno.ENOTDIR, f"{_shown(folder)} is no folder")
                return False
            self._refuse_mounted(folder)
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

    # ---- local volumes -------------------------------------------------------------------------------------------

    def kind_at(self, path: HostPath) -> FileKind | None:
        with self._acts.look("kind_at"):
            return self._machine.host_files.get(path.path)

    def bind(self, source: Names | HostPath, target: Names, options: MountOptions) -> None:
        self._refuse_missing(source)
        self.make_folders(target)
        with self._acts.change("bind", f"bind at {_shown(target)}"):
            root, stack = self._root_of(source), self._machine.mounts.get(target)
            if not stack or stack[-1].root != root:
                self._machine.mounts[target] = [FakeMount(None, root, options)]

    def mount_disk(self, disk: HostPath, target: Names, fs_type: str, options: Sequence[str]) -> None:
        self._refuse_missing(disk)
        if self._machine.host_files[disk.path] is not FileKind.BLOCK_DEVICE:
            refuse(errno.ENOTBLK, f"{disk.path} is no block device")
        formats = self._machine.disk_formats
        if disk.path not in formats:
            if "ro" in options:
                refuse(errno.EROFS, f"cannot mount unformatted disk {disk.path} as read-only")
            with self._acts.change("mount_disk", f"format {disk.path}"):
                formats[disk.path] = fs_type or "ext4"
        if fs_type and fs_type != formats[disk.path]:
            refuse(errno.EINVAL, f'failed to mount the volume as "{fs_type}", it already contains {formats[disk.path]}')
        self.make_folders(target)
        with self._acts.change("mount_disk", f"mount {disk.path} at {_shown(target)}"):
            self._machine.mounts[target] = [FakeMount(None, self._root_of(disk), MountOptions())]

    def _root_of(self, source: Names | HostPath) -> FileIdentity:
        """Each path of the host is a file system of its own."""
        if isinstance(source, HostPath):
            return FileIdentity(crc32(source.path.encode()), 1)
        stack = self._machine.mounts.get(source)
        return stack[-1].root if stack else FileIdentity(0, crc32(_shown(source).encode()))

    # ---- raw block volumes ---------------------------------------------------------------------------------------

    def device_at(self, place: Names) -> str:
        with self._acts.look("device_at"):
            self._number(place)
            return self.path_of(place)

    def make_file(self, file: Names) -> None:
        if file not in self._machine.kubelet_files:
            with self._acts.change("make_file", f"make {_shown(file)}"):
                if file[:-1] not in self._machine.kubelet_folders:
                    refuse(errno.ENOENT, f"{_shown(file)} cannot be made")
                self._put(file, b"")

    def mount_device(self, place: Names, file: Names) -> None:
        with self._acts.look("mount_device"):
            number = self._number(place)
        if self._machine.devices.get(file) == number:
            return
        self.unmount(file)
        self.make_file(file)
        with self._acts.change("mount_device", f"mount {_shown(place)} at {_shown(file)}"):
            self._machine.devices[file] = number
            self._machine.mounts[file] = list(self._machine.mounts[place])

    def unmount(self, place: Names) -> None:
        if self._machine.mounts.get(place):
            with self._acts.change("unmount", f"unmount {_shown(place)}"):
                if place in self._machine.busy or self.path_of(place) in self._machine.loops.values():
                    refuse(errno.EBUSY, f"{_shown(place)} cannot be unmounted")
                self._machine.mounts.pop(place)
                self._machine.devices.pop(place, None)

    def hold_device(self, file: Names) -> str:
        path, loops = self.path_of(file), self._machine.loops
        if (found := self._holder(path)) is not None:
            return found
        with self._acts.change("hold_device", f"attach a loop device to {_shown(file)}"):
            self._number(file)
            free = next(name for number in range(len(loops) + 1) if (name := f"/dev/loop{number}") not in loops)
            loops[free] = path
            return free

    def release_device(self, file: Names) -> bool:
        found = self._holder(self.path_of(file))
        if found is not None:
            with self._acts.change("release_device", f"detach {found}"):
                if found in self._machine.busy_loops:
                    refuse(errno.EBUSY, f"{found} is in use")
                del self._machine.loops[found]
        return found is not None

    def link(self, link: Names, path: str) -> None:
        unfinished = _unfinished(link)
        with self._acts.change("link", f"link {_shown(unfinished)}"):
            if link[:-1] not in self._machine.kubelet_folders:
                refuse(errno.ENOENT, f"{_shown(link)} cannot be made")
            self._machine.kubelet_files.add(unfinished)
            self._machine.links[unfinished] = path
        with self._acts.effect(f"rename to {_shown(link)}"):
            self._take(unfinished)
            self._take(link)
            self._machine.kubelet_files.add(link)
            self._machine.links[link] = path
        if self._machine.host_files.get(path) is FileKind.BLOCK_DEVICE:
            self._machine.place_device(link, crc32(path.encode()))

    def remove_link(self, link: Names) -> bool:
        for one in (_unfinished(link), link):
            if one in self._machine.links:
                with self._acts.change("remove_link", f"remove {_shown(one)}"):
                    self._take(one)
                    self._machine.devices.pop(one, None)
                    self._machine.mounts.pop(one, None)  # of a device that it leads to
                if one == link:
                    return True
        return False

    def _holder(self, path: str) -> str | None:
        return next((loop for loop, behind in self._machine.loops.items() if behind == path), None)

    def _number(self, place: Names) -> int:
        if place not in self._machine.devices:
            self._refuse_no_device(place)
        return self._machine.devices[place]

    def _refuse_no_device(self, place: Names) -> NoReturn:
        if place in self._machine.kubelet_folders:
            refuse(errno.ENOTBLK, f"{self.path_of(place)} is a folder, and no block device")
        if place in self._machine.kubelet_files:
            refuse(errno.ENOTBLK, f"{self.path_of(place)} is a plain file, and no block device")
        refuse(errno.ENOENT, f"{self.path_of(place)} cannot be opened")

    def _refuse_mounted(self, place: Names) -> None:
        if self._machine.mounts.get(place):
            self._machine.refused_removals.append(place)
            refuse(errno.EBUSY, f"{_shown(place)} cannot be removed")

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
        self._machine.links.pop(file, None)


def as_volume_host(host: FakeVolumeHost) -> VolumeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _unfinished(file: Names) -> Names:
    return *file[:-1], f"{file[-1]}{UNFINISHED}"


def _shown(names: Names) -> str:
    return "/".join(names)
