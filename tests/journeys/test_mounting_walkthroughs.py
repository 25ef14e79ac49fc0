"""The walkthroughs of mounting and unmounting a volume, step by step, with what every object says at each step.

The persistent volume is made by hand, and so is what an attach/detach controller and an attacher do: they are others.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf import json_format

from onenode.kubelet.volumes.volume_values import attachment_name
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, uid
from orlop.testing.fake_host.machine import KUBELET_DIR
from support.api.api_objects import attachment
from support.host.remains import NOTHING
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER, NODE_NAME

pytestmark = pytest.mark.virtual_time
STAGE, PUBLISH, UNPUBLISH, UNSTAGE = (f"Node{verb}Volume" for verb in ("Stage", "Publish", "Unpublish", "Unstage"))
VOLUME = f"kubernetes.io/csi/{DRIVER}^h1"
ATTACHMENT = attachment_name("h1", DRIVER, NODE_NAME)
STAGING = f"plugins/kubernetes.io/csi/{DRIVER}/33112ee14ee469c3eb52fe90322ec81dd404a0093d565a6d71ce77cbc8124e3b"
"""The digest is that of the handle."""
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
INLINE = {"name": "scratch", "csi": {"driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "1Gi"}}}
ATTACHED = {"attached": True, "attachmentMetadata": {"disk": "sdb"}}


@asynccontextmanager
async def ready_machine(script: dict[str, Any] | None = None, **driver: Any) -> AsyncIterator[Machine]:
    """Its node is ready, and its driver registered."""
    async with journey_machine() as machine:
        await machine.world.csi_driver(**driver)
        machine.world.play(script or {})
        machine.start_driver()
        await machine.start_kubelet()
        await machine.settle()
        yield machine


async def conditions(machine: Machine, name: str = "p") -> dict[str, str]:
    pod = await machine.get(POD, name)
    return {one["type"]: one["status"] for one in pod["status"]["conditions"]}


async def waiting(machine: Machine, name: str = "p") -> Any:
    (one,) = (await machine.get(POD, name))["status"]["containerStatuses"]
    return one["state"].get("waiting")


async def in_use(machine: Machine) -> Any:
    return (await machine.get(NODE, NODE_NAME))["status"].get("volumesInUse") or []


async def events_of_pods(machine: Machine) -> list[str]:
    return [event for event in await machine.world.events() if not event.startswith(("Starting", "NodeReady"))]


def mounts(machine: Machine) -> tuple[str, ...]:
    return machine.remains().mounts_of_drivers


def request(machine: Machine, method: str) -> dict[str, Any]:
    """Of the last call, every field that has a value; a secret would be here too."""
    return json_format.MessageToDict(machine.world.requests(method)[-1])


async def detach(machine: Machine) -> None:
    status = {"status": {"volumesAttached": None}}
    await machine.world.client.patch(NODE, ObjectName(None, NODE_NAME), MergePatch(status), subresource="status")
    await machine.world.client.delete(VOLUME_ATTACHMENT, ObjectName(None, ATTACHMENT))


# ---- a persistent volume that is attached ----------------------------------------------------------------------------


async def test_a_persistent_volume_is_attached_staged_published_used_and_taken_back_as_the_walkthroughs_say():
    slow = {STAGE: [{"delay": "5s"}], PUBLISH: [{"delay": "5s"}], UNPUBLISH: REFUSED_TWICE, UNSTAGE: [{"delay": "5s"}]}
    async with ready_machine(slow, attachRequired=True, podInfoOnMount=True, fsGroupPolicy="File") as machine:
        await the_driver_is_registered(machine)
        await machine.world.bound_claim(
            csi={"fsType": "ext4", "volumeAttributes": {"tier": "gold"}}, mountOptions=["noatime"]
        )
        made = await machine.make_pod("p", CLAIMED, securityContext={"fsGroup": 2000}, serviceAccountName="default")

        await it_is_scheduled_and_waits_for_its_attachment(machine)
        await it_waits_while_the_attachment_is_not_attached(machine)
        await it_waits_until_the_node_has_it_attached(machine)
        await it_is_staged(machine)
        await it_is_published(machine, uid(made))
        await it_runs(machine, uid(made))

        await machine.delete_pod()
        await it_is_not_unpublished_and_tried_again(machine, uid(made))
        await it_is_unpublished_and_the_pod_goes(machine)
        await it_is_unstaged_and_no_longer_in_use(machine)
        await detach(machine)

        assert machine.world.calls() == [STAGE, PUBLISH, UNPUBLISH, UNPUBLISH, UNPUBLISH, UNSTAGE]
        assert machine.remains() == NOTHING


REFUSED_TWICE = [{"times": 2, "error": {"code": "UNAVAILABLE", "message": "busy"}}]


async def the_driver_is_registered(machine: Machine) -> None:
    node, csi_node = await machine.get(NODE, NODE_NAME), await machine.get(CSI_NODE, NODE_NAME)

    assert csi_node["spec"]["drivers"] == [{"name": DRIVER, "nodeID": "n", "topologyKeys": [f"{DRIVER}/node"]}]
    assert objects.owner_references(csi_node)[0]["uid"] == uid(node)
    assert json.loads(objects.annotations(node)["csi.volume.kubernetes.io/nodeid"]) == {DRIVER: "n"}
    assert objects.labels(node)[f"{DRIVER}/node"] == "n"
    assert objects.is_condition_true(node, "Ready")


async def it_is_scheduled_and_waits_for_its_attachment(machine: Machine) -> None:
    await machine.settle()
    pod = await machine.get(POD, "p")

    assert (pod["spec"]["nodeName"], pod["status"]["phase"]) == (NODE_NAME, "Pending")
    assert (await conditions(machine))["PodScheduled"] == "True"
    assert (await conditions(machine))["PodReadyToStartContainers"] == "False"
    assert await waiting(machine) == {"reason": "ContainerCreating"}
    assert await in_use(machine) == [VOLUME]
    assert machine.world.calls() == []
    assert (mounts(machine), machine.world.contents()) == ((), {})
    assert [event.partition(":")[0] for event in await events_of_pods(machine)] == ["ImageNotPulled", "Scheduled"]


async def it_waits_while_the_attachment_is_not_attached(machine: Machine) -> None:
    made = attachment(ATTACHMENT, attacher=DRIVER, nodeName=NODE_NAME)
    await machine.world.client.create(VOLUME_ATTACHMENT, made)
    await machine.settle(10)

    assert machine.world.calls() == []
    assert await waiting(machine) == {"reason": "ContainerCreating"}
    assert (mounts(machine), machine.world.contents()) == ((), {})


async def it_waits_until_the_node_has_it_attached(machine: Machine) -> None:
    """As the attacher of the driver says it, and then the attach/detach controller."""
    await machine.world.client.patch(
        VOLUME_ATTACHMENT, ObjectName(None, ATTACHMENT), MergePatch({"status": ATTACHED}), subresource="status"
    )
    await machine.settle(10)
    assert machine.world.calls() == []

    status = {"status": {"volumesAttached": [{"name": VOLUME, "devicePath": ""}]}}
    await machine.world.client.patch(NODE, ObjectName(None, NODE_NAME), MergePatch(status), subresource="status")


async def it_is_staged(machine: Machine) -> None:
    """Kubelet makes the whole staging path, and notes on disk what it stages before the driver is asked."""
    await machine.until(lambda: began(machine, STAGE))
    assert machine.world.contents() == {
        f"{STAGING}/vol_data.json": f'{{"driverName":"{DRIVER}","volumeHandle":"h1"}}\n'
    }
    assert STAGING + "/globalmount" in machine.remains().folders
    assert mounts(machine) == ()
    assert request(machine, STAGE) == {
        "volumeId": "h1",
        "publishContext": {"disk": "sdb"},
        "stagingTargetPath": f"{KUBELET_DIR}/{STAGING}/globalmount",
        "volumeCapability": CAPABILITY,
        "volumeContext": {"tier": "gold"},
    }


CAPABILITY = {
    "mount": {"fsType": "ext4", "mountFlags": ["noatime"]},
    "accessMode": {"mode": "SINGLE_NODE_WRITER"},
}


async def began(machine: Machine, method: str) -> bool:
    return bool(machine.world.requests(method))


async def it_is_published(machine: Machine, pod_uid: str) -> None:
    """Of the target kubelet makes the parent alone: the target is the driver's."""
    await machine.until(lambda: began(machine, PUBLISH))
    folder = f"pods/{pod_uid}/volumes/kubernetes.io~csi/pv1"
    assert mounts(machine) == (f"{STAGING}/globalmount",)
    assert json.loads(machine.world.contents()[f"{folder}/vol_data.json"]) == {
        "attachmentID": ATTACHMENT,
        "driverName": DRIVER,
        "nodeName": NODE_NAME,
        "specVolID": "pv1",
        "volumeHandle": "h1",
        "volumeLifecycleMode": "Persistent",
    }
    assert folder in machine.remains().folders
    assert f"{folder}/mount" not in machine.remains().folders
    assert request(machine, PUBLISH) == {
        "volumeId": "h1",
        "publishContext": {"disk": "sdb"},
        "stagingTargetPath": f"{KUBELET_DIR}/{STAGING}/globalmount",
        "targetPath": f"{KUBELET_DIR}/{folder}/mount",
        "volumeCapability": CAPABILITY,
        "volumeContext": {
            "tier": "gold",
            "csi.storage.k8s.io/pod.name": "p",
            "csi.storage.k8s.io/pod.namespace": "default",
            "csi.storage.k8s.io/pod.uid": pod_uid,
            "csi.storage.k8s.io/serviceAccount.name": "default",
            "csi.storage.k8s.io/ephemeral": "false",
        },
    }


