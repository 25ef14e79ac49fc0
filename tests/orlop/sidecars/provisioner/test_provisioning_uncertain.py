"""Orders of which a call may have created a volume: no later error ends them, and no claim is stuck on them."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.kube.kinds import SECRET, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from support.provisioning.provisioner_worlds import CREATE, DELETE, NAMESPACE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
FINAL = [
    *("UNKNOWN", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "FAILED_PRECONDITION"),
    *("OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "DATA_LOSS", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"),
]
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
LEFT = "the driver may have it: its id is needed to delete it"


def error(code: str, **rest: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "the driver's reason"}, **rest}


async def ordered(world: ProvisionerWorld, *steps: dict[str, Any], **of_class: Any) -> None:
    world.play({CREATE: list(steps)})
    await world.make_class(**of_class)
    await world.make_claim()


def warnings(world: ProvisionerWorld, part: str) -> list[Any]:
    return [line for line in world.log if line.level.name == "WARNING" and part in repr(line)]


def uncertain_orders(world: ProvisionerWorld) -> str:
    text = world.metrics[-1].render()[0].decode()
    return next(line.split()[1] for line in text.splitlines() if line.startswith("orlop_provisioner_uncertain_orders "))


@pytest.mark.parametrize("code", FINAL)
async def test_a_volume_that_a_call_without_answer_created_is_deleted_though_later_calls_fail_for_good(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error("DEADLINE_EXCEEDED", effect=True), error(code, times=3))
        async with world.provisioner(retry_start=30.0, slow_retry=60.0):
            await world.until_event("ProvisioningFailed")
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])
        assert world.calls() == [CREATE] * 5 + [DELETE]
        assert len(warnings(world, LEFT)) >= 2


@pytest.mark.parametrize("code", FINAL)
async def test_a_volume_of_a_killed_provisioner_is_deleted_though_the_next_ones_are_refused_and_killed(code: str):
    async with ProvisionerWorld() as world:
        await ordered(world, error("DEADLINE_EXCEEDED", effect=True), error(code, times=2))
        async with world.provisioner(retry_start=30.0):
            await world.until_event("ProvisioningFailed")
        await world.delete_claim()
        for calls in (2, 3):
            async with world.provisioner(retry_start=3000.0):

                async def are_made(calls: int = calls) -> bool:
                    return len(world.calls(CREATE)) == calls

                await world.until(are_made)
                await world.clock.sleep(1)
            assert len(await world.journal()) == 1
        async with world.provisioner():
            await world.until_journal_is_empty()
        assert world.names() == []


async def test_a_request_that_can_never_be_right_again_is_repeated_every_five_minutes_logged_and_counted():
    async with ProvisionerWorld() as world:
        await ordered(world, error("DEADLINE_EXCEEDED", effect=True), error("INVALID_ARGUMENT", times=0))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "DeadlineExceeded")
            await world.delete_claim()
            await world.clock.sleep(3600)
            assert 11 <= len(world.calls(CREATE)) <= 15
            assert 11 <= len(warnings(world, LEFT)) <= 13
            assert uncertain_orders(world) == "1.0"
            assert len(await world.journal()) == 1


async def test_an_order_that_ended_is_not_counted_as_uncertain():
    async with ProvisionerWorld() as world:
        await ordered(world, error("DEADLINE_EXCEEDED"), error("INTERNAL"))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "DeadlineExceeded")
            assert uncertain_orders(world) == "1.0"
            await world.until_provisioned()
            await world.until_journal_is_empty()
            await world.clock.sleep(30)
            assert uncertain_orders(world) == "0.0"


async def test_a_class_that_is_corrected_after_a_call_without_answer_is_used():
    async with ProvisionerWorld() as world:
        await ordered(world, error("UNAVAILABLE"), error("INVALID_ARGUMENT", times=2))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "infeasible")
            await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
            await world.make_class(parameters={"type": "right"})
            await world.until_provisioned()
            await world.until_journal_is_empty()
        names = {request.name for request in world.requests(CREATE)}
        assert names == set(world.names())
        assert world.requests(CREATE)[-1].parameters["type"] == "right"


async def exhausted_on_its_first_node(world: ProvisionerWorld, *steps: dict[str, Any]) -> None:
    world.play({CREATE: list(steps)})
    await world.make_class(**LATE)
    for name in ("n1", "n2"):
        await world.make_node(name, zone=name)
    await world.make_claim()
    await world.annotate_claim(selected_node="n1")


async def test_after_a_call_without_answer_an_exhausted_node_is_given_back_and_the_next_one_is_used():
    async with ProvisionerWorld() as world:
        await exhausted_on_its_first_node(world, error("UNAVAILABLE"), error("RESOURCE_EXHAUSTED", times=2))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "code = ResourceExhausted")
            await world.clock.sleep(900)
            assert state.SELECTED_NODE not in (await world.claim())["metadata"]["annotations"]
            assert len(await world.journal()) == 1, "the first call may have created the volume"
            await world.annotate_claim(selected_node="n2")
            await world.until_provisioned()
            await world.until_journal_is_empty()
        assert world.requests(CREATE)[-1].accessibility_requirements.preferred[0].segments["zone"] == "n2"


async def test_a_volume_that_exists_on_the_first_node_after_all_is_found_with_its_own_request():
    async with ProvisionerWorld() as world:
        steps = [error("UNAVAILABLE", effect=True), error("RESOURCE_EXHAUSTED", times=2), error("ALREADY_EXISTS")]
        await exhausted_on_its_first_node(world, *steps)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "code = ResourceExhausted")
            await world.clock.sleep(60)
            await world.annotate_claim(selected_node="n2")
            await world.until_provisioned()
            await world.until_journal_is_empty()
        asked = [each.accessibility_requirements.preferred[0].segments["zone"] for each in world.requests(CREATE)]
        assert asked[-2:] == ["n2", "n1"]
        assert len(world.names()) == len(await world.volumes()) == 1


async def test_the_requests_of_two_nodes_survive_a_restart_and_each_is_tried_when_the_claim_is_gone():
    async with ProvisionerWorld() as world:
        steps = [error("UNAVAILABLE", effect=True), error("RESOURCE_EXHAUSTED", times=2), error("UNAVAILABLE")]
        await exhausted_on_its_first_node(world, *steps)
        async with world.provisioner(retry_start=3.0):
            await world.until_event("ProvisioningFailed", "code = ResourceExhausted")
            await world.clock.sleep(60)
            await world.annotate_claim(selected_node="n2")

            async def are_both_recorded() -> bool:
                return [len(entry.earlier) for entry in await world.journal()] == [1]

            await world.until(are_both_recorded)
            await world.clock.sleep(1)
        await world.delete_claim()
        world.play({CREATE: [error("ALREADY_EXISTS")]})
        async with world.provisioner():
            await world.until_journal_is_empty()
        asked = [each.accessibility_requirements.preferred[0].segments["zone"] for each in world.requests(CREATE)]
        assert asked[-2:] == ["n2", "n1"]
        assert world.names() == []


async def test_an_answer_that_could_not_be_used_is_not_forgotten_after_a_final_error():
    async with ProvisionerWorld() as world:
        nothing = {"answer": {"volume": {}}, "effect": True}
        await ordered(world, nothing, error("INTERNAL", times=2))
        async with world.provisioner(slow_retry=30.0):
            await world.until_event("ProvisioningFailed", "without an id")
            await world.until_event("ProvisioningFailed", "code = Internal")
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert world.names() == []


# ---- errors that are not the driver's --------------------------------------------------------------------------------


async def test_a_volume_whose_response_was_too_large_is_kept_in_the_journal_until_a_response_can_be_read():
    async with ProvisionerWorld() as world:
        large = {"answer": {"volume": {"volumeId": "v", "volumeContext": {"key": "x" * (5 << 20)}}}, "times": 2}
        await ordered(world, large)
        async with world.provisioner(retry_start=30.0):
            await world.until_event("ProvisioningFailed", "code = ResourceExhausted")
            await world.delete_claim()
            assert len(await world.journal()) == 1
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])


async def test_nothing_is_left_of_an_order_that_the_driver_never_got():
    async with ProvisionerWorld() as world:
        world.play({}, driver={"name": "other.example.com"})
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "is not available")
            await world.delete_claim()
            await world.until_journal_is_empty()
            assert uncertain_orders(world) == "0.0"
        assert world.calls() == []


# ---- secrets ---------------------------------------------------------------------------------------------------------

SECRET_KEYS = "csi.storage.k8s.io/provisioner-secret-"


def with_secret(name: str) -> dict[str, str]:
    return {f"{SECRET_KEYS}name": name, f"{SECRET_KEYS}namespace": "${pvc.namespace}"}


async def test_a_volume_whose_secret_went_with_its_claim_is_deleted_without_it():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", key="value")
        await ordered(world, error("DEADLINE_EXCEEDED", effect=True), parameters=with_secret("s"))
        async with world.provisioner(retry_start=30.0):
            await world.until_event("ProvisioningFailed")
            await world.client.delete(SECRET, ObjectName(NAMESPACE, "s"))
            await world.delete_claim()
            await world.until_journal_is_empty()
        assert (world.names(), await world.volumes()) == ([], [])
        assert [dict(each.secrets) for each in world.requests(CREATE)] == [{"key": "value"}, {}]


async def test_a_claim_whose_class_names_another_secret_now_is_not_stuck_on_the_one_that_is_gone():
    async with ProvisionerWorld() as world:
        await world.make_secret("old", key="old")
        await ordered(world, error("DEADLINE_EXCEEDED"), parameters=with_secret("old"))
        async with world.provisioner(retry_start=30.0):
            await world.until_event("ProvisioningFailed", "DeadlineExceeded")
            await world.client.delete(SECRET, ObjectName(NAMESPACE, "old"))
            await world.until_event("ProvisioningFailed", "failed to get secret team/old")
            await world.make_secret("new", key="new")
            await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
            await world.make_class(parameters=with_secret("new"))
            await world.until_provisioned()
            await world.until_journal_is_empty()
        assert [dict(each.secrets) for each in world.requests(CREATE)] == [{"key": "old"}, {"key": "new"}]


async def test_without_its_secret_the_driver_is_never_called_for_a_claim_that_waits():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", key="value")
        await ordered(world, error("DEADLINE_EXCEEDED"), parameters=with_secret("s"))
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "DeadlineExceeded")
            await world.client.delete(SECRET, ObjectName(NAMESPACE, "s"))
            before = len(world.calls())
            await world.clock.sleep(600)
            assert len(world.calls()) <= before + 1
            assert len(await world.journal()) == 1
