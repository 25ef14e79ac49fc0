"""Make drives of disks and folders, and adopt those of lost nodes and clusters.

Everything is safe to repeat: a drive that was made already is found by its id, and a half-made one is continued. A dry
run checks what the real one would, and changes nothing. Each drive is made under its key, so that the watch does not
change it meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import TypeAlias

import msgspec

from orlop.driver.persistent.upkeep.drive_opening import DamagedDrive, DriveOpening, record_at
from orlop.driver.persistent.upkeep.drive_task_rules import (
    AdoptDrive,
    DriveTask,
    FormatDevice,
    MakeFolder,
    capacity_of_disk,
    disk_record,
    failure_of,
    folder_record,
    result_of,
)
from orlop.driver.persistent.upkeep.drive_watch import DriveWatch
from orlop.foundation.clock import Clock
from orlop.host.drive_host import DiskOrder, DriveRoot, DriveSurvey
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.api_record import rounded_quantity
from orlop.records.drive_record import MIB, DriveType, decode_drive, encode_drive
from orlop.records.drive_request import RequestResult
from orlop.records.record_format import UnreadableRecord

OwnerOf: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns the node that the object of a drive names; empty if it has none."""


class DriveMaking:
    """`threads` runs each call in a thread that may hang, or take long."""

    def __init__(
        self, opening: DriveOpening, watch: DriveWatch, *, owner_of: OwnerOf, threads: Threads, clock: Clock
    ) -> None:
        self._host = opening.host
        self._opening = opening
        self._watch = watch
        self._owner_of = owner_of
        self._threads = threads
        self._clock = clock

    async def make(self, task: DriveTask, *, dry_run: bool = False) -> RequestResult:
        """Carry out a task; return its result. If the host refuses, the result has the error."""
        try:
            async with self._watch.keys.hold(task.drive_id, "a request to make or adopt it"):
                match task:
                    case FormatDevice():
                        result = await self._format(task, dry_run=dry_run)
                    case MakeFolder():
                        result = await self._make_folder(task, dry_run=dry_run)
                    case AdoptDrive():
                        result = await self._adopt(task, dry_run=dry_run)
        except HostError as error:
            return failure_of(task, str(error))
        if result.drive:
            self._watch.trust(task.drive_id)
        return result

    # ---- disks ---------------------------------------------------------------------------------------------------

    async def _format(self, task: FormatDevice, *, dry_run: bool) -> RequestResult:
        device, drive_id = task.device, task.drive_id
        if await self._threads(lambda: self._mount_formatted(drive_id)):
            return result_of(task, f"{device.name} is the drive {drive_id}.")
        order = DiskOrder(device.name, device.fingerprint, task.file_system, drive_id, device.force)
        now = self._clock.now().timestamp()

        def record_of(free: int) -> bytes:
            return encode_drive(
                disk_record(drive_id, task.file_system, capacity_of_disk(free), self._opening.node_name, now)
            )

        await self._threads(lambda: self._host.make_disk_drive(order, record_of, dry_run=dry_run))
        if dry_run:
            return result_of(task, f"{device.name} would be formatted with {task.file_system}.", is_made=False)
        # Mounted before it is reported: from then on the node knows that the disk is its own, also after a restart.
        await self._threads(lambda: self._mount_formatted(drive_id))
        return result_of(task, f"{device.name} was formatted with {task.file_system}.")

    def _mount_formatted(self, drive_id: str) -> bool:
        """Mount a disk that was formatted, perhaps by an earlier process; return False if there is none."""
        survey = self._host.survey()
        if drive_id in survey.mounted:
            return True
        names = [found.device.name for found in survey.devices if found.device.content.drive == drive_id]
        if not names:
            return False
        self._opening.mount(drive_id, names[0], survey)
        return True

    # ---- folders -------------------------------------------------------------------------------------------------

    async def _make_folder(self, task: MakeFolder, *, dry_run: bool) -> RequestResult:
        path, size = task.folder.path, rounded_quantity(task.capacity)
        if task.capacity < MIB:
            raise HostError(errno.EINVAL, f"The folder {path} cannot be a drive of less than 1Mi.")
        record = encode_drive(folder_record(task, self._opening.node_name, self._clock.now().timestamp()))
        if await self._threads(lambda: self._is_made(task)):
            return result_of(task, f"{path} is the drive {task.drive_id}.")
        await self._threads(lambda: self._host.make_folder_drive(path, record, task.capacity, dry_run=dry_run))
        if dry_run:
            return result_of(task, f"{path} would become a drive of {size}.", is_made=False)
        return result_of(task, f"{path} was made a drive of {size}.")

    def _is_made(self, task: MakeFolder) -> bool:
        with suppress(HostError, UnreadableRecord), closing(self._host.open_folder_drive(task.folder.path)) as place:
            return decode_drive(place.read_record()).drive_id == task.drive_id
        return False

    # ---- adoption ------------------------------------------------------------------------------------------------

    async def _adopt(self, task: AdoptDrive, *, dry_run: bool) -> RequestResult:
        await self._refuse_owned(task.drive_id)
        if len(task.places) > 1:
            raise HostError(errno.EEXIST, f"{' and '.join(task.places)} have the same identity: remove all but one.")
        if dry_run:
            # Not mounted to read its record: that would already change it.
            would = (
                "would get its record again"
                if task.is_ours
                else "would be taken over, unless it was removed on purpose"
            )
            return result_of(task, f"{task.places[0]} {would}.", is_made=False)
        capacity, now = self._watch.expected_capacity(task.drive_id), self._clock.now().timestamp()
        is_adopted = await self._threads(lambda: self._take_over(task, capacity, now))
        if task.is_ours and is_adopted:
            return result_of(task, f"{task.places[0]} has its record again.")
        message = "was taken over" if is_adopted else "was removed on purpose, and is left as it is"
        return result_of(task, f"{task.places[0]} {message}.", is_made=is_adopted)

    async def _refuse_owned(self, drive_id: str) -> None:
        """Refuse a drive that another node has: two nodes that mount one disk destroy it."""
        owner = await self._owner_of(drive_id)
        if owner not in {"", self._opening.node_name}:
            raise HostError(
                errno.EEXIST,
                f"The object of the drive {drive_id} is of the node {owner}. If that node does not use it any more, "
                "delete the object, and adopt the drive again.",
            )

    def _take_over(self, task: AdoptDrive, capacity: int, now: float) -> bool:
        """Make a drive this node's; return False for one that was removed. `capacity`: of its object, or 0."""
        survey = self._host.survey()
        place = task.places[0]
        if not any(found.device.name == place for found in survey.devices):
            return self._write_ownership(task.drive_id, place, DriveType.FOLDER)
        if task.is_ours:
            return self._write_record(task, survey, capacity, now)
        self._opening.mount(task.drive_id, place, survey)
        is_adopted = False
        try:
            is_adopted = self._write_ownership(task.drive_id, place, DriveType.DISK)
        finally:
            if not is_adopted:
                with suppress(HostError):
                    self._host.unmount_disk(task.drive_id, forget=True)
        return is_adopted

    def _write_record(self, task: AdoptDrive, survey: DriveSurvey, capacity: int, now: float) -> bool:
        """Write the record of a disk of this node anew. Its identity is the UUID of its file system.

        Its capacity was decided when it was made: its object has it. Without an object it is computed as it was then,
        which needs an empty disk.
        """
        drive_id = task.drive_id
        if drive_id not in survey.mounted:
            self._opening.mount(drive_id, task.places[0], survey)
        with closing(self._opening.place(drive_id, task.places[0], DriveType.DISK)) as root:
            with suppress(DamagedDrive):
                return not record_at(root, drive_id).removed  # an earlier request wrote it
            if not capacity:
                self._refuse_volumes(root)
                capacity = capacity_of_disk(root.space().free)
            file_system = root.features.file_system
            root.write_record(encode_drive(disk_record(drive_id, file_system, capacity, self._opening.node_name, now)))
        return True

    def _refuse_volumes(self, root: DriveRoot) -> None:
        listing = root.volumes()
        if count := len(listing.folders) + len(listing.strangers) + len(listing.half_made):
            raise HostError(
                errno.ENOTEMPTY,
                f"The drive at {root.path} has neither a record nor an object that has its capacity, and holds {count} "
                "volumes: copy what you need from there, unmount it, and erase it with 'wipefs --all'.",
            )

    def _write_ownership(self, drive_id: str, path: str, type_: DriveType) -> bool:
        with closing(self._opening.place(drive_id, path, type_)) as root:
            record = record_at(root, drive_id)
            if not record.removed:
                root.write_record(encode_drive(msgspec.structs.replace(record, node_name=self._opening.node_name)))
            return not record.removed
