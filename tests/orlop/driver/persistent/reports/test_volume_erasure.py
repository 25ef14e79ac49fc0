"""Deleted volumes: moved to the trash when nothing uses them, erased, reported, and nothing else is touched."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from orlop.host.mounts.mount_option_rules import MountOptions
from orlop.host.mounts.mounts import FileIdentity
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME
from orlop.records.volume_record import encode_volume
from orlop.testing.fake_host import FakeDrive, FakeMachine, FakeMount
from orlop.testing.fake_host.fake_drive_volumes import DRIVE_DEVICE
from orlop.testing.kill_points import KillPoints, explore_kills
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


@pytest.mark.parametrize(
    "function",
    ["read_volume_record", "write_volume_record", "discard_volume", "erase_volume", "list_trash", "is_in_use"],
)
async def test_after_an_error_of_the_host_the_volume_is_erased_later(function: str):
    machine, drive = machine_with_volume()

    async with ReportingWorld() as world, world.node(machine):
        for number in (errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENODEV, errno.EBUSY):
            name = f"pvc-{number}"
            put_volume(drive, volume_on_disk(name))
            await world.add_volume(name, persistent_volume=name)
            machine.faults.fail(function, number, times=2)
            await world.order_erasure(name)
            await world.settle(300)
            assert await world.phase(name) == "Erased", name
    assert set(drive.volumes) == {VOLUME_ID, "pvc-other"}


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
