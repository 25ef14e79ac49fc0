"""A worker killed before and after every effect of its wipes: the next one finishes them, and wipes nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest

from orlop.host.static_disks.disk_entries import EntryKind
from orlop.kube.api_errors import NotFound
from orlop.kube.objects import ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.wiping import WipeLimits
from orlop.testing.fake_host import FakeMachine, FakeStaticDisk
from orlop.testing.kill_points import KillPoints, explore_kills
from support.static_workers import FOLDER, GIB, NODE, SPACE, WorkerWorld, machine_with, operation

pytestmark = pytest.mark.virtual_time
MIB = 1 << 20
SIZE = 5 * 4 * MIB
SLOW = WipeLimits(bytes_per_second=4 * MIB // 3)
"""Pieces of one MiB, and a flush after every few of them."""


def build() -> FakeMachine:
    return machine_with(
        device=FakeStaticDisk(EntryKind.DEVICE, SIZE, "wwn:1", data=set(range(0, SIZE, MIB))),
        mount=FakeStaticDisk(EntryKind.MOUNT, GIB, "fs:1", names={"a", "b"}),
        bound=FakeStaticDisk(EntryKind.DEVICE, SIZE, "wwn:2", data={0}),
    )


async def test_a_wipe_that_is_killed_anywhere_is_finished_and_never_counts_what_is_not_durable():
    async with WorkerWorld() as world:

        async def fresh() -> FakeMachine:
            with suppress(NotFound):
                await world.client.delete(PROVISIONER_STATUS, ObjectName(SPACE, NODE))
            return build()

        async def run(machine: FakeMachine, points: KillPoints) -> None:
            done = (await world.deletion("u-device")).get("bytesDone", 0)
            assert all(at >= done for at in machine.static_folders[FOLDER]["device"].data)
            async with world.worker(machine, points, SLOW):
                await world.wiped(operation("device", "u-device", "wwn:1"), operation("mount", "u-mount", "fs:1"))

        def check(machine: FakeMachine) -> None:
            disks = machine.static_folders[FOLDER]
            assert disks["device"].data == set()
            assert disks["mount"].names == set()
            assert disks["bound"].data == {0}

        explored = await explore_kills(fresh, run, check)

    assert sum("flush" in each for each in explored.effects) > 1
    assert any("erase" in each for each in explored.effects)
