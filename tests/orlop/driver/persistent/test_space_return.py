"""Space returns when the data is gone and never before, and lost allocations come back, whoever lost them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from orlop.csi.error_codes import ResourceExhausted
from orlop.driver.persistent.reservation_rules import PlacedVolume
from orlop.driver.persistent.space_return_rules import (
    UNKNOWN_SECONDS,
    CheckAgain,
    DeleteDriveObject,
    DeleteVolumeObject,
    FindVolume,
    LeaveAllocations,
    LeaveVolume,
    RemoveStray,
    RestoreAllocations,
    ReturnSpace,
    next_drive_step,
    next_volume_step,
    unknown_allocations,
)
from orlop.kube.http.http_messages import HttpRequest, HttpStream, Transport
from orlop.records.api_record import new_object, part_of
from orlop.records.drive import DRIVE, RELEASED, Allocation
from orlop.records.drive_record import DriveState
from orlop.records.volume import ERASE_FINALIZER, VOLUME, DriveVolumeSpec, DriveVolumeStatus, VolumePhase
from support.api.api_wires import Wire, failing
from support.drives.drive_facts import GIB, drive
from support.drives.drive_worlds import DriveController, DriveWorld, drive_id
from support.drives.node_models import NodeModel

# ---- rules -----------------------------------------------------------------------------------------------------------

SPEC = DriveVolumeSpec(
    drive=drive_id(1), node_name="n1", bytes=GIB, backing="directory", file_system="xfs", volume_mode="Filesystem"
)


def test_a_released_drive_is_deleted_only_when_it_lists_nothing():
    assert isinstance(next_drive_step(drive(released=True), {}, {}), DeleteDriveObject)
    assert isinstance(next_drive_step(drive(volumes={"v": GIB}, released=True), {}, {}), LeaveAllocations)


def placed(phase: VolumePhase | None, *, is_being_deleted: bool = False, **flags: bool) -> PlacedVolume:
    spec = DriveVolumeSpec(**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__} | flags)
    finalizers = (ERASE_FINALIZER,)
    return PlacedVolume("v", "u", "1", spec, DriveVolumeStatus(phase=phase), finalizers, is_being_deleted)


@pytest.mark.parametrize(
    ("volume", "step"),
    [
        (placed("Pending"), LeaveVolume),
        (placed("Erased"), LeaveVolume),
        (placed("Pending", is_being_deleted=True), LeaveVolume),
        (placed("Staged", erase=True), DeleteVolumeObject),
        (placed("Erasing", erase=True, is_being_deleted=True), LeaveVolume),
        (placed("Erased", erase=True), DeleteVolumeObject),
        (placed("Erased", erase=True, is_being_deleted=True), ReturnSpace),
        (placed("Pending", reservation_only=True), LeaveVolume),
        (placed("Erased", reservation_only=True), DeleteVolumeObject),
        (placed("Erased", reservation_only=True, is_being_deleted=True), ReturnSpace),
    ],
)
def test_the_next_step_of_a_volume(volume: PlacedVolume, step: type[object]):
    assert type(next_volume_step(volume)) is step


def test_a_volume_without_our_finalizer_is_left():
    volume = replace(placed("Erased", erase=True, is_being_deleted=True), finalizers=("example.com/theirs",))

    assert isinstance(next_volume_step(volume), LeaveVolume)


def test_an_allocation_is_unknown_unless_the_cluster_or_its_node_knows_the_volume():
    facts = drive(volumes={"known": GIB, "found": GIB, "unknown": GIB}, unrecorded_names=frozenset({"found"}))

    assert [each.volume for each in unknown_allocations(facts, lambda name: name == "known")] == ["unknown"]


def test_the_next_step_of_a_drive():
    alone = Allocation(volume="v", bytes=GIB)
    facts = drive(volumes={"v": GIB})

    assert next_drive_step(drive(), {"v": SPEC}, {}) == RestoreAllocations((alone,))
    assert next_drive_step(facts, {}, {alone: UNKNOWN_SECONDS}) == FindVolume(alone)
    assert next_drive_step(facts, {}, {alone: 100.0}) == CheckAgain(UNKNOWN_SECONDS - 100.0)
    assert isinstance(next_drive_step(facts, {"v": SPEC}, {}), LeaveAllocations)
    assert next_drive_step(facts, {}, {alone: UNKNOWN_SECONDS}, {"v"}) == RemoveStray(alone)
    assert next_drive_step(facts, {}, {alone: 100.0}, {"v"}) == CheckAgain(UNKNOWN_SECONDS - 100.0)
    lost = replace(facts, state=DriveState.LOST)
    assert isinstance(next_drive_step(lost, {}, {alone: UNKNOWN_SECONDS}, {"v"}), LeaveAllocations)


# ---- with a node -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def node_and_controller(capacity: int = 4 * GIB) -> AsyncIterator[tuple[DriveWorld, NodeModel, DriveController]]:
    async with DriveWorld() as world:
        node = NodeModel("n1", world.on, world.client, world.clock)
        node.add_disk(1, capacity)
        world.start(node.run(), "node")
        await world.settle(5.0)
        async with world.controller() as controller:
            yield world, node, controller


async def is_free(world: DriveWorld) -> bool:
    return await world.allocations(1) == {} and await world.find(VOLUME, "pvc-1") is None


@pytest.mark.virtual_time
async def test_the_space_of_a_deleted_volume_returns_when_its_data_is_gone():
    async with node_and_controller() as (world, node, controller):
        volume = await controller.create()
        node.stage("pvc-1", volume.volume_context)
        node.unstage("pvc-1")
        node.is_away = True
        await controller.delete()
        await world.settle(600.0)
        while_away = await world.allocations(1), dict(node.disks[drive_id(1)].volumes)

        node.is_away = False
        await world.until(lambda: is_free(world))

        assert while_away == ({"pvc-1": GIB}, {"pvc-1": GIB})
        assert node.disks[drive_id(1)].volumes == {}
        assert not (await world.drive(1))["metadata"].get("finalizers")


@pytest.mark.virtual_time
async def test_a_volume_whose_object_was_deleted_by_hand_keeps_data_and_space():
    async with node_and_controller() as (world, node, controller):
        volume = await controller.create()
        node.stage("pvc-1", volume.volume_context)
        node.unstage("pvc-1")
        await world.delete(VOLUME, "pvc-1")
        await world.settle(600.0)

        assert node.disks[drive_id(1)].volumes == {"pvc-1": GIB}
        assert await world.allocations(1) == {"pvc-1": GIB}
        await controller.delete()
        await world.until(lambda: is_free(world))


@pytest.mark.virtual_time
async def test_a_drive_whose_object_was_lost_lists_its_volumes_again_before_it_takes_others():
    async with node_and_controller() as (world, node, controller):
        for number in (1, 2):
            volume = await controller.create(f"pvc-{number}", 2 * GIB)
        node.stage("pvc-2", volume.volume_context)
        # What only the disk knows: every object of it is gone.
        node.disks[drive_id(1)].volumes["pvc-disk"] = GIB // 2
        await world.settle(5.0)
        await world.merge(DRIVE, drive_id(1), {"metadata": {"finalizers": None}})
        await world.delete(DRIVE, drive_id(1))

        with pytest.raises(ResourceExhausted):
            await controller.create("pvc-3", GIB)
        await world.settle(30.0)

        assert await world.allocations(1) == {"pvc-1": 2 * GIB, "pvc-2": 2 * GIB, "pvc-disk": GIB // 2}
        assert (await world.drive(1))["status"]["allocationsRestored"]
        with pytest.raises(ResourceExhausted, match="too little free space"):
            await controller.create("pvc-3", GIB)


@pytest.mark.virtual_time
async def test_an_allocation_that_an_admin_made_smaller_frees_no_space():
    async with node_and_controller() as (world, _, controller):
        await controller.create("pvc-1", 3 * GIB)
        small = {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}}
        await world.merge(DRIVE, drive_id(1), small)

        with pytest.raises(ResourceExhausted):
            await controller.create("pvc-2", 2 * GIB)
        await world.settle(30.0)

        assert await world.allocations(1) == {"pvc-1": 3 * GIB}
        with pytest.raises(ResourceExhausted, match="too little free space"):
            await controller.create("pvc-2", 2 * GIB)
        await controller.create("pvc-3", GIB)


@pytest.mark.virtual_time
async def test_a_reservation_that_nothing_knows_returns_after_its_node_was_asked():
    async with node_and_controller() as (world, _, _):
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
        await world.settle(UNKNOWN_SECONDS - 60.0)
        before = await world.allocations(1)

        await world.settle(120.0)
        assert await is_free(world)

        assert before == {"pvc-1": GIB}
        assert ("Drive", drive_id(1), "AllocationWithoutVolume") in await world.events()


@pytest.mark.virtual_time
async def test_the_time_without_a_volume_begins_anew_when_a_volume_was_known_meanwhile():
    async with node_and_controller() as (world, _, controller):
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
        await world.settle(UNKNOWN_SECONDS - 60.0)
        controller.handles.add("pvc-1")
        await world.merge(DRIVE, drive_id(1), {"metadata": {"labels": {"seen": "again"}}})
        await world.settle(60.0)
        controller.handles.clear()
        await world.merge(DRIVE, drive_id(1), {"metadata": {"labels": {"seen": None}}})
        await world.settle(UNKNOWN_SECONDS - 60.0)
        kept = await world.allocations(1), await world.find(VOLUME, "pvc-1")

        await world.settle(180.0)
        assert await is_free(world)

    assert kept == ({"pvc-1": GIB}, None)


@pytest.mark.virtual_time
async def test_a_reservation_with_data_that_nothing_knows_is_kept():
    async with node_and_controller() as (world, node, controller):
        node.disks[drive_id(1)].volumes["pvc-1"] = GIB
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
        await world.settle(2 * UNKNOWN_SECONDS)

        stored = await world.volume("pvc-1")
        assert stored is not None
        assert stored.reservation_only
        assert node.disks[drive_id(1)].volumes == {"pvc-1": GIB}
        assert await world.allocations(1) == {"pvc-1": GIB}
        # Deleted through CSI, it goes.
        await controller.delete()
        await world.until(lambda: is_free(world))


async def two_drives_list_one_volume(world: DriveWorld, node: NodeModel, controller: DriveController) -> None:
    """As after a leader that died when the next one had just created the volume elsewhere."""
    await controller.create()
    node.add_disk(2, 4 * GIB)
    node.reports_undescribed = True
    await world.settle(5.0)
    await world.merge(DRIVE, drive_id(2), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
    await world.settle(UNKNOWN_SECONDS - 60.0)
    assert await world.allocations(2) == {"pvc-1": GIB}


@pytest.mark.virtual_time
async def test_a_reservation_for_a_volume_that_another_drive_has_returns():
    async with node_and_controller() as (world, node, controller):
        await two_drives_list_one_volume(world, node, controller)
        await world.settle(120.0)
        stored = await world.volume("pvc-1")

        assert (await world.allocations(1), await world.allocations(2)) == ({"pvc-1": GIB}, {})
        assert stored is not None
        assert not stored.reservation_only
        assert ("Drive", drive_id(2), "ReservationRemoved") in await world.events()


@pytest.mark.virtual_time
async def test_a_reservation_on_the_drive_that_has_data_of_the_name_is_kept():
    async with node_and_controller() as (world, node, controller):
        await two_drives_list_one_volume(world, node, controller)
        node.disks[drive_id(2)].volumes["pvc-1"] = GIB
        await world.settle(2 * UNKNOWN_SECONDS)

        assert (await world.allocations(1), await world.allocations(2)) == ({"pvc-1": GIB}, {"pvc-1": GIB})


@pytest.mark.virtual_time
async def test_a_reservation_that_a_persistent_volume_names_is_left():
    async with node_and_controller() as (world, _, controller):
        controller.handles.add("pvc-1")
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
        await world.settle(3 * UNKNOWN_SECONDS)
        kept = await world.allocations(1), await world.find(VOLUME, "pvc-1")

        controller.handles.clear()
        await world.settle(3 * UNKNOWN_SECONDS)

        assert await is_free(world)
        assert kept == ({"pvc-1": GIB}, None)


@pytest.mark.virtual_time
async def test_an_erased_volume_whose_drive_is_gone_for_good_goes_too():
    async with node_and_controller() as (world, node, controller):
        await controller.create()
        await controller.delete()
        await world.until(lambda: is_free(world))
        await controller.create()
        node.is_away = True
        await controller.delete()
        await world.settle()
        node.disks.clear()
        await world.merge(DRIVE, drive_id(1), {"metadata": {"finalizers": None}})
        await world.delete(DRIVE, drive_id(1))
        await world.set_volume_status("pvc-1", phase="Erased")

        async def is_gone() -> bool:
            return await world.find(VOLUME, "pvc-1") is None

        await world.until(is_gone)


@pytest.mark.virtual_time
async def test_the_object_of_a_removed_drive_goes_when_its_node_has_released_it():
    async with DriveWorld() as world, world.controller():
        await world.add_drive(1)
        await world.merge(DRIVE, drive_id(1), {"spec": {"removing": True}})
        await world.settle()
        before = await world.find(DRIVE, drive_id(1))
        released = {"type": RELEASED, "status": "True", "reason": "Released"}
        await world.set_drive_status(1, conditions=[released])
        await world.settle()

        assert before is not None
        assert await world.find(DRIVE, drive_id(1)) is None


@pytest.mark.virtual_time
async def test_an_acknowledged_step_of_another_process_is_continued():
    async with DriveWorld() as world:
        node = NodeModel("n1", world.on, world.client, world.clock)
        node.add_disk(1, 4 * GIB)
        world.start(node.run(), "node")
        await world.settle(5.0)
        async with world.controller("first") as first:
            await first.create()
            await first.delete()
        async with world.controller("second"):
            await world.until(lambda: is_free(world))


@pytest.mark.virtual_time
async def test_an_erased_volume_is_there_until_its_space_has_returned():
    """Without the object, nobody would return the space."""
    wire = Wire()
    async with DriveWorld() as world:
        node = NodeModel("n1", world.on, world.client, world.clock)
        node.add_disk(1, 4 * GIB)
        world.start(node.run(), "node")
        await world.settle(5.0)
        async with world.controller(transport=wire.around(world.transport())) as controller:
            await controller.create()
            wire.before = failing("PATCH drives", times=1_000_000)
            await controller.delete()
            await world.settle(60.0)
            while_failing = await world.allocations(1), await world.find(VOLUME, "pvc-1")

            wire.before = Wire().before
            await world.until(lambda: is_free(world))

    assert while_failing[0] == {"pvc-1": GIB}
    assert while_failing[1] is not None


@pytest.mark.virtual_time
async def test_the_space_of_a_new_volume_is_not_returned_for_an_erased_one_of_its_name():
    """The cache still has the erased one; another process has returned its space, and made the new one."""
    wire, has_changed = Wire(), asyncio.Event()
    async with DriveWorld() as world:
        await world.add_drive(1)
        async with world.controller(transport=wire.around(world.transport())) as controller:
            await controller.create()
            created = await world.find(VOLUME, "pvc-1")
            assert created is not None

            async def as_another_process(_request: HttpRequest) -> None:
                if not has_changed.is_set():
                    has_changed.set()
                    await world.merge(VOLUME, "pvc-1", {"metadata": {"finalizers": None}})
                    body = new_object("Volume", "pvc-1", part_of(created, "spec", DriveVolumeSpec))
                    await world.client.create(VOLUME, body)
                listed.append(await world.allocations(1))

            await world.merge(VOLUME, "pvc-1", {"spec": {"erase": True}})
            await world.delete(VOLUME, "pvc-1")
            await world.settle()
            listed: list[dict[str, int]] = []
            wire.before = as_another_process
            await world.set_volume_status("pvc-1", phase="Erased")
            await world.settle(30.0)

    assert has_changed.is_set()
    assert listed
    assert all(each == {"pvc-1": GIB} for each in listed)


class StalledVolumes:
    """A connection whose watch of Volumes delivers nothing any more once `stall` was called."""

    is_remote = False

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()

    def stall(self) -> None:
        self._may_go_on.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        async with self._inner.open(request, within) as stream:
            of_volumes = "/volumes" in request.path
            yield replace(stream, pieces=self._delayed(stream)) if of_volumes else stream

    async def _delayed(self, stream: HttpStream) -> AsyncIterator[bytes]:
        async for piece in stream.pieces:
            await self._may_go_on.wait()
            yield piece


@asynccontextmanager
async def volume_then_stale_cache() -> AsyncIterator[tuple[DriveWorld, DriveController]]:
    """A volume on the second of two drives; the controller sees no change of Volumes any more."""
    async with DriveWorld() as world:
        for number in (1, 2):
            await world.add_drive(number)
        entry = {"volume": "pvc-1", "bytes": GIB}
        await world.merge(DRIVE, drive_id(2), {"spec": {"allocations": [entry]}})
        await world.client.create(VOLUME, new_object("Volume", "pvc-1", on_drive(2)))
        way = StalledVolumes(world.transport())
        async with world.controller(transport=way) as controller:
            await world.settle()
            way.stall()
            yield world, controller


def on_drive(number: int) -> DriveVolumeSpec:
    return structs.replace(SPEC, drive=drive_id(number))


@pytest.mark.virtual_time
async def test_the_space_of_a_volume_that_only_the_cache_still_has_is_not_reserved_again():
    async with volume_then_stale_cache() as (world, _):
        await world.delete(VOLUME, "pvc-1")
        await world.merge(DRIVE, drive_id(2), {"spec": {"allocations": []}})
        await world.settle(UNKNOWN_SECONDS)

        assert await world.allocations(2) == {}


@pytest.mark.virtual_time
async def test_the_space_of_a_volume_is_kept_where_the_cache_still_has_an_earlier_one_of_its_name_elsewhere():
    async with volume_then_stale_cache() as (world, controller):
        await world.delete(VOLUME, "pvc-1")
        await world.merge(DRIVE, drive_id(2), {"spec": {"allocations": []}})
        entry = {"volume": "pvc-1", "bytes": GIB}
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [entry]}})
        await world.client.create(VOLUME, new_object("Volume", "pvc-1", on_drive(1)))
        await world.settle()
        known = controller.catalog.volume("pvc-1")
        assert known is not None
        assert known.spec.drive == drive_id(2)

        for _ in range(8):
            await world.settle(UNKNOWN_SECONDS / 2)
            assert await world.allocations(1) == {"pvc-1": GIB}
