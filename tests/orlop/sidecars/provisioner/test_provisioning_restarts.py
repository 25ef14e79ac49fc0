"""A provisioner that is killed at any point: the next one finishes what it began, and nothing is left over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import PERSISTENT_VOLUME, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from support.api.api_wires import NO_RIGHT_TO_LEASES, failing, refusal
from support.provisioning.provisioner_drama import NoLocks
from support.provisioning.provisioner_worlds import CREATE, DELETE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time


def held(world: ProvisionerWorld, method: str, part: str) -> Any:
    """Hold the requests with this method and path: as of a process that is killed before it sends them."""

    async def before(request: HttpRequest) -> None:
        if request.method == method and part in request.path:
            await world.clock.sleep(10_000_000)

    return before


async def begin(world: ProvisionerWorld, *steps: dict[str, Any]) -> None:
    world.play({CREATE: list(steps)})
    await world.make_class()
    await world.make_claim()


async def kill_after_recording(world: ProvisionerWorld) -> None:
    """The order is recorded, and the process is killed during the call."""
    async with world.provisioner():

        async def is_recorded() -> bool:
            return bool(await world.journal())

        await world.until(is_recorded)
        await world.clock.sleep(1)
    world.drivers[-1].stop_hanging()
    world.wire.before = held(world, "NONE", "")


async def kill_after_creation(world: ProvisionerWorld) -> None:
    """The volume is created, and the process is killed before it saves the PersistentVolume."""
    world.wire.before = held(world, "POST", "/persistentvolumes")
    async with world.provisioner():

        async def is_created() -> bool:
            return bool(world.names())

        await world.until(is_created)
    assert len(await world.journal()) == 1
    world.wire.before = held(world, "NONE", "")


async def kill_after_saving(world: ProvisionerWorld) -> None:
    """The PersistentVolume is saved, and the process is killed before the order is forgotten."""
    writes = 0

    async def before(request: HttpRequest) -> None:
        nonlocal writes
        if request.method == "PUT" and "journal" in request.path:
            writes += 1
            if writes > 1:
                await world.clock.sleep(10_000_000)

    world.wire.before = before
    async with world.provisioner():
        await world.until_provisioned()
        await world.clock.sleep(5)
    assert len(await world.journal()) == 1
    world.wire.before = held(world, "NONE", "")


POINTS = [kill_after_recording, kill_after_creation, kill_after_saving]
HANG = {kill_after_recording: ({"hang": True},)}


@pytest.mark.parametrize("kill", POINTS)
async def test_the_order_of_a_killed_provisioner_is_finished_by_the_next(kill: Any):
    async with ProvisionerWorld() as world:
        await begin(world, *HANG.get(kill, ()))
        await kill(world)
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()
        assert len(world.names()) == 1
        assert volume["metadata"]["name"] == world.names()[0]
        assert DELETE not in world.calls()


@pytest.mark.parametrize("kill", [kill_after_recording, kill_after_creation])
async def test_a_volume_whose_claim_went_while_nobody_ran_is_deleted(kill: Any):
    async with ProvisionerWorld() as world:
        await begin(world, *HANG.get(kill, ()))
        await kill(world)
        await world.delete_claim()
        async with world.provisioner():
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])


async def test_data_that_an_admin_keeps_are_not_deleted_for_an_order_that_was_left_over():
    """The claim and, with the policy Retain, the object were deleted while no provisioner ran."""
    async with ProvisionerWorld() as world:
        await world.make_class(reclaimPolicy="Retain")
        await world.make_claim()
        await kill_after_saving(world)
        (saved,) = await world.volumes()
        await world.delete_claim()
        await world.release(saved["metadata"]["name"])
        await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, saved["metadata"]["name"]))
        async with world.provisioner():
            await world.until_journal_is_empty()

        (again,) = await world.volumes()
        assert DELETE not in world.calls()
        assert again["spec"]["csi"]["volumeHandle"] == saved["spec"]["csi"]["volumeHandle"]
        assert again["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        assert again["spec"]["claimRef"]["uid"] == saved["spec"]["claimRef"]["uid"]


async def test_a_saved_volume_whose_claim_went_while_nobody_ran_is_left_to_the_binder():
    async with ProvisionerWorld() as world:
        await begin(world)
        await kill_after_saving(world)
        await world.delete_claim()
        async with world.provisioner():
            await world.until_journal_is_empty()
            assert len(await world.volumes()) == 1
            assert len(world.names()) == 1
            await world.release((await world.volumes())[0]["metadata"]["name"])
            await world.until_provisioned(0)
        assert world.names() == []


@pytest.mark.parametrize("kill", POINTS)
async def test_a_claim_created_again_under_its_name_gets_a_volume_of_its_own(kill: Any):
    async with ProvisionerWorld() as world:
        await begin(world, *HANG.get(kill, ()))
        await kill(world)
        await world.delete_claim()
        again = await world.make_claim()
        async with world.provisioner():
            await world.until_journal_is_empty()

            async def is_there() -> bool:
                return await world.get(PERSISTENT_VOLUME, f"pvc-{again['metadata']['uid']}") is not None

            await world.until(is_there)
            await world.until_journal_is_empty()
        kept = 2 if kill is kill_after_saving else 1
        assert len(world.names()) == len(await world.volumes()) == kept


async def test_a_successor_with_a_shorter_timeout_passes_on_how_long_its_predecessor_s_call_may_run():
    async with ProvisionerWorld() as world:
        await begin(world, {"delay": "50s"}, {"times": 0})
        world.interceptor._keys = NoLocks()  # type: ignore[assignment]  # a model of a careless driver
        async with world.provisioner(timeout=60.0):

            async def is_called() -> bool:
                return CREATE in world.calls()

            await world.until(is_called)
        # The next one repeats the call, and is killed before it saves the PersistentVolume.
        world.wire.before = held(world, "POST", "/persistentvolumes")
        async with world.provisioner(timeout=10.0):
            await world.clock.sleep(1)
        world.wire.before = held(world, "NONE", "")
        await world.delete_claim()
        async with world.provisioner(timeout=10.0):
            await world.clock.sleep(45)
            assert len(await world.journal()) == 1, "the first call may still create the volume"
            await world.until_journal_is_empty()
            await world.clock.sleep(60)
        assert world.names() == []


async def test_the_order_is_repeated_as_it_was_though_class_and_claim_changed():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"hang": True}]})
        await world.make_class(parameters={"type": "old"})
        await world.make_claim()
        await kill_after_recording(world)
        await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
        await world.make_class(parameters={"type": "new"})
        async with world.provisioner(claim_metadata=True):
            await world.until_provisioned()
        first, second = world.requests(CREATE)
        assert first == second


async def test_the_order_of_a_killed_provisioner_is_repeated_as_it_was_until_the_driver_gives_a_final_response():
    """Also when the call of the killed provisioner has ended for certain: it may have created the volume."""
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"hang": True}]})
        await world.make_class(parameters={"type": "old"})
        await world.make_claim()
        await kill_after_recording(world)
        await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
        await world.make_class(parameters={"type": "new"})
        world.play({CREATE: [{"error": {"code": "UNAVAILABLE", "message": "away"}, "times": 8}]})
        async with world.provisioner(timeout=10.0):
            await world.until_provisioned()
        types = [request.parameters["type"] for request in world.requests(CREATE)]
        assert types == ["old"] * 10


async def test_an_undo_that_was_interrupted_is_finished():
    async with ProvisionerWorld() as world:
        small = {"answer": {"volume": {"volumeId": "vol-1", "capacityBytes": "1"}}}
        world.play({CREATE: [small], DELETE: [{"hang": True}]})
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():

            async def is_being_deleted() -> bool:
                return DELETE in world.calls()

            await world.until(is_being_deleted)
        (entry,) = await world.journal()
        assert entry.is_being_deleted
        world.drivers[-1].stop_hanging()
        began = world.clock.elapsed()
        async with world.provisioner(timeout=10.0):
            await world.until_provisioned()
            assert world.clock.elapsed() - began > 9, "the deletion may be under way as long as its call can last"
        assert len(world.names()) == 1


async def test_a_volume_that_a_former_process_saved_is_not_deleted_though_our_cache_does_not_have_it():
    async with ProvisionerWorld() as world:
        await begin(world)
        await kill_after_saving(world)
        await world.delete_claim()

        async def hide_volumes(request: HttpRequest) -> HttpResponse | None:
            if request.method != "GET" or not request.path.endswith("/persistentvolumes"):
                return None
            version = (await world.client.list(PERSISTENT_VOLUME)).version
            body = {"kind": "PersistentVolumeList", "metadata": {"resourceVersion": version}, "items": []}
            return HttpResponse(200, {"content-type": "application/json"}, json.dumps(body).encode())

        world.wire.before = hide_volumes
        async with world.provisioner():
            await world.until_journal_is_empty()
        assert len(world.names()) == len(await world.volumes()) == 1
        assert DELETE not in world.calls()


async def test_a_foreign_persistent_volume_under_the_name_does_not_end_the_order_of_a_killed_provisioner():
    async with ProvisionerWorld() as world:
        await begin(world)
        await kill_after_creation(world)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "other.example.com", "volumeHandle": "theirs"},
        }
        await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": world.names()[0]}, "spec": spec})
        async with world.provisioner():
            await world.until_journal_is_empty()
        assert world.names() == []
        assert len(await world.volumes()) == 1


async def test_two_provisioners_at_once_never_leave_two_volumes_and_the_former_stops():
    async with ProvisionerWorld() as world:
        await world.make_class()
        async with world.provisioner():
            await world.make_claim("one")
            await world.until_provisioned()
            async with world.provisioner():
                await world.make_claim("two")
                await world.until_provisioned(2)
                await world.clock.sleep(60)
        assert len(world.names()) == 2


async def test_without_rights_on_leases_claims_are_provisioned_all_the_same():
    async with ProvisionerWorld() as world:
        await begin(world)
        starts = [f"{verb} namespaces/default/leases" for verb in ("GET", "PUT", "POST")]
        world.wire.before = failing(*starts, times=999, answer=NO_RIGHT_TO_LEASES)
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)
        assert world.names() == []
        assert len([line for line in world.log if "journal cannot be kept" in line.message]) == 1


async def test_without_rights_on_leases_any_more_claims_are_provisioned_and_the_journal_is_kept_when_they_are_back():
    async with ProvisionerWorld() as world:
        await world.make_class()
        writes = [f"{verb} namespaces/default/leases" for verb in ("PUT", "POST")]
        async with world.provisioner():
            await world.clock.sleep(1)
            world.wire.before = failing(*writes, times=999, answer=NO_RIGHT_TO_LEASES)
            await world.make_claim("one")
            await world.until_provisioned()
            world.wire.before = held(world, "NONE", "")
            await world.make_claim("two")
            await world.until_provisioned(2)
            await world.until_journal_is_empty()
        assert len(world.names()) == 2
        assert len([line for line in world.log if "journal cannot be kept" in line.message]) == 1
        assert len([line for line in world.log if "can be written again" in line.message]) == 1


async def test_an_order_of_the_time_without_rights_is_in_the_journal_when_they_are_back():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"delay": "120s"}]})
        await world.make_class()
        writes = [f"{verb} namespaces/default/leases" for verb in ("PUT", "POST")]
        async with world.provisioner(timeout=300.0):
            await world.clock.sleep(1)
            world.wire.before = failing(*writes, times=999, answer=NO_RIGHT_TO_LEASES)
            await world.make_claim()
            await world.clock.sleep(5)
            assert await world.journal() == []
            world.wire.before = held(world, "NONE", "")
            await world.clock.sleep(65)
            assert len(await world.journal()) == 1
            await world.until_provisioned()
            await world.until_journal_is_empty()


QUOTA = refusal(
    403,
    "Forbidden",
    'leases.coordination.k8s.io "journal" is forbidden: exceeded quota: few, requested: '
    "count/leases.coordination.k8s.io=1, used: count/leases.coordination.k8s.io=1, limited: "
    "count/leases.coordination.k8s.io=1",
)


@pytest.mark.parametrize("verb", ["POST", "PUT"])
async def test_no_volume_is_made_while_the_journal_is_refused_for_another_reason_than_rights(verb: str):
    async with ProvisionerWorld() as world:
        await begin(world)
        world.wire.before = failing(f"{verb} namespaces/default/leases", times=9999, answer=QUOTA)
        async with world.provisioner():
            await world.clock.sleep(60)
            assert (world.calls(CREATE), await world.volumes()) == ([], [])
            world.wire.before = held(world, "NONE", "")
            await world.until_provisioned()
            await world.until_journal_is_empty()
        assert not [line for line in world.log if "journal cannot be kept" in line.message]


async def test_a_server_that_fails_while_the_journal_is_opened_is_waited_for():
    async with ProvisionerWorld() as world:
        await begin(world)
        world.wire.before = failing("POST namespaces/default/leases", times=3)
        async with world.provisioner():
            await world.until_provisioned()


async def test_a_record_that_cannot_be_written_calls_nothing_and_the_class_is_read_anew():
    async with ProvisionerWorld() as world:
        world.play({})
        await world.make_class(parameters={"type": "old"})
        async with world.provisioner(retry_start=30.0):
            await world.clock.sleep(1)
            world.wire.before = failing(
                "PUT namespaces/default/leases", times=1, answer=refusal(422, "Invalid", "no room")
            )
            await world.make_claim()
            await world.clock.sleep(5)
            assert world.calls() == []
            await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
            await world.make_class(parameters={"type": "new"})
            await world.until_provisioned()
        assert [request.parameters["type"] for request in world.requests(CREATE)] == ["new"]
