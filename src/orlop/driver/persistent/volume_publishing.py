"""The order of effects of publishing and unpublishing a staged volume, and how a failed publish is undone.

- publish: the record names the target → the target exists → bind what is mounted at the staging path, or the loop
  device of a raw volume (a read-only one for a read-only target).
- unpublish: unmount → remove the target → the read-only loop device goes with its last target → the record forgets the
  target.

Every step first checks whether it was done already. All functions block and handle one volume. The caller holds its key
and that of the target.
"""

from __future__ import annotations

import errno
from functools import partial

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition
from orlop.driver.kubelet_calls import UNSAFE_PATH_ERRORS, Undo, as_csi_errors, undo_on_failure
from orlop.driver.persistent import volume_backings
from orlop.driver.persistent.drive_errors import DISK_ERRORS, errors_of_drive
from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.node_request_rules import VolumePublishOrder, refuse_other_use
from orlop.driver.persistent.recorded_volumes import (
    forget_paths,
    known_volume,
    latest_record,
    write_record,
)
from orlop.driver.persistent.staged_mounts import VolumeMounts, options_of
from orlop.driver.persistent.volume_index import names_of
from orlop.driver.persistent.volume_record_rules import (
    is_published_at,
    refuse_second_target,
    with_targets,
    without_target,
)
from orlop.host.host_errors import HostError
from orlop.host.node_host import Names
from orlop.records.volume_record import VolumeRecord, VolumeTarget


class VolumePublishing:
    def __init__(self, mounts: VolumeMounts) -> None:
        self._mounts = mounts
        self._kubelet_dir = mounts.kubelet_dir

    # ---- publish -----------------------------------------------------------------------------------------------------

    def publish(self, drive: OpenDrive, order: VolumePublishOrder) -> VolumeRecord:
        """Publish a staged volume at a target; return its record."""
        with as_csi_errors():
            record, path = known_volume(drive, order.volume_id), order.target.path
            refuse_other_use(order.form, record.volume_mode, record.file_system)
            self._refuse_unstaged(drive, record, order.staging)
            # Targets whose pods died with the machine are recorded, and nothing is mounted there.
            others = tuple(each for each in record.published if each.path != path and self._mounts.mounted(each.path))
            refuse_second_target(record, order.target, others)
            published = with_targets(record, (*others, order.target))
            # After a final error kubelet deletes the target and never calls NodeUnpublishVolume.
            with undo_on_failure() as undo:
                write_record(drive, record, published, undo)
                if record.is_block:
                    self._bind_device(drive, record, order.target, undo)
                else:
                    self._bind_staged(drive, record, order, undo)
            return published

    def _refuse_unstaged(self, drive: OpenDrive, record: VolumeRecord, staging: str) -> None:
        if record.staged == staging:
            if record.is_block:
                if drive.volumes.devices(record.volume_id):
                    return
            else:
                mounted = self._mounts.mounted(staging)
                if mounted is not None and mounted.is_failed:
                    raise FailedPrecondition(
                        f"the file system of the volume {record.volume_id} failed: the kernel's log (dmesg) has the "
                        "reason. When all pods that use the volume are deleted, it is mounted anew"
                    )
                if mounted is not None and drive.volumes.is_volume(record.volume_id, mounted.root):
                    return
        raise FailedPrecondition(f"the volume {record.volume_id} is not staged at {staging}: stage it first")

    def _bind_staged(self, drive: OpenDrive, record: VolumeRecord, order: VolumePublishOrder, undo: Undo) -> None:
        path, options = order.target.path, options_of(order.form.mount_options)
        target = names_of(path)
        undo.append(partial(self._remove_if_empty, target, is_file=False))
        is_new = self._kubelet_dir.make_target(target)
        if not is_new:
            if self._mounts.is_usable(drive, record, path, options, is_recorded=is_published_at(record, path)):
                undo.clear()
                return
            self._mounts.refuse_hiding_files(path)
        undo.append(partial(self._kubelet_dir.unmount, target))
        # Bind last: once it is mounted the pod can write, and the record must name it by then.
        drive.volumes.bind_staged(names_of(order.staging), target, options)

    def _bind_device(self, drive: OpenDrive, record: VolumeRecord, target: VolumeTarget, undo: Undo) -> None:
        volumes, names, read_only = drive.volumes, names_of(target.path), target.read_only
        before = next((each for each in record.published if each.path == target.path), None)
        undo.append(partial(self._remove_if_empty, names, is_file=True))
        if not self._kubelet_dir.make_file(names) and self._mounts.is_usable(
            drive, record, target.path, None, is_recorded=before is not None
        ):
            if before is None or before.read_only != read_only:
                raise AlreadyExists(f"the volume is published at {target.path}, and not as it is asked for: read-only")
            undo.clear()
            return
        if read_only:
            if not any(device.is_read_only for device in volumes.devices(record.volume_id)):
                undo.append(partial(volumes.detach, record.volume_id, read_only=True))
            with errors_of_drive():
                volumes.attach(record.volume_id, volume_backings.shape_of(record), read_only=True)
        undo.append(partial(self._kubelet_dir.unmount, names))
        volumes.bind_device(record.volume_id, names, read_only=read_only)

    # ---- unpublish ---------------------------------------------------------------------------------------------------

    def unpublish(self, drive: OpenDrive | None, known: VolumeRecord | None, target: str) -> VolumeRecord | None:
        """Unpublish a volume from a target; return its record.

        `known` is what the index has, None if it has nothing. `drive` is None if the drive cannot be used.
        """
        with as_csi_errors():
            record = latest_record(drive, known)
            is_recorded = record is not None and is_published_at(record, target)
            # Unmount before the record forgets the target: after a crash in between, the record must still name every
            # target that may be mounted.
            self._mounts.unmount(drive, record, target, is_recorded=is_recorded)
            self._remove(names_of(target))
            if record is None:
                return None
            after = without_target(record, target)
            if record.is_block and drive is not None and not any(each.read_only for each in after.published):
                self._detach_reader(drive, record.volume_id)
            return forget_paths(drive, record, after)

    def _detach_reader(self, drive: OpenDrive, volume_id: str) -> None:
        try:
            drive.volumes.detach(volume_id, read_only=True)
        except HostError as error:
            if error.errno not in DISK_ERRORS:
                raise  # unstaging detaches those of a drive that fails

    def _remove(self, target: Names) -> None:
        try:
            self._kubelet_dir.remove_target(target)
        except HostError as error:
            if error.errno == errno.ENOTDIR:
                self._kubelet_dir.remove_file(target)
                return
            if error.errno == errno.ENOTEMPTY:
                self._refuse_removing_files(target)
            raise

    def _refuse_removing_files(self, target: Names) -> None:
        # A process wrote the files while nothing was mounted: they may be the only copy.
        names = self._kubelet_dir.names_in(target)
        if names:
            raise FailedPrecondition(
                f"the volume is unmounted, but its target {'/'.join(target)} cannot be removed: it holds "
                f"{min(names)[:100]!r}, which this driver did not create; find out whose it is, and move it away"
            )

    def _remove_if_empty(self, target: Names, *, is_file: bool) -> None:
        remove = self._kubelet_dir.remove_file if is_file else self._kubelet_dir.remove_target
        try:
            remove(target)
        except HostError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EBUSY, errno.EISDIR, *UNSAFE_PATH_ERRORS}:
                raise
