"""The seam between the driver and the drives of its machine.

`host/drives` is the real machine, `testing/fake_host` a model of it; both pass the same contract tests. Every call
blocks and raises HostError with the `errno` documented here. Records are bytes of the caller; this module does not
interpret them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orlop.host.block.block_devices import FoundDevice
from orlop.host.block.device_rules import BlockDevice
from orlop.host.folders.folder_records import ShelfListing


@dataclass(frozen=True, slots=True)
class DriveFeatures:
    """What the file system of a drive can do. Measured when the drive is opened."""

    file_system: str
    """Its kind, as the mount table has it, such as `xfs`."""
    why_no_quota: str | None
    """A sentence if limits of folders would not be enforced; None if they are."""
    has_reflinks: bool
    """Whether files can share their blocks (copies in constant time)."""


@dataclass(frozen=True, slots=True)
class DriveSpace:
    """Bytes of the file system that a drive is on."""

    total: int
    free: int


class DriveRoot(Protocol):
    """The opened root of one drive. It stays valid if the path of the drive changes; close it once."""

    @property
    def path(self) -> str: ...

    @property
    def root(self) -> int:
        """The descriptor of the root folder. -1 on a fake machine."""

    @property
    def features(self) -> DriveFeatures: ...

    def read_record(self) -> bytes:
        """Return the record. ENOENT: there is none: this is no drive, or a half-made one."""

    def write_record(self, record: bytes) -> None:
        """Replace the record, durably. After an error the old or the new one is there, complete."""

    def space(self) -> DriveSpace: ...

    def reserved(self) -> int:
        """Return the bytes that the reserve holds; 0 without one."""

    def fit_reserve(self, capacity: int) -> int:
        """Make the reserve as large as the capacity less what the volumes hold; return the bytes that it lacks.

        Other users of the file system took the lacking bytes while no file held them.
        """

    def shrink_reserve(self, count: int) -> None:
        """Release bytes of the reserve for an image that grows next.

        ENOSPC: it has fewer; nothing was changed.
        """

    def volumes(self) -> ShelfListing:
        """List the volumes with their records, and what is there without a record."""

    def why_failing(self) -> str | None:
        """Return a sentence if the drive cannot be read or written any more; None if it can. May hang with its disk."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SeenFolder:
    """A folder below the root of all folder drives with a record, or with a part of one."""

    path: str
    record: bytes | None
    """None: the record cannot be read, or the drive is half made."""
    why: str = ""


class FolderDriveHost(Protocol):
    """Drives that are folders of a file system which is there already. All lie below one root."""

    def make_folder_drive(self, path: str, record: bytes, capacity: int, *, dry_run: bool = False) -> None:
        """Make the folder a drive: reserve its capacity, then write its record. Repeats what a kill interrupted.

        EINVAL: the path is not below the root. EEXIST: it is a drive already. ENOTEMPTY: it holds something else.
        EBUSY: it is inside a drive, or in a tree that others manage. ENOSPC: the file system lacks the space.
        """

    def remove_folder_drive(self, path: str) -> None:
        """Remove an empty drive's files, the record last. ENOTEMPTY: volumes are there; nothing was changed."""

    def folder_drives(self) -> tuple[SeenFolder, ...]:
        """List the drives below the root."""

    def open_folder_drive(self, path: str) -> DriveRoot:
        """Open a folder drive. ENOENT: there is no such folder. EINVAL: the path is not below the root."""


@dataclass(frozen=True, slots=True)
class DiskOrder:
    """Which disk to format, and how."""

    name: str
    fingerprint: str
    """The fingerprint that `drives discover` showed for the device."""
    file_system: str
    drive_id: str
    force: bool = False
    """Whether a file system, or unknown data, may be overwritten."""


@dataclass(frozen=True, slots=True)
class MountedDisk:
    """A disk drive that is mounted at its folder."""

    drive_id: str
    path: str
    major_minor: str
    is_read_only: bool
    """The file system or its mount refuses changes."""
    wrong_options: str = ""
    """A sentence, if its mount options differ from those of `mount_disk`."""


@dataclass(frozen=True, slots=True)
class DriveSurvey:
    """Everything that is, or could be, a drive on this node, at one moment."""

    folders: tuple[SeenFolder, ...] = ()
    devices: tuple[FoundDevice, ...] = ()
    unusable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Why a device cannot become a drive, by its name; without an entry it can."""
    mounted: Mapping[str, MountedDisk] = field(default_factory=dict)
    """Disk drives that are mounted, by id."""
    known: frozenset[str] = frozenset()
    """Disk drives that were mounted here and not forgotten since, also before the machine was restarted."""


class DriveHost(FolderDriveHost, Protocol):
    """The drives of a machine: folders and disks."""

    def survey(self) -> DriveSurvey:
        """Find all devices, mounted disks and folder drives of this node."""

    def make_disk_drive(self, order: DiskOrder, record_of: Callable[[int], bytes], *, dry_run: bool = False) -> None:
        """Format a disk. `record_of` returns the drive's record for a number of free bytes.

        ENOENT, ENODEV: there is no such device, or it is not the one that was shown. EBUSY: it is in use. EEXIST: it
        holds something that only force overwrites. EINVAL: it cannot become a drive.
        """

    def mount_disk(self, device: BlockDevice, drive_id: str, file_system: str) -> None:
        """Mount a drive at its folder. EBUSY: something is mounted there. ENODEV: the name means another device now."""

    def unmount_disk(self, drive_id: str, *, forget: bool = False) -> None:
        """Unmount a drive. EBUSY: it is in use; it stays. Succeeds if it is not mounted.

        `forget`: remove it from the known drives of this node.
        """

    def open_disk(self, drive_id: str) -> DriveRoot:
        """Open the root of a mounted disk. ENOENT: it is not mounted."""
