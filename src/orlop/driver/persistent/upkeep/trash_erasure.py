"""Erase the trash of the drives, also that of earlier processes: one folder of each drive at a time.

Order for one folder: check that nothing has it mounted → erase it → give a folder drive's space back to its reserve →
call the listeners. A folder that is mounted, or cannot be erased, is retried later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Final

from orlop.driver.ephemeral.afterlife.trash_purge import RateLimitedWarnings
from orlop.driver.persistent.drive_errors import DriveErrorListener, errors_of_drive
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.upkeep.drive_opening import fit_reserve_of
from orlop.foundation.clock import wait_until_set
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.drive_volumes import DriveVolumes
from orlop.host.erase.erase_folder import REST_PREFIX
from orlop.host.folders.folder_records import RecordedFolder
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.record_format import UnreadableRecord
from orlop.records.volume_record import decode_volume

RETRY_SECONDS: Final = 30.0


class TrashErasure:
    """`threads` runs each call in a thread that may hang. `drive_failed` gets a drive and an error of erasing there."""

    def __init__(
        self, table: DriveTable, *, threads: Threads, runtime: Runtime, drive_failed: DriveErrorListener
    ) -> None:
        self._table = table
        self._drive_failed = drive_failed
        self._threads = threads
        self._clock, self._log = runtime.clock, runtime.log
        self._warnings = RateLimitedWarnings(runtime.log, runtime.clock)
        self._erased = runtime.metrics.counter("orlop_volumes_erased_total", "Volumes erased from drives.")
        self._woken = asyncio.Event()
        self._working: set[OpenDrive] = set()
        self._listeners: list[Callable[[], object]] = []

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever something was erased."""
        self._listeners.append(listener)

    def wake(self) -> None:
        """Erase what was moved to the trash just now."""
        self._woken.set()

    async def run(self) -> None:
        stop = self._table.listen(lambda _drive_id: self.wake())
        try:
            async with TaskGroup() as tasks:
                while True:
                    self._woken.clear()
                    for drive in self._table.open_drives():
                        if drive not in self._working:
                            self._working.add(drive)
                            tasks.start(self._empty(drive), name=f"trash of {drive.drive_id}")
                    await wait_until_set(self._clock, self._woken, RETRY_SECONDS)
        finally:
            stop()

    async def _empty(self, drive: OpenDrive) -> None:
        try:
            with self._table.using_open(drive), errors_of_drive():
                tried: set[str] = set()
                # Listed again after each: more may have been moved there meanwhile.
                while name := await self._threads(lambda: next_in_trash(drive.volumes, tried)):
                    tried.add(name)
                    await self._erase(drive, name)
        except HostError as error:
            self._drive_failed(drive.drive_id, error)
            self._warnings.warn("trash of drive cannot be listed", drive=drive.drive_id, error=error)
        finally:
            self._working.discard(drive)

    async def _erase(self, drive: OpenDrive, name: str) -> None:
        about = {"drive": drive.drive_id, "folder": f"trash/{name}"}
        try:
            if await self._threads(lambda: drive.volumes.is_trash_in_use(name)):
                self._warnings.warn("volume not erased yet", **about, error="it is mounted")
                return
            with errors_of_drive():
                await self._threads(lambda: drive.volumes.erase(name))
        except HostError as error:
            self._drive_failed(drive.drive_id, error)
            self._warnings.warn("volume not erased yet", **about, error=error)
            return
        self._erased.inc()
        self._log.info("volume erased", **about)
        await self._return_space(drive)
        for listener in tuple(self._listeners):
            listener()

    async def _return_space(self, drive: OpenDrive) -> None:
        try:
            await self._threads(lambda: fit_reserve_of(drive))
        except HostError as error:
            self._log.warning("reserve of drive not resized", drive=drive.drive_id, error=error)


def next_in_trash(volumes: DriveVolumes, tried: Container[str]) -> str | None:
    """Return the next folder to erase. The eraser moves deep parts of a folder beside it: they count as the folder."""
    listing = volumes.trash()
    names = [each.name for each in listing.folders] + [each.name for each in listing.strangers]
    whole = {name.removeprefix(REST_PREFIX) or name for name in names}
    return min((name for name in whole if name not in tried), default=None)


def is_in_trash(volumes: DriveVolumes, volume_id: str) -> bool:
    """Return whether anything of a volume is in the trash: by its record, or by its name where there is none."""
    listing = volumes.trash()
    return any(_is_of(each, volume_id) for each in listing.folders) or any(
        _is_named(each.name.removeprefix(REST_PREFIX), volume_id) for each in listing.strangers
    )


def _is_of(folder: RecordedFolder, volume_id: str) -> bool:
    try:
        return decode_volume(folder.record).volume_id == volume_id
    except UnreadableRecord:
        return _is_named(folder.name, volume_id)


def _is_named(name: str, volume_id: str) -> bool:
    return name == volume_id or name.startswith(f"{volume_id}.")