async def it_runs(machine: Machine, pod_uid: str) -> None:
    await machine.until_phase("Running")
    await machine.settle(15)
    target = ("pods", pod_uid, "volumes", "kubernetes.io~csi", "pv1", "mount")
    (running,) = machine.containers.running()

    assert running.wanted.volumes[:-1] == (target,), "the last is its way to the API"
    assert mounts(machine) == (f"{STAGING}/globalmount", "/".join(target))
    assert machine.world.machine.group_of == {target: 2000}
    assert set((await conditions(machine)).values()) == {"True"}
    assert await in_use(machine) == [VOLUME]
    assert (await machine.get(PERSISTENT_VOLUME_CLAIM, "c"))["status"]["phase"] == "Bound"
    assert (await machine.get(PERSISTENT_VOLUME, "pv1"))["spec"]["claimRef"]["name"] == "c"
    reasons = [event.partition(":")[0] for event in await events_of_pods(machine)]
    assert reasons == ["ImageNotPulled", "Scheduled", "Started"], "a mounted file system is no event"


async def it_is_not_unpublished_and_tried_again(machine: Machine, pod_uid: str) -> None:
    """The pod's processes end first; then the driver is asked, and what it refuses is asked again, with no event."""
    await machine.until(lambda: began(machine, UNPUBLISH))
    pod = await machine.get(POD, "p")
    folder = f"pods/{pod_uid}/volumes/kubernetes.io~csi/pv1"

    assert machine.containers.running() == []
    assert pod["metadata"]["deletionTimestamp"]
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    assert mounts(machine) == (f"{STAGING}/globalmount", f"{folder}/mount")
    assert f"{folder}/vol_data.json" in machine.world.contents()
    assert request(machine, UNPUBLISH) == {"volumeId": "h1", "targetPath": f"{KUBELET_DIR}/{folder}/mount"}
    assert await in_use(machine) == [VOLUME]


