"""Volumes of pods are attached to their nodes and detached again, as Kubernetes does it; on virtual time."""

from __future__ import annotations

import pytest

from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import CSI_DRIVER, NODE, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, uid
from support.api.api_objects import attachment
from support.attaching.attaching_worlds import DRIVER, AttachingWorld, attachment_of, unique, volume_attached

pytestmark = pytest.mark.virtual_time
SUCCESS = ("Normal", "SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv-h1" ')
FAILED = "FailedAttachVolume"
RUNNING = [{"name": "main", "state": {"running": {}}, "image": "x", "imageID": "", "ready": True, "restartCount": 0}]
ENDED = [{**RUNNING[0], "state": {"terminated": {"exitCode": 0}}, "ready": False}]


def not_attached(why: str) -> tuple[str, str, str]:
    return ("Warning", FAILED, f'AttachVolume.Attach failed for volume "pv-h1" : {why}')


# ---- attaching -------------------------------------------------------------------------------------------------------


async def test_a_volume_is_attached_where_its_pod_is_placed_and_its_node_lists_it_when_it_is():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.settle()
            made = await w.attachment()
            assert made is not None
            assert made["metadata"]["name"] == attachment_of()
            assert made["spec"] == {
                "attacher": DRIVER,
                "nodeName": "n1",
                "source": {"persistentVolumeName": "pv-h1"},
            }
            assert await w.listed() == []

            await w.attached()
            assert await w.listed() == [unique()]
            node = await w.find(NODE, "n1")
            assert node is not None
            assert node["status"]["volumesAttached"] == [{"name": unique(), "devicePath": ""}]
            assert node["status"]["conditions"], "what others wrote stays"
        assert await w.events() == [SUCCESS]


async def test_a_pod_without_a_node_or_an_inline_volume_or_an_unbound_claim_attaches_nothing():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        inline = [{"name": "scratch", "csi": {"driver": DRIVER}}]
        async with w.controller():
            await w.pod("waiting", node="")
            await w.pod("inline", volumes=inline)
            await w.pod("unbound", claim_name="nobody-made-it")
            await w.settle(300)
            assert await w.attachments() == []


async def test_a_claim_that_is_bound_after_its_pod_was_placed_is_attached_then():
    async with AttachingWorld() as w:
        await w.node()
        async with w.controller():
            await w.pod()
            await w.settle()
            await w.bound_claim()
            await w.settle()
            assert await w.attachments() == [attachment_of()]


async def test_nothing_is_attached_of_a_driver_whose_object_says_so_and_what_is_goes_when_it_says_so_later():
    async with AttachingWorld() as w:
        await w.node()
        await w.driver(attachRequired=False)
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.settle()
            assert await w.attachments() == []

            await w.delete(CSI_DRIVER, DRIVER)  # the field can never be changed: it is made anew
            await w.settle()
            assert await w.attachments() == [attachment_of()]

            await w.driver(attachRequired=False)
            await w.settle()
            assert await w.attachments() == []


async def test_a_volume_is_attached_to_no_node_whose_kubelet_attaches_for_itself_or_which_is_not_there():
    async with AttachingWorld() as w:
        await w.client.create(NODE, {"metadata": {"name": "n1"}})
        await w.bound_claim()
        await w.bound_claim("other", "h2")
        async with w.controller():
            await w.pod()
            await w.pod("q", "other", node="nowhere")
            await w.settle(10)
            assert await w.attachments() == []


async def test_two_pods_that_share_a_volume_on_one_node_have_one_attachment_until_both_are_gone():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            for name in ("a", "b"):
                await w.pod(name)
            await w.attached()
            assert await w.attachments() == [attachment_of()]
            await w.delete(POD, "a")
            await w.settle(400)
            assert await w.attachments() == [attachment_of()]
            await w.delete(POD, "b")
            await w.settle()
            assert await w.attachments() == []


async def test_a_failure_is_told_on_the_pod_once_for_each_that_the_attacher_has_and_its_end_as_well():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.settle()
            for time in ("2026-01-02T03:04:05Z", "2026-01-02T03:05:05Z"):
                await w.attacher_says(attachError={"message": "no room at the node", "time": time})
                await w.settle(60)
            await w.pod("late")
            await w.settle(60)
            await w.attacher_says(attached=True, attachError=None)
            await w.settle()
        told = [not_attached("no room at the node"), SUCCESS]
        assert await w.events() == told, "a repetition is a number on the event"
        assert await w.events("late") == told


async def test_an_attacher_that_says_nothing_is_complained_of_every_two_minutes():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.settle(119)
            before = await w.events()
            await w.settle(10)
            after = await w.events()
            await w.settle(120)
        text = f"timed out waiting for external-attacher of {DRIVER} CSI driver to attach volume h1"
        assert before == []
        assert after == [not_attached(text)]
        assert await w.events() == [not_attached(text)]
        assert await w.attachments() == [attachment_of()], "it is still wanted"


async def test_what_the_api_server_refuses_is_told_on_the_pod_and_tried_again():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        theirs = attachment(attachment_of(), attacher="another.example", nodeName="n1")
        made = await w.client.create(VOLUME_ATTACHMENT, {**theirs, "spec": {**theirs["spec"], "nodeName": "n7"}})
        async with w.controller():
            await w.pod()
            await w.settle(3)
            (told,) = await w.events()
            await w.client.delete(VOLUME_ATTACHMENT, ObjectName(None, made["metadata"]["name"]))
            await w.settle(130)
            ours = await w.attachment()
        assert told[1] == FAILED
        assert "already exists" in told[2]
        assert ours is not None
        assert ours["spec"]["nodeName"] == "n1"


# ---- detaching -------------------------------------------------------------------------------------------------------


async def test_a_volume_is_detached_when_kubelet_no_longer_uses_it_and_no_pod_needs_it():
    async with volume_attached() as w:
        await w.attacher_holds()
        await w.uses("h1")
        await w.delete(POD, "p")
        await w.settle(3600)
        assert await w.attachments() == [attachment_of()]
        assert await w.listed() == [unique()], "kubelet may rely on it while it has it"

        await w.uses()
        await w.settle()
        going = await w.attachment()
        assert going is not None
        assert going["metadata"]["deletionTimestamp"]
        assert await w.listed() == []

        await w.attacher_holds(holds=False)
        await w.settle()
        assert await w.attachments() == []


async def test_a_volume_is_off_its_nodes_list_before_its_attachment_is_deleted():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.attacher_holds()
            await w.delete(POD, "p")
            await w.settle()
            node, going = await w.find(NODE, "n1"), await w.attachment()
        assert node is not None
        assert going is not None
        assert node["status"].get("volumesAttached") in (None, [])
        assert int(node["metadata"]["resourceVersion"]) < int(going["metadata"]["resourceVersion"])


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_finished_needs_its_volume_no_longer(phase: str):
    async with volume_attached() as w:
        await w.uses("h1")
        await w.pod_says(phase=phase)
        await w.settle(10)
        assert await w.attachments() == [attachment_of()], "it is still mounted"
        await w.uses()
        await w.settle()
        assert await w.attachments() == []


async def test_a_pod_that_is_deleted_needs_its_volume_for_as_long_as_a_container_of_it_runs():
    async with volume_attached() as w:
        await w.pod_says(phase="Running", containerStatuses=RUNNING)
        await w.delete(POD, "p", DeleteOptions(grace_seconds=1000))
        await w.settle(3600)
        assert await w.attachments() == [attachment_of()]
        await w.pod_says(containerStatuses=ENDED)
        await w.settle()
        assert await w.attachments() == []


async def test_a_pod_that_comes_while_its_volume_is_being_detached_waits_and_gets_a_new_attachment_and_no_complaint():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.attacher_holds()
            first = await w.attachment()
            await w.delete(POD, "p")
            await w.settle()
            await w.pod("q")
            await w.settle(300)
            going = await w.attachment()
            assert first is not None
            assert going is not None
            assert uid(going) == uid(first), "attached is not believed of one that is being deleted"
            assert await w.listed() == []

            await w.attacher_holds(holds=False)
            await w.attached()
            again = await w.attachment()
            assert again is not None
            assert uid(again) != uid(first)
            assert await w.listed() == [unique()]
        assert await w.events("q") == [SUCCESS]


async def test_an_attachment_that_somebody_deletes_under_a_pod_is_made_anew_and_the_pod_is_told():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.attacher_holds()
            await w.uses("h1")
            await w.delete(VOLUME_ATTACHMENT, attachment_of())
            await w.settle()
            assert await w.listed() == []
            await w.attacher_holds(holds=False)
            await w.attached()
            assert await w.listed() == [unique()]
        assert await w.events() == [SUCCESS, not_attached("volume attachment is being deleted")]


async def test_a_failure_to_detach_is_logged_once_and_the_volume_stays_taken():
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.attacher_holds()
            await w.delete(POD, "p")
            await w.settle()
            for _ in range(3):
                await w.attacher_says(attached=True, detachError={"message": "busy"})
                await w.settle(60)
        said = [entry for entry in w.log if entry.message == "DetachVolume.Detach failed"]
        assert [entry.fields["error"] for entry in said] == ["busy"]
        assert await w.attachments() == [attachment_of()]


async def test_a_detach_that_the_attacher_does_not_finish_times_out_every_two_minutes_and_still_ends_when_it_is_gone():
    async with volume_attached() as w:
        await w.attacher_holds()
        await w.delete(POD, "p")
        await w.settle(119)
        before = [entry for entry in w.log if entry.message == "DetachVolume.Detach failed"]
        await w.settle(240)
        failed = [entry.fields["error"] for entry in w.log if entry.message == "DetachVolume.Detach failed"]
        assert before == []
        assert failed == [f"timed out waiting for external-attacher of {DRIVER} CSI driver to detach volume h1"] * 2
        assert await w.attachments() == [attachment_of()]

        await w.attacher_holds(holds=False)
        await w.settle(600)
        assert await w.attachments() == []
        later = [entry.fields["error"] for entry in w.log if entry.message == "DetachVolume.Detach failed"]
        assert later == failed


async def test_attached_false_does_not_end_a_detach_before_the_attachment_is_gone():
    """So it is in Kubernetes: with the object gone, the attacher has confirmed the detach and removed its finalizer."""
    async with volume_attached() as w:
        await w.node("n2")
        await w.attacher_holds()
        await w.delete(POD, "p")
        await w.pod("q", node="n2")
        await w.settle()
        await w.attacher_says(attached=False)
        await w.settle(300)
        assert await w.attachments() == [attachment_of()], "the other node does not get it yet"

        await w.attacher_holds(holds=False)
        await w.settle()
        assert await w.attachments() == [attachment_of(node="n2")]
