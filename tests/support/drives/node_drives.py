"""Drives of a fake machine, opened as the watch of a node opens them, and volumes on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from orlop.driver.persistent.drive_table import DriveStanding, DriveTable, OpenDrive
from orlop.driver.persistent.volume_index import VolumeIndex
from orlop.foundation.structured_log import silent_log
from orlop.host.drive_host import DriveFeatures
from orlop.records.drive_record import MIB, DriveRecord, DriveState, DriveType
from orlop.records.volume_record import VolumeRecord
from orlop.testing.fake_host import FakeDrive, FakeDriveVolumes, FakeFolderDrives, FakeMachine
from orlop.testing.kill_points import KillPoints

T = TypeVar("T")
DRIVE = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
OTHER_DRIVE = "6d7f3c1e-0a0b-4c1d-8e2f-000000000002"
ROOT = "/srv/folders"
READY = DriveStanding(DriveState.READY)
WITH_QUOTA = DriveFeatures("xfs", None, has_reflinks=True)
ID = "pvc-1"


async def right_here(work: Callable[[], T], /) -> T:
    return work()


def drive_record(
    drive_id: str = DRIVE, *, type_: DriveType = DriveType.DISK, capacity: int = 1024 * MIB
) -> DriveRecord:
    return DriveRecord(
        drive_id=drive_id, type=type_, file_system="xfs", capacity_bytes=capacity, node_name="n1", created_at=0.0
    )


def make_drive(machine: FakeMachine, drive_id: str = DRIVE, *, features: DriveFeatures = WITH_QUOTA) -> FakeDrive:
    made = machine.drives[f"{ROOT}/{drive_id}"] = FakeDrive(record=b"a drive", features=features)
    return made


def open_drive(machine: FakeMachine, record: DriveRecord | None = None, points: KillPoints | None = None) -> OpenDrive:
    record = record or drive_record()
    path = f"{ROOT}/{record.drive_id}"
    place = FakeFolderDrives(machine, ROOT, points).open_folder_drive(path)
    return OpenDrive(record, place, FakeDriveVolumes(machine, machine.drives[path], points))


def table_of(*drives: OpenDrive) -> DriveTable:
    table = DriveTable()
    for drive in drives:
        table.put(drive.drive_id, READY, drive)
    return table


def index_of(table: DriveTable) -> VolumeIndex:
    return VolumeIndex(table, threads=right_here, log=silent_log())


def volume_record(volume_id: str = ID, **facts: Any) -> VolumeRecord:
    made: dict[str, Any] = {
        "drive": DRIVE,
        "bytes": 64 * MIB,
        "backing": "image",
        "file_system": "xfs",
        "volume_mode": "Filesystem",
        "created_at": 0.0,
    }
    return VolumeRecord(volume_id=volume_id, **(made | facts))