async def it_is_unpublished_and_the_pod_goes(machine: Machine) -> None:
    await machine.until_phase(GONE)
    assert not [event for event in await events_of_pods(machine) if event.startswith("Failed")]
    assert mounts(machine) == (f"{STAGING}/globalmount",)
    assert list(machine.world.contents()) == [f"{STAGING}/vol_data.json"]


async def it_is_unstaged_and_no_longer_in_use(machine: Machine) -> None:
    await machine.settle(20)
    assert request(machine, UNSTAGE) == {
        "volumeId": "h1",
        "stagingTargetPath": f"{KUBELET_DIR}/{STAGING}/globalmount",
    }
    assert await in_use(machine) == []
    assert machine.remains() == NOTHING


# ---- an inline volume ------------------------------------------------------------------------------------------------


async def test_an_inline_volume_is_published_under_a_handle_of_its_pod_and_is_never_attached_or_staged():
    script = {PUBLISH: [{"delay": "5s"}]}
    driver = {"attachRequired": True, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]}
    async with ready_machine(script, **driver) as machine:
        made = await machine.make_pod("p", INLINE)
        folder = f"pods/{uid(made)}/volumes/kubernetes.io~csi/scratch"
        await machine.until(lambda: began(machine, PUBLISH))
        asked = request(machine, PUBLISH)
        data = json.loads(machine.world.contents()[f"{folder}/vol_data.json"])

        assert data["volumeLifecycleMode"] == "Ephemeral"
        assert data["specVolID"] == "scratch"
        assert asked["volumeId"] == data["volumeHandle"]
        assert asked["targetPath"] == f"{KUBELET_DIR}/{folder}/mount"
        assert asked["volumeContext"]["csi.storage.k8s.io/ephemeral"] == "true"
        assert asked["volumeContext"]["size"] == "1Gi"
        assert "stagingTargetPath" not in asked
        assert "publishContext" not in asked

        await machine.until_phase("Running")
        await machine.settle(15)
        assert mounts(machine) == (f"{folder}/mount",)
        assert await in_use(machine) == []
        assert (await machine.world.client.list(VOLUME_ATTACHMENT)).items == []

        await machine.delete_pod()
        await machine.until_phase(GONE)
        assert machine.world.calls() == [PUBLISH, UNPUBLISH]
        assert machine.remains() == NOTHING


