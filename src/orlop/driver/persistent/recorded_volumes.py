"""Read and write the records of volumes on their drives, for the calls that change a volume. Blocks."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial

from orlop.csi.error_codes import FailedPrecondition, NotFound
from orlop.driver.kubelet_calls import Undo
from orlop.driver.persistent.drive_errors import DISK_ERRORS, errors_of_drive
from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.volume_index import read_volume
from orlop.host.host_errors import HostError
from orlop.records.record_format import UnreadableRecord
from orlop.records.volume_record import VolumeRecord, encode_volume


def existing_volume(drive: OpenDrive, volume_id: str) -> VolumeRecord | None:
    """Return the record of a volume; None if the drive has no such volume. FAILED_PRECONDITION: it cannot be used."""
    try:
        with errors_of_drive():
            return read_volume(drive.volumes, drive.drive_id, volume_id)
    except UnreadableRecord as error:
        raise _unusable_record(drive, volume_id, str(error)) from None
    except HostError as error:
        if error.errno == errno.ENODATA:
            raise _unusable_record(drive, volume_id, "it has none") from None
        if error.errno == errno.ENOENT:
            return None
        raise


def known_volume(drive: OpenDrive, volume_id: str) -> VolumeRecord:
    """Return the record of a volume. NOT_FOUND: the drive has no such volume."""
    record = existing_volume(drive, volume_id)
    if record is None:
        raise NotFound(f"the drive {drive.drive_id} has no volume {volume_id}")
    return record


def latest_record(drive: OpenDrive | None, known: VolumeRecord | None) -> VolumeRecord | None:
    """Return the record of a volume that is being unmounted: from the drive, else the `known` one.

    A volume is unmounted even if its drive fails.
    """
    if drive is not None and known is not None:
        with suppress(HostError, FailedPrecondition):
            return existing_volume(drive, known.volume_id)
    return known


def write_record(
    drive: OpenDrive, before: VolumeRecord, after: VolumeRecord, undo: Undo, *, durable: bool = False
) -> None:
    """Replace a record. Register the undo first: a call that fails may have taken effect.

    Paths need not be durable: after power loss nothing is mounted.
    """
    if before != after:
        undo.append(partial(drive.volumes.write_record, before.volume_id, encode_volume(before), durable=False))
        with errors_of_drive():
            drive.volumes.write_record(before.volume_id, encode_volume(after), durable=durable)


def forget_paths(drive: OpenDrive | None, before: VolumeRecord, after: VolumeRecord) -> VolumeRecord:
    """Write a record without paths where nothing is mounted any more; return it.

    Pods of a drive that fails must be able to end. The record of such a drive keeps the paths: they are checked when it
    is read again, and nothing is mounted there.
    """
    if drive is not None and before != after:
        try:
            drive.volumes.write_record(before.volume_id, encode_volume(after), durable=False)
        except HostError as error:
            if error.errno not in DISK_ERRORS:
                raise
    return after


def _unusable_record(drive: OpenDrive, volume_id: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the folder of the volume {volume_id} on the drive {drive.drive_id} has no record that can be used ({why}): "
        "it is left alone; check what it holds, and move it away if it is not needed"
    )
