"""ReplicaSets: as many pods as wanted, taken and released by their labels, and the least useful deleted first."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers.workloads.replica_set_rules import first_to_delete
from orlop.kube.kinds import POD, REPLICA_SET
from orlop.kube.objects import controller_of, uid
from support.api.api_objects import labelled, pod, workload
from support.workloads.workload_worlds import WorkloadWorld

T = "2026-01-01T00:00:%02dZ"


@pytest.mark.virtual_time
async def test_lost_pods_are_replaced_and_surplus_ones_deleted():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(REPLICA_SET, workload(replicas=5))
        await w.settle(10)
        lost = (await w.names(POD))[0]
        await w.delete(POD, lost)
        await w.settle(10)
        after_loss = await w.names(POD)
        await w.merge(REPLICA_SET, "w", {"spec": {"replicas": 2}})
        await w.settle(10)
        found = await w.find(REPLICA_SET, "w") or {}

        assert len(after_loss) == 5
        assert lost not in after_loss
        assert len(await w.names(POD)) == 2
        counts = ("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
        assert found["status"] == {"observedGeneration": 2, **dict.fromkeys(counts, 2)}


@pytest.mark.virtual_time
async def test_a_pod_that_fits_is_adopted_and_one_that_no_longer_does_is_released_and_replaced():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(POD, labelled(pod("mine"), app="x"))
        await w.create(POD, labelled(pod("other"), app="y"))
        made = await w.create(REPLICA_SET, workload(replicas=2))
        await w.settle(10)
        adopted = await w.find(POD, "mine") or {}
        pods = await w.names(POD)
        await w.merge(POD, "mine", {"metadata": {"labels": {"app": "debug"}}})
        await w.settle(10)
        released = await w.find(POD, "mine") or {}

        assert len(pods) == 3
        assert (controller_of(adopted) or {})["uid"] == uid(made)
        assert "ownerReferences" not in released["metadata"]
        assert len(await w.names(POD)) == 4
        assert controller_of(await w.find(POD, "other") or {}) is None


@pytest.mark.virtual_time
async def test_a_pod_of_another_controller_is_left_alone():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(REPLICA_SET, workload("first", replicas=2))
        await w.settle(10)
        before = await w.names(POD)
        await w.create(REPLICA_SET, workload("second", replicas=1))
        await w.settle(10)

        assert set(before) < set(await w.names(POD))
        assert len(await w.names(POD)) == 3


def one(name: str, phase: str = "Running", node: str = "n", **more: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": T % more.get("since", 0)}
    status = {"phase": phase, "conditions": [ready] if more.get("ready", True) else []}
    restarts = [{"restartCount": more.get("restarts", 0)}]
    cost = {"controller.kubernetes.io/pod-deletion-cost": str(more.get("cost", 0))}
    metadata = {"name": name, "annotations": cost, "creationTimestamp": T % more.get("created", 0)}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {**status, "containerStatuses": restarts}}


ORDER = [
    one("no node", node=""),
    one("pending", phase="Pending"),
    one("not ready", ready=False),
    one("cheap", cost=-1),
    one("ready for less time", since=9),
    one("restarted", restarts=3),
    one("younger", created=5),
    one("older"),
    one("dear", cost=9),
]


def test_the_pods_with_which_the_least_is_lost_go_first():
    assert first_to_delete(reversed(ORDER)) == ORDER
    assert first_to_delete(ORDER) == ORDER
