"""Released volumes go away, once each; everything else stays."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.foundation.structured_log import Level
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.api.api_wires import Wire, failing, refusal
from support.provisioning.provisioner_worlds import (
    CREATE,
    DELETE,
    DRIVER,
    ProvisionerWorld,
)

pytestmark = pytest.mark.virtual_time
Object = dict[str, Any]


async def static_volume(world: ProvisionerWorld, name: str = "static", **spec: Any) -> Object:
    """Create a PersistentVolume of the driver that nobody provisioned, and its volume."""
    world.storage.add_volume(f"handle-{name}", 1 << 30)
    whole = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": DRIVER, "volumeHandle": f"handle-{name}"},
        "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"namespace": "team", "name": "data", "uid": "gone"},
        **spec,
    }
    return await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": whole})


async def provisioned(world: ProvisionerWorld) -> str:
    await world.make_class()
    await world.make_claim()
    async with world.provisioner():
        (volume,) = await world.until_provisioned()
        await world.until_journal_is_empty()
    await world.set_phase(volume["metadata"]["name"], "Bound")
    return str(volume["metadata"]["name"])


async def volume(world: ProvisionerWorld, name: str) -> Object | None:
    return await world.get(PERSISTENT_VOLUME, name)


async def change_policy(world: ProvisionerWorld, name: str, policy: str) -> None:
    patch = MergePatch({"spec": {"persistentVolumeReclaimPolicy": policy}})
    await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)


async def test_many_released_volumes_are_deleted_with_one_call_each():
    async with ProvisionerWorld() as world:
        for number in range(50):
            await static_volume(world, f"static-{number}")
            await world.release(f"static-{number}")
        async with world.provisioner():
            await world.until_provisioned(0)
        assert world.names() == []
        assert world.calls() == [DELETE] * 50


async def test_a_volume_that_is_released_while_nobody_runs_is_deleted_later():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        await world.release(name)
        async with world.provisioner():
            await world.until_provisioned(0)
        assert (world.names(), world.calls()) == ([], [CREATE, DELETE])


@pytest.mark.parametrize("policy", ["Retain", "Recycle"])
async def test_a_volume_that_is_to_be_kept_is_kept_and_its_finalizer_removed(policy: str):
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        await change_policy(world, name, policy)
        await world.release(name)
        async with world.provisioner():
            await world.clock.sleep(600)
        found = await volume(world, name)
        assert found is not None
        assert FINALIZER not in found["metadata"].get("finalizers", [])
        assert len(world.names()) == 1
        assert DELETE not in world.calls()


async def test_a_kept_volume_is_deleted_when_its_policy_becomes_delete():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        await change_policy(world, name, "Retain")
        await world.release(name)
        async with world.provisioner():
            await world.clock.sleep(60)
            await change_policy(world, name, "Delete")
            await world.until_provisioned(0)
        assert world.names() == []


async def test_a_volume_whose_policy_becomes_retain_while_it_cannot_be_deleted_is_kept():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        world.play({DELETE: [{"error": {"code": "INTERNAL", "message": "busy"}, "times": 0}]})
        async with world.provisioner():
            await world.release(name)
            await world.until_event("VolumeFailedDelete")
            await change_policy(world, name, "Retain")
            await world.clock.sleep(5)
            calls = len(world.calls(DELETE))
            await world.clock.sleep(900)
            assert len(world.calls(DELETE)) == calls
        assert len(world.names()) == 1


async def test_a_failed_deletion_is_reported_on_the_volume_and_retried():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        world.play({DELETE: [{"error": {"code": "FAILED_PRECONDITION", "message": "in use"}, "times": 3}]})
        async with world.provisioner():
            await world.release(name)
            await world.until_provisioned(0)
        assert "VolumeFailedDelete: rpc error: code = FailedPrecondition desc = in use" in await world.events()
        assert world.calls(DELETE) == [DELETE] * 4
        assert world.names() == []


async def test_a_volume_that_is_gone_already_in_the_driver_is_deleted_all_the_same():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        for each in world.storage.volumes:
            world.storage.volumes.remove(each.id)
        async with world.provisioner():
            await world.release(name)
            await world.until_provisioned(0)


async def test_a_volume_that_another_object_needs_is_kept_until_that_one_is_gone():
    async with ProvisionerWorld() as world:
        await static_volume(world, "old")
        of_old = {"driver": DRIVER, "volumeHandle": "handle-old"}
        await static_volume(world, "new", csi=of_old, claimRef={"namespace": "b", "name": "data", "uid": "lives"})
        await world.set_phase("new", "Bound")
        await world.release("old")
        async with world.provisioner():
            await world.clock.sleep(600)
            kept, events = DELETE not in world.calls(), [each["note"] for each in await world.event_objects()]

            await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, "new"))
            await world.release("new")
            await world.until_provisioned(0)

        assert kept
        assert any("the PersistentVolume new has the same volume handle-old" in each for each in events)
        assert "handle-old" not in world.names()


async def test_an_attached_volume_waits_until_it_is_detached():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        source = {"persistentVolumeName": name}
        spec = {"attacher": DRIVER, "nodeName": "n1", "source": source}
        await world.client.create(VOLUME_ATTACHMENT, {"metadata": {"name": "va"}, "spec": spec})
        async with world.provisioner(retry_start=300.0):
            await world.release(name)
            await world.clock.sleep(600)
            assert DELETE not in world.calls()
            # Every volume is attached for a moment after its pod and claim are deleted: that is no failure.
            assert not [event for event in await world.events() if event.startswith("VolumeFailedDelete")]
            assert not [entry for entry in world.log if entry.level is Level.WARNING]
            await world.client.delete(VOLUME_ATTACHMENT, ObjectName(None, "va"))
            began = world.clock.elapsed()
            await world.until_provisioned(0)
            assert world.clock.elapsed() - began < 10
        assert world.names() == []


async def test_a_driver_that_does_not_attach_waits_for_no_attachment():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        world.play({}, capabilities={"controller": ["CREATE_DELETE_VOLUME"]})
        spec = {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": name}}
        await world.client.create(VOLUME_ATTACHMENT, {"metadata": {"name": "va"}, "spec": spec})
        async with world.provisioner():
            await world.release(name)
            await world.until_provisioned(0)


async def test_the_volume_of_a_force_deleted_claim_is_deleted_once_when_no_pod_has_it_attached():
    """The binder releases it at once, whatever pods still use it: only its attachment shows that one does."""
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        await world.bind("data", name)
        spec = {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": name}}
        await world.client.create(VOLUME_ATTACHMENT, {"metadata": {"name": "va"}, "spec": spec})
        async with world.provisioner():
            await world.delete_claim()
            await world.release(name)
            await world.clock.sleep(600)
            assert (len(world.names()), world.calls(DELETE)) == (1, [])
            await world.client.delete(VOLUME_ATTACHMENT, ObjectName(None, "va"))
            await world.until_provisioned(0)
        assert (world.names(), world.calls()) == ([], [CREATE, DELETE])


async def test_a_driver_that_does_not_attach_refuses_to_delete_the_volume_of_a_force_deleted_claim_while_it_is_used():
    """No attachment shows the use: the call is made, the driver's refusal is reported, and the volume stays."""
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        await world.bind("data", name)
        in_use = {"error": {"code": "FAILED_PRECONDITION", "message": "published on n0"}, "times": 2}
        world.play({DELETE: [in_use]}, capabilities={"controller": ["CREATE_DELETE_VOLUME"]})
        async with world.provisioner():
            await world.delete_claim()
            await world.release(name)
            await world.until_event("VolumeFailedDelete", "published on n0")
            assert len(world.names()) == len(await world.volumes()) == 1
            await world.until_provisioned(0)
        assert (world.names(), world.calls(DELETE)) == ([], [DELETE] * 3)


