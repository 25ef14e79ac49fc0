"""fsGroup, node affinity, attachments and tokens: what a CSIDriver, a volume and a pod decide together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onenode.kubelet.volumes.steps.csi_request_rules import CsiDriverFacts, StepFacts, driver_facts
from onenode.kubelet.volumes.steps.fs_group import NoPolicy, check_policy, group_to_apply
from onenode.kubelet.volumes.steps.mount_preconditions import is_allowed_on
from onenode.kubelet.volumes.volume_values import DesiredMount, Lifecycle, PodFacts, VolumeSpec, attachment_name
from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE as NODE_KIND
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, uid
from orlop.testing.kill_points import KillMoment
from support.kubelet.volume_worlds import DRIVER, NODE_NAME, VolumeWorld

POD = PodFacts("u1", ObjectName("ns1", "web-0"), fs_group=2000)
INLINE = VolumeSpec("scratch", "d", "h", Lifecycle.EPHEMERAL)
ONCE = VolumeSpec("pv", "d", "h", Lifecycle.PERSISTENT, fs_type="xfs", access_modes=("ReadWriteOnce",))
MANY = replace(ONCE, access_modes=("ReadWriteMany",))


def applied(spec: VolumeSpec, policy: str, *capabilities: str, pod: PodFacts = POD, **options: Any) -> bool:
    mount = DesiredMount("v", spec, pod, ("x",), **options)
    return group_to_apply(mount, StepFacts(frozenset(capabilities), CsiDriverFacts(fs_group_policy=policy))) is not None


DEFAULT = "ReadWriteOnceWithFSType"


@pytest.mark.parametrize(
    ("spec", "policy", "expected"),
    [
        (ONCE, DEFAULT, True),
        (MANY, DEFAULT, False),
        (replace(ONCE, fs_type=""), DEFAULT, False),
        (INLINE, DEFAULT, False),
        (replace(INLINE, fs_type="ext4"), DEFAULT, True),
        (MANY, "File", True),
        (INLINE, "File", True),
        (ONCE, "None", False),
    ],
)
def test_the_drivers_policy_decides_whether_files_are_given_to_the_group(
    spec: VolumeSpec, policy: str, *, expected: bool
):
    assert applied(spec, policy) is expected
    assert not applied(spec, policy, read_only=True)
    assert not applied(spec, policy, "VOLUME_MOUNT_GROUP")
    assert not applied(spec, policy, pod=replace(POD, fs_group=None))


def test_a_driver_object_without_a_policy_is_refused_and_no_object_is_not():
    with pytest.raises(NoPolicy, match="expected valid fsGroupPolicy, received nil value or empty string"):
        check_policy(StepFacts(frozenset(), driver_facts({"spec": {}})))
    check_policy(StepFacts(frozenset(), driver_facts(None)))


NODE = {"metadata": {"name": "n1", "labels": {"zone": "a", "size": "5"}}}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "disk", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "zone", "operator": "Nonsense"}, False),
    ],
)
def test_a_nodes_labels_are_matched_as_the_scheduler_does(expression: Any, *, expected: bool):
    assert is_allowed_on({"nodeSelectorTerms": [{"matchExpressions": [expression]}]}, NODE) is expected


def test_one_term_is_enough_and_an_empty_one_matches_nothing():
    ours = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    other = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}

    assert is_allowed_on({"nodeSelectorTerms": [other, ours]}, NODE)
    assert not is_allowed_on({"nodeSelectorTerms": [other]}, NODE)
    assert not is_allowed_on({"nodeSelectorTerms": [{}]}, NODE)
    assert not is_allowed_on({"nodeSelectorTerms": []}, NODE)
    assert is_allowed_on(None, NODE)


@pytest.mark.virtual_time
async def test_a_volume_is_given_to_its_pods_group_and_a_failure_of_that_is_tried_again():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=False, fsGroupPolicy="File")
        await world.bound_claim()
        pod = await world.claimed_pod(securityContext={"fsGroup": 2000})
        world.machine.faults.fail("give_to_group", 5, moment=KillMoment.BEFORE)
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            (target,) = world.machine.group_of

            assert world.machine.group_of[target] == 2000
            await volumes.wait_unmounted(uid(pod))

        (told,) = await world.events()
        assert "applyFSGroup failed for vol h1" in told
        assert world.calls("NodePublishVolume") == ["NodePublishVolume"] * 2


async def node_says(world: VolumeWorld, **status: Any) -> None:
    patch = MergePatch({"status": status})
    await world.client.patch(NODE_KIND, ObjectName(None, NODE_NAME), patch, subresource="status")


@pytest.mark.virtual_time
async def test_a_volume_that_needs_attaching_waits_for_it_and_the_driver_is_told_what_attaching_told():
    async with VolumeWorld() as world:
        await world.csi_driver(attachRequired=True)
        await world.bound_claim()
        pod = await world.claimed_pod()
        name = attachment_name("h1", DRIVER, NODE_NAME)
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(10)
            assert world.calls() == []
            assert volumes.volumes_of(pod).unattached == ("data",)
            assert volumes.volumes_in_use() == ("kubernetes.io/csi/d.example^h1",)

            spec = {"attacher": DRIVER, "nodeName": NODE_NAME, "source": {"persistentVolumeName": "pv1"}}
            await world.client.create(VOLUME_ATTACHMENT, {"metadata": {"name": name}, "spec": spec})
            await world.clock.sleep(10)
            assert world.calls() == []

            status = {"status": {"attached": True, "attachmentMetadata": {"disk": "sdb"}}}
            await world.client.patch(
                VOLUME_ATTACHMENT, ObjectName(None, name), MergePatch(status), subresource="status"
            )
            await node_says(world, volumesAttached=[{"name": "kubernetes.io/csi/d.example^h1", "devicePath": ""}])
            await world.clock.sleep(10)
            assert world.calls() == [], "whoever detaches must know first that it is in use"

            await node_says(world, volumesInUse=["kubernetes.io/csi/d.example^h1"])
            await volumes.wait_mounted(pod)
            await volumes.wait_unmounted(uid(pod))
            await world.clock.sleep(3)
            assert volumes.volumes_in_use() == ()

        assert [dict(request.publish_context) for request in world.requests("NodeStageVolume")] == [{"disk": "sdb"}]
        assert [dict(request.publish_context) for request in world.requests("NodePublishVolume")] == [{"disk": "sdb"}]
        assert await world.events() == []
        assert world.left() == []


IN_USE = "kubernetes.io/csi/d.example^h1"
USABLE: dict[str, Any] = {"volumesInUse": [IN_USE], "volumesAttached": [{"name": IN_USE, "devicePath": ""}]}


async def attached_pod(world: VolumeWorld, **metadata: Any) -> Any:
    await world.csi_driver(attachRequired=True)
    await world.bound_claim()
    name = attachment_name("h1", DRIVER, NODE_NAME)
    spec = {"attacher": DRIVER, "nodeName": NODE_NAME, "source": {"persistentVolumeName": "pv1"}}
    await world.client.create(VOLUME_ATTACHMENT, {"metadata": {"name": name, **metadata}, "spec": spec})
    status = MergePatch({"status": {"attached": True}})
    await world.client.patch(VOLUME_ATTACHMENT, ObjectName(None, name), status, subresource="status")
    return await world.claimed_pod()


@pytest.mark.virtual_time
async def test_a_volume_that_only_a_cache_calls_attached_is_not_used():
    """A cache may be behind: what is used though it was detached loses data."""
    async with VolumeWorld() as world:
        pod = await attached_pod(world)
        async with world.manager(seen_node=lambda: {"status": USABLE}) as volumes:
            volumes.want(pod)
            await world.clock.sleep(10)
            before = world.calls()
            await node_says(world, **USABLE)
            await volumes.wait_mounted(pod)

        assert before == []


@pytest.mark.virtual_time
async def test_a_volume_whose_attachment_is_being_deleted_is_not_used():
    async with VolumeWorld() as world:
        pod = await attached_pod(world, finalizers=["example.com/detach"])
        await world.client.delete(VOLUME_ATTACHMENT, ObjectName(None, attachment_name("h1", DRIVER, NODE_NAME)))
        await node_says(world, **USABLE)  # it lists the volume until it is detached
        async with world.manager() as volumes:
            volumes.want(pod)
            await world.clock.sleep(10)
        told = await world.events()

        assert world.calls() == []
        assert any("volume attachment is being deleted" in note for note in told)


@pytest.mark.virtual_time
async def test_tokens_of_the_pods_account_go_to_drivers_that_ask_and_are_kept_for_a_while():
    async with VolumeWorld() as world:
        await world.csi_driver(
            attachRequired=False,
            podInfoOnMount=True,
            volumeLifecycleModes=["Ephemeral"],
            requiresRepublish=True,
            tokenRequests=[{"audience": "vault", "expirationSeconds": 3600}],
        )
        pod = await world.inline_pod()
        async with world.manager() as volumes:
            for _ in range(3):
                await volumes.wait_mounted(pod)
                await world.clock.sleep(1500)

        key = "csi.storage.k8s.io/serviceAccount.tokens"
        given = [json.loads(request.volume_context[key])["vault"] for request in world.requests("NodePublishVolume")]
        assert [one["token"] == given[0]["token"] for one in given] == [True, True, False]
        shown = f"{world.log} {world.contents()} {await world.events()}"
        assert not [one for one in given if one["token"] in shown]
