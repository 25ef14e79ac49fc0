"""Many nodes with many disks, claims that come and go, wipes that fail, masters that die: nothing is lost or leaked.

`make test` plays a few nodes, `make soak` 500 nodes with 20 disks each. The seed decides everything.
"""

from __future__ import annotations

from random import Random

import pytest

from conftest import SOAK
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerSpec
from support.static_volumes.static_objects import all_of
from support.static_volumes.static_worlds import StaticWorld

NODES, DISKS = (500, 20) if SOAK else (6, 4)
CLAIMS = NODES * DISKS // 3
ROUNDS = 12
ROUND_SECONDS = 25.0


def check_nothing_leaks(world: StaticWorld) -> None:
    """No volume is offered whose disk is being wiped, or has the data of another volume's claim."""
    disks = world.kubernetes.disks
    wiped = {
        (objects.name(report), operation.volume)
        for report in all_of(world.on, PROVISIONER_STATUS)
        for operation in part_of(report, "spec", ProvisionerSpec).delete_operations
    }
    for volume in all_of(world.on, PERSISTENT_VOLUME):
        if objects.is_being_deleted(volume):
            continue
        name, disk = objects.name(volume), disks[objects.name(volume)]
        assert not disk.wiped_for, f"{name} is offered, and its disk is being wiped"
        assert not any(name == each for _, each in wiped), f"{name} is offered, and an operation is on record"
        owner = world.kubernetes.owners.get(disk.data, "")
        assert not disk.data or owner == objects.uid(volume), f"{name} is offered with the data of {disk.data}"


@pytest.mark.virtual_time
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [1] if SOAK else [1, 2])
async def test_in_a_busy_cluster_every_released_disk_comes_back_clean(seed: int):
    random = Random(seed)
    async with StaticWorld(*(f"n{number}" for number in range(NODES)), disks=DISKS) as world:
        numbers = iter(range(10**6))
        for _ in range(ROUNDS):
            async with world.master():
                for name in random.sample(sorted(world.kubernetes.claims), len(world.kubernetes.claims) // 2):
                    world.kubernetes.unwant(name)
                while len(world.kubernetes.claims) < CLAIMS:
                    world.kubernetes.want(f"c{next(numbers)}")
                for disk in random.sample(
                    [world.kubernetes.disks[each] for each in sorted(world.kubernetes.disks)], 1 + NODES // 10
                ):
                    disk.failures = random.randint(1, 3)
                await world.settle(ROUND_SECONDS * random.random())
                check_nothing_leaks(world)
            # The process dies here, whatever it was doing.
        for name in sorted(world.kubernetes.claims):
            world.kubernetes.unwant(name)
        async with world.master():
            await world.settle(600.0)
            check_nothing_leaks(world)

        phases = await world.phases()
        assert set(phases.values()) == {"Available"}
        assert len(phases) == NODES * DISKS
        assert not any(disk.data for disk in world.kubernetes.disks.values())
        assert len(world.kubernetes.owners) > CLAIMS
