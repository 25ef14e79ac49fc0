"""The whole life of a volume, step by step, with the state of every object: from a late-binding claim to nothing.

Nothing is done by hand: scheduler, binder, provisioner, attach/detach controller, attacher, kubelet and the protection
of storage do it, beside a scripted driver whose calls take five seconds, on virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf import json_format

from onenode.kubelet.volumes.volume_values import attachment_name
from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.kinds import (
    LEASE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from orlop.records.provision_journal import ANNOTATION, decode_page
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.attaching.attaching_machines import OURS, attached_at_driver, attaching_beside
from support.host.remains import NOTHING
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER, NODE_NAME
from support.provisioning.provisioning_machines import provisioning_beside

pytestmark = pytest.mark.virtual_time
CREATE, DELETE = "CreateVolume", "DeleteVolume"
PUBLISH, UNPUBLISH = "ControllerPublishVolume", "ControllerUnpublishVolume"
STAGE, NODE_PUBLISH, NODE_UNPUBLISH, UNSTAGE = (
    f"Node{verb}Volume" for verb in ("Stage", "Publish", "Unpublish", "Unstage")
)
WHOLE_LIFE = (CREATE, PUBLISH, STAGE, NODE_PUBLISH, NODE_UNPUBLISH, UNSTAGE, UNPUBLISH, DELETE)
HANDLE = "vol-1"
ATTACHMENT = attachment_name(HANDLE, DRIVER, NODE_NAME)
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
BOUND_KEYS = {state.BIND_COMPLETED, state.BOUND_BY_CONTROLLER}


@asynccontextmanager
async def provisioning_machine() -> AsyncIterator[Machine]:
    """Its node is ready, its driver registered, and a class of the driver binds late."""
    async with journey_machine(controller=["CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"]) as machine:
        await machine.world.csi_driver(attachRequired=True)
        machine.world.play({method: [{"times": 0, "delay": "5s"}] for method in WHOLE_LIFE})
        machine.start_driver()
        await machine.start_kubelet()
        async with attaching_beside(machine), provisioning_beside(machine):
            body = {"metadata": {"name": "late"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
            await machine.world.create(STORAGE_CLASS, {**body, "parameters": {"tier": "hot"}})
            await machine.settle()
            yield machine


async def began(machine: Machine, method: str) -> bool:
    return bool(machine.world.requests(method))


async def journalled(machine: Machine) -> list[str]:
    pages = [objects.annotations(lease).get(ANNOTATION, "") for lease in await of_kind(machine, LEASE)]
    return [entry.order.volume_name for page in pages if page for entry in decode_page(page)]


async def of_kind(machine: Machine, kind: Kind) -> list[dict[str, Any]]:
    return (await machine.world.client.list(kind)).items


async def claim_of(machine: Machine) -> dict[str, Any]:
    return await machine.get(PERSISTENT_VOLUME_CLAIM, "c")


async def volume_of(machine: Machine) -> dict[str, Any]:
    (volume,) = await of_kind(machine, PERSISTENT_VOLUME)
    return volume


async def test_a_volume_is_provisioned_attached_mounted_used_and_deleted_as_the_walkthroughs_say():
    async with provisioning_machine() as machine:
        await the_claim_waits_for_its_first_consumer(machine)
        await machine.make_pod("p", CLAIMED)
        await the_pod_s_node_is_selected_and_the_order_recorded(machine)
        await the_volume_is_saved_bound_and_attached(machine)
        await the_pod_runs(machine)

        await machine.world.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await the_claim_is_terminating_while_the_pod_uses_it(machine)
        await machine.delete_pod()
        await the_volume_is_released_and_not_deleted_before_it_is_detached(machine)
        await the_volume_is_deleted_before_its_object(machine)
        await nothing_is_left(machine)


async def the_claim_waits_for_its_first_consumer(machine: Machine) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "late",
    }
    await machine.world.create(PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": "c"}, "spec": spec})
    await machine.settle(60)
    claim = await claim_of(machine)

    assert (state.phase(claim), state.volume_name(claim)) == ("Pending", "")
    assert objects.annotations(claim) == {}
    assert objects.finalizers(claim) == (state.PVC_PROTECTION,)
    assert await journalled(machine) == []
    assert machine.world.calls(*WHOLE_LIFE) == []


async def the_pod_s_node_is_selected_and_the_order_recorded(machine: Machine) -> None:
    """While the driver creates the volume."""
    await machine.until(lambda: began(machine, CREATE))
    claim, pod = await claim_of(machine), await machine.get(POD, "p")

    assert objects.annotations(claim) == {
        state.SELECTED_NODE: NODE_NAME,
        state.STORAGE_PROVISIONER: DRIVER,
        state.BETA_STORAGE_PROVISIONER: DRIVER,
    }
    assert state.phase(claim) == "Pending"
    assert "nodeName" not in pod["spec"], "the pod is bound after its claims"
    assert await journalled(machine) == [f"pvc-{objects.uid(claim)}"]
    assert await of_kind(machine, PERSISTENT_VOLUME) == []
    request = json_format.MessageToDict(machine.world.requests(CREATE)[-1])
    assert (request["name"], request["parameters"]) == (f"pvc-{objects.uid(claim)}", {"tier": "hot"})
    assert request["accessibilityRequirements"]["preferred"][0] == {"segments": {f"{DRIVER}/node": "n"}}


async def the_volume_is_saved_bound_and_attached(machine: Machine) -> None:
    """While the driver attaches the volume."""
    await machine.until(lambda: began(machine, PUBLISH))
    await machine.settle(2)
    claim, volume = await claim_of(machine), await volume_of(machine)
    made = await machine.get(VOLUME_ATTACHMENT, ATTACHMENT)

    assert (state.phase(claim), state.phase(volume)) == ("Bound", "Bound")
    assert (state.volume_name(claim), objects.name(volume)) == (objects.name(volume), f"pvc-{objects.uid(claim)}")
    assert claim["status"]["capacity"] == volume["spec"]["capacity"] == {"storage": "1Gi"}
    assert objects.annotations(claim).keys() >= BOUND_KEYS
    assert state.BOUND_BY_CONTROLLER not in objects.annotations(volume), "it was made for this claim"
    assert set(objects.finalizers(volume)) == {FINALIZER, state.PV_PROTECTION, OURS}
    assert volume["spec"]["csi"]["volumeHandle"] == HANDLE
    assert volume["spec"]["claimRef"]["uid"] == objects.uid(claim)
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": f"{DRIVER}/node", "operator": "In", "values": ["n"]}]
    assert made["spec"]["source"] == {"persistentVolumeName": objects.name(volume)}
    assert not made.get("status", {}).get("attached")
    assert await journalled(machine) == []
    assert (await machine.get(POD, "p"))["spec"]["nodeName"] == NODE_NAME


async def the_pod_runs(machine: Machine) -> None:
    await machine.until_phase("Running")

    assert (await machine.get(VOLUME_ATTACHMENT, ATTACHMENT))["status"]["attached"] is True
    assert attached_at_driver(machine, HANDLE) == ["n"]
    assert machine.world.calls(*WHOLE_LIFE) == list(WHOLE_LIFE[:4]), "each once"


async def the_claim_is_terminating_while_the_pod_uses_it(machine: Machine) -> None:
    await machine.settle(600)
    claim = await claim_of(machine)

    assert objects.is_being_deleted(claim)
    assert objects.finalizers(claim) == (state.PVC_PROTECTION,)
    assert (state.phase(claim), state.phase(await volume_of(machine))) == ("Bound", "Bound")
    assert await machine.phase() == "Running"
    assert machine.world.calls(*WHOLE_LIFE) == list(WHOLE_LIFE[:4])


async def the_volume_is_released_and_not_deleted_before_it_is_detached(machine: Machine) -> None:
    """While the driver detaches the volume."""
    await machine.until(lambda: began(machine, UNPUBLISH))
    await machine.settle()
    volume = await volume_of(machine)

    assert await machine.phase() == GONE
    assert await machine.world.find(PERSISTENT_VOLUME_CLAIM, "c") is None
    assert state.phase(volume) == "Released"
    assert not objects.is_being_deleted(volume)
    assert set(objects.finalizers(volume)) == {FINALIZER, state.PV_PROTECTION, OURS}
    assert attached_at_driver(machine, HANDLE) == ["n"]
    assert not await began(machine, DELETE)


async def the_volume_is_deleted_before_its_object(machine: Machine) -> None:
    """While the driver deletes the volume."""
    await machine.until(lambda: began(machine, DELETE))
    await machine.settle()
    volume = await volume_of(machine)

    assert await of_kind(machine, VOLUME_ATTACHMENT) == []
    assert attached_at_driver(machine, HANDLE) == []
    assert state.phase(volume) == "Released"
    assert not objects.is_being_deleted(volume)
    assert FINALIZER in objects.finalizers(volume)
    assert await journalled(machine) == []


async def nothing_is_left(machine: Machine) -> None:
    async def is_gone() -> bool:
        return await of_kind(machine, PERSISTENT_VOLUME) == []

    await machine.until(is_gone)
    await machine.settle(600)
    status = (await machine.get(NODE, NODE_NAME))["status"]

    assert machine.world.calls(*WHOLE_LIFE) == list(WHOLE_LIFE), "each once"
    assert list(machine.world.storage.volumes) == []
    assert await journalled(machine) == []
    assert (status.get("volumesInUse") or [], status.get("volumesAttached") or []) == ([], [])
    assert machine.remains() == NOTHING
