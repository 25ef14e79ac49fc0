"""Volumes on nodes that do not answer, and on several of them: attached and detached as Kubernetes does it."""

from __future__ import annotations

import pytest

from onenode.controllers.attach_detach_rules import OUT_OF_SERVICE
from orlop.kube.kinds import NODE, POD
from support.attaching.attaching_worlds import AttachingWorld, attachment_of, unique, volume_attached

pytestmark = pytest.mark.virtual_time
SUCCESS = ("Normal", "SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv-h1" ')
FAILED = "FailedAttachVolume"


# ---- nodes that do not answer ----------------------------------------------------------------------------------------


async def test_a_node_that_is_not_ready_is_waited_for_six_minutes():
    async with volume_attached() as w:
        await w.uses("h1")
        await w.node_says(conditions=[{"type": "Ready", "status": "Unknown"}])
        await w.delete(POD, "p")
        await w.settle(350)
        assert await w.attachments() == [attachment_of()]
        await w.settle(15)
        assert await w.attachments() == []
        assert await w.listed() == []


async def test_a_node_that_is_ready_is_waited_for_without_end_and_given_up_when_it_is_no_longer():
    async with volume_attached() as w:
        await w.uses("h1")
        await w.delete(POD, "p")
        await w.settle(7200)
        assert await w.attachments() == [attachment_of()]
        await w.node_says(conditions=[{"type": "Ready", "status": "False"}])
        await w.settle()
        assert await w.attachments() == []


async def test_a_node_that_is_out_of_service_is_not_waited_for():
    async with volume_attached() as w:
        await w.uses("h1")
        await w.taint(OUT_OF_SERVICE)
        await w.settle()
        assert await w.attachments() == [attachment_of()], "its pod still needs it"
        await w.delete(POD, "p")
        await w.settle()
        assert await w.attachments() == []


async def test_a_node_that_is_gone_keeps_what_its_pods_need_and_loses_what_it_used_after_six_minutes():
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
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
    async with AttachingWorld() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        await w.pod("a")
        await w.pod("b", node="n2")
        async with w.controller():
            await w.settle(100)
            assert await w.attachments() == [attachment_of()]


async def test_a_node_where_attaching_failed_does_not_keep_the_volume_from_another():
    async with AttachingWorld() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.bound_claim()
        async with w.controller():
            await w.pod("a")
            await w.settle(125)  # its attacher says nothing
            await w.pod("b", node="n2")
            await w.settle()
            assert await w.attachments() == sorted([attachment_of(), attachment_of(node="n2")])
