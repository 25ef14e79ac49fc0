"""The drives of one node, and the parts that watch, read, measure and erase, for CSI services, reports and requests.

At the end the parts stop. The caller closes the table after all threads have ended, because they may use drives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from orlop.driver.persistent.drive_errors import errors_of_drive
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.upkeep.drive_opening import DriveOpening, VolumesOf
from orlop.driver.persistent.upkeep.drive_watch import DriveWatch
from orlop.driver.persistent.upkeep.trash_erasure import TrashErasure
from orlop.driver.persistent.upkeep.volume_erasure import VolumeErasure
from orlop.driver.persistent.upkeep.volume_usage import UsageWatch
from orlop.driver.persistent.volume_index import VolumeIndex
from orlop.foundation.clock import wait_until_set
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.drive_host import DriveHost
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads
from orlop.records.drive_record import DriveState

READ_SECONDS: Final = 10.0
"""How soon the volumes of a drive are read again after an error."""


class NodeDrives:
    """`threads` runs each call in a thread that may hang."""

    def __init__(
        self,
        host: DriveHost,
        volumes_of: VolumesOf,
        *,
        node_name: str,
        kubelet_dir: str,
        threads: Threads,
        runtime: Runtime,
    ) -> None:
        self.node_name = node_name
        self.kubelet_dir = kubelet_dir
        self.threads = threads
        self.table = DriveTable()
        self.opening = DriveOpening(host, node_name, volumes_of)
        self.watch = DriveWatch(self.opening, self.table, runtime=runtime, threads=threads)
        self.index = VolumeIndex(self.table, threads=threads, log=runtime.log)
        failed = self.watch.note_error
        self.trash = TrashErasure(self.table, threads=threads, runtime=runtime, drive_failed=failed)
        self.deletion = VolumeErasure(
            self.table, self.index, self.trash, threads=threads, runtime=runtime, drive_failed=failed
        )
        self.usage = UsageWatch(self.table, self.index, threads=threads, clock=runtime.clock, drive_failed=failed)
        self._clock, self._log = runtime.clock, runtime.log
        self._reading: set[OpenDrive] = set()
        self.call_failed: Callable[[str, str, str], object] = _ignore
        """Called with a volume, the name of a call and the error, if a call fails and a repetition would not help."""
        self.allocated: Callable[[str], int] = self.index.promised
        """Returns the bytes allocated on a drive; the sizes of its volumes until the Drive objects are read."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with TaskGroup() as tasks:
            parts = (self.watch, self.trash, self.deletion, self.usage)
            running = [tasks.start(part.run(), name=type(part).__name__) for part in parts]
            running.append(tasks.start(self._read_volumes(), name="volumes of drives"))
            stop = self.index.listen(self._volume_changed)
            try:
                yield
            finally:
                stop()
                for task in running:
                    task.cancel()
                for drive in self.table.open_drives():
                    drive.volumes.stop_erasing()

    def _volume_changed(self, volume_id: str) -> None:
        """Notify the watch when no volume on a drive is in use any more: it may be waiting to unmount the drive."""
        record = self.index.get(volume_id)
        if record is not None and not any(each.staged or each.published for each in self.index.on_drive(record.drive)):
            self.watch.retry_soon(record.drive)

    async def _read_volumes(self) -> None:
        """Read the volumes of each drive soon after it was opened. Each has its own task, because a disk may hang."""
        changed = asyncio.Event()
        stop = self.table.listen(lambda _drive_id: changed.set())
        try:
            async with TaskGroup() as tasks:
                while True:
                    changed.clear()
                    for drive in self.table.open_drives():
                        if drive not in self._reading and not self.index.is_read(drive):
                            self._reading.add(drive)
                            tasks.start(self._read(drive), name=f"volumes of {drive.drive_id}")
                    await wait_until_set(self._clock, changed, READ_SECONDS)
        finally:
            stop()

    async def _read(self, drive: OpenDrive) -> None:
        try:
            with self.table.using_open(drive), errors_of_drive():
                await self.index.read(drive)
        except HostError as error:
            self.watch.note_error(drive.drive_id, error)
            self._log.warning("volumes of drive cannot be read", drive=drive.drive_id, error=error)
        finally:
            self._reading.discard(drive)

    def register_metrics(self, runtime: Runtime) -> None:
        """Register what can be listed at each scrape."""
        gauge = runtime.metrics.gauge_from
        gauge("orlop_drive_capacity_bytes", "Bytes for volumes of each open drive.", self._capacities, ("drive",))
        gauge("orlop_drive_allocated_bytes", "Bytes reserved for volumes on each drive.", self._allocated, ("drive",))
        gauge("orlop_drive_state", "1 for the state that each drive is in.", self._states, ("drive", "state"))
        gauge("orlop_volume_capacity_bytes", "Size of each volume.", self._sizes, ("volume", "drive"))
        gauge(
            "orlop_volume_used_bytes", "Bytes in use of each volume that is measured.", self._used, ("volume", "drive")
        )

    def _capacities(self) -> Mapping[tuple[str, ...], float]:
        return {(drive.drive_id,): drive.record.capacity_bytes for drive in self.table.open_drives()}

    def _allocated(self) -> Mapping[tuple[str, ...], float]:
        return {(drive_id,): self.allocated(drive_id) for drive_id in self.table.standings()}

    def _states(self) -> Mapping[tuple[str, ...], float]:
        return {
            (drive_id, state.value): float(state is standing.state)
            for drive_id, standing in self.table.standings().items()
            for state in DriveState
        }

    def _sizes(self) -> Mapping[tuple[str, ...], float]:
        return {(record.volume_id, record.drive): record.bytes for record in self.index.all_records()}

    def _used(self) -> Mapping[tuple[str, ...], float]:
        used = ((record, self.usage.used(record.volume_id)) for record in self.index.all_records())
        return {(record.volume_id, record.drive): count for record, count in used if count is not None}


def _ignore(_volume_id: str, _call: str, _why: str) -> None:
    """Until the API server can be reached."""
