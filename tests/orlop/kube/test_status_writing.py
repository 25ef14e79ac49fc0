"""Status that a node writes: only of the object that it read, and never twice because the cache lags behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orlop.kube.api_errors import PatchRefused
from orlop.kube.cache.informer import Watched
from orlop.kube.patches import guarded_by_generation
from orlop.kube.status_writing import ObjectsOfNode
from orlop.records.drive import DRIVE, DriveStatus
from support.api.api_wires import Wire
from support.drives.drive_worlds import DriveWorld, drive_id, drive_status

pytestmark = pytest.mark.virtual_time
LOST = drive_status(state="Lost")


class HeldWatch(Wire):
    """A wire whose watches deliver nothing until `deliver` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.deliver = asyncio.Event()
        self.before_event = self._held

    async def _held(self) -> None:
        await self.deliver.wait()


@asynccontextmanager
async def objects_of_node(world: DriveWorld, wire: Wire) -> AsyncIterator[ObjectsOfNode]:
    async with (
        world.controller_parts("node", wire.around(world.transport())) as the,
        the.informers.using(Watched(DRIVE)) as drives,
    ):
        await drives.wait_synced()
        yield ObjectsOfNode(DRIVE, the.kube, drives)


async def test_what_was_written_is_known_before_the_watch_delivers_it():
    """Decided on the older state, the same change would be written, and recorded as an event, once more."""
    wire = HeldWatch()
    async with DriveWorld() as world:
        name = await world.add_drive(1)
        async with objects_of_node(world, wire) as drives:
            written = await drives.write_status(drives.get(name) or {}, LOST, DriveStatus)
            again = await drives.write_status(drives.get(name) or {}, LOST, DriveStatus)
            known = drives.get(name)
            wire.deliver.set()
            await world.set_drive_status(1, message="by another")
            await world.settle()
            latest = drives.get(name)

    assert written is not None
    assert (known, again) == (written, None)
    assert latest is not None
    assert (latest["status"]["state"], latest["status"]["message"]) == ("Lost", "by another")


async def test_a_new_object_of_the_name_does_not_get_the_status_of_the_one_before():
    async with DriveWorld() as world:
        name = await world.add_drive(1)
        async with objects_of_node(world, Wire()) as drives:
            before = drives.get(name) or {}
            await world.delete(DRIVE, name)
            await world.add_drive(1)
            with pytest.raises(PatchRefused):
                await drives.write_status(before, LOST, DriveStatus)
        assert (await world.drive(1))["status"]["state"] == "Ready"
    assert name == drive_id(1)


async def test_after_a_write_that_was_refused_the_object_is_known_as_it_is():
    """After the restore of a backup, the cache does not become as new as our own last write, so it must not be used."""
    wire = HeldWatch()
    async with DriveWorld() as world:
        name = await world.add_drive(1)
        async with objects_of_node(world, wire) as drives:
            before = await drives.write_status(drives.get(name) or {}, LOST, DriveStatus)
            assert before is not None
            await world.merge(DRIVE, name, {"spec": {"unschedulable": True}})
            with pytest.raises(PatchRefused):
                await drives.write_status(before, drive_status(), DriveStatus, guarded_by_generation)
            known = drives.get(name)
            await drives.write_status(known or {}, drive_status(), DriveStatus, guarded_by_generation)
            wire.deliver.set()
        state = (await world.drive(1))["status"]["state"]

    assert known is not None
    assert known["spec"]["unschedulable"]
    assert state == "Ready"
