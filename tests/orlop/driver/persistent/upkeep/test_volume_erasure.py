"""Deleted volumes: moved to the trash when nothing uses them, erased, reported, and nothing else is touched."""

from __future__ import annotations

import errno
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from orlop.driver.persistent.drive_table import DriveStanding
from orlop.host.mounts.mounts import FileIdentity, MountOptions
from orlop.kube.kinds import EVENT
from orlop.records.drive import DRIVE
from orlop.records.drive_record import DriveState
from orlop.records.volume import VOLUME
from orlop.records.volume_record import encode_volume
from orlop.testing.fake_host import FakeDrive, FakeMachine, FakeMount
from orlop.testing.fake_host.fake_drive_volumes import DRIVE_DEVICE
from orlop.testing.kill_points import KillMoment, KillPoints, explore_kills
from support.drives.reporting_nodes import (
    STAGED,
    VOLUME_ID,
    ReportingWorld,
    put_volume,
    record_on,
    volume_on_disk,
)
from support.drives.watched_nodes import GIB, ID, OTHER, ROOT, drive_disk, folder_drive, machine_with

pytestmark = pytest.mark.virtual_time


ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENODEV, errno.EBUSY)
WAYS = [(KillMoment.AFTER, errno.EIO), *((KillMoment.BEFORE, number) for number in ERRORS)]


def machine_with_volume() -> tuple[FakeMachine, FakeDrive]:
    machine = machine_with(sdb=drive_disk())
    drive = machine.disks["sdb"].drive
    assert drive is not None
    put_volume(drive, volume_on_disk())
    put_volume(drive, volume_on_disk("pvc-other"))
    return machine, drive


async def test_a_deleted_volume_is_erased_and_reported_and_no_other():
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(lambda: world.find(DRIVE, ID))
            await world.allocate(VOLUME_ID, "pvc-other")
            await world.order_erasure()

            async def is_erased() -> bool:
                return await world.phase() == "Erased"

            await world.until(is_erased)
            assert node.index.get(VOLUME_ID) is None
            await world.settle(2)
            assert await world.is_ready()
        events = await world.events()

    assert (set(drive.volumes), drive.trash) == ({"pvc-other"}, {})
    assert ("Volume", VOLUME_ID, "VolumeErased") in events


async def test_a_volume_that_is_staged_is_marked_and_erased_when_it_was_unstaged():
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.phase)
            node.index.put(volume_on_disk(staged=STAGED))
            drive.volumes[VOLUME_ID].record = encode_volume(volume_on_disk(staged=STAGED))
            await world.order_erasure()
            await world.settle(60)
            assert record_on(drive).deleted
            assert await world.phase() == "Staged"

            async with node.index.keys.hold(VOLUME_ID, why="unstaging it"):
                unstaged = replace(record_on(drive), staged="")
                drive.volumes[VOLUME_ID].record = encode_volume(unstaged)
                node.index.put(unstaged)
            await world.settle(2)
            assert VOLUME_ID not in drive.volumes
            await world.settle(60)
            assert await world.phase() == "Erased"


async def test_a_volume_is_not_touched_while_a_call_of_kubelet_works_on_it():
    """The call has read a record without the mark, and would stage a volume that is being erased."""
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.phase)
            async with node.index.keys.hold(VOLUME_ID, why="NodeStageVolume"):
                await world.order_erasure()
                await world.settle(60)
                assert not record_on(drive).deleted
            await world.settle(60)
            assert await world.phase() == "Erased"


@pytest.mark.parametrize("method", ["read_record", "discard", "trash", "erase"])
async def test_a_drive_that_is_lost_during_a_deletion_stays_open_until_the_step_has_ended(method: str):
    """Its descriptors would come to mean another folder."""
    machine, _ = machine_with_volume()
    lost = DriveStanding(DriveState.LOST, "its disk is not there")

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.phase)
            opened = node.table.open_drive(ID)
            assert opened is not None
            volumes: Any = opened.volumes
            step, was_closed = getattr(volumes, method), list[bool]()

            def lost_meanwhile(*names: str) -> object:
                node.table.put(ID, lost, None)
                was_closed.append(volumes.is_closed)
                return step(*names)

            setattr(volumes, method, lost_meanwhile)
            await world.order_erasure()
            await world.until(lambda: right_away(volumes.is_closed))
    assert set(was_closed) == {False}


async def right_away(value: bool) -> bool:  # noqa: FBT001 - what it returns
    return value


