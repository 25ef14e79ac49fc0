"""The attach/detach controller while its writes are under way, lost or late, and while its caches are behind."""

from __future__ import annotations

import pytest

from orlop.kube.kinds import POD, VOLUME_ATTACHMENT
from orlop.kube.objects import is_being_deleted, uid
from orlop.kube.retry_rules import MOST_ATTEMPTS
from support.api.api_objects import attachment
from support.api.held_way import HeldWay
from support.attaching.attaching_worlds import DRIVER, AttachingWorld, attachment_of, unique

pytestmark = pytest.mark.virtual_time
NODES = "/nodes/"
ATTACHMENTS = "/volumeattachments/"
PV = {"persistentVolumeName": "pv-h1"}


async def with_claim(w: AttachingWorld, *nodes: str) -> HeldWay:
    for name in nodes or ("n1",):
        await w.node(name)
    await w.bound_claim()
    return HeldWay(w.on.transport())


async def is_listed_while_it_goes(w: AttachingWorld, handle: str = "h1") -> bool:
    """Kubelet mounts what its Node lists: it must not list what is being detached, or is detached."""
    found = await w.attachment(handle)
    return unique(handle) in await w.listed() and (found is None or is_being_deleted(found))


async def is_detached_in_the_end(w: AttachingWorld) -> bool:
    await w.settle(10)
    return (await w.listed(), await w.attachments()) == ([], [])


# ---- the Node's list -------------------------------------------------------------------------------------------------


async def test_a_volume_is_not_detached_while_a_write_that_lists_it_is_on_its_way():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        async with w.controller(way=way):
            await w.pod()
            await w.settle()
            listing = way.hold("PATCH", NODES)
            await w.attacher_says(attached=True)
            await listing.has_come.wait()
            await w.delete(POD, "p")
            await w.settle()
            found = await w.attachment()
            assert found is not None, "the write may arrive at any time, and then the Node lists it"

            listing.let_go()
            assert await is_detached_in_the_end(w)


async def test_a_volume_is_not_detached_before_the_cache_shows_the_list_that_has_it():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        async with w.controller(way=way):
            await w.pod()
            await w.settle()
            nodes = way.hold_watch("nodes")
            await w.attacher_says(attached=True)
            await w.settle(0.5)
            await w.delete(POD, "p")
            await w.settle(0.5)

            assert await w.listed() == [unique()]
            assert not await is_listed_while_it_goes(w)
            nodes.set()
            assert await is_detached_in_the_end(w)


async def test_a_volume_is_not_detached_after_a_write_of_unknown_outcome_that_lists_it():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        async with w.controller(way=way):
            await w.pod()
            await w.settle()
            nodes, listing = way.hold_watch("nodes"), way.hold("PATCH", NODES, after_effect=True)
            await w.attacher_says(attached=True)
            await listing.has_come.wait()
            listing.break_off()
            await w.delete(POD, "p")
            await w.settle(1.5)  # the next attempt, which reads the Node, has begun; the cache does not have it yet

            assert await w.listed() == [unique()]
            assert not await is_listed_while_it_goes(w)
            nodes.set()
            assert await is_detached_in_the_end(w)


@pytest.mark.parametrize("behind", [False, True], ids=["cache up to date", "cache behind"])
async def test_a_volume_is_not_detached_while_a_write_that_lists_it_may_still_arrive(*, behind: bool):
    """The write that lists it broke off and is late; the next one, for another volume, is under way meanwhile."""
    async with AttachingWorld() as w:
        way = await with_claim(w)
        await w.bound_claim("other", "h2")
        async with w.controller(way=way):
            await w.pod()
            await w.pod("q", "other")
            await w.settle()
            first = way.hold("PATCH", NODES)
            await w.attacher_says("h1", attached=True)
            await first.has_come.wait()
            second = way.hold("PATCH", NODES)
            await w.delete(POD, "p")
            await w.attacher_says("h2", attached=True)
            await w.settle()
            first.break_off()
            await second.has_come.wait()
            await w.attacher_says("h1", attached=True, attachmentMetadata={"seen": "again"})
            await w.settle()
            nodes = way.hold_watch("nodes") if behind else None
            await way.arrive_late(first)
            assert await w.listed() == [unique()]
            second.let_go()
            for _ in range(60):
                assert not await is_listed_while_it_goes(w)
                await w.settle(0.05)
            if nodes is not None:
                nodes.set()
            await w.settle(10)
            assert (await w.listed(), await w.attachments()) == ([unique("h2")], [attachment_of("h2")])


