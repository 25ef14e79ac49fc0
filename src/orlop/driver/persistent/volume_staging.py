"""The order of effects of staging, unstaging and expanding a volume on a drive, and how a failed call is undone.

- stage: the volume is made (`volume_backings`) → the record names the staging path → mount; a raw volume's loop device
  instead → a growth that was interrupted is finished.
- unstage: unmount, or detach → the record forgets the staging path.
- expand: the record has the new size → backing, devices and file system grow → the record is finished.

Every step first checks whether it was done already, so each function can be repeated after a kill at any point, a
reboot, and the return of a drive that was lost. All functions block and handle one volume. The caller holds its key and
that of the path. A raw volume is never mounted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from orlop.csi.error_codes import FailedPrecondition
from orlop.driver.kubelet_calls import Undo, as_csi_errors, undo_on_failure
from orlop.driver.persistent import volume_backings
from orlop.driver.persistent.drive_errors import DISK_ERRORS, errors_of_drive, io_errors_of_drive
from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.node_request_rules import VolumeStageOrder
from orlop.driver.persistent.recorded_volumes import (
    existing_volume,
    forget_paths,
    known_volume,
    latest_record,
    write_record,
)
from orlop.driver.persistent.staged_mounts import VolumeMounts, options_of
from orlop.driver.persistent.volume_index import names_of
from orlop.driver.persistent.volume_record_rules import refuse_other_volume, refuse_without_room
from orlop.driver.project_numbers import ProjectNumbers
from orlop.host.host_errors import HostError
from orlop.records.volume_record import VolumeRecord, encode_volume, new_volume_record


@dataclass(frozen=True, slots=True)
class DriveRoom:
    """What a new volume or a growth may take: the drive's capacity, and what its volumes were promised."""

    capacity: int
    promised: int


