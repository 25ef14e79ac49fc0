"""Probe open drives for I/O errors, each in a thread that may hang.

A probe that does not return in time is a failure of its drive until it returns. A drive has one probe at a time, and
stays open as long as it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import NotFound, Unavailable
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.upkeep.drive_opening import fit_reserve_of
from orlop.foundation.clock import Clock
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads

PROBE_SECONDS: Final = 30.0
LONGEST_PROBE_SECONDS: Final = 60.0
"""A very busy disk may need half a minute to make a small change durable, and does not fail."""
PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of the last probe of a drive."""

    failing: str = ""
    """What failed, as the end of a sentence; empty if the drive could be read and written."""
    shortage: str = ""
    """A sentence, if others hold a part of the capacity of a folder."""
    is_hanging: bool = False
    """The drive is failing because it does not respond."""
    failed_at: float | None = None
    """When the last probe failed, in elapsed time; None: none has failed since the drive was opened."""


NOT_PROBED: Final = ProbeResult()


class DriveProbes:
    """Calls `changed` with the id of each drive whose result has changed."""

    def __init__(self, table: DriveTable, threads: Threads, clock: Clock, changed: Callable[[str], object]) -> None:
        self._table = table
        self._threads = threads
        self._clock = clock
        self._changed = changed
        self._results: dict[OpenDrive, ProbeResult] = {}
        self._under_way: set[OpenDrive] = set()
        self._due: set[str] = set()
        self._woken = asyncio.Event()

    def result(self, drive: OpenDrive | None) -> ProbeResult:
        return self._results.get(drive, NOT_PROBED) if drive is not None else NOT_PROBED

    async def run(self) -> None:
        """Probe every open drive, for ever."""
        async with TaskGroup() as tasks:
            while True:
                drives = self._table.open_drives()
                self._results = {drive: result for drive, result in self._results.items() if drive in drives}
                for drive in drives:
                    tasks.start(self._probe_drive(drive.drive_id), name=f"probe of {drive.drive_id}")
                await self._wait(tasks)

    def probe_now(self, drive_id: str) -> None:
        """Probe a drive soon, because a user of it got an I/O error."""
        self._due.add(drive_id)
        self._woken.set()

    async def _wait(self, tasks: TaskGroup) -> None:
        """Wait until all drives are probed again; probe those sooner that `probe_now` names."""
        end = self._clock.deadline(PROBE_SECONDS)
        with suppress(TimeoutError):
            async with self._clock.timeout(end.remaining()):
                while True:
                    await self._woken.wait()
                    self._woken.clear()
                    for drive_id in sorted(self._due):
                        tasks.start(self._probe_drive(drive_id), name=f"probe of {drive_id}")
                    self._due.clear()
                    # A failing disk makes an error for every call of every volume.
                    await self._clock.sleep(PAUSE_SECONDS)

    async def _probe_drive(self, drive_id: str) -> None:
        try:
            with self._table.using(drive_id) as drive:
                if drive not in self._under_way:
                    self._under_way.add(drive)
                    try:
                        await self._probe(drive)
                    finally:
                        self._under_way.discard(drive)
        except (NotFound, Unavailable):
            return  # closed meanwhile

    async def _probe(self, drive: OpenDrive) -> None:
        running = asyncio.ensure_future(self._threads(lambda: _check(drive)))
        try:
            try:
                async with self._clock.timeout(LONGEST_PROBE_SECONDS):
                    failing, shortage = await asyncio.shield(running)
            except TimeoutError:
                self._note(drive, f"it has not responded for {LONGEST_PROBE_SECONDS:g} seconds", "", is_error=False)
                failing, shortage = await running
        finally:
            running.cancel()
        self._note(drive, failing, shortage, is_error=bool(failing))

    def _note(self, drive: OpenDrive, failing: str, shortage: str, *, is_error: bool) -> None:
        before = self.result(drive)
        # A disk that was only slow has had no I/O error: it need not prove for a minute that it works.
        failed_at = self._clock.elapsed() if is_error else before.failed_at
        is_hanging = bool(failing) and not is_error
        self._results[drive] = ProbeResult(failing, shortage, is_hanging=is_hanging, failed_at=failed_at)
        if (failing, shortage) != (before.failing, before.shortage):
            self._changed(drive.drive_id)


def _check(drive: OpenDrive) -> tuple[str, str]:
    try:
        failing = drive.place.why_failing()
        return (failing, "") if failing is not None else ("", fit_reserve_of(drive))
    except HostError as error:
        return str(error).rstrip("."), ""
