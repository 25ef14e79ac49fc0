"""What follows from each answer of the driver, and from an API server that refuses what was created."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from support.api.api_wires import failing, refusal
from support.provisioning.provisioner_worlds import (
    CREATE,
    DELETE,
    DRIVER,
    NAMESPACE,
    ProvisionerWorld,
)

pytestmark = pytest.mark.virtual_time
FINAL = [
    *("UNKNOWN", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
    *("UNIMPLEMENTED", "INTERNAL", "DATA_LOSS", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"),
]
NOT_FINAL = ["CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "ABORTED"]
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}


def error(code: str, **rest: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "the driver's reason"}, **rest}


async def ordered(world: ProvisionerWorld, *steps: dict[str, Any], **rest: Any) -> None:
    """Make a class, a claim of it, and a driver that takes these steps first."""
    world.play({CREATE: list(steps), **rest})
    await world.make_class()
    await world.make_claim()


# ---- codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", FINAL)
async def test_a_final_error_is_reported_its_order_forgotten_and_the_claim_retried(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error(code))
        async with world.provisioner(retry_start=60.0):
            await world.until_event("ProvisioningFailed", "desc = the driver's reason")
            await world.until_journal_is_empty()
            assert world.calls() == [CREATE]
            await world.until_provisioned()
        assert world.calls() == [CREATE, CREATE]


@pytest.mark.parametrize("code", FINAL)
async def test_after_a_final_error_a_claim_can_be_deleted_and_the_driver_is_not_called_again(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error(code))
        async with world.provisioner(retry_start=60.0):
            await world.until_event("ProvisioningFailed")
            await world.delete_claim()
            await world.clock.sleep(900)
        assert world.calls() == [CREATE]
        assert await world.journal() == []


@pytest.mark.parametrize("code", NOT_FINAL)
async def test_an_error_that_is_not_final_keeps_the_order_and_the_same_request_is_repeated(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error(code, times=3))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "desc = the driver's reason")
            assert len(await world.journal()) == 1
            await world.until_provisioned()
            await world.until_journal_is_empty()
        requests = world.requests(CREATE)
        assert len(requests) == 4
        assert all(request == requests[0] for request in requests)


@pytest.mark.parametrize("code", NOT_FINAL)
async def test_a_volume_that_a_failed_call_created_after_all_is_deleted_when_the_claim_is_gone(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error(code, effect=True))
        async with world.provisioner(retry_start=60.0):
            await world.until_event("ProvisioningFailed")
            assert len(world.names()) == 1
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])


async def test_a_final_error_does_not_end_an_order_while_an_earlier_call_may_still_create_the_volume():
    async with ProvisionerWorld() as world:
        await ordered(world, error("UNAVAILABLE"), error("INTERNAL"))
        async with world.provisioner(timeout=60.0):
            await world.until_event("ProvisioningFailed", "code = Internal")
            await world.delete_claim()
            await world.clock.sleep(20)
            assert len(await world.journal()) == 1, "the first call may still have its effect"
            await world.until_journal_is_empty()
        assert world.calls() == [CREATE, CREATE, CREATE, DELETE]
        assert world.names() == []


async def test_failures_are_retried_at_longer_and_longer_intervals():
    async with ProvisionerWorld() as world:
        await ordered(world, error("INTERNAL", times=0))
        async with world.provisioner(retry_start=1.0, retry_most=60.0):
            await world.clock.sleep(600)
        starts = [call.started for call in world.drivers[-1].calls if call.method == CREATE]
        pauses = [later - earlier for earlier, later in pairwise(starts)]
        assert all(later > earlier * 1.5 for earlier, later in pairwise(pauses[:6]))
        assert 50 < max(pauses) < 80


async def test_an_infeasible_request_is_retried_after_five_minutes():
    async with ProvisionerWorld() as world:
        await ordered(world, error("INVALID_ARGUMENT"))
        async with world.provisioner():
            await world.until_event(
                "ProvisioningFailed",
                "Volume provisioning failed with infeasible error. Retries will be delayed. failed to",
            )
            await world.clock.sleep(290)
            assert world.calls() == [CREATE]
            await world.clock.sleep(20)
            assert world.calls() == [CREATE, CREATE]


async def test_an_infeasible_request_is_retried_at_once_when_the_class_is_created_anew():
    async with ProvisionerWorld() as world:
        await ordered(world, error("INVALID_ARGUMENT"))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "infeasible")
            await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
            await world.make_class(parameters={"type": "right"})
            began = world.clock.elapsed()
            await world.until_provisioned()
            assert world.clock.elapsed() - began < 10
        assert world.requests(CREATE)[-1].parameters["type"] == "right"


async def test_an_exhausted_node_is_given_back_and_nothing_is_called_until_another_is_chosen():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [error("RESOURCE_EXHAUSTED")]})
        await world.make_class(**LATE)
        for name in ("n1", "n2"):
            await world.make_node(name, zone=name)
        await world.make_claim()
        await world.annotate_claim(selected_node="n1")
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "code = ResourceExhausted")
            await world.clock.sleep(900)
            assert state.SELECTED_NODE not in (await world.claim())["metadata"]["annotations"]
            assert world.calls() == [CREATE]
            await world.annotate_claim(selected_node="n2")
            await world.until_provisioned()
        first = world.requests(CREATE)[-1].accessibility_requirements.preferred[0]
        assert first.segments["zone"] == "n2"


async def test_a_node_that_was_chosen_during_the_call_is_not_given_back_for_the_exhausted_one():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"delay": "5s", **error("RESOURCE_EXHAUSTED")}]})
        await world.make_class(**LATE)
        for name in ("n1", "n2"):
            await world.make_node(name, zone=name)
        await world.make_claim()
        await world.annotate_claim(selected_node="n1")
        async with world.provisioner():
            await world.clock.sleep(2)
            await world.annotate_claim(selected_node="n2")
            await world.until_provisioned()
        assert (await world.claim())["metadata"]["annotations"][state.SELECTED_NODE] == "n2"


async def test_an_exhausted_node_is_not_asked_again_though_the_claim_changed_during_the_call():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [{"delay": "5s", **error("RESOURCE_EXHAUSTED", times=0)}]})
        await world.make_class(**LATE)
        await world.make_node("n1", zone="a")
        await world.make_claim()
        await world.annotate_claim(selected_node="n1")
        async with world.provisioner():
            await world.clock.sleep(2)
            await world.annotate_claim(note="changed")
            await world.clock.sleep(1)
            # The claim is reconciled again at once, and the cache shows our own write two seconds later.
            world.wire.before_event = partial(world.clock.sleep, 2.0)
            await world.clock.sleep(600)
        assert world.calls() == [CREATE]


async def test_an_exhausted_driver_without_topology_is_retried():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [error("RESOURCE_EXHAUSTED")]}, capabilities={"plugin": ["CONTROLLER_SERVICE"]})
        await world.make_class(**LATE)
        await world.make_claim()
        await world.annotate_claim(selected_node="n1")
        async with world.provisioner():
            await world.until_provisioned()
        assert (await world.claim())["metadata"]["annotations"][state.SELECTED_NODE] == "n1"


async def test_an_immediate_claim_with_the_alpha_key_is_retried_after_its_driver_was_exhausted():
    async with ProvisionerWorld() as world:
        world.play({CREATE: [error("RESOURCE_EXHAUSTED")]})
        await world.make_class()
        await world.make_claim(annotations={state.ALPHA_SELECTED_NODE: "n0"})
        async with world.provisioner():
            await world.until_provisioned()


async def test_a_claim_whose_cut_name_another_claim_s_volume_has_is_told_so():
    async with ProvisionerWorld() as world:
        await world.make_class()
        first = (await world.make_claim("first"))["metadata"]["uid"]
        async with world.provisioner(volume_name_uuid_length=1):
            (volume,) = await world.until_provisioned()
            await world.until_journal_is_empty()
            number = 0
            while (await world.make_claim(f"data-{number}"))["metadata"]["uid"][0] != first[0]:
                await world.delete_claim(f"data-{number}")
                number += 1
            name = volume["metadata"]["name"]
            await world.until_event("ProvisioningFailed", f"{name} exists and belongs to the claim team/first: delete")
            await world.clock.sleep(60)
        assert world.names().count(name) == 1


# ---- a volume that does not serve the claim --------------------------------------------------------------------------

SMALL = {"answer": {"volume": {"volumeId": "vol-1", "capacityBytes": "1"}}}


async def test_a_volume_that_is_too_small_is_deleted_again_reported_and_retried():
    async with ProvisionerWorld() as world:
        await ordered(world, SMALL)
        async with world.provisioner():
            await world.until_event(
                "ProvisioningFailed", "created volume capacity 1 less than requested capacity 1073741824"
            )
            await world.until_provisioned()
        assert world.calls() == [CREATE, DELETE, CREATE]
        assert len(world.names()) == 1


async def test_a_volume_that_cannot_be_deleted_again_is_deleted_later():
    async with ProvisionerWorld() as world:
        await ordered(world, SMALL, **{DELETE: [error("INTERNAL"), error("DEADLINE_EXCEEDED")]})
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the volume vol-1 cannot be deleted")
            assert len(await world.journal()) == 1
            await world.until_provisioned()
        assert world.calls() == [CREATE, DELETE, DELETE, DELETE, CREATE]


async def test_after_a_deletion_without_an_answer_nothing_is_created_before_its_call_has_ended():
    async with ProvisionerWorld() as world:
        await ordered(world, SMALL, **{DELETE: [error("UNAVAILABLE")]})
        async with world.provisioner(timeout=60.0):
            await world.until_event("ProvisioningFailed", "cannot be deleted")
            await world.until_provisioned()
        (_, unanswered, *later) = [call.started for call in world.drivers[-1].calls if call.method in {CREATE, DELETE}]
        assert len(later) == 2
        assert min(later) - unanswered > 59


async def test_a_claim_that_goes_while_its_unusable_volume_cannot_be_deleted_leaves_nothing():
    async with ProvisionerWorld() as world:
        await ordered(world, SMALL, **{DELETE: [error("INTERNAL", times=3)]})
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "cannot be deleted")
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert world.names() == []


@pytest.mark.parametrize("code", [400, 413, 422])
async def test_a_persistent_volume_that_the_server_refuses_is_undone_reported_and_retried_in_five_minutes(code: int):
    reasons = {400: "BadRequest", 413: "RequestEntityTooLarge", 422: "Invalid"}
    async with ProvisionerWorld() as world:
        await ordered(world)
        world.wire.before = failing("POST persistentvolumes", answer=refusal(code, reasons[code], "no such thing"))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the API server refuses the PersistentVolume pvc-")
            await world.until_journal_is_empty()
            assert world.names() == []
            assert world.calls() == [CREATE, DELETE]
            await world.clock.sleep(290)
            assert world.calls() == [CREATE, DELETE]
            await world.until_provisioned()


@pytest.mark.parametrize("code", [403, 500, 503])
async def test_a_persistent_volume_that_cannot_be_saved_now_keeps_its_volume(code: int):
    reasons = {403: "Forbidden", 500: "InternalError", 503: "ServiceUnavailable"}
    async with ProvisionerWorld() as world:
        await ordered(world)
        world.wire.before = failing("POST persistentvolumes", times=4, answer=refusal(code, reasons[code]))
        async with world.provisioner():
            await world.until_provisioned()
        assert world.calls() == [CREATE]


@pytest.mark.parametrize("request_refused", ["POST persistentvolumes", "PUT namespaces/default/leases"])
async def test_a_claim_whose_volume_the_server_forbids_to_save_or_to_record_is_told_so(request_refused: str):
    async with ProvisionerWorld() as world:
        await world.make_class()
        async with world.provisioner():
            await world.make_claim("first")
            await world.until_provisioned()
            world.wire.before = failing(request_refused, times=3, answer=refusal(403, "Forbidden", "exceeded quota"))
            await world.make_claim()
            await world.until_event("ProvisioningFailed", "the API server refuses a request: exceeded quota")
            await world.until_provisioned(2)
        assert world.calls() == [CREATE, CREATE]


async def test_a_persistent_volume_whose_creation_had_its_effect_without_a_response_is_recognised():
    async with ProvisionerWorld() as world:
        await ordered(world)
        inner = world.on.transport()
        left = 1

        async def lose(request: Any) -> Any:
            nonlocal left
            if request.method == "POST" and request.path.endswith("/persistentvolumes") and left:
                left = 0
                await inner.exchange(request, 60.0)
                return refusal(500, "InternalError", "lost")
            return None

        world.wire.before = lose
        async with world.provisioner():
            await world.until_provisioned()
            await world.until_journal_is_empty()
            await world.clock.sleep(60)
        assert world.calls() == [CREATE]
        assert len(await world.volumes()) == 1


async def test_a_foreign_persistent_volume_under_the_name_is_left_and_the_new_volume_deleted_again():
    async with ProvisionerWorld() as world:
        await ordered(world, {"delay": "5s"})
        uid = (await world.claim())["metadata"]["uid"]
        async with world.provisioner():
            await world.clock.sleep(2)
            spec = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "other.example.com", "volumeHandle": "theirs"},
            }
            await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": f"pvc-{uid}"}, "spec": spec})
            await world.until_event("ProvisioningFailed", "exists and belongs to another volume")
            await world.until_journal_is_empty()
        assert world.names() == []
        (volume,) = await world.volumes()
        assert volume["spec"]["csi"]["volumeHandle"] == "theirs"


# ---- the claim changes meanwhile -------------------------------------------------------------------------------------


async def test_a_claim_that_was_bound_to_another_volume_meanwhile_leaves_no_volume():
    async with ProvisionerWorld() as world:
        await ordered(world, {"delay": "5s"})
        async with world.provisioner():
            await world.clock.sleep(2)
            patch = MergePatch({"spec": {"volumeName": "static"}})
            await world.client.patch(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, "data"), patch)
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])


async def test_a_claim_that_is_being_deleted_during_the_call_gets_its_volume_and_the_binder_releases_it():
    async with ProvisionerWorld() as world:
        await ordered(world, {"delay": "5s"})
        async with world.provisioner():
            await world.clock.sleep(2)
            await world.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, "data"))
            await world.until_provisioned()


async def test_another_driver_on_the_socket_is_never_called_for_our_volumes():
    async with ProvisionerWorld() as world:
        world.play({}, driver={"name": "other.example.com"})
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", f"the driver {DRIVER} is not available")
        assert world.calls() == []
