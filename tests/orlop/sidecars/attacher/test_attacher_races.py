"""The attacher while single requests of it are held, and while its caches are behind; on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from support.api.held_way import HeldWay
from support.attaching.attacher_worlds import OURS, PUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
STATUS = "/volumeattachments/va1/status"
ADDS = 'workqueue_adds_total{name="csi-attacher-va"}'


@asynccontextmanager
async def held_world() -> AsyncIterator[tuple[AttacherWorld, HeldWay]]:
    async with AttacherWorld() as world:
        way = HeldWay(world.on.transport())
        world.wire.around = lambda _inner: way  # type: ignore[method-assign]
        await world.node()
        await world.volume()
        yield world, way


@pytest.mark.parametrize("resource", ["/persistentvolumes", "/csinodes"])
async def test_nothing_is_reported_of_what_only_a_cache_lacks_that_is_not_complete_yet(resource: str):
    async with held_world() as (world, way):
        await world.wanted()
        listing = way.hold("GET", resource)
        async with world.attacher():
            await listing.has_come.wait()
            await world.clock.sleep(30)
            listing.let_go()
            await world.until_attached()
        assert await world.events() == []


async def test_our_own_write_that_the_cache_has_before_its_response_wakes_nobody():
    async with held_world() as (world, way):
        await world.wanted()
        attachments, writing = way.hold_watch("volumeattachments"), way.hold("PATCH", STATUS, after_effect=True)
        async with world.attacher():
            await writing.has_come.wait()
            before = world.metrics()[ADDS]
            attachments.set()
            await world.clock.sleep(1)
            writing.let_go()
            await world.clock.sleep(1)
            assert world.metrics()[ADDS] == before


async def test_a_deletion_that_comes_while_our_last_write_is_under_way_is_not_missed():
    async with held_world() as (world, way):
        await world.wanted()
        writing = way.hold("PATCH", STATUS, after_effect=True)
        async with world.attacher():
            await writing.has_come.wait()
            await world.delete(VOLUME_ATTACHMENT, "va1")
            await world.clock.sleep(1)
            writing.let_go()
            await world.clock.sleep(5)
            assert await world.find(VOLUME_ATTACHMENT, "va1") is None
            assert world.published() == []


async def test_a_volume_goes_whose_last_attachment_went_before_a_worker_had_it():
    async with held_world() as (world, _):
        world.play({PUBLISH: [{"delay": "14s"}]})
        await world.wanted()
        await world.volume("pv2", "h2")
        kept = MergePatch({"metadata": {"finalizers": [OURS]}})
        async with world.attacher(workers=1):
            await world.clock.sleep(1)
            await world.wanted("va2", "pv2")  # the only worker is busy
            await world.client.patch(PERSISTENT_VOLUME, ObjectName(None, "pv2"), kept)
            await world.delete(PERSISTENT_VOLUME, "pv2")
            await world.clock.sleep(1)
            assert await world.find(PERSISTENT_VOLUME, "pv2") is not None
            await world.delete(VOLUME_ATTACHMENT, "va2")
            await world.clock.sleep(1)
            assert await world.find(PERSISTENT_VOLUME, "pv2") is None
