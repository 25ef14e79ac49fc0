"""Read what the entries of a folder of disks are.

Nothing is followed out of the folder but a symbolic link to a block device: the link is resolved, what it leads to must
be a block device below /dev, and from then on only the number of the device counts, never the link. A link to a folder
is refused, as local-static-provisioner refuses it (there, nothing is mounted at the link itself).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.host.block.block_devices import BlockDevices
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    names_in,
    open_below,
    opened_below,
    opened_root,
    path_of,
)
from orlop.host.mounts.mount_table import MountLine, all_mounts, folder_of_path
from orlop.host.static_disks import disk_identity
from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind
from orlop.host.static_disks.disk_uses import foreign_uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.host.block.device_rules import BlockDevice

DEVICES: Final = "/dev/"
BY_NUMBER: Final = "/sys/dev/block"
_NO_MAJOR: Final = "0:"
"""File systems without a device have a number with this major."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What one name is, before the devices are described. `number` is that of the device behind it."""

    name: str
    kind: EntryKind
    number: str = ""
    mount: MountLine | None = None
    why: str = ""


class EntrySurvey:
    def __init__(self, devices: BlockDevices) -> None:
        self._devices = devices
        self._uuids: dict[tuple[str, int], str] = {}

    def read(self, folder: str, is_wanted: Callable[[str], bool]) -> tuple[DiskEntry, ...]:
        with opened_root(folder) as root:
            mounts = {line.mount_id: line for line in all_mounts()}
            with _folder_content(root) as content:
                names = sorted(name for name in names_in(content) if is_wanted(name))
            places = [place for name in names if (place := _place(root, name, mounts)) is not None]
            return self._entries(root, places)

    def read_one(self, folder: str, name: str) -> DiskEntry:
        """Return one entry. ENOENT: there is none."""
        with opened_root(folder) as root:
            place = _place(root, name, {line.mount_id: line for line in all_mounts()})
            if place is None:
                raise HostError(errno.ENOENT, f"There is no entry {name!r} in {folder}.")
            return self._entries(root, [place])[0]

    def _entries(self, root: int, places: list[_Place]) -> tuple[DiskEntry, ...]:
        names = {place.number: name for place in places if (name := kernel_name(place.number))}
        described = self._described(set(names.values()))
        return tuple(self._entry(root, place, names.get(place.number, ""), described) for place in places)

    def _described(self, names: set[str]) -> Mapping[str, BlockDevice]:
        """Describe devices, their partitions, and the disks of partitions."""
        described = self._devices.described(names)
        near = {part for each in described.values() for part in (*each.partitions, each.partition_of) if part}
        return described | self._devices.described(near - described.keys()) if near else described

    def _entry(self, root: int, place: _Place, device: str, described: Mapping[str, BlockDevice]) -> DiskEntry:
        found = described.get(device)
        match place.kind:
            case EntryKind.DEVICE if found is not None:
                return self._device_entry(place, found, described)
            case EntryKind.DEVICE:
                return DiskEntry(name=place.name, kind=EntryKind.UNREADABLE, why="its device has no size, or is gone")
            case EntryKind.MOUNT | EntryKind.FOLDER if place.mount is not None:
                try:
                    return self._folder_entry(root, place, place.mount, found)
                except (OSError, ValueError) as error:
                    why = str(error.strerror if isinstance(error, OSError) else error).rstrip(".")
                    return DiskEntry(name=place.name, kind=EntryKind.UNREADABLE, why=why)
        return DiskEntry(name=place.name, kind=place.kind, why=place.why)

    def _device_entry(self, place: _Place, device: BlockDevice, described: Mapping[str, BlockDevice]) -> DiskEntry:
        disk = described.get(device.partition_of)
        parts = [described[name] for name in device.partitions if name in described]
        return DiskEntry(
            name=place.name,
            kind=EntryKind.DEVICE,
            bytes=device.bytes,
            identity=disk_identity.device_identity(device, disk),
            session=disk_identity.device_session(device, self._devices.boot),
            place=device.major_minor,
            whole_disk=disk.major_minor if disk is not None else "",
            device=device.name,
            used_by=foreign_uses([device, *parts]),
        )

    def _folder_entry(self, root: int, place: _Place, mount: MountLine, device: BlockDevice | None) -> DiskEntry:
        with opened_below(root, (place.name,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as folder:
            space = os.fstatvfs(folder)
            located = folder_of_path(mount, os.readlink(path_of(folder)))
            uuid = self._uuid(folder, mount, device)
            identity = disk_identity.file_system_identity(uuid, folder, located.path)
            session = disk_identity.folder_session(folder, self._devices.boot)
        whole = kernel_number(device.partition_of) if device is not None and device.partition_of else ""
        return DiskEntry(
            name=place.name,
            kind=place.kind,
            bytes=space.f_blocks * space.f_frsize,
            used_bytes=(space.f_blocks - space.f_bfree) * space.f_frsize,
            identity=identity,
            session=session,
            place=f"{located.device}{located.path}",
            whole_disk=whole,
            device=device.name if device is not None else "",
            file_system=mount.file_system,
        )

    def _uuid(self, folder: int, mount: MountLine, device: BlockDevice | None) -> str:
        """Return the UUID of the file system, read once for each mount."""
        key = mount.root.device, mount.mount_id
        if key not in self._uuids:
            if len(self._uuids) > MOST_REMEMBERED:
                self._uuids.clear()
            self._uuids[key] = disk_identity.file_system_uuid(folder, device)
        return self._uuids[key]


MOST_REMEMBERED: Final = 10_000


def kernel_name(number: str) -> str:
    """Return the kernel's name of a block device; empty if there is none of this number."""
    if not number or number.startswith(_NO_MAJOR):
        return ""
    with suppress(OSError):
        return os.path.basename(os.readlink(f"{BY_NUMBER}/{number}"))
    return ""


def kernel_number(name: str) -> str:
    """Return the number of a block device; empty if there is none of this name."""
    with suppress(OSError), open(f"/sys/class/block/{name}/dev", encoding="ascii") as file:
        return file.read().strip()
    return ""


@contextmanager
def _folder_content(root: int) -> Iterator[int]:
    with opened_below(root, (), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as content:
        yield content


def _place(root: int, name: str, mounts: Mapping[int, MountLine]) -> _Place | None:
    """Return what a name is; None if it is gone."""
    try:
        place = open_below(root, (name,), DescriptorUse.HANDLE, Mounts.CROSSED)
    except HostError as error:
        return None if error.errno == errno.ENOENT else _unreadable(name, error)
    try:
        return _of_file(root, name, place, mounts)
    except OSError as error:
        return _unreadable(name, error)
    finally:
        os.close(place)


def _of_file(root: int, name: str, place: int, mounts: Mapping[int, MountLine]) -> _Place:
    status = os.fstat(place)
    if stat.S_ISLNK(status.st_mode):
        return _behind_link(root, name)
    if stat.S_ISBLK(status.st_mode):
        return _Place(name, EntryKind.DEVICE, _text(status.st_rdev))
    if not stat.S_ISDIR(status.st_mode):
        return _Place(name, EntryKind.OTHER)
    known = system_calls.statx(place, "")
    mount = mounts.get(known.mount_id)
    if mount is None:  # mounted or unmounted at this moment: that is an event, and the next survey sees it
        return _Place(name, EntryKind.UNREADABLE, why="its mount has just changed")
    kind = EntryKind.MOUNT if known.is_mount_root else EntryKind.FOLDER
    return _Place(name, kind, mount.root.device, mount)


def _behind_link(root: int, name: str) -> _Place:
    try:
        target = os.open(f"{path_of(root)}/{name}", os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return _Place(name, EntryKind.UNREADABLE, why="its link leads to nothing: is the disk gone?")
    try:
        status, path = os.fstat(target), os.readlink(path_of(target))
    finally:
        os.close(target)
    if not stat.S_ISBLK(status.st_mode):
        return _Place(name, EntryKind.OTHER, why="a link, and not to a block device")
    if not path.startswith(DEVICES):
        return _Place(name, EntryKind.OTHER, why="a link to a block device that is not below /dev")
    return _Place(name, EntryKind.DEVICE, _text(status.st_rdev))


def _unreadable(name: str, error: OSError) -> _Place:
    return _Place(name, EntryKind.UNREADABLE, why=str(error.strerror or error).rstrip("."))


def _text(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"
