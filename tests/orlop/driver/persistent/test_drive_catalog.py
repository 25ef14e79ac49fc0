"""What the controller knows of drives and volumes, ahead of its caches and never behind its own writes."""

from __future__ import annotations

import asyncio

import pytest

from orlop.driver.persistent.drive_choice_rules import Chosen, HeldByDrive, NoDrive, choose_drive
from orlop.driver.persistent.reservation_rules import volume_object
from orlop.kube.client import MergePatch
from orlop.kube.kinds import EVENT
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object, part_of
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME, DriveVolumeSpec
from support.api.api_wires import Wire
from support.drives.drive_facts import GIB, wanted
from support.drives.drive_worlds import Allocator, DriveWorld, accept_any_field, drive_id

pytestmark = pytest.mark.virtual_time


async def reserve_with_volume(world: DriveWorld, allocator: Allocator, name: str = "pvc-1") -> None:
    request = wanted(name)
    reserved = await allocator.reservations.reserve(request)
    body = volume_object(request, reserved.drive, reserved.placement)
    allocator.catalog.put_volume(await world.client.create(VOLUME, body))


async def test_own_writes_count_before_the_watch_delivers_them():
    wire = Wire()
    async with DriveWorld() as world:
        await world.add_drive(1, capacity=2 * GIB)
        async with world.allocator(transport=wire.around(world.transport())) as allocator:
            await reserve_with_volume(world, allocator)

            facts, volume = allocator.catalog.get(drive_id(1)), allocator.catalog.volume("pvc-1")
            assert facts is not None
            assert (facts.free, list(facts.allocations)) == (GIB, ["pvc-1"])
            assert volume is not None
            assert list(allocator.catalog.volumes_on(drive_id(1))) == ["pvc-1"]


async def test_a_volume_that_is_read_late_does_not_replace_a_newer_state():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve_with_volume(world, allocator)
        before = await world.find(VOLUME, "pvc-1")
        assert before is not None
        await world.merge(VOLUME, "pvc-1", {"spec": {"bytes": 2 * GIB}})
        await world.settle()

        allocator.catalog.put_volume(before)

        known = allocator.catalog.volume("pvc-1")
    assert known is not None
    assert known.spec.bytes == 2 * GIB


async def test_a_drive_that_does_not_list_a_volume_placed_on_it_takes_none_until_it_does():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve_with_volume(world, allocator)
        # The object is lost, and its node makes it anew; the disk has no data of the volume yet.
        await world.merge(DRIVE, drive_id(1), {"metadata": {"finalizers": None}})
        await world.delete(DRIVE, drive_id(1))
        await world.add_drive(1)
        await world.settle()

        refused = choose_drive(wanted("pvc-2"), allocator.catalog.drives())
        entry = {"volume": "pvc-1", "bytes": GIB}
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [entry]}})
        await world.settle()

        assert isinstance(refused, NoDrive)
        assert not isinstance(choose_drive(wanted("pvc-2"), allocator.catalog.drives()), NoDrive)


async def test_a_volume_that_is_gone_holds_nothing():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve_with_volume(world, allocator)
        await world.settle()
        await world.merge(VOLUME, "pvc-1", {"metadata": {"finalizers": None}})
        await world.delete(VOLUME, "pvc-1")
        await world.settle()

        assert allocator.catalog.volume("pvc-1") is None
        assert not allocator.catalog.volumes_on(drive_id(1))


async def test_an_erased_volume_is_known_and_holds_nothing():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve_with_volume(world, allocator)
        await world.merge(VOLUME, "pvc-1", {"spec": {"erase": True}})
        await world.set_volume_status("pvc-1", phase="Erased")
        await world.settle()

        assert allocator.catalog.volume("pvc-1") is not None
        assert not allocator.catalog.volumes_on(drive_id(1))


async def test_an_object_with_an_invalid_field_takes_no_part_and_is_logged():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        bad = {"metadata": {"name": "bad", "resourceVersion": "1"}, "spec": {"nodeName": 7}}
        allocator.catalog.put(bad)
        allocator.catalog.put_volume(bad)

        assert allocator.catalog.get("bad") is None
        assert allocator.catalog.volume("bad") is None
        assert [entry.message for entry in world.log if "invalid field" in entry.message] == [
            "drive has an invalid field; it takes no volumes",
            "volume has an invalid field",
        ]


