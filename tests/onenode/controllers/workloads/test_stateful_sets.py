"""StatefulSets: pods in order with names and claims that stay, updates from the top, and claims that go or are kept."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import CONFIG_MAP, CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET
from orlop.kube.objects import ObjectName, controller_of, labels, uid
from support.api.api_objects import config_map, container, named, stateful_set
from support.workloads.workload_worlds import WorkloadWorld, owned_by

pytestmark = pytest.mark.virtual_time

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
ALL_CLAIMS = ["data-w-0", "data-w-1", "data-w-2"]


def with_claims(replicas: int = 3, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"name": "data", "labels": {"l": "m"}}, "spec": CLAIM}
    return stateful_set(replicas=replicas, volumeClaimTemplates=[template], **spec)


async def status(w: WorkloadWorld) -> dict[str, Any]:
    found = await w.find(STATEFUL_SET, "w")
    assert found is not None
    return found["status"]


async def scale(w: WorkloadWorld, replicas: int) -> None:
    patch = MergePatch({"spec": {"replicas": replicas}})
    await w.client.patch(STATEFUL_SET, ObjectName("default", "w"), patch, subresource="scale")


async def give_image(w: WorkloadWorld, image: str) -> None:
    await w.merge(STATEFUL_SET, "w", {"spec": {"template": {"spec": {"containers": [container(image=image)]}}}})


async def images(w: WorkloadWorld) -> list[str]:
    pods = sorted((await w.client.list(POD)).items, key=lambda pod: pod["metadata"]["name"])
    return [pod["spec"]["containers"][0]["image"] for pod in pods]


async def test_pods_come_one_after_another_with_names_and_claims_of_their_own():
    async with WorkloadWorld() as w, w.workloads(), w.playing() as kubelet:
        made = await w.create(STATEFUL_SET, with_claims())
        await w.settle(0.5)
        first = await w.names(POD)
        await w.settle(10)
        pod = await w.find(POD, "w-1")
        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "data-w-1")
        assert pod is not None
        assert claim is not None

        assert (first, kubelet.started) == (["w-0"], ["w-0", "w-1", "w-2"])
        assert await w.names(PERSISTENT_VOLUME_CLAIM) == ALL_CLAIMS
        assert (controller_of(pod) or {})["uid"] == uid(made)
        (revision,) = await w.names(CONTROLLER_REVISION)
        assert labels(pod) == {
            "app": "x",
            "apps.kubernetes.io/pod-index": "1",
            "controller-revision-hash": revision,
            "statefulset.kubernetes.io/pod-name": "w-1",
        }
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("w-1", "x")
        assert pod["spec"]["volumes"][0] == {"name": "data", "persistentVolumeClaim": {"claimName": "data-w-1"}}
        assert labels(claim) == {"l": "m", "app": "x"}
        assert "ownerReferences" not in claim["metadata"]
        counts = dict.fromkeys(
            ("replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas"), 3
        )
        names = {"currentRevision": revision, "updateRevision": revision}
        assert await status(w) == {"observedGeneration": 1, **counts, **names}
        assert await w.events("w") == [
            f"Normal SuccessfulCreate: {text}"
            for number in range(3)
            for text in (
                f"create Claim data-w-{number} Pod w-{number} in StatefulSet w success",
                f"create Pod w-{number} in StatefulSet w successful",
            )
        ]


async def test_no_pod_follows_one_that_is_not_ready():
    async with WorkloadWorld() as w, w.workloads(), w.playing(broken={"busybox:1"}):
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(60)

        assert await w.names(POD) == ["w-0"]
        assert (await status(w))["observedGeneration"] == 1


async def test_pods_of_the_parallel_policy_come_at_once():
    async with WorkloadWorld() as w, w.workloads(), w.playing(broken={"busybox:1"}):
        await w.create(STATEFUL_SET, with_claims(podManagementPolicy="Parallel"))
        await w.settle(1)

        assert await w.names(POD) == ["w-0", "w-1", "w-2"]


async def test_a_set_that_is_scaled_down_loses_its_pods_from_the_top_and_finds_its_claims_again():
    async with WorkloadWorld() as w, w.workloads(), w.playing() as kubelet:
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(10)
        before = {name: uid(await w.find(PERSISTENT_VOLUME_CLAIM, name) or {}) for name in ALL_CLAIMS}
        await scale(w, 0)
        await w.settle(30)
        ended, kept = list(kubelet.ended), await w.names(PERSISTENT_VOLUME_CLAIM)
        await scale(w, 3)
        await w.settle(30)
        after = {name: uid(await w.find(PERSISTENT_VOLUME_CLAIM, name) or {}) for name in ALL_CLAIMS}

        assert (ended, kept) == (["w-2", "w-1", "w-0"], ALL_CLAIMS)
        assert await w.names(POD) == ["w-0", "w-1", "w-2"]
        assert before == after


async def test_a_set_that_is_deleted_and_made_again_finds_its_claims_again():
    async with WorkloadWorld() as w, w.workloads(), w.collector(), w.protection(), w.playing():
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(10)
        before = {name: uid(await w.find(PERSISTENT_VOLUME_CLAIM, name) or {}) for name in ALL_CLAIMS}
        await w.remove(STATEFUL_SET, "w")
        await w.settle(30)
        gone = await w.names(POD)
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(30)
        after = {name: uid(await w.find(PERSISTENT_VOLUME_CLAIM, name) or {}) for name in ALL_CLAIMS}

        assert gone == []
        assert await w.names(POD) == ["w-0", "w-1", "w-2"]
        assert before == after


@pytest.mark.parametrize("deleted", ["Retain", "Delete"])
@pytest.mark.parametrize("scaled", ["Retain", "Delete"])
async def test_claims_are_kept_or_go_as_the_policy_says(deleted: str, scaled: str):
    policy = {"whenDeleted": deleted, "whenScaled": scaled}
    async with WorkloadWorld() as w, w.workloads(), w.collector(), w.protection(), w.playing():
        await w.create(STATEFUL_SET, with_claims(persistentVolumeClaimRetentionPolicy=policy))
        await w.settle(10)
        await scale(w, 2)
        await w.settle(60)
        left = ALL_CLAIMS if scaled == "Retain" else ALL_CLAIMS[:2]
        assert await w.names(PERSISTENT_VOLUME_CLAIM) == left
        await w.remove(STATEFUL_SET, "w")
        await w.settle(60)

        assert await w.names(PERSISTENT_VOLUME_CLAIM) == ([] if deleted == "Delete" else left)
        assert await w.names(POD) == []


async def test_a_claim_of_another_controller_is_left_to_it():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        owner = await w.create(CONFIG_MAP, config_map("o"))
        await w.create(
            PERSISTENT_VOLUME_CLAIM, owned_by(owner, CONFIG_MAP, named("data-w-0", spec=CLAIM), controller=True)
        )
        policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
        await w.create(STATEFUL_SET, with_claims(2, persistentVolumeClaimRetentionPolicy=policy))
        await w.settle(10)
        theirs, ours = [await w.find(PERSISTENT_VOLUME_CLAIM, f"data-w-{number}") or {} for number in range(2)]

        assert [each["kind"] for each in theirs["metadata"]["ownerReferences"]] == ["ConfigMap"]
        assert (controller_of(ours) or {})["kind"] == "StatefulSet"


async def test_a_policy_that_changes_applies_to_claims_that_are_there():
    async with WorkloadWorld() as w, w.workloads(), w.collector(), w.protection(), w.playing():
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(10)
        for policy in ("Delete", "Retain", "Delete"):
            spec = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy, "whenScaled": "Retain"}}
            await w.merge(STATEFUL_SET, "w", {"spec": spec})
            await w.settle(5)
            claim = await w.find(PERSISTENT_VOLUME_CLAIM, "data-w-0") or {}
            assert bool(claim["metadata"].get("ownerReferences")) == (policy == "Delete")
        await w.remove(STATEFUL_SET, "w")
        await w.settle(60)

        assert await w.names(PERSISTENT_VOLUME_CLAIM) == []


async def test_a_claim_that_is_being_deleted_holds_its_pod_back():
    async with WorkloadWorld() as w, w.workloads(), w.playing(), w.protection():
        await w.create(PERSISTENT_VOLUME_CLAIM, named("data-w-0", spec=CLAIM) | _finalized("data-w-0"))
        await w.remove(PERSISTENT_VOLUME_CLAIM, "data-w-0")
        await w.create(STATEFUL_SET, with_claims(1))
        await w.settle(30)
        held = await w.names(POD)
        await w.merge(PERSISTENT_VOLUME_CLAIM, "data-w-0", {"metadata": {"finalizers": None}})
        await w.settle(30)
        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "data-w-0") or {}

        assert (held, await w.names(POD)) == ([], ["w-0"])
        assert "deletionTimestamp" not in claim["metadata"]


def _finalized(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "finalizers": ["example.com/held"]}}


async def test_an_update_replaces_one_pod_at_a_time_from_the_top():
    async with WorkloadWorld() as w, w.workloads(), w.playing() as kubelet:
        await w.create(STATEFUL_SET, with_claims())
        await w.settle(10)
        kubelet.started.clear()
        await give_image(w, "busybox:2")
        await w.settle(1)
        during = await status(w)
        await w.settle(30)
        after = await status(w)

        assert kubelet.ended == kubelet.started == ["w-2", "w-1", "w-0"]
        assert await images(w) == ["busybox:2"] * 3
        assert during["currentRevision"] != during["updateRevision"]
        assert after["currentRevision"] == after["updateRevision"] == during["updateRevision"]
        assert after["currentReplicas"] == 3


async def test_pods_below_the_partition_keep_their_revision_also_when_they_are_made_again():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
        await w.create(STATEFUL_SET, with_claims(updateStrategy=rolling))
        await w.settle(10)
        await give_image(w, "busybox:2")
        await w.settle(30)
        await w.remove(POD, "w-0")
        await w.settle(30)
        assert await images(w) == ["busybox:1", "busybox:1", "busybox:2"]
        await w.merge(STATEFUL_SET, "w", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
        await w.settle(60)

        assert await images(w) == ["busybox:2"] * 3


async def test_of_the_strategy_on_delete_only_pods_that_somebody_deletes_are_new():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(STATEFUL_SET, with_claims(updateStrategy={"type": "OnDelete"}))
        await w.settle(10)
        await give_image(w, "busybox:2")
        await w.settle(30)
        before = await images(w)
        await w.remove(POD, "w-1")
        await w.settle(30)

        assert (before, await images(w)) == (["busybox:1"] * 3, ["busybox:1", "busybox:2", "busybox:1"])


async def test_a_template_that_comes_back_is_its_old_revision_with_the_next_number():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(STATEFUL_SET, with_claims(1, revisionHistoryLimit=1))
        await w.settle(10)
        (first,) = await w.names(CONTROLLER_REVISION)
        await give_image(w, "busybox:2")
        await w.settle(10)
        await give_image(w, "busybox:1")
        await w.settle(10)
        found = {
            each["metadata"]["name"]: each["revision"] for each in (await w.client.list(CONTROLLER_REVISION)).items
        }
        for number in (3, 4, 5):
            await give_image(w, f"busybox:{number}")
            await w.settle(10)

        assert sorted(found.values()) == [2, 3]
        assert found[first] == 3
        assert sorted(each["revision"] for each in (await w.client.list(CONTROLLER_REVISION)).items) == [5, 6]


async def test_a_revision_that_somebody_holds_is_deleted_once():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(STATEFUL_SET, with_claims(1, revisionHistoryLimit=0))
        await w.settle(10)
        (first,) = await w.names(CONTROLLER_REVISION)
        await w.merge(CONTROLLER_REVISION, first, {"metadata": {"finalizers": ["example.com/held"]}})
        await give_image(w, "busybox:2")
        await w.settle(30)

        held = await w.find(CONTROLLER_REVISION, first) or {}
        assert "deletionTimestamp" in held["metadata"]
        assert (await status(w))["updatedReplicas"] == 1


async def test_a_pod_that_has_ended_is_made_again_under_its_name():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(STATEFUL_SET, with_claims(1))
        await w.settle(10)
        before = uid(await w.find(POD, "w-0") or {})
        await w.merge(POD, "w-0", {"status": {"phase": "Failed"}}, "status")
        await w.settle(10)

        assert uid(await w.find(POD, "w-0") or {}) != before
        assert "Warning RecreatingFailedPod: StatefulSet default/w is recreating failed Pod w-0" in await w.events("w")


async def test_minimum_seconds_of_readiness_come_before_the_next_pod():
    async with WorkloadWorld() as w, w.workloads(), w.playing():
        await w.create(STATEFUL_SET, with_claims(2, minReadySeconds=30))
        await w.settle(20)
        early = (await w.names(POD), (await status(w))["readyReplicas"], (await status(w))["availableReplicas"])
        await w.settle(60)

        assert early == (["w-0"], 1, 0)
        assert (await status(w))["availableReplicas"] == 2


async def test_ordinals_begin_where_the_set_says():
    async with WorkloadWorld() as w, w.workloads(), w.playing() as kubelet:
        await w.create(STATEFUL_SET, with_claims(2, ordinals={"start": 5}))
        await w.settle(10)

        assert kubelet.started == ["w-5", "w-6"]
