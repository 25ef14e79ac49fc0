"""The drives of a fake machine, folders and disks: keeps the contract of `DriveHost`.

machine.disks["sdb"] = FakeDisk(100 << 30)          # a blank disk
host = FakeDriveHost(machine, "/srv/folders")
machine.disks.pop("sdb")                            # pulled out, also while it is mounted
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from orlop.host.block.block_devices import FoundDevice
from orlop.host.block.device_rules import (
    DRIVE_FILE_SYSTEMS,
    LABEL,
    BlockDevice,
    DeviceContent,
    DeviceLimits,
    Signature,
    SignatureKind,
    destroyed_content,
    fingerprint_of,
    why_unusable,
)
from orlop.host.drive_host import DiskOrder, DriveFeatures, DriveHost, DriveRoot, DriveSurvey, MountedDisk
from orlop.testing.fake_host.acts import refuse
from orlop.testing.fake_host.fake_drive_volumes import FakeDriveVolumes
from orlop.testing.fake_host.fake_drives import FakeDrive, FakeDriveRoot, FakeFolderDrives
from orlop.testing.fake_host.machine import FakeMachine
from orlop.testing.kill_points import KillPoints

DISKS: Final = "/srv/drives"
_numbers: Final = count(1)


@dataclass(eq=False)
class FakeDisk:
    """A disk, and the drive on it. The number is new for each disk, and for each time a disk is plugged in."""

    bytes: int = 100 << 30
    file_system: str = ""
    drive_id: str = ""
    label: str = ""
    drive: FakeDrive | None = None
    """The files of the file system."""
    half_made: str = ""
    """The id of a drive that was begun."""
    serial: str = ""
    is_read_only: bool = False
    """The mount of it refuses changes."""
    wrong_options: str = ""
    has_shut_down: bool = False
    """Its file system failed, and works again when it is mounted anew."""
    is_corrupt: bool = False
    """Its file system cannot be mounted."""

    def __post_init__(self) -> None:
        self.number = next(_numbers)

    def content(self) -> DeviceContent:
        if self.half_made:
            signature = Signature(SignatureKind.OURS, "half made", self.half_made)
        elif self.file_system:
            signature = Signature(SignatureKind.FILE_SYSTEM, self.file_system, self.drive_id, self.label)
        else:
            return DeviceContent(is_blank=True, digest="blank")
        facts = f"{self.file_system} {self.drive_id} {self.label} {self.half_made}"
        return DeviceContent((signature,), digest=hashlib.sha256(facts.encode()).hexdigest())


class FakeDriveHost(FakeFolderDrives):
    def __init__(
        self, machine: FakeMachine, root: str, points: KillPoints | None = None, limits: DeviceLimits | None = None
    ) -> None:
        super().__init__(machine, root, points)
        self._points = points
        self._limits = limits or DeviceLimits()

    def survey(self) -> DriveSurvey:
        folders = self.folder_drives()
        with self._acts.look("survey"):
            devices = tuple(self._found(name) for name in sorted(self._machine.disks))
            reasons = {found.device.name: why_unusable(found.device, self._limits) for found in devices}
            unusable = {name: why for name, why in reasons.items() if why}
            mounted = {
                drive_id: MountedDisk(
                    drive_id, _path(drive_id), f"8:{disk.number}", disk.is_read_only, disk.wrong_options
                )
                for drive_id, disk in self._machine.mounted_drives.items()
            }
            return DriveSurvey(folders, devices, unusable, mounted, frozenset(self._machine.known_drives))

    def make_disk_drive(self, order: DiskOrder, record_of: Callable[[int], bytes], *, dry_run: bool = False) -> None:
        with self._acts.look("check_disk"):
            disk = self._fit_disk(order)
        if dry_run:
            return
        with self._machine.faults.around("make_disk_drive"):
            with self._acts.effect(f"mark {order.name}"):
                disk.half_made, disk.file_system, disk.drive = order.drive_id, "", None
            with self._acts.effect(f"format {order.name}"):
                features = DriveFeatures(order.file_system, None, has_reflinks=order.file_system == "xfs")
                disk.drive = FakeDrive(record=record_of(disk.bytes), features=features)
            with self._acts.effect(f"complete {order.name}"):
                disk.file_system, disk.drive_id, disk.label = order.file_system, order.drive_id, LABEL
                disk.half_made = ""

    def mount_disk(self, device: BlockDevice, drive_id: str, file_system: str) -> None:
        with self._acts.change("mount_disk", f"mount {device.name}"):
            disk = self._machine.disks.get(device.name)
            if drive_id in self._machine.mounted_drives:
                refuse(errno.EBUSY, f"Something is mounted at {_path(drive_id)} already")
            if disk is None or f"8:{disk.number}" != device.major_minor:
                refuse(errno.ENODEV, f"{device.path} is another device now")
            if disk.is_corrupt or disk.file_system != file_system:
                refuse(errno.EUCLEAN, f"{device.path} cannot be mounted as {file_system}")
            self._machine.mounted_drives[drive_id] = disk
            self._machine.known_drives.add(drive_id)

    def unmount_disk(self, drive_id: str, *, forget: bool = False) -> None:
        with self._acts.change("unmount_disk", f"unmount {drive_id}"):
            if drive_id in self._machine.busy_drives:
                refuse(errno.EBUSY, f"{_path(drive_id)} cannot be unmounted")
            disk = self._machine.mounted_drives.pop(drive_id, None)
            if disk is not None and disk.drive is not None and disk.has_shut_down:
                disk.has_shut_down = disk.drive.is_gone = False
            if forget:
                self._machine.known_drives.discard(drive_id)

    def open_disk(self, drive_id: str) -> DriveRoot:
        with self._acts.look("open_disk"):
            disk = self._machine.mounted_drives.get(drive_id)
            if disk is None or disk.drive is None:
                refuse(errno.ENOENT, f"The drive {drive_id} is not mounted")
            return FakeDriveRoot(self._acts, _path(drive_id), disk.drive)

    def volumes_of(self, root: DriveRoot) -> FakeDriveVolumes:
        """Open the volumes of a drive that was opened here."""
        disks = {_path(drive_id): disk.drive for drive_id, disk in self._machine.mounted_drives.items()}
        drive = disks.get(root.path) or self._machine.drives[root.path]
        return FakeDriveVolumes(self._machine, drive, self._points)

    def _found(self, name: str) -> FoundDevice:
        disk = self._machine.disks[name]
        mounted = [each for each, other in self._machine.mounted_drives.items() if other is disk]
        pods = [f"/pods/{each}/mount" for each in mounted if each in self._machine.busy_drives]
        points = (*map(_path, mounted), *pods)
        device = BlockDevice(
            name=name,
            major_minor=f"8:{disk.number}",
            bytes=disk.bytes,
            disk_sequence=disk.number,
            model="Fake Disk",
            serial=disk.serial,
            mount_points=points,
            mounted_as=disk.file_system if points else "",
            # The content of a disk in use is not read.
            content=DeviceContent() if points else disk.content(),
        )
        return FoundDevice(device, fingerprint_of(device, "boot"))

    def _fit_disk(self, order: DiskOrder) -> FakeDisk:
        disk = self._machine.disks.get(order.name)
        if disk is None:
            refuse(errno.ENOENT, f"There is no block device {order.name!r} on this node")
        found = self._found(order.name)
        if order.file_system not in DRIVE_FILE_SYSTEMS:
            refuse(errno.EINVAL, f"{order.file_system!r} cannot be made on a drive")
        if reasons := why_unusable(found.device, self._limits):
            refuse(errno.EBUSY if found.device.mount_points else errno.EINVAL, f"{order.name}: {reasons[0]}")
        if found.fingerprint != order.fingerprint and disk.half_made != order.drive_id:
            refuse(errno.ENODEV, f"{order.name} has changed since it was shown")
        if destroyed_content(found.device) and not order.force:
            refuse(errno.EEXIST, f"{order.name} holds {found.device.content.names}")
        return disk


def as_drive_host(host: FakeDriveHost) -> DriveHost:
    """Prove to the type checker that the fake implements the protocol."""
    return host


def _path(drive_id: str) -> str:
    return f"{DISKS}/{drive_id}"
