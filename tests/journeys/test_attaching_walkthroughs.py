"""The walkthroughs of attaching and detaching a volume, step by step, with what every object says at each step.

Nothing is done by hand: the scheduler, the attach/detach controller, the driver's attacher and the kubelet do it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf import json_format

from onenode.kubelet.volumes.volume_values import attachment_name
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import uid
from support.attaching.attaching_machines import OURS, Beside, attached_at_driver, attaching_beside
from support.host.remains import NOTHING
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER, NODE_NAME

pytestmark = pytest.mark.virtual_time
PUBLISH, UNPUBLISH = "ControllerPublishVolume", "ControllerUnpublishVolume"
STAGE, NODE_PUBLISH, NODE_UNPUBLISH, UNSTAGE = (
    f"Node{verb}Volume" for verb in ("Stage", "Publish", "Unpublish", "Unstage")
)
EVERYTHING = (PUBLISH, STAGE, NODE_PUBLISH, NODE_UNPUBLISH, UNSTAGE, UNPUBLISH)
VOLUME = f"kubernetes.io/csi/{DRIVER}^h1"
ATTACHMENT = attachment_name("h1", DRIVER, NODE_NAME)
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
TOLD = {"mock.orlop.dev/device": "/dev/h1"}
"""What the driver tells when it attaches."""
SLOW = [{"times": 0, "delay": "5s"}]
SUCCESS = 'SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "pv1" '


@asynccontextmanager
async def attaching_machine(**script: Any) -> AsyncIterator[tuple[Machine, Beside]]:
    """Its node is ready, its driver registered, and a claim bound to a volume of it."""
    async with journey_machine(controller=["PUBLISH_UNPUBLISH_VOLUME"]) as machine:
        await machine.world.csi_driver(attachRequired=True)
        machine.world.play(script)
        machine.start_driver()
        await machine.start_kubelet()
        async with attaching_beside(machine) as beside:
            await machine.settle()
            await machine.world.bound_claim()
            yield machine, beside


async def attachment(machine: Machine) -> dict[str, Any] | None:
    try:
        return await machine.get(VOLUME_ATTACHMENT, ATTACHMENT)
    except NotFound:
        return None


async def there(machine: Machine) -> dict[str, Any]:
    found = await attachment(machine)
    assert found is not None
    return found


async def node_lists(machine: Machine) -> tuple[list[str], list[str]]:
    """What is in use, and what is attached."""
    status = (await machine.get(NODE, NODE_NAME))["status"]
    return status.get("volumesInUse") or [], [one["name"] for one in status.get("volumesAttached") or ()]


async def began(machine: Machine, method: str) -> bool:
    return bool(machine.world.requests(method))


def last_request(machine: Machine, method: str) -> dict[str, Any]:
    return json_format.MessageToDict(machine.world.requests(method)[-1])


# ---- the walkthroughs ------------------------------------------------------------------------------------------------


async def test_a_volume_is_attached_and_detached_as_the_walkthroughs_say():
    async with attaching_machine(**{PUBLISH: SLOW, STAGE: SLOW, UNSTAGE: SLOW, UNPUBLISH: SLOW}) as (machine, _):
        await machine.make_pod("p", CLAIMED)
        await the_controller_sees_the_pod_and_makes_an_attachment(machine)
        await the_attacher_protects_the_objects_and_asks_the_driver(machine)
        await the_attacher_says_that_it_is_attached_and_so_does_the_node(machine)
        await kubelet_mounts_with_what_the_driver_told(machine)

        first = uid(await there(machine))
        await machine.delete_pod()
        await it_stays_attached_while_kubelet_has_it(machine)
        await the_controller_deletes_the_attachment_and_the_attacher_asks_the_driver(machine)
        await the_attacher_lets_go_and_the_attachment_is_gone(machine)
        assert machine.world.calls(*EVERYTHING) == list(EVERYTHING), "each once"
        assert machine.remains() == NOTHING

        await machine.make_pod("q", CLAIMED)
        await machine.until_phase("Running", "q")
        assert uid(await there(machine)) != first, "the volume was free"


async def the_controller_sees_the_pod_and_makes_an_attachment(machine: Machine) -> None:
    """Steps 1 and 2 of attaching: it is scheduled to a node; the object is there, and waited for."""
    await machine.until(lambda: began(machine, PUBLISH))
    pod, made = await machine.get(POD, "p"), await there(machine)

    assert pod["spec"]["nodeName"] == NODE_NAME
    assert pod["status"]["phase"] == "Pending"
    assert made["spec"] == {
        "attacher": DRIVER,
        "nodeName": NODE_NAME,
        "source": {"persistentVolumeName": "pv1"},
    }
    assert not made.get("status", {}).get("attached")
    assert await node_lists(machine) == ([VOLUME], []), "kubelet has told that it will use it"


async def the_attacher_protects_the_objects_and_asks_the_driver(machine: Machine) -> None:
    """Step 3 of attaching, while the driver is at it."""
    made, volume = await there(machine), await machine.get(PERSISTENT_VOLUME, "pv1")

    assert OURS in objects.finalizers(made)
    assert OURS in objects.finalizers(volume)
    assert objects.annotations(made)["csi.alpha.kubernetes.io/node-id"] == "n"
    request = last_request(machine, PUBLISH)
    assert (request["volumeId"], request["nodeId"]) == ("h1", "n")
    assert request["volumeCapability"]["accessMode"] == {"mode": "SINGLE_NODE_WRITER"}
    assert machine.world.calls() == [], "no node service was asked for anything"


async def the_attacher_says_that_it_is_attached_and_so_does_the_node(machine: Machine) -> None:
    """Steps 4 and 5 of attaching."""
    await machine.until(lambda: began(machine, STAGE))
    made = await there(machine)

    assert made["status"] == {"attached": True, "attachmentMetadata": TOLD}
    assert attached_at_driver(machine) == ["n"]
    assert await node_lists(machine) == ([VOLUME], [VOLUME])
    assert SUCCESS in await machine.world.events()


async def kubelet_mounts_with_what_the_driver_told(machine: Machine) -> None:
    await machine.until_phase("Running")
    assert last_request(machine, STAGE)["publishContext"] == TOLD
    assert last_request(machine, NODE_PUBLISH)["publishContext"] == TOLD


async def it_stays_attached_while_kubelet_has_it(machine: Machine) -> None:
    """Step 1 of detaching: the pod is deleted, and its volume is still staged."""
    await machine.until(lambda: began(machine, UNSTAGE))
    assert not objects.is_being_deleted(await there(machine))
    assert await node_lists(machine) == ([VOLUME], [VOLUME])
    assert not await began(machine, UNPUBLISH)


async def the_controller_deletes_the_attachment_and_the_attacher_asks_the_driver(machine: Machine) -> None:
    """Steps 2 and 3 of detaching, while the driver is at it."""
    await machine.until(lambda: began(machine, UNPUBLISH))
    going = await there(machine)

    assert await machine.phase() == GONE
    assert objects.is_being_deleted(going)
    assert OURS in objects.finalizers(going)
    assert going["status"]["attached"] is True, "it still is"
    assert attached_at_driver(machine) == ["n"]
    assert await node_lists(machine) == ([], [])
    assert last_request(machine, UNPUBLISH) == {"volumeId": "h1", "nodeId": "n"}


async def the_attacher_lets_go_and_the_attachment_is_gone(machine: Machine) -> None:
    """Steps 4 and 5 of detaching."""

    async def is_gone() -> bool:
        return await attachment(machine) is None

    await machine.until(is_gone)
    assert attached_at_driver(machine) == []
    assert await node_lists(machine) == ([], [])
    assert OURS in objects.finalizers(await machine.get(PERSISTENT_VOLUME, "pv1")), "until that is deleted"


async def test_a_volume_is_free_a_moment_after_its_pod_is_gone():
    async with attaching_machine() as (machine, _):
        await machine.make_pod("p", CLAIMED)
        await machine.until_phase("Running")
        await machine.delete_pod()
        await machine.until_phase(GONE)
        await machine.settle(2)
        assert await attachment(machine) is None
        assert attached_at_driver(machine) == []


async def test_a_pod_that_goes_before_anybody_attached_its_volume_leaves_no_attachment():
    async with attaching_machine() as (machine, beside):
        await beside.attacher.kill()
        await machine.make_pod("p", CLAIMED)
        await machine.settle(30)
        assert (await there(machine)).get("status", {}).get("attached") in (None, False)
        await machine.delete_pod()
        await machine.until_phase(GONE)
        await machine.settle(2)
        assert await attachment(machine) is None
        assert machine.world.calls(*EVERYTHING) == []
        assert machine.remains() == NOTHING


# ---- when the driver refuses -----------------------------------------------------------------------------------------


async def test_a_driver_that_refuses_to_attach_is_told_of_on_both_objects_and_the_pod_runs_when_it_no_longer_does():
    refused = {"times": 2, "error": {"code": "RESOURCE_EXHAUSTED", "message": "no slot is free"}}
    async with attaching_machine(**{PUBLISH: [refused]}) as (machine, _):
        await machine.make_pod("p", CLAIMED)
        await machine.until(lambda: began(machine, PUBLISH))
        await machine.settle(0.5)
        made = await there(machine)
        assert made["status"]["attached"] is False
        assert "no slot is free" in made["status"]["attachError"]["message"]
        assert made["status"]["attachError"]["errorCode"] == 8
        assert await node_lists(machine) == ([VOLUME], [])

        await machine.until_phase("Running")
        await machine.settle(60)
        told = await machine.world.events()
        assert (await there(machine))["status"] == {"attached": True, "attachmentMetadata": TOLD}
        failures = [event for event in told if event.startswith("FailedAttachVolume")]
        assert failures
        assert all("no slot is free" in event for event in failures)
        assert SUCCESS in told


async def test_a_driver_that_refuses_to_detach_keeps_the_attachment_and_the_next_pod_waits_for_its_end():
    refused = {"times": 3, "error": {"code": "UNAVAILABLE", "message": "busy"}}
    async with attaching_machine(**{UNPUBLISH: [refused]}) as (machine, _):
        await machine.make_pod("p", CLAIMED)
        await machine.until_phase("Running")
        first = uid(await there(machine))
        await machine.delete_pod()
        await machine.until(lambda: began(machine, UNPUBLISH))
        await machine.settle(0.5)
        going = await there(machine)
        assert going["status"]["attached"] is True
        assert "busy" in going["status"]["detachError"]["message"]

        await machine.make_pod("q", CLAIMED)
        await machine.settle(0.5)
        assert await node_lists(machine) == ([VOLUME], [])
        await machine.until_phase("Running", "q")
        assert uid(await there(machine)) != first
        assert machine.world.calls(PUBLISH, UNPUBLISH) == [PUBLISH, *[UNPUBLISH] * 4, PUBLISH]


# ---- when somebody dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", EVERYTHING)
@pytest.mark.parametrize("who", ["controller", "attacher", "both", "kubelet", "API server"])
async def test_whoever_dies_in_the_midst_of_a_call_the_pod_has_its_volume_and_it_is_detached_in_the_end(
    who: str, slow: str
):
    async with attaching_machine(**{slow: [{"delay": "5s"}]}) as (machine, beside):
        await machine.make_pod("p", CLAIMED)
        if EVERYTHING.index(slow) < 3:
            await machine.until(lambda: began(machine, slow))
            await die_and_come_back(who, machine, beside)
        await machine.until_phase("Running")
        await machine.delete_pod()
        if EVERYTHING.index(slow) >= 3:
            await machine.until(lambda: began(machine, slow))
            await die_and_come_back(who, machine, beside)
        await machine.until_phase(GONE)

        async def is_free() -> bool:
            return await attachment(machine) is None

        await machine.until(is_free)
        await machine.settle(130)
        assert attached_at_driver(machine) == []
        assert await node_lists(machine) == ([], [])
        assert machine.remains() == NOTHING


async def die_and_come_back(who: str, machine: Machine, beside: Beside) -> None:
    match who:
        case "kubelet":
            await machine.kill_kubelet()
            await machine.settle(2)
            await machine.start_kubelet()
        case "API server":
            await machine.kill_api_server()
            await machine.settle(2)
            await machine.start_api_server()
        case _:
            parts = [getattr(beside, who)] if who != "both" else [beside.controller, beside.attacher]
            for part in parts:
                await part.kill()
            await machine.settle(2)
            for part in parts:
                part.start()
