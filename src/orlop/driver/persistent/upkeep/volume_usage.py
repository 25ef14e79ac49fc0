"""Measure the used bytes of volumes, once a minute, in threads that may hang.

A directory is measured by its quota, an image by its mounted file system. A raw device is not measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orlop.driver.persistent.drive_errors import DriveErrorListener, errors_of_drive
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.volume_index import VolumeIndex, names_of
from orlop.foundation.clock import Clock, wait_until_set
from orlop.foundation.task_group import TaskGroup
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.volume_record import VolumeRecord

MEASURE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0


class UsageWatch:
    """`drive_failed` gets the id of a drive and an error of measuring a volume on it."""

    def __init__(
        self,
        table: DriveTable,
        index: VolumeIndex,
        *,
        threads: Threads,
        clock: Clock,
        drive_failed: DriveErrorListener,
    ) -> None:
        self._table = table
        self._index = index
        self._threads = threads
        self._clock = clock
        self._listeners: list[Callable[[str], object]] = []
        self._drive_failed = drive_failed
        self._used: dict[str, int] = {}
        self._woken = asyncio.Event()
        self._measuring: set[OpenDrive] = set()

    def used(self, volume_id: str) -> int | None:
        """Return the bytes in use; None: not measured."""
        return self._used.get(volume_id)

    def listen(self, listener: Callable[[str], object]) -> None:
        """Call `listener` with the id of each volume whose usage changed."""
        self._listeners.append(listener)

    async def run(self) -> None:
        stop = self._index.listen(self._note)
        try:
            async with TaskGroup() as tasks:
                await self._measure_for_ever(tasks)
        finally:
            stop()

    def _note(self, volume_id: str) -> None:
        """Measure a volume soon after it was staged."""
        record = self._index.get(volume_id)
        if record is not None and record.staged and not record.is_block and volume_id not in self._used:
            self._woken.set()

    async def _measure_for_ever(self, tasks: TaskGroup) -> None:
        while True:
            self._woken.clear()
            known = {record.volume_id for record in self._index.all_records()}
            self._used = {volume_id: used for volume_id, used in self._used.items() if volume_id in known}
            for drive in self._table.open_drives():
                if drive not in self._measuring:
                    self._measuring.add(drive)
                    tasks.start(self._measure(drive), name=f"usage of {drive.drive_id}")
            # Wait after a staging: a pod that is starting changes the figures.
            await self._clock.sleep(PAUSE_SECONDS)
            await wait_until_set(self._clock, self._woken, MEASURE_SECONDS)

    async def _measure(self, drive: OpenDrive) -> None:
        try:
            with self._table.using_open(drive):
                for record in self._index.on_drive(drive.drive_id):
                    await self._measure_volume(drive, record)
        finally:
            self._measuring.discard(drive)

    async def _measure_volume(self, drive: OpenDrive, record: VolumeRecord) -> None:
        try:
            used = await self._threads(lambda: used_bytes(drive.volumes, record))
        except HostError as error:
            # It may also mean that the volume was unmounted just now.
            self._drive_failed(drive.drive_id, error)
            return
        if used is not None and used != self._used.get(record.volume_id):
            self._used[record.volume_id] = used
            for listener in tuple(self._listeners):
                listener(record.volume_id)


def used_bytes(volumes: DriveVolumes, record: VolumeRecord) -> int | None:
    """Return the bytes in use, by the quota or the mounted file system; None if neither measures the volume."""
    if record.project:
        with errors_of_drive():
            return volumes.quota_usage(record.project).bytes
    if record.staged and not record.is_block:
        room = volumes.room_at(names_of(record.staged))
        return room.total_bytes - room.free_bytes
    return None
