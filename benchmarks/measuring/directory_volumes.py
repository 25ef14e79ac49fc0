"""Directory volumes: made and taken apart, beside the programs that peers run; and I/O in them beside the bare disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from measuring.quota_machine import folder_with_quota, shared_mount
from measuring.time_table import show_times
from measuring.volume_driver import DRIVE, Driver, run
from measuring.volume_io import compare_io
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.records.volume_context import VolumeContext

MIB = 1 << 20
SIZE = 16 * MIB
SIZE_FOR_IO = 512 * MIB
IN_FLIGHT = 10
IO_BATCHES = 200


def directories(count: int) -> None:
    folder = folder_with_quota(DRIVE)
    if folder is None:
        return
    with shared_mount(folder / "node") as node:
        driver = Driver(node, _context(SIZE), drives=folder / "drives")
        disk = folder / "drives" / DRIVE
        driver.make_drive_of_mount(disk)
        with driver.running():
            asyncio.run(_compare(driver, disk, count))
            asyncio.run(_compare_io(driver, disk, IO_BATCHES))


def _context(size: int) -> VolumeContext:
    return VolumeContext(drive=DRIVE, bytes=size, backing="directory", file_system="xfs", volume_mode="Filesystem")


async def _compare(driver: Driver, disk: Path, count: int) -> None:
    async with driver.connected() as connection:
        await driver.use_first(connection, "first")
        alone, together, programs = [], [], []
        for number in range(count):
            alone.append(await _seconds(driver, connection, [f"alone-{number}"]))
            names = [f"together-{number}-{each}" for each in range(IN_FLIGHT)]
            together.append(await _seconds(driver, connection, names) / IN_FLIGHT)
            programs.append(_by_programs(disk, driver.folder / f"program-{number}", 100_000 + number))
        await driver.leave(connection, "first")
    show_times(
        f"directory volumes of {SIZE >> 20} MiB (XFS), made, staged, published and back",
        {"one after the other": alone, f"{IN_FLIGHT} at a time": together, "programs": programs},
    )


async def _compare_io(driver: Driver, disk: Path, batches: int) -> None:
    async with driver.connected() as connection:
        driver.set_context(_context(SIZE_FOR_IO))
        await driver.use(connection, "io")
        _, target = driver.paths("io")
        compare_io({"the disk": disk, "a directory": Path(target)}, batches)
        await driver.leave(connection, "io")


async def _seconds(driver: Driver, connection: GrpcConnection, names: list[str]) -> float:
    for name in names:
        driver.paths(name)

    async def live(name: str) -> None:
        await driver.use(connection, name)
        await driver.leave(connection, name)

    began = time.perf_counter()
    await asyncio.gather(*map(live, names))
    return time.perf_counter() - began


def _by_programs(disk: Path, place: Path, project: int) -> float:
    folder, staging, target = disk / place.name, place / "staging", place / "target"
    staging.mkdir(parents=True)
    target.mkdir()
    began = time.perf_counter()
    folder.mkdir()
    run("xfs_quota", "-x", "-c", f"project -s -p {folder} {project}", disk)
    run("xfs_quota", "-x", "-c", f"limit -p bhard={SIZE} {project}", disk)
    run("mount", "--bind", folder, staging)
    run("mount", "--bind", staging, target)
    run("umount", target)
    run("umount", staging)
    return time.perf_counter() - began
