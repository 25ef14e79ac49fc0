"""The CSI controller service of drives: each call, its repetitions and its errors, by what the API server has then."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from orlop.csi.error_codes import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.controller_service import CAPABILITIES, LeaderService
from orlop.foundation.keyed_lock import KeyHeld
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.leader_election import LeadershipLost
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE, decode_context
from support.api.api_wires import Wire, failing
from support.drives.drive_facts import GIB, MIB, Mode, block, creation, mount, on
from support.drives.drive_worlds import DriveWorld, check_no_overcommit, drive_controller, drive_id

pytestmark = pytest.mark.virtual_time


# ---- creation --------------------------------------------------------------------------------------------------------


async def test_a_created_volume_is_reserved_stored_and_described_for_its_first_staging():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1, "n1")
        await world.settle()
        request = creation("pvc-1", 2 * GIB, capability=mount("xfs"))
        request.parameters["csi.storage.k8s.io/pvc/name"] = "data"
        request.parameters["csi.storage.k8s.io/pvc/namespace"] = "team"
        request.parameters["csi.storage.k8s.io/pv/name"] = "pvc-1"

        volume = (await controller.service.CreateVolume(request)).volume

        stored = await world.volume("pvc-1")
        allocations = await world.allocations(1)
    context = decode_context(volume.volume_context)
    assert (volume.volume_id, volume.capacity_bytes) == ("pvc-1", 2 * GIB)
    assert [dict(each.segments) for each in volume.accessible_topology] == [{TOPOLOGY_NODE: "n1"}]
    assert (context.drive, context.bytes, context.backing, context.file_system) == (
        drive_id(1),
        2 * GIB,
        "directory",
        "xfs",
    )
    assert stored is not None
    assert stored.claim is not None
    assert (stored.drive, stored.node_name, stored.claim.namespace, stored.claim.name) == (
        drive_id(1),
        "n1",
        "team",
        "data",
    )
    assert stored.persistent_volume == "pvc-1"
    assert allocations == {"pvc-1": 2 * GIB}


async def test_a_block_volume_is_an_image():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()

        volume = await controller.create(capability=block())

    context = decode_context(volume.volume_context)
    assert (context.backing, context.file_system, context.volume_mode) == ("image", "", "Block")


async def test_a_repeated_creation_returns_the_same_volume():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.add_drive(2)
        await world.settle()

        first = await controller.create()
        at_once = await controller.create()
        await world.settle()
        later = await controller.create()

        assert first == at_once == later
        assert {**await world.allocations(1), **await world.allocations(2)} == {"pvc-1": GIB}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size": 2 * GIB}, "it has 1073741824 bytes"),
        ({"capability": block()}, "its mode is Filesystem"),
        ({"access_tier": "hot"}, "it was made with the parameters"),
        ({"capability": mount("ext4")}, "its file system is xfs"),
        ({"requisite": ("n2",)}, "it is on the node n1"),
    ],
)
async def test_a_repetition_with_another_request_already_exists(changes: dict[str, Any], why: str):
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()

        with pytest.raises(AlreadyExists, match=why):
            await controller.create(**changes)


async def test_a_creation_that_died_after_its_reservation_is_finished_by_the_next_process():
    async with DriveWorld() as world:
        await world.add_drive(1)
        await world.add_drive(2, capacity=20 * GIB)
        entry = {"volume": "pvc-1", "bytes": GIB}
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [entry]}})
        async with world.controller() as controller:
            volume = await controller.create()

        assert decode_context(volume.volume_context).drive == drive_id(1)
        assert await world.allocations(2) == {}


async def test_a_volume_that_the_cache_lacks_decides_where_it_is_and_the_new_reservation_goes():
    may_come, wire = asyncio.Event(), Wire()
    async with DriveWorld() as world, world.controller() as other:
        await world.add_drive(1)
        await world.add_drive(2, capacity=20 * GIB)
        async with world.controller("late", wire.around(world.transport())) as late:
            await world.settle()
            wire.before_event = lambda: wait_for(may_come)
            await world.merge(DRIVE, drive_id(2), {"spec": {"unschedulable": True}})
            await world.settle()
            first = await other.create()
            await world.merge(DRIVE, drive_id(2), {"spec": {"unschedulable": False}})

            again = await late.create()
            may_come.set()

        assert again == first
        assert [line for line in wire.written() if drive_id(2) in line] == [f"PATCH drives/{drive_id(2)}"] * 3
        assert await world.allocations(1) == {"pvc-1": GIB}
        assert await world.allocations(2) == {}


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def test_no_volume_is_acknowledged_whose_drive_does_not_list_it():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()
        await world.settle()
        await world.merge(DRIVE, drive_id(1), {"metadata": {"finalizers": None}})
        await world.delete(DRIVE, drive_id(1))
        await world.settle()

        with pytest.raises(Aborted, match="does not list the volume pvc-1 yet"):
            await controller.create()


async def test_without_a_drive_the_error_says_how_many_failed_which_test():
    async with DriveWorld() as world, world.controller() as controller:
        with pytest.raises(ResourceExhausted, match="there are no drives: make one with `orlop drives init`"):
            await controller.create()
        await world.add_drive(1, capacity=4 * GIB, spec={"tier": "cold"})
        await world.add_drive(2, capacity=GIB, spec={"tier": "hot"})
        await world.settle()

        with pytest.raises(ResourceExhausted, match=r"of 2 drives, 1 is of another tier, 1 has too little free space"):
            await controller.create(size=2 * GIB, access_tier="hot")
        with pytest.raises(OutOfRange, match="is more than any drive has"):
            await controller.create(size=40 * GIB)


@pytest.mark.parametrize(
    "request_",
    [
        creation(""),
        creation(capability=mount("btrfs")),
        creation(capability=mount(mode=Mode.MULTI_NODE_MULTI_WRITER)),
        creation(access_tier="lukewarm"),
        creation(unknown="x"),
        csi_pb2.CreateVolumeRequest(name="v"),
    ],
)
async def test_an_invalid_request_is_an_invalid_argument_and_changes_nothing(request_: csi_pb2.CreateVolumeRequest):
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()

        with pytest.raises(InvalidArgument):
            await controller.service.CreateVolume(request_)

        assert await world.allocations(1) == {}


async def test_two_calls_for_one_volume_at_once_and_the_second_is_aborted():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()

        answers = await asyncio.gather(controller.create(), controller.create(), return_exceptions=True)

    assert [type(each) for each in answers] == [csi_pb2.Volume, KeyHeld]


@pytest.mark.parametrize("call", ["create", "delete", "expand"])
async def test_a_call_for_a_volume_that_another_call_works_on_is_aborted_and_changes_nothing(call: str):
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        volume = await controller.create()
        calls = {
            "create": controller.create,
            "delete": controller.delete,
            "expand": partial(controller.expand, volume.volume_id, 2 * GIB),
        }
        before = await world.volume("pvc-1"), await world.allocations(1)

        with controller.service._keys.try_hold(volume.volume_id, "another call"), pytest.raises(KeyHeld):
            await calls[call]()
        assert (await world.volume("pvc-1"), await world.allocations(1)) == before


async def test_volumes_that_two_controllers_create_at_once_fill_the_drives_exactly():
    async with DriveWorld() as world, world.controller("one") as one, world.controller("two") as two:
        for number in range(4):
            await world.add_drive(number, f"n{number}", capacity=10 * GIB)
        await world.settle()

        both = [one, two]
        await asyncio.gather(*(both[number % 2].create(f"pvc-{number}") for number in range(40)))

        check_no_overcommit(world.on)
        assert [sum((await world.allocations(number)).values()) for number in range(4)] == [10 * GIB] * 4
        assert len((await world.client.list(VOLUME)).items) == 40


async def test_an_api_server_that_is_away_makes_the_call_unavailable_and_a_lost_lease_too():
    wire = Wire()
    async with DriveWorld() as world, world.controller("c", wire.around(world.transport())) as controller:
        await world.add_drive(1)
        await world.settle()
        wire.before = failing("PATCH drives", times=99)
        with pytest.raises(Unavailable, match="the API server: "):
            await controller.create()

    def lost() -> None:
        raise LeadershipLost("the lease is lost")

    async with DriveWorld() as world, world.controller_parts("c") as the, drive_controller(the, lost) as former:
        await world.add_drive(1)
        await world.settle()
        with pytest.raises(Unavailable, match="another process creates volumes now"):
            await former.create()
        assert await world.allocations(1) == {}


# ---- deletion --------------------------------------------------------------------------------------------------------


async def test_a_deleted_volume_is_marked_and_keeps_its_space():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()

        await controller.delete()
        await world.settle()
        await controller.delete()

        stored = await world.find(VOLUME, "pvc-1")
        assert stored is not None
        assert stored["spec"]["erase"]
        assert stored["metadata"]["deletionTimestamp"]
        assert await world.allocations(1) == {"pvc-1": GIB}
        with pytest.raises(Aborted, match="is being deleted"):
            await controller.create()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Staged"},
        {"phase": "Pending", "stagedPath": "/staged"},
        {"phase": "Published", "published": [{"path": "/p", "podNamespace": "team", "podName": "web-0"}]},
    ],
)
async def test_a_volume_that_is_staged_is_not_deleted(status: dict[str, Any]):
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()
        await world.set_volume_status("pvc-1", **status)

        with pytest.raises(FailedPrecondition, match="the volume pvc-1 is staged on the node n1"):
            await controller.delete()

        stored = await world.volume("pvc-1")
        await controller.parts.events.drain(60.0)
        events = await world.events()
    assert stored is not None
    assert not stored.erase
    assert ("Volume", "pvc-1", "DeletionRefused") in events


async def test_a_deletion_waits_a_moment_for_the_report_that_the_volume_was_unstaged():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()
        await world.set_volume_status("pvc-1", phase="Staged", stagedPath="/staged")
        deletion = asyncio.ensure_future(controller.delete())
        await world.settle(1.0)
        is_waiting = not deletion.done()
        await world.set_volume_status("pvc-1", phase="Pending", stagedPath="")
        await deletion

        stored = await world.volume("pvc-1")
    assert is_waiting
    assert stored is not None
    assert stored.erase


class LateReport:
    """A connection on which a report of a staging arrives just before the first patch, and is corrected."""

    is_remote = False

    def __init__(self, world: DriveWorld) -> None:
        self._world, self._inner = world, world.transport()
        self._correction: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        if request.method == "PATCH" and "/volumes/" in request.path and self._correction is None:
            await self._world.set_volume_status("pvc-1", phase="Staged", stagedPath="/staged")
            self._correction = asyncio.ensure_future(self._correct())
        return await self._inner.exchange(request, within)

    async def _correct(self) -> None:
        await self._world.clock.sleep(1.0)
        await self._world.set_volume_status("pvc-1", phase="Pending", stagedPath="")


async def test_a_report_that_comes_late_delays_a_deletion_and_does_not_refuse_it():
    async with DriveWorld() as world, world.controller(transport=LateReport(world)) as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()
        await controller.delete()

        stored = await world.volume("pvc-1")
    assert stored is not None
    assert stored.erase


async def test_deleting_what_is_not_there_succeeds_and_no_id_is_an_invalid_argument():
    async with DriveWorld() as world, world.controller() as controller:
        await controller.delete("pvc-unknown")
        await controller.delete("../../etc")
        with pytest.raises(InvalidArgument):
            await controller.delete("")


async def test_deleting_a_reservation_without_a_volume_has_its_node_erase_what_is_there():
    async with DriveWorld() as world:
        await world.add_drive(1)
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
        async with world.controller() as controller:
            await controller.delete()

            stored = await world.volume("pvc-1")
            assert stored is not None
            assert (stored.erase, stored.drive) == (True, drive_id(1))
            assert await world.allocations(1) == {"pvc-1": GIB}


# ---- expansion -------------------------------------------------------------------------------------------------------


async def test_expansion_reserves_first_and_repeats_itself():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()

        sizes = [await controller.expand("pvc-1", 3 * GIB) for _ in range(2)]
        smaller = await controller.expand("pvc-1", 2 * GIB)

        stored = await world.volume("pvc-1")
        assert stored is not None
        assert (sizes, smaller, stored.bytes) == ([3 * GIB, 3 * GIB], 3 * GIB, 3 * GIB)
        assert await world.allocations(1) == {"pvc-1": 3 * GIB}


async def test_a_volume_whose_drive_lost_its_object_does_not_grow_and_other_volumes_keep_their_space():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1, capacity=4 * GIB)
        await world.settle()
        await controller.create("pvc-1", 2 * GIB)
        await controller.create("pvc-2", 2 * GIB)
        await world.merge(DRIVE, drive_id(1), {"metadata": {"finalizers": None}})
        await world.delete(DRIVE, drive_id(1))

        with pytest.raises(Aborted, match=f"the drive {drive_id(1)} has no object"):
            await controller.expand("pvc-1", 3 * GIB)
        # Its node makes it again, and the controller restores the allocations from the Volumes.
        await world.add_drive(1, capacity=4 * GIB)
        await world.settle(5.0)

        assert await world.allocations(1) == {"pvc-1": 2 * GIB, "pvc-2": 2 * GIB}
        check_no_overcommit(world.on)


async def test_a_volume_does_not_grow_before_all_allocations_of_its_drive_are_restored():
    """The drive has data that its object does not list yet."""
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1, capacity=4 * GIB)
        await world.settle()
        await controller.create("pvc-1", 2 * GIB)
        await world.set_drive_status(1, allocationsRestored=False)

        with pytest.raises(Aborted, match="not restored"):
            await controller.expand("pvc-1", 3 * GIB)
        await world.set_drive_status(1, allocationsRestored=True)

        assert await controller.expand("pvc-1", 3 * GIB) == 3 * GIB


async def test_expansion_beyond_what_is_free_or_possible_is_refused():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create()
        await controller.create("pvc-2", 8 * GIB)

        with pytest.raises(ResourceExhausted, match="has 1Gi free"):
            await controller.expand("pvc-1", 3 * GIB)
        with pytest.raises(OutOfRange, match="more than the drive"):
            await controller.expand("pvc-1", 11 * GIB)
        await controller.parts.events.drain(60.0)
        assert await world.events() == {("Volume", "pvc-1", "ExpansionRefused")}
        with pytest.raises(OutOfRange, match="cannot shrink"):
            await controller.expand("pvc-1", 0, 512 * MIB)
        with pytest.raises(NotFound):
            await controller.expand("pvc-9", GIB)
        with pytest.raises(InvalidArgument):
            await controller.service.ControllerExpandVolume(csi_pb2.ControllerExpandVolumeRequest(volume_id="pvc-1"))

        stored = await world.volume("pvc-1")
    assert stored is not None
    assert stored.bytes == GIB


# ---- reading ---------------------------------------------------------------------------------------------------------


async def test_capacity_is_the_sum_of_free_and_the_most_on_one_ready_drive():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1, "n1", capacity=4 * GIB)
        await world.add_drive(2, "n2", capacity=6 * GIB)
        await world.add_drive(3, "n2", capacity=90 * GIB, state="Lost")
        await world.add_drive(4, "n2", capacity=80 * GIB, spec={"tier": "cold"})
        await world.settle()
        await controller.create("pvc-1", requisite=("n1",))
        hot = {"orlop.dev/access-tier": "default"}

        async def capacity(**fields: Any) -> tuple[int, int]:
            found = await controller.service.GetCapacity(csi_pb2.GetCapacityRequest(**fields))
            return found.available_capacity, found.maximum_volume_size.value

        everywhere = await capacity(parameters=hot)
        on_n1 = await capacity(parameters=hot, accessible_topology=on("n1")[0])
        nowhere = await capacity(accessible_topology=on("n9")[0])
    assert everywhere == (9 * GIB, 6 * GIB)
    assert on_n1 == (3 * GIB, 3 * GIB)
    assert nowhere == (0, 0)


async def test_a_list_has_pages_in_order_and_leaves_out_what_was_deleted():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        for number in range(5):
            await controller.create(f"pvc-{number}", MIB)
        await controller.delete("pvc-2")

        pages, token = [], ""
        while True:
            request = csi_pb2.ListVolumesRequest(max_entries=2, starting_token=token)
            page = await controller.service.ListVolumes(request)
            pages.append([each.volume.volume_id for each in page.entries])
            token = page.next_token
            if not token:
                break
        for token in ("no token!", "pvc-0", "from:", "from:no token!"):
            with pytest.raises(Aborted):
                await controller.service.ListVolumes(csi_pb2.ListVolumesRequest(starting_token=token))
        with pytest.raises(InvalidArgument):
            await controller.service.ListVolumes(csi_pb2.ListVolumesRequest(max_entries=-1))
    assert pages == [["pvc-0", "pvc-1"], ["pvc-3", "pvc-4"]]


async def test_the_health_of_a_volume_says_what_is_wrong_with_its_drive_and_with_itself():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        await controller.create("pvc-1", MIB)
        await controller.create("pvc-2", MIB)

        async def reasons(volume: str) -> list[str]:
            request = csi_pb2.ControllerGetVolumeHealthRequest(volume_id=volume)
            found = await controller.service.ControllerGetVolumeHealth(request)
            return [each.reason for each in found.volume_health.health_statuses]

        healthy = await reasons("pvc-1")
        await world.set_volume_status("pvc-1", condition={"abnormal": True, "message": "EIO at 4096"})
        await world.settle()
        ill = (await controller.service.ControllerListVolumeHealth(csi_pb2.ControllerListVolumeHealthRequest())).entries
        await world.set_drive_status(1, state="Lost")
        await world.settle()
        lost = await reasons("pvc-2")
    assert healthy == []
    assert [(each.volume_id, each.health_statuses[0].message) for each in ill] == [("pvc-1", "EIO at 4096")]
    assert lost == ["DriveLost"]


async def test_get_and_validate_compare_with_the_volume():
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        volume = await controller.create()
        service = controller.service

        async def validate(volume_id: str = "pvc-1", **fields: Any) -> str:
            fields.setdefault("volume_capabilities", [mount()])
            request = csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=volume_id, **fields)
            answer = await service.ValidateVolumeCapabilities(request)
            return "confirmed" if answer.HasField("confirmed") else answer.message

        got = (await service.ControllerGetVolume(csi_pb2.ControllerGetVolumeRequest(volume_id="pvc-1"))).volume
        assert got == volume
        assert await validate() == "confirmed"
        assert await validate(volume_context=volume.volume_context) == "confirmed"
        assert "mode of the volume is Filesystem" in await validate(volume_capabilities=[block()])
        assert "file system of the volume is xfs" in await validate(volume_capabilities=[mount("ext4")])
        assert "MULTI_NODE" in await validate(volume_capabilities=[mount(mode=Mode.MULTI_NODE_MULTI_WRITER)])
        assert "of another volume" in await validate(volume_context={"orlop.dev/drive": drive_id(7)})
        for missing in (service.ControllerGetVolume, service.ControllerGetVolumeHealth):
            with pytest.raises(NotFound):
                await missing(csi_pb2.ControllerGetVolumeRequest(volume_id="pvc-9"))  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            await validate("pvc-9")
        with pytest.raises(InvalidArgument):
            await validate(volume_capabilities=[])


# ---- leading ---------------------------------------------------------------------------------------------------------


async def test_only_the_leader_serves_and_its_capabilities_are_known_before():
    front = LeaderService()
    methods = {rpc.name: serve for rpc, serve in front.methods().values()}
    kinds = await methods["ControllerGetCapabilities"](csi_pb2.ControllerGetCapabilitiesRequest())

    with pytest.raises(Unavailable, match="does not lead"):
        await methods["CreateVolume"](creation())
    async with DriveWorld() as world, world.controller() as controller:
        await world.add_drive(1)
        await world.settle()
        with front.leading(controller.service):
            volume = (await methods["CreateVolume"](creation())).volume
        with pytest.raises(Unavailable):
            await methods["CreateVolume"](creation())
    assert [each.rpc.type for each in kinds.capabilities] == list(CAPABILITIES)
    assert volume.volume_id == "pvc-1"
