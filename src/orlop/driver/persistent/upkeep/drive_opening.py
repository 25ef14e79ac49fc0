"""Mount, open and release drives: the blocking steps of the watch, each whole or undone.

Opening checks that what is there is the drive that was asked for, and this node's: a disk may be visible to two nodes,
and a file system that two of them mount is destroyed. A drive of another node is unmounted at once and forgotten.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from orlop.driver.persistent.drive_table import OpenDrive
from orlop.foundation.quantity import Quantity
from orlop.host.drive_host import DriveHost, DriveRoot, DriveSurvey
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.host_errors import HostError
from orlop.records.drive_record import MIB, DriveRecord, DriveType, decode_drive, encode_drive
from orlop.records.record_format import NewerRecord, UnreadableRecord

VolumesOf: TypeAlias = Callable[[DriveRoot], DriveVolumes]
"""Opens the volumes of a drive. Blocks."""


RESTORE_ADVICE: Final = "'orlop drives adopt' writes it anew, and changes no volume."


class ForeignDrive(HostError):
    """The drive is of another node, or was removed on purpose."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.EPERM, sentence)


class DamagedDrive(HostError):
    """The record of a drive is missing or damaged, and not only written by a newer version."""

    def __init__(self, sentence: str) -> None:
        super().__init__(errno.EUCLEAN, sentence)


@dataclass(frozen=True, slots=True)
class DriveOpening:
    host: DriveHost
    node_name: str
    volumes_of: VolumesOf

    def mount(self, drive_id: str, device_name: str, survey: DriveSurvey) -> None:
        device = next((each.device for each in survey.devices if each.device.name == device_name), None)
        signature = device.content.file_system if device is not None else None
        if device is None or signature is None:
            raise HostError(errno.ENODEV, f"The disk {device_name} of the drive {drive_id} is gone.")
        self.host.mount_disk(device, drive_id, signature.name)

    def open(self, drive_id: str, path: str, type_: DriveType) -> OpenDrive:
        """Open a mounted disk, or a folder. ForeignDrive: it is not this node's; a disk is unmounted then."""
        place = self.place(drive_id, path, type_)
        try:
            record = record_at(place, drive_id)
            self._refuse_foreign(record, path)
            _ = place.features  # measured here, in a thread, and kept
            volumes = self.volumes_of(place)
        except BaseException as error:
            place.close()
            if isinstance(error, ForeignDrive) and type_ is DriveType.DISK:
                with suppress(HostError):
                    self.host.unmount_disk(drive_id, forget=True)
            if isinstance(error, DamagedDrive) and type_ is DriveType.DISK:
                raise DamagedDrive(f"{error} {RESTORE_ADVICE}") from None
            raise
        return OpenDrive(record, place, volumes)

    def _refuse_foreign(self, record: DriveRecord, path: str) -> None:
        if record.node_name != self.node_name:
            raise ForeignDrive(
                f"The drive at {path} was made or adopted by the node {record.node_name}: if that node no longer "
                "uses it, 'orlop drives adopt' takes it over."
            )

    def place(self, drive_id: str, path: str, type_: DriveType) -> DriveRoot:
        return self.host.open_disk(drive_id) if type_ is DriveType.DISK else self.host.open_folder_drive(path)

    def release(self, drive: OpenDrive) -> None:
        """Mark an empty drive as removed, durably; a folder loses the files of the drive. ENOTEMPTY: it has volumes."""
        if drive.record.type is DriveType.FOLDER:
            self.host.remove_folder_drive(drive.path)
            return
        listing = drive.volumes.listing()
        entries = [each.name for each in listing.folders] + [each.name for each in listing.strangers]
        names = [*entries, *listing.half_made]
        if names:
            raise HostError(
                errno.ENOTEMPTY, f"The drive at {drive.path} holds {len(names)} volumes, such as {min(names)}."
            )
        drive.place.write_record(encode_drive(msgspec.structs.replace(drive.record, removed=True)))


def fit_reserve_of(drive: OpenDrive) -> str:
    """Fit the reserve of a folder drive to its volumes; return a sentence if others hold a part of its capacity."""
    if drive.record.type is not DriveType.FOLDER:
        return ""
    with drive.space:
        missing = drive.place.fit_reserve(drive.record.capacity_bytes)
    if not missing:
        return ""
    size = Quantity.of(-(-missing // MIB) * MIB)
    return f"Others hold {size} of its capacity on the file system of {drive.path}: free them."


def record_at(place: DriveRoot, drive_id: str) -> DriveRecord:
    """Return the record of a drive. HostError: it cannot be read, or is of another drive. DamagedDrive: see there."""
    try:
        record = decode_drive(place.read_record())
    except HostError as error:
        if error.errno != errno.ENOENT:
            raise
        raise DamagedDrive(f"The drive at {place.path} has no record: drive.json is missing.") from None
    except NewerRecord as error:
        raise HostError(errno.EUCLEAN, f"The record of the drive at {place.path} cannot be read: {error}.") from None
    except UnreadableRecord as error:
        raise DamagedDrive(f"The record of the drive at {place.path} cannot be read: {error}.") from None
    if record.drive_id != drive_id:
        raise HostError(
            errno.EUCLEAN, f"At {place.path} is the drive {record.drive_id}, and {drive_id} was expected there."
        )
    return record
