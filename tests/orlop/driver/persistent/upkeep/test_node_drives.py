"""The parts of a node's drives together: what one of them notices wakes another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.records.drive_record import DriveState
from orlop.testing.fake_host import FakeDriveHost
from support.drives.reporting_nodes import STAGED, volume_on_disk
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