async def test_a_volume_that_something_has_mounted_is_not_moved_until_that_is_gone():
    machine, drive = machine_with_volume()
    root = FileIdentity(DRIVE_DEVICE, drive.volumes[VOLUME_ID].inode)
    mount = FakeMount(None, root, MountOptions())
    machine.elsewhere.append(mount)

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine):
            await world.order_erasure()
            await world.settle(120)
            assert VOLUME_ID in drive.volumes
            assert "something has it mounted" in (await world.volume())["message"]

            machine.elsewhere.remove(mount)
            await world.settle(70)
            assert await world.phase() == "Erased"


async def test_what_an_erasure_waits_for_is_an_event_also_when_it_changes():
    machine, drive = machine_with_volume()
    root = FileIdentity(DRIVE_DEVICE, drive.volumes[VOLUME_ID].inode)
    machine.elsewhere.append(FakeMount(None, root, MountOptions()))

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.order_erasure()
            await world.settle(60)
            machine.pull_disk("sdb")
            node.watch.wake()
            await world.settle(60)
        found = (await world.client.list(EVENT)).items
    notes = [each["note"] for each in found if each["reason"] == "VolumeErasing"]

    assert any("something has it mounted" in note for note in notes)
    assert any("its drive cannot be used" in note for note in notes)


async def test_a_volume_whose_mount_ends_a_moment_after_its_deletion_is_erased_soon():
    machine, drive = machine_with_volume()
    mount = FakeMount(None, FileIdentity(DRIVE_DEVICE, drive.volumes[VOLUME_ID].inode), MountOptions())
    machine.elsewhere.append(mount)

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine):
            await world.settle(60)
            await world.order_erasure()
            await world.settle(1)
            machine.elsewhere.remove(mount)
            await world.settle(5)
            assert await world.phase() == "Erased"


async def test_the_space_of_a_volume_whose_drive_is_away_returns_when_it_comes_back():
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine) as node:
            await world.until(world.state)
            disk = machine.pull_disk("sdb")
            node.watch.wake()
            await world.order_erasure()
            await world.settle(60)
            assert await world.phase() == "Erasing"
            assert "not there" in (await world.volume())["message"]

            machine.plug_disk("sdb", disk)
            node.watch.wake()
            await world.settle(60)
            assert await world.phase() == "Erased"
    assert set(drive.volumes) == {"pvc-other"}


async def test_a_forged_object_erases_nothing():
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        await world.add_volume(persistent_volume="another")
        await world.add_volume("pvc-other", drive=OTHER, persistent_volume="pvc-other")
        async with world.node(machine):
            await world.order_erasure()
            await world.order_erasure("pvc-other")
            await world.settle(120)
            assert "data is kept" in (await world.volume())["message"]
            assert await world.phase("pvc-other") == "Erasing"
        events = await world.events()

    assert set(drive.volumes) == {VOLUME_ID, "pvc-other"}
    assert not record_on(drive).deleted
    assert ("Volume", VOLUME_ID, "DataKept") in events


async def test_data_of_which_only_the_allocation_is_known_is_kept_and_an_empty_reservation_returns():
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world:
        for name in (VOLUME_ID, "pvc-nothing"):
            await world.add_volume(name, reservation_only=True, erase=True, backing="image")
        async with world.node(machine):
            await world.until(lambda: world.phase("pvc-nothing"))
            await world.settle(60)
            assert await world.phase("pvc-nothing") == "Erased"
            assert "data is kept" in (await world.volume())["message"]
    assert VOLUME_ID in drive.volumes


async def test_a_volume_with_a_damaged_record_is_marked_and_erased_only_by_order():
    machine, drive = machine_with_volume()
    drive.volumes[VOLUME_ID].record = b"{"

    async with ReportingWorld() as world:
        await world.add_volume()
        async with world.node(machine):
            await world.until(world.phase)
            await world.allocate(VOLUME_ID, "pvc-other")
            await world.settle(60)
            assert VOLUME_ID in drive.volumes
            assert VOLUME_ID in (await world.status())["message"]
            assert (await world.volume())["condition"]["abnormal"] is True

            await world.order_erasure()
            await world.settle(60)
            assert await world.phase() == "Erased"
    assert set(drive.volumes) == {"pvc-other"}