class VolumeStaging:
    """Stages volumes below kubelet's directory."""

    def __init__(self, mounts: VolumeMounts, detach_lost: Callable[[str], object]) -> None:
        """Create it. `detach_lost` detaches the loop devices of a volume whose drive cannot be used."""
        self._mounts = mounts
        self._detach_lost = detach_lost

    # ---- stage -------------------------------------------------------------------------------------------------------

    def stage(
        self, drive: OpenDrive, order: VolumeStageOrder, room: DriveRoom, numbers: ProjectNumbers, now: float
    ) -> VolumeRecord:
        """Stage a volume, made if it is new; return its record."""
        with as_csi_errors():
            record = self._existing(drive, order)
            is_new, is_recorded = record is None, record is not None and record.staged == order.staging
            if record is None:
                fresh = new_volume_record(order.volume_id, order.context, now, order.form.access_mode)
                volume_backings.refuse_unenforced(drive, fresh)
                refuse_without_room(room.capacity, room.promised, fresh.bytes)
                # A directory is complete at once, and needs no second record.
                named = fresh if fresh.is_image else replace(fresh, staged=order.staging)
                record = volume_backings.create(drive, named, numbers)
            else:
                # Also one that exists: after a reboot its drive may be mounted without quota.
                volume_backings.refuse_unenforced(drive, record)
            made = volume_backings.finish_image(drive, record)
            self._refuse_second_staging(drive, made, order.staging)
            # After a final error kubelet removes the staging path and never calls NodeUnstageVolume: nothing may be
            # mounted there then. The volume itself stays: it is empty, and the next call uses it.
            with undo_on_failure() as undo:
                # The access mode also of a volume that is staged again: its PersistentVolume may have changed.
                staged = replace(made, staged=order.staging, access_mode=order.form.access_mode)
                if is_new:
                    unstaged = encode_volume(replace(record, staged=""))
                    undo.append(partial(drive.volumes.write_record, record.volume_id, unstaged))
                # What is acknowledged survives power loss: the volume, whole, and its access mode. The path need not.
                durable = replace(record, staged=staged.staged) != staged
                write_record(drive, record, staged, undo, durable=durable)
                self._mount(drive, order, made, undo, is_recorded=is_recorded)
            return self._with_growth(drive, staged)

    def _existing(self, drive: OpenDrive, order: VolumeStageOrder) -> VolumeRecord | None:
        record = existing_volume(drive, order.volume_id)
        if record is not None:
            refuse_other_volume(record, order.context)
        return record

    def _refuse_second_staging(self, drive: OpenDrive, record: VolumeRecord, staging: str) -> None:
        if record.staged in {"", staging}:
            return
        if drive.volumes.devices(record.volume_id) if record.is_block else self._mounts.mounted(record.staged):
            raise FailedPrecondition(
                f"the volume {record.volume_id} is staged at {record.staged}: unstage it there first"
            )

    def _mount(
        self, drive: OpenDrive, order: VolumeStageOrder, record: VolumeRecord, undo: Undo, *, is_recorded: bool
    ) -> None:
        """Mount or attach a volume. `is_recorded`: an earlier call named the staging path already."""
        volumes, volume_id, shape = drive.volumes, record.volume_id, volume_backings.shape_of(record)
        if record.is_block:
            if not volumes.devices(volume_id):
                undo.append(partial(volumes.detach, volume_id))
            with errors_of_drive():
                volumes.attach(volume_id, shape, read_only=False)
            return
        staging, options = names_of(order.staging), options_of(order.form.mount_options)
        if self._mounts.is_usable(drive, record, order.staging, options, is_recorded=is_recorded):
            return
        self._mounts.refuse_hiding_files(order.staging)
        undo.append(partial(self._mounts.kubelet_dir.unmount, staging))
        if record.is_image:
            # The file system of a thin image fails, too, when the drive is full: that is no error of the drive.
            with nullcontext() if record.thin else io_errors_of_drive():
                volumes.mount_image(volume_id, shape, staging, options)
        else:
            volumes.mount_folder(volume_id, staging, options)

    # ---- growth ------------------------------------------------------------------------------------------------------

    def _with_growth(self, drive: OpenDrive, record: VolumeRecord) -> VolumeRecord:
        """Finish an expansion that was interrupted. If that fails, the volume is staged as it is."""
        if record.unfinished != "growth":
            return record
        try:
            return self._grown(drive, record)
        except HostError:
            # Kubelet expands it again, and gets the error. Until then its pods can use what is there.
            return record

    def _grown(self, drive: OpenDrive, record: VolumeRecord) -> VolumeRecord:
        volume_backings.grow(drive, record)
        volume_backings.grow_in_use(drive, record, names_of(record.staged))
        finished = replace(record, unfinished="")
        with errors_of_drive():
            drive.volumes.write_record(record.volume_id, encode_volume(finished))
        return finished

    def expand(self, drive: OpenDrive, volume_id: str, size: int, room: DriveRoom) -> VolumeRecord:
        """Make a staged volume as large as `size`, or as it was promised to be; return its record."""
        with as_csi_errors():
            record = known_volume(drive, volume_id)
            if not record.staged:
                raise FailedPrecondition(f"the volume {volume_id} is not staged: its file system grows while mounted")
            if size <= record.bytes and not record.unfinished:
                return record
            larger = replace(record, bytes=max(size, record.bytes), unfinished="growth")
            refuse_without_room(room.capacity, room.promised - record.bytes, larger.bytes)
            with undo_on_failure() as undo:
                # The record before the backing: a staging that finds it unfinished grows the backing to it.
                write_record(drive, record, larger, undo)
                undo.append(partial(volume_backings.grow, drive, record))
                volume_backings.grow(drive, larger)
            return self._grown(drive, larger)

    # ---- unstage -----------------------------------------------------------------------------------------------------

    def unstage(
        self, drive: OpenDrive | None, known: VolumeRecord | None, volume_id: str, staging: str
    ) -> VolumeRecord | None:
        """Unstage a volume; return its record.

        `known` is what the index has, None if it has nothing. `drive` is None if the drive cannot be used: then what is
        mounted is unmounted, and its record forgets that when the drive is read again.
        """
        with as_csi_errors():
            record = latest_record(drive, known)
            if record is not None:
                self._refuse_published(record)
            if record is None or not record.is_block:
                is_recorded = record is not None and record.staged == staging
                self._mounts.unmount(drive, record, staging, is_recorded=is_recorded)
            if record is None or record.is_block:
                self._detach(drive, volume_id)
            if record is None:
                return None
            after = replace(record, staged="") if record.staged == staging else record
            return forget_paths(drive, record, after)

    def _detach(self, drive: OpenDrive | None, volume_id: str) -> None:
        if drive is not None:
            try:
                drive.volumes.detach(volume_id)
            except HostError as error:
                if error.errno not in DISK_ERRORS:
                    raise
            else:
                return
        self._detach_lost(volume_id)

    def _refuse_published(self, record: VolumeRecord) -> None:
        path = next((each.path for each in record.published if self._mounts.mounted(each.path)), None)
        if path is not None:
            raise FailedPrecondition(f"the volume {record.volume_id} is published at {path}: unpublish it first")
