"""Deployments: rollouts within their bounds, rollbacks, history, and the conditions that kubectl waits for."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers.workloads.deployment_rules import new_replica_set
from orlop.kube.client import MergePatch
from orlop.kube.kinds import DEPLOYMENT, POD, REPLICA_SET, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, annotations, condition, controller_of, uid
from support.api.api_objects import container, template, workload
from support.workloads.workload_worlds import WorkloadWorld

pytestmark = pytest.mark.virtual_time

REVISION = "deployment.kubernetes.io/revision"


def deployment(name: str = "w", replicas: int = 3, **spec: Any) -> dict[str, Any]:
    return workload(name, replicas=replicas, **spec)


async def status(w: WorkloadWorld, name: str = "w") -> dict[str, Any]:
    found = await w.find(DEPLOYMENT, name)
    assert found is not None
    return found["status"]


async def give_image(w: WorkloadWorld, image: str) -> None:
    await w.merge(DEPLOYMENT, "w", {"spec": {"template": {"spec": {"containers": [container(image=image)]}}}})


async def test_a_deployment_gets_its_replica_set_and_its_pods():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        made = await w.create(DEPLOYMENT, deployment())
        await w.settle(10)
        (owned,) = (await w.client.list(REPLICA_SET)).items
        pods = (await w.client.list(POD)).items
        found = await w.find(DEPLOYMENT, "w")
        assert found is not None

        assert (controller_of(owned) or {})["uid"] == uid(made)
        assert owned["metadata"]["name"] == f"w-{owned['metadata']['labels']['pod-template-hash']}"
        assert annotations(owned)[REVISION] == annotations(found)[REVISION] == "1"
        assert len(pods) == 3
        assert {(controller_of(pod) or {})["uid"] for pod in pods} == {uid(owned)}
        assert {pod["metadata"]["labels"]["app"] for pod in pods} == {"x"}
        shown = {name: value for name, value in found["status"].items() if name != "conditions"}
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 3)
        assert shown == {"observedGeneration": 1, **counts}
        assert (condition(found, "Available") or {})["reason"] == "MinimumReplicasAvailable"
        progressing = condition(found, "Progressing") or {}
        name = owned["metadata"]["name"]
        assert progressing["message"] == f'ReplicaSet "{name}" has successfully progressed.'
        assert await w.events("w") == [
            f"Normal ScalingReplicaSet: Scaled up replica set {name} from 0 to 3",
        ]


async def test_a_rollout_keeps_its_bounds_and_ends_with_the_new_pods_alone():
    async with WorkloadWorld() as w, w.workloads(), w.playing(start_seconds=5.0):
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        await w.create(DEPLOYMENT, deployment(replicas=4, strategy=rolling))
        await w.settle(60)
        await give_image(w, "busybox:2")
        for _ in range(200):
            await w.settle(0.5)
            sets = (await w.client.list(REPLICA_SET)).items
            pods = (await w.client.list(POD)).items
            ready = [pod for pod in pods if pod["status"].get("phase") == "Running" and _stays(pod)]
            assert sum(each["spec"]["replicas"] for each in sets) <= 5
            assert len(ready) >= 4
        images = {pod["spec"]["containers"][0]["image"] for pod in pods}

        assert (len(pods), images) == (4, {"busybox:2"})
        assert sorted((annotations(each)[REVISION], each["spec"]["replicas"]) for each in sets) == [("1", 0), ("2", 4)]


def _stays(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


async def test_recreate_starts_no_new_pod_before_the_last_old_one_is_gone():
    async with WorkloadWorld() as w, w.workloads(), w.playing(end_seconds=20.0):
        await w.create(DEPLOYMENT, deployment(strategy={"type": "Recreate"}))
        await w.settle(60)
        await give_image(w, "busybox:2")
        for _ in range(80):
            await w.settle(0.5)
            found = [pod["spec"]["containers"][0]["image"] for pod in (await w.client.list(POD)).items]
            assert len(set(found)) < 2
        assert found == ["busybox:2"] * 3


async def test_a_rollback_makes_the_old_replica_set_the_newest_again():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(DEPLOYMENT, deployment())
        await w.settle(30)
        (first,) = await w.names(REPLICA_SET)
        await give_image(w, "busybox:2")
        await w.settle(30)
        await give_image(w, "busybox:1")
        await w.settle(30)
        numbers = {
            each["metadata"]["name"]: annotations(each)[REVISION] for each in (await w.client.list(REPLICA_SET)).items
        }

        assert len(numbers) == 2
        assert numbers[first] == "3"
        assert annotations(await w.find(DEPLOYMENT, "w") or {})[REVISION] == "3"


async def test_a_rollout_that_hangs_is_reported_after_its_deadline_and_can_be_taken_back():
    async with WorkloadWorld() as w, w.workloads(), w.playing(broken={"broken:1"}):
        await w.create(DEPLOYMENT, deployment(progressDeadlineSeconds=60))
        await w.settle(30)
        await give_image(w, "broken:1")
        await w.settle(50)
        before = condition(await w.find(DEPLOYMENT, "w") or {}, "Progressing") or {}
        await w.settle(20)
        late = condition(await w.find(DEPLOYMENT, "w") or {}, "Progressing") or {}
        available = (await status(w))["availableReplicas"]
        await give_image(w, "busybox:1")
        await w.settle(30)
        after = condition(await w.find(DEPLOYMENT, "w") or {}, "Progressing") or {}

        assert before["status"] == "True"
        assert (late["status"], late["reason"]) == ("False", "ProgressDeadlineExceeded")
        assert available == 3  # a quarter of three may be unavailable: none
        assert (after["status"], after["reason"]) == ("True", "NewReplicaSetAvailable")


async def test_a_scale_during_a_rollout_is_reached():
    async with WorkloadWorld() as w, w.workloads(), w.playing(start_seconds=5.0):
        await w.create(DEPLOYMENT, deployment(replicas=4))
        await w.settle(60)
        await give_image(w, "busybox:2")
        await w.settle(6)
        await w.client.patch(DEPLOYMENT, _named("w"), MergePatch({"spec": {"replicas": 7}}), subresource="scale")
        await w.settle(120)
        assert (await status(w))["availableReplicas"] == 7
        await w.client.patch(DEPLOYMENT, _named("w"), MergePatch({"spec": {"replicas": 0}}), subresource="scale")
        await w.settle(60)

        assert await w.names(POD) == []
        assert "replicas" not in await status(w)


async def test_a_paused_deployment_is_scaled_and_not_rolled_out():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(DEPLOYMENT, deployment())
        await w.settle(30)
        await w.merge(DEPLOYMENT, "w", {"spec": {"paused": True, "replicas": 5}})
        await give_image(w, "busybox:2")
        await w.settle(30)
        paused = condition(await w.find(DEPLOYMENT, "w") or {}, "Progressing") or {}
        images = {pod["spec"]["containers"][0]["image"] for pod in (await w.client.list(POD)).items}
        await w.merge(DEPLOYMENT, "w", {"spec": {"paused": False}})
        await w.settle(60)

        assert (paused["reason"], images) == ("DeploymentPaused", {"busybox:1"})
        assert (await status(w))["updatedReplicas"] == 5


async def test_no_more_old_replica_sets_are_kept_than_the_history_shall_have():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(DEPLOYMENT, deployment(replicas=1, revisionHistoryLimit=2))
        for number in range(2, 7):
            await w.settle(30)
            await give_image(w, f"busybox:{number}")
        await w.settle(30)
        kept = sorted(int(annotations(each)[REVISION]) for each in (await w.client.list(REPLICA_SET)).items)

        assert kept == [4, 5, 6]


async def test_pods_that_cannot_be_created_are_a_condition_of_the_deployment():
    async with WorkloadWorld() as w, w.workloads():
        await w.create(DEPLOYMENT, deployment(template=_with_account("nobody")))
        await w.settle(5)
        failure = condition(await w.find(DEPLOYMENT, "w") or {}, "ReplicaFailure") or {}
        observed = (await status(w))["observedGeneration"]
        (name,) = await w.names(REPLICA_SET)
        events = await w.events(name)
        await w.create(SERVICE_ACCOUNT, {"metadata": {"name": "nobody"}})
        await w.settle(60)

        assert (failure["status"], failure["reason"], observed) == ("True", "FailedCreate", 1)
        assert "serviceaccount" in failure["message"]
        assert any(each.startswith("Warning FailedCreate: Error creating: ") for each in events)
        assert len(await w.names(POD)) == 3
        assert condition(await w.find(DEPLOYMENT, "w") or {}, "ReplicaFailure") is None


async def test_a_name_that_somebody_else_has_is_not_waited_for():
    async with WorkloadWorld() as w, w.playing():
        made = await w.create(DEPLOYMENT, deployment())
        taken = new_replica_set(made, 1, 3)["metadata"]["name"]
        await w.create(REPLICA_SET, workload(taken, replicas=0))
        async with w.workloads():
            await w.settle(10)

        assert (await status(w))["collisionCount"] == 1
        assert (await status(w))["availableReplicas"] == 3


async def test_all_goes_with_the_deployment_and_pods_stay_where_they_are_orphaned():
    async with WorkloadWorld() as w, w.workloads(), w.playing(), w.collector():
        await w.create(DEPLOYMENT, deployment())
        await w.settle(30)
        (before,) = await w.names(REPLICA_SET)
        await w.remove(DEPLOYMENT, "w", "Orphan")
        await w.settle(30)
        kept = len(await w.names(POD))
        await w.create(DEPLOYMENT, deployment())
        await w.settle(30)
        adopted = await w.names(REPLICA_SET)
        await w.remove(DEPLOYMENT, "w")
        await w.settle(30)

        assert (kept, adopted) == (3, [before])
        assert (await w.names(REPLICA_SET), await w.names(POD)) == ([], [])


def _with_account(name: str) -> dict[str, Any]:
    made = template(app="x")
    return {**made, "spec": {**made["spec"], "serviceAccountName": name}}


def _named(name: str) -> ObjectName:
    return ObjectName("default", name)
