"""A cache with our own last writes in it: never older than they are, never newer than the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from orlop.kube import objects
from orlop.kube.cache.informer import Watched
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from orlop.static_pv.latest_objects import LatestObjects
from support.worlds import ClusterWorld, Object

pytestmark = pytest.mark.virtual_time
NAME = ObjectName("default", "a")


@dataclass
class Seen:
    world: ClusterWorld
    latest: LatestObjects[str]
    news: list[str]

    async def write(self, value: str) -> Object:
        return await self.world.client.patch(CONFIG_MAP, NAME, MergePatch({"data": {"value": value}}))

    @property
    def value(self) -> str | None:
        obj = self.latest.get(NAME)
        return None if obj is None else str(obj["data"]["value"])


@asynccontextmanager
async def seen() -> AsyncIterator[Seen]:
    async with ClusterWorld() as world, world.controller_parts("reader") as parts:
        await world.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"value": "0"}})
        async with parts.informers.using(Watched(CONFIG_MAP)) as informer:
            await informer.wait_synced()
            latest = LatestObjects(informer, lambda obj: repr(obj.get("data")))
            made = Seen(world, latest, [])

            def changed(name: ObjectName) -> None:
                observation = latest.observe(name)
                if name == NAME and (observation.is_news or observation.ended is not None):
                    made.news.append(made.value or "gone")

            informer.add_listener(changed)
            yield made


async def test_our_own_write_is_there_before_the_watch_has_it_and_wakes_nobody():
    async with seen() as the:
        with the.latest.working(NAME):
            written = await the.write("1")
            the.latest.remember(written)
            assert the.value == "1"
        await the.world.settle()

        assert the.value == "1"
        assert the.news == ["0"]


async def test_a_change_of_others_is_news_also_if_it_came_while_we_wrote():
    async with seen() as the:
        with the.latest.working(NAME):
            the.latest.remember(await the.write("1"))
            await the.write("2")
            await the.world.settle()
            assert the.news == ["0"]
        assert the.latest.observe(NAME).is_news
        assert the.value == "2"


async def test_what_returns_to_our_own_value_through_another_one_is_news():
    async with seen() as the:
        the.latest.remember(await the.write("1"))
        for value in ("2", "1"):
            await the.write(value)
            await the.world.settle()

        assert the.news == ["0", "2", "1"]


async def test_what_our_own_write_has_ended_is_gone_at_once_and_its_successor_is_not():
    async with seen() as the:
        obj = await the.world.client.get(CONFIG_MAP, NAME)
        await the.world.client.delete(CONFIG_MAP, NAME)
        the.latest.remember_gone(NAME, objects.uid(obj))
        assert the.value is None

        await the.world.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"value": "new"}})
        await the.world.settle()
        assert the.value == "new"


async def test_a_created_object_that_others_deleted_unseen_does_not_stay():
    async with seen() as the:
        made = await the.world.create(CONFIG_MAP, {"metadata": {"name": "b"}, "data": {"value": "x"}})
        the.latest.remember(made)
        name = ObjectName("default", "b")
        assert the.latest.get(name) is not None

        await the.world.client.delete(CONFIG_MAP, name)
        await the.world.settle()
        assert the.latest.get(name) is None
