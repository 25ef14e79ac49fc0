"""Folder drives on a fake machine, as one process uses them: keeps the contract of `FolderDriveHost`.

    machine.drives["/srv/folders/a"] = FakeDrive()     # an empty folder
    host = FakeFolderDrives(machine, "/srv/folders")

Images of volumes are numbers here: `FakeDrive.images`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orlop.host.block.image_files import ImageShape
from orlop.host.drive_host import DriveFeatures, DriveRoot, DriveSpace, FolderDriveHost, SeenFolder
from orlop.host.folders.folder_records import RecordedFolder, ShelfListing, Stranger
from orlop.host.folders.project_quota import ProjectLimits
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import FakeMachine
from orlop.testing.kill_points import KillPoints

DEEPEST: Final = 3
WITHOUT_QUOTA: Final = DriveFeatures("ext4", "The fake file system has no project quota.", has_reflinks=False)


@dataclass(eq=False, slots=True)
class FakeVolume:
    """The folder of a volume, and its image."""

    inode: int
    mode: int
    record: bytes | None
    project: int = 0
    image: ImageShape | None = None
    half_made_image: int = 0
    """The bytes that an image holds which is being made; 0: none is."""
    file_system_bytes: int = 0
    """The size that the file system in the image has grown to."""
    files: dict[str, bytes] = field(default_factory=dict)
    devices: dict[int, bool] = field(default_factory=dict)
    """Attached loop devices, by number: whether they are read-only."""
    is_damaged: bool = False
    """The file system in the image cannot be mounted."""


@dataclass(eq=False, slots=True)
class FakeDrive:
    """A folder that is a drive, is being made one, or could be one."""

    record: bytes | None = None
    half_made: bytes | None = None
    reserve: int = 0
    images: dict[str, int] = field(default_factory=dict)
    """The bytes of each image, by volume; by `trash/<name>` in the trash."""
    foreign: set[str] = field(default_factory=set)
    """Names of what is there and is none of ours."""
    features: DriveFeatures = WITHOUT_QUOTA
    volumes: dict[str, FakeVolume] = field(default_factory=dict)
    half_made_volumes: dict[str, FakeVolume] = field(default_factory=dict)
    trash: dict[str, FakeVolume] = field(default_factory=dict)
    limits: dict[int, ProjectLimits] = field(default_factory=dict)
    """By project number."""
    is_gone: bool = False
    """Nothing can be read any more, as when the disk was pulled out."""


class FakeDriveRoot:
    def __init__(self, acts: Acts, path: str, drive: FakeDrive) -> None:
        self._acts = acts
        self._machine = acts.machine
        self._drive = drive
        self.path = path
        self.root = -1
        self.is_closed = False

    @property
    def features(self) -> DriveFeatures:
        return self._drive.features

    def read_record(self) -> bytes:
        with self._acts.look("read_drive_record"):
            self._refuse_gone()
            if self._drive.record is None:
                refuse(errno.ENOENT, f"{self.path}/drive.json cannot be read")
            return self._drive.record

    def write_record(self, record: bytes) -> None:
        with self._acts.change("write_drive_record", f"write the record of {self.path}"):
            self._refuse_gone()
            self._drive.record = record

    def space(self) -> DriveSpace:
        with self._acts.look("drive_space"):
            self._refuse_gone()
            return DriveSpace(self._machine.total_bytes, free_bytes(self._machine))

    def reserved(self) -> int:
        with self._acts.look("reserved"):
            self._refuse_gone()
            return self._drive.reserve

    def fit_reserve(self, capacity: int) -> int:
        with self._acts.change("fit_reserve", f"fit the reserve of {self.path}"):
            self._refuse_gone()
            wanted = max(0, capacity - sum(self._drive.images.values()))
            self._drive.reserve = min(wanted, self._drive.reserve + free_bytes(self._machine))
            return wanted - self._drive.reserve

    def shrink_reserve(self, count: int) -> None:
        with self._acts.change("shrink_reserve", f"shrink the reserve of {self.path}"):
            self._refuse_gone()
            if count > self._drive.reserve:
                refuse(errno.ENOSPC, f"The drive at {self.path} has {self._drive.reserve} bytes in reserve")
            self._drive.reserve -= max(0, count)

    def volumes(self) -> ShelfListing:
        with self._acts.look("list_volumes"):
            self._refuse_gone()
            return listing_of(self._drive.volumes, tuple(self._drive.half_made_volumes))

    def why_failing(self) -> str | None:
        with self._acts.look("why_drive_fails"):
            return "it cannot be used: Input/output error" if self._drive.is_gone else None

    def close(self) -> None:
        self.is_closed = True

    def _refuse_gone(self) -> None:
        if self._drive.is_gone:
            refuse(errno.EIO, f"{self.path} cannot be read")


class FakeFolderDrives:
    def __init__(self, machine: FakeMachine, root: str, points: KillPoints | None = None) -> None:
        self._machine = machine
        self._acts = Acts(machine, points or KillPoints())
        self._root = root

    def make_folder_drive(self, path: str, record: bytes, capacity: int, *, dry_run: bool = False) -> None:
        drive = self._fit_drive(path, capacity)
        if dry_run:
            return
        with self._acts.machine.faults.around("make_folder_drive"):
            with self._acts.effect(f"begin the drive {path}"):
                self._machine.drives[path] = drive
                drive.half_made = record
            with self._acts.effect(f"reserve {path}"):
                drive.reserve = capacity
            with self._acts.effect(f"complete the drive {path}"):
                drive.record, drive.half_made = drive.half_made, None

    def remove_folder_drive(self, path: str) -> None:
        with self._acts.change("remove_folder_drive", f"remove the drive {path}"):
            drive = self._drive_at(path)
            if drive.images:
                refuse(errno.ENOTEMPTY, f"The drive {path} cannot be removed")
            drive.record, drive.half_made, drive.reserve = None, None, 0

    def folder_drives(self) -> tuple[SeenFolder, ...]:
        with self._acts.look("folder_drives"):
            drives = self._machine.drives.items()
            return tuple(
                SeenFolder(path, drive.record, "" if drive.record else "it is half made")
                for path, drive in sorted(drives)
                if drive.record or drive.half_made
            )

    def open_folder_drive(self, path: str) -> DriveRoot:
        with self._acts.look("open_folder_drive"):
            return FakeDriveRoot(self._acts, path, self._drive_at(path))

    def _drive_at(self, path: str) -> FakeDrive:
        self._refuse_path(path)
        if path not in self._machine.drives:
            refuse(errno.ENOENT, f"{path} cannot be opened")
        return self._machine.drives[path]

    def _fit_drive(self, path: str, capacity: int) -> FakeDrive:
        with self._acts.look("check_folder"):
            self._refuse_path(path)
            drive = self._machine.drives.get(path) or FakeDrive()
            if drive.record is not None:
                refuse(errno.EEXIST, f"The folder {path} is a drive already")
            if drive.foreign or drive.images:
                refuse(errno.ENOTEMPTY, f"The folder {path} cannot be a drive")
            if any(path.startswith(f"{other}/") for other, made in self._machine.drives.items() if made.record):
                refuse(errno.EBUSY, f"The folder {path} cannot be a drive")
            if free_bytes(self._machine) + drive.reserve < capacity:
                refuse(errno.ENOSPC, f"The folder {path} cannot be a drive of {capacity} bytes")
            return drive

    def _refuse_path(self, path: str) -> None:
        names = path.removeprefix(f"{self._root}/").split("/")
        if not path.startswith(f"{self._root}/") or len(names) > DEEPEST or {"", ".", ".."} & set(names):
            refuse(errno.EINVAL, f"The folder {path} cannot be a drive: it does not lie below {self._root}")


def listing_of(volumes: Mapping[str, FakeVolume], half_made: tuple[str, ...] = ()) -> ShelfListing:
    """Return volumes by name as a listing of their folder: those without a record are strangers."""
    return ShelfListing(
        tuple(RecordedFolder(name, each.record) for name, each in volumes.items() if each.record is not None),
        tuple(Stranger(name, "it has no record") for name, each in volumes.items() if each.record is None),
        half_made,
    )


def free_bytes(machine: FakeMachine) -> int:
    """Return what neither others, nor reserves, nor images hold."""
    drives = machine.drives.values()
    held = sum(drive.reserve + sum(drive.images.values()) for drive in drives)
    half_made = sum(volume.half_made_image for drive in drives for volume in drive.volumes.values())
    return machine.total_bytes - machine.used_by_others - held - half_made


def as_folder_drive_host(host: FakeFolderDrives) -> FolderDriveHost:
    """Prove to the type checker that the fake implements the protocol."""
    return host
