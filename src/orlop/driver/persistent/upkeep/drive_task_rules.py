"""The tasks of a request to a node, the records of the drives that they make, and their results. Pure.

The id of a new drive is derived from the request and the disk or folder. So a task that is carried out again, after the
process died in it, finds what it made, and continues what is half made.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

from orlop.records.api_record import LONGEST_PATH, LONGEST_TEXT
from orlop.records.drive import FileSystem
from orlop.records.drive_record import MIB, DriveRecord, DriveType, drive_id_from, whole_mebibytes
from orlop.records.drive_request import RequestedDevice, RequestedFolder, RequestResult

SPARE_SHARE: Final = 100
"""The share of a disk that is left to the file system, as a divisor: for records, folders, and maps of large images."""
LEAST_SPARE: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class FormatDevice:
    device: RequestedDevice
    drive_id: str
    file_system: FileSystem


@dataclass(frozen=True, slots=True)
class MakeFolder:
    folder: RequestedFolder
    drive_id: str
    capacity: int


@dataclass(frozen=True, slots=True)
class AdoptDrive:
    """Take over a drive of another node, or of a lost cluster; or write the record of a damaged one anew."""

    drive_id: str
    places: tuple[str, ...]
    is_ours: bool = False
    """A disk of this node, whose record cannot be read."""


DriveTask: TypeAlias = FormatDevice | MakeFolder | AdoptDrive


def target_of(task: DriveTask) -> str:
    match task:
        case FormatDevice(device):
            return device.name
        case MakeFolder(folder):
            return folder.path[:LONGEST_PATH]
        case AdoptDrive(places=places):
            return " and ".join(places)[:LONGEST_PATH]


def reason_of(task: DriveTask, result: RequestResult) -> str:
    """Return the reason of the Event about a result."""
    if result.error:
        return "DriveRefused"
    if not result.drive:  # A dry run, or a drive that was removed on purpose.
        return "NothingChanged"
    match task:
        case FormatDevice():
            return "DeviceFormatted"
        case MakeFolder():
            return "FolderMadeDrive"
        case AdoptDrive():
            return "DriveAdopted"


def derived_drive_id(request_uid: str, target: str) -> str:
    return drive_id_from(hashlib.sha256(f"{request_uid}\0{target}".encode()).digest()[:16])


def result_of(task: DriveTask, message: str, *, is_made: bool = True) -> RequestResult:
    drive = task.drive_id if is_made else ""
    return RequestResult(target=target_of(task), drive=drive, message=message[:LONGEST_TEXT])


def failure_of(task: DriveTask, error: str) -> RequestResult:
    return RequestResult(target=target_of(task), error=error[:LONGEST_TEXT] or "It failed.")


def capacity_of_disk(free: int) -> int:
    """Return the bytes for volumes of a disk whose new file system has this number of bytes free."""
    spare = max(LEAST_SPARE, free // SPARE_SHARE)
    return max(MIB, whole_mebibytes(free - spare))


def disk_record(drive_id: str, file_system: str, capacity: int, node_name: str, now: float) -> DriveRecord:
    return DriveRecord(
        drive_id=drive_id,
        type=DriveType.DISK,
        file_system=file_system,
        capacity_bytes=capacity,
        node_name=node_name,
        created_at=round(now, 3),
    )


def folder_record(task: MakeFolder, node_name: str, now: float) -> DriveRecord:
    return DriveRecord(
        drive_id=task.drive_id,
        type=DriveType.FOLDER,
        file_system="",
        capacity_bytes=task.capacity,
        node_name=node_name,
        created_at=round(now, 3),
    )
