"""A node with drives: a fake machine, the watch over it, and drives made beforehand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

from orlop.driver.persistent.drive_table import DriveTable
from orlop.driver.persistent.upkeep.drive_opening import DriveOpening
from orlop.driver.persistent.upkeep.drive_watch import DriveWatch
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.host.block.device_rules import LABEL
from orlop.host.drive_host import DriveFeatures
from orlop.records.drive_record import DriveRecord, DriveState, DriveType, encode_drive
from orlop.testing.fake_host import FakeDisk, FakeDrive, FakeDriveHost, FakeMachine
from orlop.testing.kill_points import KillPoints
from orlop.testing.virtual_clock import VirtualClock

T = TypeVar("T")
GIB = 1 << 30
NODE = "n1"
ROOT = "/srv/folders"
ID, OTHER, THIRD = (f"6d7f3c1e-0a0b-4c1d-8e2f-00000000000{number}" for number in (1, 2, 3))


async def right_here(work: Callable[[], T], /) -> T:
    return work()


def runtime(entries: list[LogEntry] | None = None) -> Runtime:
    log = collecting_log([] if entries is None else entries)
    return Runtime(clock=VirtualClock(), random=Random(1), log=log, metrics=Metrics("test", of_process=False))


def record(
    drive_id: str = ID,
    type_: DriveType = DriveType.DISK,
    *,
    node: str = NODE,
    capacity: int = 10 * GIB,
    removed: bool = False,
) -> bytes:
    made = DriveRecord(
        drive_id=drive_id,
        type=type_,
        file_system="xfs",
        capacity_bytes=capacity,
        node_name=node,
        created_at=0.0,
        removed=removed,
    )
    return encode_drive(made)


def drive_disk(drive_id: str = ID, *, node: str = NODE, content: bytes | None = None) -> FakeDisk:
    """A disk that is a drive."""
    files = FakeDrive(record=content or record(drive_id, node=node), features=DriveFeatures("xfs", None, True))
    return FakeDisk(drive_id=drive_id, file_system="xfs", label=LABEL, drive=files)


def machine_with(**disks: FakeDisk) -> FakeMachine:
    """A machine that had these disks mounted before it was restarted."""
    machine = FakeMachine(total_bytes=1000 * GIB)
    machine.disks.update(disks)
    machine.known_drives.update(disk.drive_id for disk in disks.values() if disk.drive_id)
    return machine


def folder_drive(machine: FakeMachine, path: str, drive_id: str = ID, *, node: str = NODE) -> FakeDrive:
    made = FakeDrive(record=record(drive_id, DriveType.FOLDER, node=node), reserve=10 * GIB)
    machine.drives[path] = made
    return made


class WatchedNode:
    """One process of a node that watches its drives."""

    def __init__(self, machine: FakeMachine, points: KillPoints | None = None) -> None:
        self.machine = machine
        self.entries: list[LogEntry] = []
        self.runtime = runtime(self.entries)
        self.host = FakeDriveHost(machine, ROOT, points)
        self.table = DriveTable()
        opening = DriveOpening(self.host, NODE, self.host.volumes_of)
        self.watch = DriveWatch(opening, self.table, runtime=self.runtime, threads=right_here)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with TaskGroup() as tasks:
            task = tasks.start(self.watch.run(), name="watch")
            try:
                await self.passes(5)
                yield
            finally:
                task.cancel()
        self.table.close()

    async def passes(self, seconds: float) -> None:
        await self.runtime.clock.sleep(seconds)

    def state(self, drive_id: str = ID) -> DriveState | None:
        standing = self.table.standings().get(drive_id)
        return standing.state if standing is not None else None

    def why(self, drive_id: str = ID) -> str:
        return self.table.standings()[drive_id].why
