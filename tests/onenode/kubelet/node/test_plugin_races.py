"""Plugins that come, fail and go while another write of the same name is under way; on virtual time."""

from __future__ import annotations

import pytest

from orlop.csi.error_codes import Internal
from support.kubelet.plugin_worlds import Plugin, PluginWorld, SlowWrites

pytestmark = pytest.mark.virtual_time

A = "a.example.com"


def entry(count: int) -> dict[str, object]:
    return {"name": A, "nodeID": "id-1", "allocatable": {"count": count}}


async def test_what_is_written_again_on_a_new_node_is_not_what_a_driver_said_that_is_being_taken_over():
    async with PluginWorld() as the, the.watcher(SlowWrites(the)) as watcher:
        the.make("first", Plugin(A, max_volumes=1))
        await the.settle(10.0)
        the.make("second", Plugin(A, max_volumes=2, versions=("1.1",)))
        await the.settle(0.5)
        watcher.node_was_made()
        await the.settle(10.0)

        assert watcher.drivers[A].endpoint.path == the.path("second")
        assert await the.csi_drivers() == [entry(2)]


async def test_one_that_fails_takes_nothing_away_of_another_of_its_name_that_is_being_registered():
    async with PluginWorld() as the, the.watcher(SlowWrites(the)) as watcher:
        await the.settle(10.0)
        the.make("first", Plugin(A, max_volumes=1))
        await the.settle(0.5)
        second = the.make("second", Plugin(A, behaviour={"NodeGetInfo": Internal("no")}))
        await the.settle(10.0)

        assert "NodeGetInfo" in second.asked
        assert watcher.drivers[A].endpoint.path == the.path("first")
        assert await the.csi_drivers() == [entry(1)]


async def test_what_an_earlier_life_left_of_a_driver_goes_when_the_driver_fails():
    async with PluginWorld() as the:
        plugin = the.make("a", Plugin(A))
        async with the.watcher():
            await the.settle()
        assert [found["name"] for found in await the.csi_drivers()] == [A]

        plugin.behaviour["NodeGetInfo"] = Internal("no")
        async with the.watcher() as watcher:
            await the.settle(5.0)
            assert dict(watcher.drivers) == {}
            assert await the.csi_drivers() == []


async def test_a_plugin_that_was_registered_after_failures_is_tried_again_soon_when_it_fails_later():
    async with PluginWorld() as the, the.watcher() as watcher:
        plugin = the.make("a", Plugin(A, behaviour={"GetInfo": Internal("no")}))
        await the.settle(100.0)
        plugin.behaviour.clear()
        await the.settle(130.0)
        assert list(watcher.drivers) == [A]

        again = the.make("a", Plugin(A, behaviour={"GetInfo": Internal("no")}))
        await the.settle(0.1)
        again.behaviour.clear()
        await the.settle(1.0)
        assert list(watcher.drivers) == [A]