async def test_a_claim_force_deleted_while_its_volume_is_created_leaves_no_volume():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"delay": "5s"}]})
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():

            async def is_called() -> bool:
                return CREATE in world.calls()

            await world.until(is_called)
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes(), world.calls()) == ([], [], [CREATE, DELETE])


async def test_a_volume_whose_object_is_deleted_before_its_claim_is_deleted_when_it_is_released():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        async with world.provisioner():
            await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, name))
            await world.clock.sleep(60)
            assert len(world.names()) == 1
            assert (await volume(world, name) or {})["metadata"]["deletionTimestamp"]
            await world.release(name)
            await world.until_provisioned(0)
        assert (world.names(), world.calls()) == ([], [CREATE, DELETE])


async def test_a_static_volume_of_the_driver_gets_the_finalizer_when_it_is_bound_and_is_deleted_when_released():
    async with ProvisionerWorld() as world:
        await static_volume(world)
        async with world.provisioner():
            await world.set_phase("static", "Bound")

            async def is_protected() -> bool:
                return FINALIZER in ((await volume(world, "static")) or {})["metadata"].get("finalizers", [])

            await world.until(is_protected)
            await world.release("static")
            await world.until_provisioned(0)
        assert world.names() == []


async def test_the_finalizer_comes_back_to_a_bound_volume():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        async with world.provisioner():
            patch = MergePatch({"metadata": {"finalizers": [state.PV_PROTECTION]}})
            await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)

            async def is_protected() -> bool:
                return FINALIZER in ((await volume(world, name)) or {})["metadata"]["finalizers"]

            await world.until(is_protected)


