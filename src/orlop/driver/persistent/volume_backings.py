"""The order of effects that make a volume on its drive, and make it larger.

- directory: the folder with its record and its limits, durable → done.
- image: the folder with its record, `unfinished` → space from the drive's reserve → the image → the record is finished,
  durable with all before it.
- growth: the record has the new size, `unfinished` → space from the reserve → the image, or the limits → loop devices
  and the mounted file system → the record is finished.

So a killed call leaves a record that shows what to finish, and the next staging finishes it. An image that is missing
although its record is finished was lost: it is never made anew, because pods would take the empty one for theirs.

All functions block and handle one volume, whose key the caller holds. They raise HostError.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from orlop.csi.error_codes import DataLoss, FailedPrecondition
from orlop.driver.persistent.drive_errors import errors_of_drive
from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.volume_record_rules import inodes_of
from orlop.driver.project_numbers import ProjectNumbers
from orlop.host.block.image_files import ImageShape
from orlop.host.folders.project_quota import FolderQuota, ProjectLimits
from orlop.host.host_errors import HostError
from orlop.host.node_host import Names
from orlop.records.volume_record import VolumeRecord, encode_volume

DIRECTORY_MODE: int = 0o777
"""The mode of an emptyDir: the volume belongs to one claim, and its pods may run as any user."""
IMAGE_FOLDER_MODE: int = 0o700


def shape_of(record: VolumeRecord) -> ImageShape:
    return ImageShape(record.bytes, record.file_system, keeps_space=not record.thin)


def refuse_unenforced(drive: OpenDrive, record: VolumeRecord) -> None:
    """Raise FAILED_PRECONDITION if the size of a directory volume would be no limit on this drive, now."""
    if record.is_image:
        return
    why = "it is a folder of a file system that others use too" if drive.is_folder else drive.volumes.why_no_quota()
    if why is not None:
        raise FailedPrecondition(
            f"the volume {record.volume_id} is a directory, and the drive {drive.drive_id} cannot limit its size: {why}"
        )
    if drive.features.file_system != record.file_system:
        raise FailedPrecondition(
            f"the volume {record.volume_id} is to be a directory on {record.file_system}, and the drive "
            f"{drive.drive_id} has {drive.features.file_system}"
        )


def create(drive: OpenDrive, record: VolumeRecord, numbers: ProjectNumbers) -> VolumeRecord:
    """Create the folder of a new volume and return its record.

    A directory is durable then. An image is made by `finish_image`, and durable with the record that is finished.
    """
    if record.is_image:
        begun = replace(record, unfinished="image")
        with errors_of_drive():
            drive.volumes.create(record.volume_id, encode_volume(begun), IMAGE_FOLDER_MODE, durable=False)
        return begun
    # Reserve the number until the folder has it: before that, the file system does not show that it is in use.
    with errors_of_drive(), numbers.reserved() as project:
        numbered = replace(record, project=project)
        quota = FolderQuota(project, limits_of(record))
        drive.volumes.create(record.volume_id, encode_volume(numbered), DIRECTORY_MODE, quota)
    return numbered


def limits_of(record: VolumeRecord) -> ProjectLimits:
    return ProjectLimits(record.bytes, inodes_of(record))


def finish_image(drive: OpenDrive, record: VolumeRecord) -> VolumeRecord:
    """Make the image of a volume if that was begun and not finished; return the record, not written yet."""
    if not record.is_image:
        return record
    with errors_of_drive():
        return _finished_image(drive, record)


def _finished_image(drive: OpenDrive, record: VolumeRecord) -> VolumeRecord:
    if record.unfinished == "image":
        drive.volumes.remove_half_made_image(record.volume_id)
        if drive.volumes.image_bytes(record.volume_id) is None:
            with _space(drive, record.bytes):
                drive.volumes.make_image(record.volume_id, shape_of(record))
        return replace(record, unfinished="")
    if drive.volumes.image_bytes(record.volume_id) is None:
        raise DataLoss(
            f"the image of the volume {record.volume_id} is missing on the drive {drive.drive_id}: its data is lost "
            "unless it is found in the trash of the drive, or in a backup"
        )
    return record


def grow(drive: OpenDrive, record: VolumeRecord) -> None:
    """Grow the backing to the size in the record. A failure has changed nothing."""
    with errors_of_drive():
        _grow(drive, record)


def _grow(drive: OpenDrive, record: VolumeRecord) -> None:
    if not record.is_image:
        drive.volumes.set_limits(record.project, limits_of(record))
        return
    size = drive.volumes.image_bytes(record.volume_id) or 0
    if size < record.bytes:
        with _space(drive, record.bytes - size):
            drive.volumes.grow_image(record.volume_id, shape_of(record))


def grow_in_use(drive: OpenDrive, record: VolumeRecord, staging: Names) -> None:
    """Grow the loop devices of an image, and its mounted file system, to the size of the image."""
    if record.is_image:
        drive.volumes.grow_attached(record.volume_id, shape_of(record), None if record.is_block else staging)


@contextmanager
def _space(drive: OpenDrive, count: int) -> Iterator[None]:
    """Take space out of the reserve of a folder drive for what the block allocates; put it back if that fails."""
    if not drive.is_folder:
        yield
        return
    with drive.space:
        try:
            _take(drive, count)
            yield
        except Exception:
            with suppress(HostError):
                drive.place.fit_reserve(drive.record.capacity_bytes)
            raise


def _take(drive: OpenDrive, count: int) -> None:
    try:
        drive.place.shrink_reserve(count)
    except HostError as error:
        if error.errno != errno.ENOSPC:
            raise
        # A killed process may have taken space and not used it.
        drive.place.fit_reserve(drive.record.capacity_bytes)
        drive.place.shrink_reserve(count)
