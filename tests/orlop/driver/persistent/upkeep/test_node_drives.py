"""The parts of a node's drives together: what one of them notices wakes another."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.foundation.clock import Clock
from orlop.records.drive_record import DriveState
from orlop.testing.fake_host import FakeDriveHost, FakeMachine
from support.drives.reporting_nodes import STAGED, VOLUME_ID, put_volume, volume_on_disk
from support.drives.watched_nodes import ID, NODE, ROOT, drive_disk, machine_with, right_here, runtime

pytestmark = pytest.mark.virtual_time


async def test_a_lost_drive_is_unmounted_at_once_when_its_last_volume_was_unstaged():
    machine = machine_with(sdb=drive_disk())
    host, parts = FakeDriveHost(machine, ROOT), runtime()
    drives = NodeDrives(host, host.volumes_of, node_name=NODE, kubelet_dir="/k", threads=right_here, runtime=parts)
    volumes = [volume_on_disk(f"pvc-{number}", staged=f"{STAGED}/{number}") for number in (1, 2)]

    async with drives.running():
        await parts.clock.sleep(5)
        for volume in volumes:
            drives.index.put(volume)
        disk = machine.pull_disk("sdb")
        machine.busy_drives.add(ID)
        drives.watch.wake()
        await parts.clock.sleep(300)
        attempts = machine.faults.calls("unmount_disk")
        assert drives.table.standings()[ID].state is DriveState.LOST

        drives.index.put(replace(volumes[0], staged=""))
        await parts.clock.sleep(1)
        assert machine.faults.calls("unmount_disk") - attempts <= 1
        machine.busy_drives.clear()
        drives.index.put(replace(volumes[1], staged=""))
        await parts.clock.sleep(1)
        assert ID not in machine.mounted_drives

        machine.plug_disk("sdb", disk)
        drives.watch.wake()
        await parts.clock.sleep(1)
        assert drives.table.standings()[ID].state is DriveState.READY
    drives.table.close()


def _drives_of(machine: FakeMachine) -> tuple[NodeDrives, Clock]:
    host, parts = FakeDriveHost(machine, ROOT), runtime()
    drives = NodeDrives(host, host.volumes_of, node_name=NODE, kubelet_dir="/k", threads=right_here, runtime=parts)
    return drives, parts.clock


async def test_a_drive_whose_volumes_cannot_be_listed_is_an_error_although_its_probes_succeed():
    machine = machine_with(sdb=drive_disk())
    drives, clock = _drives_of(machine)
    machine.faults.fail("list_volumes", errno.EIO, times=1000)

    async with drives.running():
        await clock.sleep(5)
        standing = drives.table.standings()[ID]
        assert standing.state is DriveState.ERROR
        assert "The fake list_volumes fails" in standing.why
        await clock.sleep(1200)
        assert drives.table.standings()[ID].state is DriveState.ERROR

        machine.faults.forget()
        await clock.sleep(400)
        assert drives.table.standings()[ID].state is DriveState.READY
    drives.table.close()


@pytest.mark.parametrize("function", ["list_trash", "erase_volume"])
async def test_a_drive_whose_trash_cannot_be_read_or_erased_is_an_error(function: str):
    disk = drive_disk()
    machine = machine_with(sdb=disk)
    assert disk.drive is not None
    put_volume(disk.drive, volume_on_disk())
    disk.drive.trash["pvc-old"] = disk.drive.volumes[VOLUME_ID]
    drives, clock = _drives_of(machine)

    async with drives.running():
        machine.faults.fail(function, errno.EIO, times=1000)
        await clock.sleep(60)
        assert drives.table.standings()[ID].state is DriveState.ERROR
    drives.table.close()


async def test_a_drive_that_cannot_delete_a_volume_is_an_error():
    disk = drive_disk()
    machine = machine_with(sdb=disk)
    assert disk.drive is not None
    put_volume(disk.drive, volume_on_disk(deleted=True))
    drives, clock = _drives_of(machine)
    machine.faults.fail("discard_volume", errno.EUCLEAN, times=1000)

    async with drives.running():
        await clock.sleep(5)
        assert drives.table.standings()[ID].state is DriveState.ERROR
    drives.table.close()