async def test_a_node_is_not_written_to_again_within_a_tenth_of_a_second():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        await w.bound_claim("other", "h2")
        async with w.controller(way=way):
            await w.pod()
            await w.pod("q", "other")
            await w.settle()
            await w.attacher_says("h1", attached=True)
            await w.settle(0.01)
            await w.attacher_says("h2", attached=True)
            await w.settle(0.08)
            assert await w.listed() == [unique("h1")]
            await w.settle(0.05)
            assert await w.listed() == [unique("h1"), unique("h2")]


# ---- VolumeAttachments -----------------------------------------------------------------------------------------------


async def test_a_volume_for_one_node_is_not_given_to_a_second_before_the_cache_has_its_first_attachment():
    async with AttachingWorld() as w:
        way = await with_claim(w, "n1", "n2")
        await w.pod("a")
        await w.pod("b", node="n2")
        attachments = way.hold_watch("volumeattachments")
        async with w.controller(way=way):
            await w.settle(1)
            assert await w.attachments() == [attachment_of()]
            attachments.set()
            await w.settle(60)
            assert await w.attachments() == [attachment_of()]


async def test_a_volume_that_its_last_node_needs_no_longer_moves_without_a_complaint_on_the_pod():
    """It is detached where nobody needs it before it is looked at where somebody does."""
    async with AttachingWorld() as w:
        way = await with_claim(w, "n1", "n2")
        left = attachment(attachment_of(node="n2"), attacher=DRIVER, nodeName="n2", source=PV)
        await w.client.create(VOLUME_ATTACHMENT, left)
        await w.attacher_says(node="n2", attached=True)
        await w.pod()
        deletion = way.hold("DELETE", ATTACHMENTS, after_effect=True)
        async with w.controller(way=way):
            await deletion.has_come.wait()
            await w.settle()
            deletion.let_go()
            await w.attached()
            assert await w.attachments() == [attachment_of()]
        assert [reason for _, reason, _ in await w.events()] == ["SuccessfulAttachVolume"]


async def test_an_attachment_that_took_the_place_of_the_one_to_be_deleted_stays():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        async with w.controller(way=way):
            await w.pod()
            await w.attached()
            deletion = way.hold("DELETE", ATTACHMENTS)
            await w.delete(POD, "p")
            await deletion.has_come.wait()
            await w.delete(VOLUME_ATTACHMENT, attachment_of())
            body = attachment(attachment_of(), attacher=DRIVER, nodeName="n1", source=PV)
            other = await w.client.create(VOLUME_ATTACHMENT, body)
            await w.pod("q")
            deletion.let_go()
            await w.attached()
            found = await w.attachment()
            assert found is not None
            assert uid(found) == uid(other)
            assert await w.listed() == [unique()]


async def test_a_deletion_that_could_not_be_sent_is_sent_again():
    async with AttachingWorld() as w:
        way = await with_claim(w)
        async with w.controller(way=way):
            await w.pod()
            await w.attached()
            deletions = [way.hold("DELETE", ATTACHMENTS) for _ in range(MOST_ATTEMPTS)]
            await w.delete(POD, "p")
            for deletion in deletions:
                await deletion.has_come.wait()
                deletion.break_off()
            assert await is_detached_in_the_end(w)


async def test_an_attachment_stays_whose_volume_is_there_though_the_cache_does_not_have_it_yet():
    async with AttachingWorld() as w:
        way = HeldWay(w.on.transport())
        await w.node()
        async with w.controller(way=way):
            await w.settle()
            volumes = way.hold_watch("persistentvolumes")
            await w.bound_claim()
            body = attachment(attachment_of(), attacher=DRIVER, nodeName="n1", source=PV)
            made = await w.client.create(VOLUME_ATTACHMENT, body)
            await w.pod()
            await w.settle(5)
            volumes.set()
            await w.attached()
            found = await w.attachment()
            assert found is not None
            assert uid(found) == uid(made)
            assert await w.listed() == [unique()]
