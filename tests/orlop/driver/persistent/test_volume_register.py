"""Volume objects are written as they were decided on: nothing that others have changed meanwhile is overwritten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orlop.driver.persistent.reservation_rules import PlacedVolume, volume_object
from orlop.driver.persistent.volume_register import VolumeRegister
from orlop.kube.api_errors import Conflict, PatchRefused
from orlop.records.volume import ERASE_FINALIZER, VOLUME
from support.drives.drive_facts import GIB, wanted
from support.drives.drive_worlds import DriveWorld

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def stored_volume() -> AsyncIterator[tuple[DriveWorld, VolumeRegister, PlacedVolume]]:
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        reserved = await allocator.reservations.reserve(wanted("pvc-1"))
        register = VolumeRegister(allocator.parts.kube, allocator.catalog, lambda: None)
        yield (
            world,
            register,
            await register.create(volume_object(wanted("pvc-1"), reserved.drive, reserved.placement)),
        )


async def make_anew(world: DriveWorld) -> None:
    """As another process does, after it erased the volume."""
    found = await world.find(VOLUME, "pvc-1")
    assert found is not None
    await world.merge(VOLUME, "pvc-1", {"metadata": {"finalizers": None}})
    await world.delete(VOLUME, "pvc-1")
    meta = {"name": "pvc-1", "finalizers": found["metadata"]["finalizers"]}
    await world.client.create(VOLUME, {**found, "metadata": meta})


async def test_a_volume_that_has_grown_meanwhile_does_not_shrink():
    async with stored_volume() as (world, register, before):
        await world.merge(VOLUME, "pvc-1", {"spec": {"bytes": 3 * GIB}})

        after = await register.grow(before, 2 * GIB)

        stored = await world.volume("pvc-1")
    assert stored is not None
    assert stored.bytes == after.spec.bytes == 3 * GIB


async def test_the_next_volume_of_the_name_keeps_its_finalizer():
    """Without it the object would go before the data."""
    async with stored_volume() as (world, register, before):
        await make_anew(world)

        with pytest.raises(PatchRefused):
            await register.remove_finalizer(before)

        found = await world.find(VOLUME, "pvc-1")
    assert found is not None
    assert ERASE_FINALIZER in found["metadata"]["finalizers"]


async def test_the_next_volume_of_the_name_is_not_deleted():
    async with stored_volume() as (world, register, before):
        await make_anew(world)

        with pytest.raises(Conflict):
            await register.delete(before)

        found = await world.find(VOLUME, "pvc-1")
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
