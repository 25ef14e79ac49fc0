"""A drive whose disk is gone is forgotten, also by a command that is killed, and the disk may come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from onenode.testing.api_server import api_server
from orlop.admin.drives.adoption import Adoption, AdoptionTerms
from orlop.admin.drives.drive_forgetting import DriveForgetting
from orlop.admin.refusals import ChangeRefused
from orlop.csi.error_codes import FailedPrecondition
from orlop.foundation.clock import SystemClock
from orlop.kube.client import KubeClient
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NODE
from orlop.records.api_record import new_object
from orlop.records.drive import ALLOCATIONS_FINALIZER, DRIVE, Allocation, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.volume import ERASE_FINALIZER, VOLUME
from orlop.testing.kill_points import KillPoints, explore_kills
from support.drives.drive_worlds import DriveController, drive_controller
from support.drives.reporting_nodes import (
    VOLUME_ID,
    ReportingWorld,
    put_volume,
    record_on,
    volume_on_disk,
    volume_spec,
)
from support.drives.typed_commands import kinds_of_drives
from support.drives.watched_nodes import GIB, ID, drive_disk, machine_with
from support.worlds import running

OTHER_VOLUME = "pvc-2"


@asynccontextmanager
async def controller_of(world: ReportingWorld) -> AsyncIterator[DriveController]:
    async with (
        world.controller_parts("c") as parts,
        drive_controller(parts) as controller,
        running(controller.space.run()),
    ):
        yield controller


async def forget(client: KubeClient, drive_id: str = ID, *, force: bool = False) -> None:
    forgetting = DriveForgetting(client, force=force)
    (plan,) = await forgetting.plans([drive_id])
    assert not plan.why_not, plan.why_not
    await forgetting.forget(plan.drive)


async def placed(world: ReportingWorld) -> None:
    """Make the objects of two volumes on the drive: one in use, and one that was deleted."""
    await world.allocate(VOLUME_ID, OTHER_VOLUME)
    await world.merge(DRIVE, ID, {"metadata": {"finalizers": [ALLOCATIONS_FINALIZER]}})
    await world.add_volume()
    await world.add_volume(OTHER_VOLUME, persistent_volume=OTHER_VOLUME)


@pytest.mark.virtual_time
async def test_the_deletion_of_volumes_on_a_dead_disk_succeeds_once_its_drive_is_forgotten():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk(OTHER_VOLUME))

    async with ReportingWorld() as world, world.node(machine) as node, controller_of(world) as controller:
        await world.until(world.is_ready)
        await placed(world)
        await world.settle(5)
        machine.pull_disk("sdb")
        node.watch.wake()
        await world.settle(5)
        assert await world.state() == "Lost"
        await controller.delete(OTHER_VOLUME)
        await world.settle(60)
        assert await world.phase(OTHER_VOLUME) == "Erasing"  # for ever: its node cannot erase it

        await forget(world.client)
        assert (await world.find(DRIVE, ID), await world.find(VOLUME, VOLUME_ID)) == (None, None)
        assert await world.find(VOLUME, OTHER_VOLUME) is None
        await controller.delete(VOLUME_ID)
        await world.settle(700)
        assert await world.find(DRIVE, ID) is None  # nothing makes it again
        assert (await world.client.list(VOLUME)).items == []


@pytest.mark.virtual_time
async def test_volumes_that_a_dead_node_has_staged_can_be_deleted_once_its_drive_is_forgotten():
    machine = machine_with(sdb=drive_disk())
    async with ReportingWorld() as world, controller_of(world) as controller:
        async with world.node(machine):
            await world.until(world.is_ready)
            await placed(world)
            await world.settle(5)
        await world.merge(VOLUME, VOLUME_ID, {"status": {"phase": "Staged", "stagedPath": "/s"}}, "status")
        with pytest.raises(FailedPrecondition):
            await controller.delete(VOLUME_ID)
        await forget(world.client)
        await controller.delete(VOLUME_ID)
        assert (await world.client.list(VOLUME)).items == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_disk_that_comes_back_is_reported_with_all_its_volumes_and_adoption_restores_them(restarted: bool):  # noqa: FBT001
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk(OTHER_VOLUME))

    async with ReportingWorld() as world, controller_of(world), AsyncExitStack() as lives:
        node = await lives.enter_async_context(world.node(machine))
        await world.until(world.is_ready)
        await placed(world)
        disk = machine.pull_disk("sdb")
        node.watch.wake()
        await world.settle(5)
        await forget(world.client)
        if restarted:
            await lives.aclose()
            machine.known_drives.clear()  # another machine, or one that was installed again
            node = await lives.enter_async_context(world.node(machine))
            await world.settle(5)
        machine.plug_disk("sdc", disk)
        node.watch.wake()
        await world.settle(5)
        if restarted:
            assert await world.find(DRIVE, ID) is None
            await world.request(adopt=True)
            await world.ended()
        await world.until(world.is_ready)
        await world.settle(5)

        status = await world.status()
        assert [each["volume"] for each in status["unrecordedVolumes"]] == [VOLUME_ID, OTHER_VOLUME]
        assert not record_on(disk.drive).deleted
        drive = await world.find(DRIVE, ID)
        assert drive is not None
        assert {each["volume"] for each in drive["spec"]["allocations"]} == {VOLUME_ID, OTHER_VOLUME}

        adoption = Adoption(world.client, world.clock, AdoptionTerms())
        plans = await adoption.plans()
        assert [plan.why_not for plan in plans] == ["", ""]
        assert await adoption.adopt(plans, 60.0, lambda _result: None)
        await world.settle(5)
        assert await world.phase() == "Pending"
        assert (await world.status()).get("unrecordedVolumes", []) == []


@pytest.mark.virtual_time
async def test_a_disk_that_comes_back_meanwhile_ends_the_command():
    machine = machine_with(sdb=drive_disk())
    async with ReportingWorld() as world, world.node(machine) as node, controller_of(world):
        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.is_ready)
        await placed(world)
        disk = machine.pull_disk("sdb")
        node.watch.wake()
        await world.settle(5)
        forgetting = DriveForgetting(world.client)
        (plan,) = await forgetting.plans([ID])
        machine.plug_disk("sdb", disk)
        node.watch.wake()
        await world.until(world.is_ready)
        with pytest.raises(ChangeRefused, match="only a drive that is Lost is forgotten"):
            await forgetting.forget(plan.drive)
        assert await world.find(VOLUME, VOLUME_ID) is not None


@pytest.mark.virtual_time
async def test_a_drive_that_is_forgotten_by_force_while_its_node_uses_it_comes_back_whole():
    machine = machine_with(sdb=drive_disk())
    put_volume(machine.disks["sdb"].drive, volume_on_disk())
    async with ReportingWorld() as world, world.node(machine), controller_of(world):
        await world.until(world.is_ready)
        await world.allocate(VOLUME_ID)
        await world.add_volume()
        await forget(world.client, force=True)
        await world.until(world.is_ready)
        await world.settle(5)
        assert [each["volume"] for each in (await world.status())["unrecordedVolumes"]] == [VOLUME_ID]
        assert not record_on(machine.disks["sdb"].drive).deleted


# ---- kills -----------------------------------------------------------------------------------------------------------


async def test_a_killed_command_is_continued_by_the_next_one():
    async with AsyncExitStack() as ends:

        async def build() -> KubeClient:
            server = await ends.enter_async_context(api_server(SystemClock()))
            client = server.client()
            for definition in kinds_of_drives():
                await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
            allocations = tuple(Allocation(volume=each, bytes=GIB) for each in (VOLUME_ID, OTHER_VOLUME))
            spec = DriveSpec(node_name="n1", type=DriveType.DISK, allocations=allocations)
            await client.create(DRIVE, new_object("Drive", ID, spec, finalizers=[ALLOCATIONS_FINALIZER]))
            for name in (VOLUME_ID, OTHER_VOLUME):
                await client.create(VOLUME, new_object("Volume", name, volume_spec(), finalizers=[ERASE_FINALIZER]))
            return client

        async def act(client: KubeClient, points: KillPoints) -> None:
            wrapped: Any = points.wrap(client, "patch", "delete", describe=lambda kind, *_, **__: kind.kind)
            if (await client.list(DRIVE)).items or (await client.list(VOLUME)).items:
                await forget(wrapped)

        async def check(client: KubeClient) -> None:
            assert (await client.list(DRIVE)).items == []
            assert (await client.list(VOLUME)).items == []

        report = await explore_kills(build, act, check)
    # The drive first: from then on nothing is placed on it, and its name is known until the end.
    assert report.effects == ("Drive", *["Volume"] * 4, "Drive")
