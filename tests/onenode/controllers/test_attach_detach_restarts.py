"""The attach/detach controller after a restart, with objects that vanish, on a bad connection, with many volumes."""

from __future__ import annotations

import pytest

from conftest import SOAK
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, finalizers
from orlop.testing.kill_points import KillPoints
from support.api.api_objects import attachment
from support.attaching.attaching_worlds import DRIVER, AttachingWorld, attachment_of, unique, volume_attached

pytestmark = pytest.mark.virtual_time


# ---- restarts, and objects that vanish -------------------------------------------------------------------------------


async def test_after_a_restart_what_is_attached_stays_and_what_nobody_needs_goes():
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
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


@pytest.mark.parametrize("told", [[], [{"name": unique(), "devicePath": ""}]], ids=["unlisted", "listed by its node"])
async def test_an_attachment_that_names_no_persistent_volume_is_left_alone_whatever_its_name(told: list[object]):
    async with AttachingWorld() as w:
        await w.node(volumesAttached=told)
        inline = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "h1"}}
        made = attachment(attachment_of(), attacher=DRIVER, nodeName="n1", source={"inlineVolumeSpec": inline})
        before = await w.client.create(VOLUME_ATTACHMENT, made)
        async with w.controller():
            await w.settle(400)
        async with w.controller():
            await w.settle(400)
        assert await w.attachment() == before


async def test_a_pod_keeps_its_attachment_when_its_claim_and_volume_vanish_and_it_goes_with_the_pod():
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
        await w.node()
        made = attachment(attachment_of(), attacher=DRIVER, nodeName="n1", source={"persistentVolumeName": "gone"})
        await w.client.create(VOLUME_ATTACHMENT, made)
        async with w.controller():
            await w.settle()
            assert await w.attachments() == []


async def test_a_volume_that_is_being_deleted_is_still_detached():
    async with volume_attached() as w:
        await w.delete(PERSISTENT_VOLUME, "pv-h1")
        await w.settle(100)
        held = await w.find(PERSISTENT_VOLUME, "pv-h1")
        assert held is not None
        assert finalizers(held)
        assert await w.attachments() == [attachment_of()]
        await w.delete(POD, "p")
        await w.settle()
        assert await w.attachments() == []


@pytest.mark.parametrize("lost", ["lost_writes", "lost_answers"])
async def test_writes_that_are_lost_or_whose_answers_are_end_as_well_as_others(lost: str):
    async with AttachingWorld() as w:
        await w.node()
        await w.bound_claim()
        async with w.controller():
            setattr(w, lost, 4)
            await w.pod()
            await w.until(w.is_made)
            setattr(w, lost, 4)
            await w.attacher_says(attached=True)
            await w.settle(130)
            assert await w.listed() == [unique()]
            setattr(w, lost, 6)
            await w.delete(POD, "p")
            await w.settle(300)
            assert (await w.attachments(), await w.listed()) == ([], [])


# ---- many ------------------------------------------------------------------------------------------------------------


async def test_a_node_with_many_volumes_is_written_to_once_for_all_that_came_meanwhile():
    many, points = 200 if SOAK else 50, KillPoints()
    async with AttachingWorld() as w:
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