# ---- mounting and unmounting -----------------------------------------------------------------------------------------


async def test_two_pods_have_a_shared_volume_at_targets_of_their_own_and_it_is_staged_once_for_both():
    async with ready_machine(attachRequired=False) as machine:
        await machine.world.bound_claim(accessModes=["ReadWriteMany"])
        pods = [await machine.make_pod(name, CLAIMED) for name in ("a", "b")]
        for name in ("a", "b"):
            await machine.until_phase("Running", name)
        targets = {one.target_path for one in machine.world.requests(PUBLISH)}
        assert targets == {f"{KUBELET_DIR}/pods/{uid(pod)}/volumes/kubernetes.io~csi/pv1/mount" for pod in pods}

        await machine.delete_pod("a")
        await machine.until_phase(GONE, "a")
        await machine.settle(10)
        assert machine.world.calls(UNSTAGE) == []
        assert len(mounts(machine)) == 2

        await machine.delete_pod("b")
        await machine.until_phase(GONE, "b")
        await machine.settle(10)
        assert machine.world.calls(STAGE, UNSTAGE) == [STAGE, UNSTAGE]
        assert machine.remains() == NOTHING


async def test_the_folder_of_a_driver_that_only_says_it_unmounted_stays_and_so_does_the_pod():
    async with ready_machine(attachRequired=False, podInfoOnMount=True, volumeLifecycleModes=["Ephemeral"]) as machine:
        made = await machine.make_pod("p", INLINE)
        await machine.until_phase("Running")
        machine.world.targets.unmounts = False
        await machine.delete_pod()
        await machine.settle(300)
        folder = f"pods/{uid(made)}/volumes/kubernetes.io~csi/scratch"

        assert await machine.phase() != GONE
        assert mounts(machine) == (f"{folder}/mount",)
        assert f"{folder}/vol_data.json" in machine.world.contents()

        machine.world.machine.mounts.clear()  # somebody unmounts it by hand
        await machine.until_phase(GONE)
        await machine.settle(130)
        assert machine.remains() == NOTHING
