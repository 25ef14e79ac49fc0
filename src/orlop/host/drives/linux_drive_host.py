"""The drives of this machine as `DriveHost`: folders below one root, and disks mounted below another.

A disk's file system is mounted at the folder below `--drives-dir` that is named after its drive. The mount outlives
this process: pods use it. A process that starts finds the mounts of the earlier one and keeps them. A mount is made
detached, with its options, and then attached: no process ever sees it without them. The first attempt mounts with
project quota; on a kernel without quota, the drive is mounted without it and offers images only.

This module must not unmount lazily: a drive that is in use must not be reported as gone.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from orlop.host.block.block_devices import BlockDevices, locked_device
from orlop.host.block.device_rules import BlockDevice, DeviceLimits, why_unusable
from orlop.host.drive_host import DiskOrder, DriveHost, DriveRoot, DriveSurvey, MountedDisk
from orlop.host.drives.disk_format import check_order, make_disk_drive
from orlop.host.drives.drive_files import LinuxDriveRoot
from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, open_below, opened_below, opened_root
from orlop.host.mounts import mount_table, mounts
from orlop.host.mounts.mount_table import MountLine

NO_ACCESS_TIMES: Final = 0x10
PROJECT_QUOTA: Final = "prjquota"
_NAME: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MODE: Final = 0o700
_NO_QUOTA: Final = frozenset({errno.EINVAL, errno.ESRCH, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOPROTOOPT})
_ERRORS_OF_XFS: Final = "/sys/fs/xfs"
_QUOTA_OF_XFS: Final = "/proc/fs/xfs/xqm"
"""Exists if the kernel supports quotas of XFS."""
_QUOTA_OPTIONS: Final = frozenset({"prjquota", "pquota"})


class LinuxDriveHost(LinuxFolderDrives):
    """`others` are folders with another owner, in which no folder drive may be."""

    def __init__(self, folder_root: str, drives_dir: str, limits: DeviceLimits, others: Sequence[str] = ()) -> None:
        super().__init__(folder_root, (*others, drives_dir))
        self._devices = BlockDevices(limits)
        self._mounts = DiskMounts(drives_dir)

    def prepare(self) -> None:
        """Create the folder for mounts, if it is missing."""
        self._mounts.prepare()

    def survey(self) -> DriveSurvey:
        # Mounts first: a disk that is mounted in between is then read as in use, and is not taken for a second one.
        mounted = self._mounts.mounted()
        devices = self._devices.all_devices()
        reasons = {found.device.name: why_unusable(found.device, self._devices.limits) for found in devices}
        unusable = {name: why for name, why in reasons.items() if why}
        return DriveSurvey(self.folder_drives(), devices, unusable, mounted, self._mounts.known())

    def make_disk_drive(self, order: DiskOrder, record_of: Callable[[int], bytes], *, dry_run: bool = False) -> None:
        if dry_run:
            check_order(self._devices, order)
        else:
            make_disk_drive(self._devices, order, record_of)

    def mount_disk(self, device: BlockDevice, drive_id: str, file_system: str) -> None:
        self._mounts.mount(device, drive_id, file_system)

    def unmount_disk(self, drive_id: str, *, forget: bool = False) -> None:
        self._mounts.unmount(drive_id, forget=forget)

    def open_disk(self, drive_id: str) -> DriveRoot:
        return self._mounts.open(drive_id)


class DiskMounts:
    """The mounts below `folder`. The folder of a drive stays when it is unmounted: it marks the drive as ours."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/")

    def prepare(self) -> None:
        try:
            Path(self._folder).mkdir(_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise HostError.because(error, f"The folder {self._folder} for drives cannot be made") from error

    def mounted(self) -> Mapping[str, MountedDisk]:
        """Return the mounted drives by id; of several mounts at one folder, the topmost."""
        disks = {}
        folder = os.path.realpath(self._folder)
        for line in mount_table.all_mounts():
            parent, _, name = line.mount_point.rpartition("/")
            if parent == folder and _NAME.fullmatch(name):
                is_read_only = "ro" in line.options | line.file_system_options
                path = f"{self._folder}/{name}"
                disks[name] = MountedDisk(name, path, line.root.device, is_read_only, _wrong_options(line))
        return disks

    def known(self) -> frozenset[str]:
        """Return the drives that were mounted here since they were last forgotten."""
        try:
            return frozenset(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise HostError.because(error, f"The folder {self._folder} for drives cannot be listed") from error

    def mount(self, device: BlockDevice, drive_id: str, file_system: str) -> None:
        """Mount a drive at its folder. EBUSY: something is mounted there. ENODEV: the name means another device now."""
        with opened_root(self._folder) as folder:
            if confined_paths.make_folder(folder, _checked(drive_id), _MODE):
                _synchronise(folder, self._folder)
            if mounts.is_mount_point(folder, drive_id):
                raise HostError(errno.EBUSY, f"Something is mounted at {self._folder}/{drive_id} already.")
            with locked_device(device):
                tree = _new_mount(device, file_system)
            try:
                with opened_below(folder, (drive_id,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as target:
                    system_calls.attach_tree(tree, target)
                # Keep mounts inside the drive private: a bind made there must not appear on the host.
                with opened_below(folder, (drive_id,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as root:
                    system_calls.set_mount_attributes(root, 0, 0, system_calls.PROPAGATION_PRIVATE)
            except OSError as error:
                raise HostError.because(error, f"{device.path} cannot be mounted for the drive {drive_id}") from error
            finally:
                os.close(tree)
        fail_early(device.name)

    def unmount(self, drive_id: str, *, forget: bool = False) -> None:
        """Unmount a drive; `forget`: remove its folder too. EBUSY: it is in use. Succeeds if it is not mounted."""
        with opened_root(self._folder) as folder:
            mounts.unmount(folder, _checked(drive_id))
            if forget:
                with suppress(FileNotFoundError):
                    confined_paths.remove_empty_folder(folder, drive_id)

    def open(self, drive_id: str) -> LinuxDriveRoot:
        """Open the root of a mounted drive. ENOENT: it is not mounted."""
        with opened_root(self._folder) as folder:
            if not mounts.is_mount_point(folder, _checked(drive_id)):
                raise HostError(errno.ENOENT, f"The drive {drive_id} is not mounted.")
            root = open_below(folder, (drive_id,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED)
        return LinuxDriveRoot(f"{self._folder}/{drive_id}", root)


def _synchronise(folder: int, path: str) -> None:
    """Make the folder of a drive durable: after power loss it may be the only sign that the drive is ours."""
    try:
        os.fsync(folder)
    except OSError as error:
        raise HostError.because(error, f"The folder {path} for drives cannot be written") from error


def fail_early(device: str, errors: str = _ERRORS_OF_XFS) -> None:
    """Make XFS shut down when its disk fails, instead of repeating a write for ever: then the failure can be seen."""
    for kind in ("EIO", "ENOSPC", "default"):
        with suppress(OSError):
            Path(f"{errors}/{device}/error/metadata/{kind}/max_retries").write_text("0")


def _new_mount(device: BlockDevice, file_system: str) -> int:
    try:
        tree = _with_quota_if_possible(device.path, file_system)
    except OSError as error:
        advice = "The kernel's log (dmesg) has the reason"
        raise HostError.because(error, f"{device.path} cannot be mounted as {file_system}. {advice}") from error
    # The name may mean another device by now; what is mounted is not visible yet, and goes with its descriptor.
    number = os.fstat(tree).st_dev
    if f"{os.major(number)}:{os.minor(number)}" != device.major_minor:
        os.close(tree)
        raise HostError(errno.ENODEV, f"{device.path} is another device now.")
    return tree


def _with_quota_if_possible(source: str, file_system: str) -> int:
    try:
        return system_calls.new_file_system(file_system, {"source": source, PROJECT_QUOTA: None}, NO_ACCESS_TIMES)
    except OSError as error:
        if error.errno not in _NO_QUOTA:
            raise
    return system_calls.new_file_system(file_system, {"source": source}, NO_ACCESS_TIMES)


def _wrong_options(line: MountLine) -> str:
    if line.root.path != "/":
        return f"At {line.mount_point} a folder of another file system is mounted: unmount it."
    lacks_quota = line.file_system == "xfs" and not line.file_system_options & _QUOTA_OPTIONS
    if lacks_quota and os.path.exists(_QUOTA_OF_XFS):
        return (
            f"{line.mount_point} is mounted without {PROJECT_QUOTA}, so that nothing would hold volumes to their "
            "sizes. Unmount it when no pod uses it: then Orlop mounts it with quota."
        )
    return ""


def _checked(drive_id: str) -> str:
    if not _NAME.fullmatch(drive_id):
        raise HostError(errno.EINVAL, f"{drive_id[:40]!r} cannot be the id of a drive.")
    return drive_id


def as_drive_host(host: LinuxDriveHost) -> DriveHost:
    """Prove to the type checker that the seam is implemented."""
    return host