async def test_an_object_that_cannot_be_read_any_more_gets_an_event_and_takes_no_volumes_until_it_is_corrected():
    async with DriveWorld() as world:
        async with world.allocator() as allocator:
            await world.add_drive(1)
            await world.settle()
            await reserve_with_volume(world, allocator)
            await accept_any_field(world.client, DRIVE)
            await accept_any_field(world.client, VOLUME)

            await world.merge(DRIVE, drive_id(1), {"spec": {"tier": "lukewarm"}})
            await world.merge(VOLUME, "pvc-1", {"spec": {"bytes": "much"}})
            await world.settle()
            refused = choose_drive(wanted("pvc-2"), allocator.catalog.drives())
            held = choose_drive(wanted("pvc-1"), allocator.catalog.drives())
            volume = allocator.catalog.volume("pvc-1")

            await world.merge(DRIVE, drive_id(1), {"spec": {"tier": "warm"}})
            await world.settle()
            corrected = choose_drive(wanted("pvc-2"), allocator.catalog.drives())
        events = (await world.client.list(EVENT)).items

    assert isinstance(refused, NoDrive)
    assert "1 is not Ready" in str(refused)
    # Its volume is on it still, and is placed on no other drive.
    assert isinstance(held, HeldByDrive)
    assert volume is not None
    assert isinstance(corrected, Chosen)
    notes = {(each["regarding"]["kind"], each["reason"], each["type"]): each["note"] for each in events}
    assert set(notes) == {("Drive", "InvalidField", "Warning"), ("Volume", "InvalidField", "Warning")}
    assert "lukewarm" in notes["Drive", "InvalidField", "Warning"]
    assert "$.bytes" in notes["Volume", "InvalidField", "Warning"]


async def test_a_live_read_counts_even_if_its_version_is_smaller():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        drive = await world.drive(1)
        restored = {**drive, "metadata": {**drive["metadata"], "resourceVersion": "1", "generation": 9}}

        allocator.catalog.put(restored)
        ignored = allocator.catalog.get(drive_id(1))
        allocator.catalog.put(restored, is_live=True)
        taken = allocator.catalog.get(drive_id(1))

    assert ignored is not None
    assert taken is not None
    assert (ignored.generation, taken.generation) == (1, 9)


async def test_the_drives_that_list_a_volume_are_found_by_it():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.add_drive(2)
        entry = {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}}
        await world.merge(DRIVE, drive_id(1), entry)
        await world.merge(DRIVE, drive_id(2), entry)
        await world.settle()
        both = [drive.name for drive in allocator.catalog.holders("pvc-1")]
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": []}})
        await world.delete(DRIVE, drive_id(2))
        await world.settle()

        assert both == [drive_id(1), drive_id(2)]
        assert allocator.catalog.holders("pvc-1") == ()


async def test_a_drive_whose_object_is_deleted_is_forgotten():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await world.delete(DRIVE, drive_id(1))
        await world.settle()

        assert allocator.catalog.drives() == ()


async def test_the_event_of_an_earlier_volume_of_the_name_does_not_hide_the_one_just_created():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve_with_volume(world, allocator)
        await world.settle()
        body = await world.client.get(VOLUME, ObjectName(None, "pvc-1"))
        await world.client.patch(VOLUME, ObjectName(None, "pvc-1"), MergePatch({"metadata": {"finalizers": None}}))
        await world.delete(VOLUME, "pvc-1")
        again = await world.client.create(VOLUME, new_object("Volume", "pvc-1", part_of(body, "spec", DriveVolumeSpec)))
        allocator.catalog.put_volume(again)
        seen = []
        for _ in range(10):
            await world.settle(0.01)
            volume = allocator.catalog.volume("pvc-1")
            seen.append(volume is not None and volume.uid == again["metadata"]["uid"])

    assert all(seen)


async def test_a_volume_just_created_is_known_while_the_end_of_the_one_before_it_arrives():
    wire, delivered = Wire(), asyncio.Semaphore(0)
    async with DriveWorld() as world:
        await world.add_drive(1)
        async with world.allocator(transport=wire.around(world.transport())) as allocator:
            await reserve_with_volume(world, allocator)
            await world.settle()
            wire.before_event = lambda: taken(delivered)
            body = await world.client.get(VOLUME, ObjectName(None, "pvc-1"))
            await world.merge(VOLUME, "pvc-1", {"metadata": {"finalizers": None}})
            await world.delete(VOLUME, "pvc-1")
            await world.settle()
            again = await world.client.create(
                VOLUME, new_object("Volume", "pvc-1", part_of(body, "spec", DriveVolumeSpec))
            )
            allocator.catalog.put_volume(again)
            known = []
            for _ in range(6):
                delivered.release()
                await world.settle(0.01)
                volume = allocator.catalog.volume("pvc-1")
                known.append(volume.uid if volume is not None else None)

    assert known == [again["metadata"]["uid"]] * 6


async def taken(semaphore: asyncio.Semaphore) -> None:
    await semaphore.acquire()
