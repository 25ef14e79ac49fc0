"""Volumes of pods are attached to their nodes and detached again, as Kubernetes does it; on virtual time."""

from __future__ import annotations

import pytest

from orlop.embedded.controllers.attach_detach_rules import OUT_OF_SERVICE
from orlop.kube.client import DeleteOptions, MergePatch
from orlop.kube.kinds import CSI_DRIVER, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, finalizers, uid
from orlop.testing.kill_points import KillPoints
from support.api_objects import attachment
from support.attaching_worlds import DRIVER, attaching_world, attachment_of, unique

pytestmark = pytest.mark.virtual_time
SUCCESS = ("Normal", "SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv-h1" ')
FAILED = "FailedAttachVolume"
RUNNING = [{"name": "main", "state": {"running": {}}, "image": "x", "imageID": "", "ready": True, "restartCount": 0}]
ENDED = [{**RUNNING[0], "state": {"terminated": {"exitCode": 0}}, "ready": False}]


def not_attached(why: str) -> tuple[str, str, str]:
    return ("Warning", FAILED, f'AttachVolume.Attach failed for volume "pv-h1" : {why}')


# ---- attaching -------------------------------------------------------------------------------------------------------


async def test_a_volume_is_attached_where_its_pod_is_placed_and_its_node_lists_it_when_it_is():
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
        await w.node()
        async with w.controller():
            await w.pod()
            await w.settle()
            await w.bound_claim()
            await w.settle()
            assert await w.attachments() == [attachment_of()]


async def test_nothing_is_attached_of_a_driver_whose_object_says_so_and_what_is_goes_when_it_says_so_later():
    async with attaching_world() as w:
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
    async with attaching_world() as w:
        await w.client.create(NODE, {"metadata": {"name": "n1"}})
        await w.bound_claim()
        await w.bound_claim("other", "h2")
        async with w.controller():
            await w.pod()
            await w.pod("q", "other", node="nowhere")
            await w.settle(10)
            assert await w.attachments() == []


async def test_two_pods_that_share_a_volume_on_one_node_have_one_attachment_until_both_are_gone():
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.uses("h1")
            await w.pod_says(phase=phase)
            await w.settle(10)
            assert await w.attachments() == [attachment_of()], "it is still mounted"
            await w.uses()
            await w.settle()
            assert await w.attachments() == []


async def test_a_pod_that_is_deleted_needs_its_volume_for_as_long_as_a_container_of_it_runs():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.pod_says(phase="Running", containerStatuses=RUNNING)
            await w.delete(POD, "p", DeleteOptions(grace_seconds=1000))
            await w.settle(3600)
            assert await w.attachments() == [attachment_of()]
            await w.pod_says(containerStatuses=ENDED)
            await w.settle()
            assert await w.attachments() == []


async def test_a_pod_that_comes_while_its_volume_is_being_detached_waits_and_gets_a_new_attachment_and_no_complaint():
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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
    async with attaching_world() as w:
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


# ---- nodes that do not answer ----------------------------------------------------------------------------------------


async def test_a_node_that_is_not_ready_is_waited_for_six_minutes():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.uses("h1")
            await w.node_says(conditions=[{"type": "Ready", "status": "Unknown"}])
            await w.delete(POD, "p")
            await w.settle(350)
            assert await w.attachments() == [attachment_of()]
            await w.settle(15)
            assert await w.attachments() == []
            assert await w.listed() == []


async def test_a_node_that_is_ready_is_waited_for_without_end_and_given_up_when_it_is_no_longer():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.uses("h1")
            await w.delete(POD, "p")
            await w.settle(7200)
            assert await w.attachments() == [attachment_of()]
            await w.node_says(conditions=[{"type": "Ready", "status": "False"}])
            await w.settle()
            assert await w.attachments() == []


async def test_a_node_that_is_out_of_service_is_not_waited_for():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.uses("h1")
            await w.taint(OUT_OF_SERVICE)
            await w.settle()
            assert await w.attachments() == [attachment_of()], "its pod still needs it"
            await w.delete(POD, "p")
            await w.settle()
            assert await w.attachments() == []


async def test_a_node_that_is_gone_keeps_what_its_pods_need_and_loses_what_it_used_after_six_minutes():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        await w.bound_claim("other", "h2")
        async with w.controller():
            await w.pod()
            await w.pod("q", "other")
            await w.attached("h1")
            await w.attached("h2")
            await w.uses("h1")
            await w.delete(NODE, "n1")
            await w.settle(1000)
            assert await w.attachments() == sorted([attachment_of("h1"), attachment_of("h2")])

            await w.delete(POD, "q")
            await w.settle()
            assert await w.attachments() == [attachment_of("h1")], "it was not in use there"
            await w.delete(POD, "p")
            await w.settle(350)
            assert await w.attachments() == [attachment_of("h1")]
            await w.settle(15)
            assert await w.attachments() == []


# ---- several nodes ---------------------------------------------------------------------------------------------------


async def test_a_volume_for_one_node_is_refused_to_another_until_it_is_detached_and_the_pod_is_told_whose_it_is():
    async with attaching_world() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        async with w.controller():
            await w.pod("a")
            await w.attached()
            await w.uses("h1")
            await w.pod("b", node="n2")
            await w.settle(600)
            assert await w.attachments() == [attachment_of()]

            await w.delete(POD, "a")
            await w.uses()
            await w.settle()
            await w.attached(node="n2")
            assert await w.attachments() == [attachment_of(node="n2")]
            assert (await w.listed("n1"), await w.listed("n2")) == ([], [unique()])
        taken = 'Waiting for detach for volume "pv-h1" Volume is already used by pod(s) a'
        assert await w.events("b") == [("Warning", FAILED, taken), SUCCESS]


async def test_a_pod_whose_volume_is_still_mounted_where_no_pod_is_any_more_is_told_that_one_node_has_it():
    async with attaching_world() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        async with w.controller():
            await w.pod("a")
            await w.attached()
            await w.uses("h1")
            await w.delete(POD, "a")
            await w.pod("b", node="n2")
            await w.settle()
        taken = (
            'Waiting for detach for volume "pv-h1" Volume is already exclusively attached to one node, waiting on '
            "detach before it can be attached to another node"
        )
        assert await w.events("b") == [("Warning", FAILED, taken)]


async def test_a_volume_for_many_nodes_is_attached_to_each():
    async with attaching_world() as w:
        await w.bound_claim(accessModes=["ReadWriteMany"])
        async with w.controller():
            for name in ("n1", "n2", "n3"):
                await w.node(name)
                await w.pod(f"on-{name}", node=name)
            for name in ("n1", "n2", "n3"):
                await w.attached(node=name)
                assert await w.listed(name) == [unique()]
            assert len(await w.attachments()) == 3


async def test_of_two_pods_that_want_a_volume_at_once_on_two_nodes_one_gets_it():
    async with attaching_world() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        await w.pod("a")
        await w.pod("b", node="n2")
        async with w.controller():
            await w.settle(100)
            assert await w.attachments() == [attachment_of()]


async def test_a_node_where_attaching_failed_does_not_keep_the_volume_from_another():
    async with attaching_world() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        async with w.controller():
            await w.pod("a")
            await w.settle(125)  # its attacher says nothing
            await w.pod("b", node="n2")
            await w.settle()
            assert await w.attachments() == sorted([attachment_of(), attachment_of(node="n2")])


# ---- restarts, and objects that vanish -------------------------------------------------------------------------------


async def test_after_a_restart_what_is_attached_stays_and_what_nobody_needs_goes():
    async with attaching_world() as w:
        await w.node()
        for name, handle in (("a", "h1"), ("b", "h2"), ("c", "h3")):
            await w.bound_claim(name, handle)
            await w.pod(name, name)
        async with w.controller():
            for handle in ("h1", "h2", "h3"):
                await w.attached(handle)
        await w.uses("h1", "h3")
        await w.delete(POD, "b")
        await w.delete(POD, "c")
        versions = await w.attachment("h1")
        async with w.controller():
            await w.settle(10)
            assert await w.attachments() == sorted([attachment_of("h1"), attachment_of("h3")])
            assert await w.listed() == [unique("h1"), unique("h3")]
            assert await w.attachment("h1") == versions
            await w.uses("h1")
            await w.settle()
            assert await w.attachments() == [attachment_of("h1")]
        assert [event[1] for event in await w.events("a")] == ["SuccessfulAttachVolume"], "told once"


async def test_a_list_on_a_node_that_nobody_keeps_is_brought_up_to_date_and_volumes_of_other_kinds_stay_on_it():
    async with attaching_world() as w:
        others = {"name": "kubernetes.io/iscsi/iqn", "devicePath": "/dev/sdx"}
        stale = {"name": unique("stale"), "devicePath": ""}
        await w.node(volumesAttached=[others, stale])
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            assert await w.listed() == ["kubernetes.io/iscsi/iqn", unique()]
            await w.node_says(volumesAttached=[stale])  # somebody meddles
            await w.settle()
            assert await w.listed() == [unique()]


async def test_attachments_of_other_names_are_left_alone():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        by_hand = attachment("by-hand", attacher=DRIVER, source={"persistentVolumeName": "pv-h1"})
        await w.client.create(VOLUME_ATTACHMENT, by_hand)
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.delete(POD, "p")
            await w.settle(400)
            assert await w.attachments() == ["by-hand"]


async def test_a_pod_keeps_its_attachment_when_its_claim_and_volume_vanish_and_it_goes_with_the_pod():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.uses("h1")
            for kind, name in ((PERSISTENT_VOLUME_CLAIM, "c"), (PERSISTENT_VOLUME, "pv-h1")):
                await w.delete(kind, name)
                place = ObjectName("default" if kind.namespaced else None, name)
                await w.client.patch(kind, place, MergePatch({"metadata": {"finalizers": None}}))
            await w.settle(400)
            assert await w.attachments() == [attachment_of()]
            assert await w.listed() == [unique()]
        async with w.controller():
            await w.settle(400)
            assert await w.attachments() == [attachment_of()], "its node says what it is, and that it is in use"
            await w.delete(POD, "p")
            await w.uses()
            await w.settle()
            assert (await w.attachments(), await w.listed()) == ([], [])


async def test_an_attachment_of_which_nobody_knows_the_volume_any_more_does_not_stay_for_ever():
    async with attaching_world() as w:
        await w.node()
        made = attachment(attachment_of(), attacher=DRIVER, nodeName="n1", source={"persistentVolumeName": "gone"})
        await w.client.create(VOLUME_ATTACHMENT, made)
        async with w.controller():
            await w.settle()
            assert await w.attachments() == []


async def test_a_volume_that_is_being_deleted_is_still_detached():
    async with attaching_world() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            await w.pod()
            await w.attached()
            await w.delete(PERSISTENT_VOLUME, "pv-h1")
            await w.settle(100)
            held = await w.find(PERSISTENT_VOLUME, "pv-h1")
            assert held is not None
            assert finalizers(held)
            assert await w.attachments() == [attachment_of()]
            await w.delete(POD, "p")
            await w.settle()
            assert await w.attachments() == []


# ---- many ------------------------------------------------------------------------------------------------------------


async def test_a_node_with_many_volumes_is_written_to_once_for_all_that_came_meanwhile():
    many, points = 200, KillPoints()
    async with attaching_world() as w:
        await w.node()
        for number in range(many):
            await w.bound_claim(f"c{number}", f"h{number}")
            await w.pod(f"p{number}", f"c{number}")
        async with w.controller():
            await w.settle()
            assert len(await w.attachments()) == many
        for number in range(many):
            await w.attacher_says(f"h{number}", attached=True)
        async with w.controller(points):
            await w.settle()
            assert len(await w.listed()) == many
        assert points.seen == ["KubeClient.patch"]

        for number in range(many):
            await w.delete(POD, f"p{number}")
        points = KillPoints()
        async with w.controller(points):
            await w.settle()
            assert (await w.attachments(), await w.listed()) == ([], [])
        assert points.seen == ["KubeClient.patch", *["KubeClient.delete"] * many]