async def test_without_an_api_server_what_was_marked_and_what_is_in_the_trash_is_erased():
    machine, drive = machine_with_volume()
    drive.volumes[VOLUME_ID].record = encode_volume(volume_on_disk(deleted=True))
    drive.trash["pvc-old"] = drive.volumes["pvc-other"]

    async with ReportingWorld() as world:
        world.cut()
        async with world.node(machine):
            await world.settle(60)
            assert (set(drive.volumes), drive.trash) == ({"pvc-other"}, {})


async def test_the_space_of_an_image_returns_to_the_reserve_of_a_folder():
    machine = FakeMachine(total_bytes=100 * GIB)
    drive = folder_drive(machine, f"{ROOT}/a")
    put_volume(drive, volume_on_disk(backing="image"))
    drive.images[VOLUME_ID] = 4 * GIB
    drive.reserve = 6 * GIB

    async with ReportingWorld() as world:
        await world.add_volume(backing="image")
        async with world.node(machine):
            await world.order_erasure()
            await world.settle(60)
            assert await world.phase() == "Erased"
    assert (drive.images, drive.reserve) == ({}, 10 * GIB)


@pytest.mark.parametrize("kind", ["directory", "folder"])
async def test_whatever_host_call_of_a_deletion_fails_the_volume_is_erased_later_and_no_other(kind: str):
    async with ReportingWorld() as world:
        await world.add_volume(backing="image" if kind == "folder" else "directory")
        await world.order_erasure()

        async def erased(machine: FakeMachine, drive: FakeDrive) -> None:
            await world.merge(VOLUME, VOLUME_ID, {"status": {"phase": "Pending"}}, subresource="status")
            async with world.node(machine) as node:

                async def is_erased() -> bool:
                    return await world.phase() == "Erased" and node.table.standings()[ID].state is DriveState.READY

                await world.until(is_erased)
                await world.until(lambda: drive.reserve == (9 * GIB if kind == "folder" else 0))

        expected, drive = machine_of_kind(kind)
        await erased(expected, drive)
        called = sorted(expected.faults.all_calls())
        assert {"discard_volume", "erase_volume", "is_in_use", "write_volume_record"} <= set(called)
        for function, (moment, number) in product(called, WAYS):
            machine, drive = machine_of_kind(kind)
            machine.faults.fail(function, number, times=2, moment=moment)
            await erased(machine, drive)
            assert (set(drive.volumes), drive.trash) == ({"pvc-other"}, {}), (function, moment, number)


def machine_of_kind(kind: str) -> tuple[FakeMachine, FakeDrive]:
    if kind == "directory":
        return machine_with_volume()
    machine = FakeMachine(total_bytes=100 * GIB)
    drive = folder_drive(machine, f"{ROOT}/a")
    for name in (VOLUME_ID, "pvc-other"):
        put_volume(drive, volume_on_disk(name, backing="image"))
        drive.images[name] = GIB
    drive.reserve = 8 * GIB
    return machine, drive


async def test_a_volume_is_erased_and_reported_whatever_is_killed_meanwhile():
    async with ReportingWorld() as world:
        await world.add_volume()
        await world.order_erasure()

        def build() -> tuple[FakeMachine, FakeDrive]:
            return machine_with_volume()

        async def run(made: tuple[FakeMachine, FakeDrive], points: KillPoints) -> None:
            await world.merge(VOLUME, VOLUME_ID, {"status": {"phase": "Pending"}}, subresource="status")
            async with world.node(made[0], points=points):

                async def is_erased() -> bool:
                    return await world.phase() == "Erased"

                await world.until(is_erased)

        def check(made: tuple[FakeMachine, FakeDrive]) -> None:
            assert (set(made[1].volumes), made[1].trash) == ({"pvc-other"}, {})

        explored = await explore_kills(build, run, check)
    assert explored.runs >= 6


async def test_what_is_in_the_trash_is_not_erased_while_something_has_it_mounted():
    """A mount namespace that nobody could read before, or root by hand."""
    machine, drive = machine_with_volume()
    drive.trash["pvc-old"] = drive.volumes.pop("pvc-other")
    mount = FakeMount(None, FileIdentity(DRIVE_DEVICE, drive.trash["pvc-old"].inode), MountOptions())
    machine.elsewhere.append(mount)

    async with ReportingWorld() as world, world.node(machine):
        await world.settle(120)
        assert set(drive.trash) == {"pvc-old"}
        machine.elsewhere.remove(mount)
        await world.settle(60)
        assert drive.trash == {}