@pytest.mark.parametrize("phase", ["Released", "Bound"])
async def test_volumes_of_other_drivers_are_not_touched(phase: str):
    async with ProvisionerWorld() as world:
        await static_volume(world, csi={"driver": "other.example.com", "volumeHandle": "handle-static"})
        await world.set_phase("static", phase)
        before = await volume(world, "static")
        async with world.provisioner():
            await world.clock.sleep(600)
        assert await volume(world, "static") == before
        assert world.calls() == []


async def test_an_object_that_cannot_be_deleted_at_once_costs_no_second_call():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        refused = failing(
            "DELETE persistentvolumes", "PATCH persistentvolumes", times=4, answer=refusal(403, "Forbidden")
        )
        world.wire.before = refused
        async with world.provisioner():
            await world.release(name)
            await world.until_provisioned(0)
        assert world.calls(DELETE) == [DELETE]


@pytest.mark.parametrize("request_refused", ["DELETE persistentvolumes", "PATCH persistentvolumes"])
async def test_an_object_that_the_server_forbids_to_delete_is_reported(request_refused: str):
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        world.wire.before = failing(request_refused, times=3, answer=refusal(403, "Forbidden", "denied by a webhook"))
        async with world.provisioner():
            await world.release(name)
            await world.until_event("VolumeFailedDelete", "the API server refuses a request: denied by a webhook")
            await world.until_provisioned(0)
        assert world.calls(DELETE) == [DELETE]


async def test_an_object_that_changes_under_the_deletion_is_read_again():
    async with ProvisionerWorld() as world:
        name = await provisioned(world)
        left = 3

        async def touch(request: Any) -> None:
            nonlocal left
            if request.method in {"PATCH", "DELETE"} and name in request.path and left:
                left -= 1
                patch = MergePatch({"metadata": {"labels": {"touched": str(left)}}})
                await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)

        world.wire.before = touch
        async with world.provisioner():
            await world.release(name)
            await world.until_provisioned(0)
        assert world.calls(DELETE) == [DELETE]


async def test_a_volume_is_not_deleted_while_a_call_may_still_create_it():
    async with ProvisionerWorld() as world:
        await world.make_class()
        # The first call creates the volume late, after its caller has given up.
        world.play({CREATE: [{"error": {"code": "UNAVAILABLE", "message": "x"}, "effect": True}]})
        await world.make_claim()
        async with world.provisioner(timeout=30.0):
            (found,) = await world.until_provisioned()
            began = world.clock.elapsed()
            await world.release(found["metadata"]["name"])
            await world.until_provisioned(0)
            assert world.clock.elapsed() - began > 20
        assert world.names() == []


async def test_a_new_object_of_the_name_is_not_deleted_for_the_one_before():
    """Its volume was not deleted."""
    async with ProvisionerWorld() as world:
        await static_volume(world)
        await world.release("static")

        async def replaced(request: HttpRequest) -> None:
            if request.method == "DELETE" and request.path.endswith("/persistentvolumes/static"):
                world.wire.before = Wire().before
                await world.client.delete(PERSISTENT_VOLUME, ObjectName(None, "static"))
                await static_volume(world, persistentVolumeReclaimPolicy="Retain")

        world.wire.before = replaced
        async with world.provisioner():
            await world.clock.sleep(60)
        found = await volume(world, "static")
        assert found is not None
        assert "deletionTimestamp" not in found["metadata"]
        assert world.calls() == [DELETE]
