"""The claims of generic ephemeral volumes: created for their pod, deleted with it, and never somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import controller_of, labels, uid
from support.api.api_objects import claim, pod
from support.api.api_wires import Wire, failing, refusal
from support.workloads.workload_worlds import WorkloadWorld

pytestmark = pytest.mark.virtual_time

CLASH = "ephemeral volume data: PVC default/p-data was not created for pod default/p (pod is not owner)"


def ephemeral_pod(name: str = "p", *volumes: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}}, "spec": spec}
    made = [{"name": each, "ephemeral": {"volumeClaimTemplate": template}} for each in volumes or ("data",)]
    return pod(name, volumes=made)


async def test_each_ephemeral_volume_gets_a_claim_that_its_pod_controls():
    async with WorkloadWorld() as w, w.ephemeral():
        made = await w.create(POD, ephemeral_pod("p", "data", "logs"))
        await w.settle()
        found = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")

        assert await w.names(PERSISTENT_VOLUME_CLAIM) == ["p-data", "p-logs"]
        assert found is not None
        owner = controller_of(found) or {}
        assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("Pod", uid(made), True)
        assert labels(found) == {"app": "x"}
        assert found["metadata"]["annotations"]["a"] == "b"
        assert found["spec"]["resources"] == {"requests": {"storage": "1Gi"}}


async def test_the_claim_goes_with_its_pod_and_a_pod_of_the_same_name_gets_one_of_its_own():
    async with WorkloadWorld() as w, w.ephemeral(), w.collector(), w.protection():
        await w.create(POD, ephemeral_pod())
        await w.settle()
        before = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")
        await w.delete(POD, "p")
        again = await w.create(POD, ephemeral_pod())
        await w.settle(60)
        after = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")
        await w.delete(POD, "p")
        await w.settle(60)

        assert before is not None
        assert after is not None
        assert uid(before) != uid(after)
        assert (controller_of(after) or {})["uid"] == uid(again)
        assert await w.names(PERSISTENT_VOLUME_CLAIM) == []


async def test_a_claim_that_is_deleted_while_its_pod_lives_is_created_again():
    async with WorkloadWorld() as w, w.ephemeral(), w.protection():
        await w.create(POD, ephemeral_pod())
        await w.settle()
        before = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "p-data")
        await w.settle()
        after = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")

        assert before is not None
        assert after is not None
        assert uid(before) != uid(after)


async def test_a_claim_that_the_pod_does_not_control_is_left_alone_and_named_in_an_event():
    async with WorkloadWorld() as w, w.ephemeral(), w.protection():
        foreign = await w.create(PERSISTENT_VOLUME_CLAIM, claim("p-data"))
        await w.create(POD, ephemeral_pod())
        await w.settle(60)
        held = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")
        told = await w.events("p")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "p-data")
        await w.settle(120)
        own = await w.find(PERSISTENT_VOLUME_CLAIM, "p-data")

        assert held is not None
        assert uid(held) == uid(foreign)
        assert f"Warning FailedBinding: {CLASH}" in told
        assert own is not None
        assert controller_of(own) is not None


async def test_create_conflict_a_claim_that_cannot_be_created_is_reported_and_tried_again():
    async with WorkloadWorld() as w:
        conflict = refusal(409, "Conflict", "fake conflict")
        wire = Wire(failing("POST namespaces/default/persistentvolumeclaims", times=2, answer=conflict))
        async with w.ephemeral(wire.around(w.transport())):
            await w.create(POD, ephemeral_pod())
            await w.settle(60)

        assert "Warning FailedBinding: ephemeral volume data: create PVC default/p-data: fake conflict" in (
            await w.events("p")
        )
        assert await w.names(PERSISTENT_VOLUME_CLAIM) == ["p-data"]


async def test_of_two_pods_whose_names_make_one_claim_the_second_gets_none_and_the_reason():
    """`p` with the volume `b-c` and `p-b` with the volume `c`."""
    async with WorkloadWorld() as w, w.ephemeral():
        first = await w.create(POD, ephemeral_pod("p", "b-c"))
        await w.settle()
        await w.create(POD, ephemeral_pod("p-b", "c"))
        await w.settle(60)
        found = await w.find(PERSISTENT_VOLUME_CLAIM, "p-b-c") or {}

        assert (controller_of(found) or {})["uid"] == uid(first)
        reason = "ephemeral volume c: PVC default/p-b-c was not created for pod default/p-b (pod is not owner)"
        assert f"Warning FailedBinding: {reason}" in await w.events("p-b")


async def test_a_pod_that_is_being_deleted_gets_no_claim():
    async with WorkloadWorld() as w:
        made = ephemeral_pod()
        held = {**made, "metadata": {**made["metadata"], "finalizers": ["example.com/held"]}}
        await w.create(POD, held)
        await w.delete(POD, "p")
        async with w.ephemeral():
            await w.settle(60)

        assert await w.names(PERSISTENT_VOLUME_CLAIM) == []
