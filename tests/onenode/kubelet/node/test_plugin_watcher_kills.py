"""The plugin watcher killed, or its connection broken, before and after each of its writes: in the end all is right."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from onenode.kubelet.node.csi_node_rules import NODE_IDS_ANNOTATION
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest
from support.kubelet.plugin_worlds import Plugin, PluginWorld

A, B = "a.example.com", "b.example.com"
MOST_WRITES = 12
WRITES = [(number, moment) for number in range(1, MOST_WRITES + 1) for moment in ("before", "after")]


@dataclass
class Breaking:
    """At one write the connection breaks, before or after its effect; `for_good` is a process that dies there."""

    the: PluginWorld
    number: int
    moment: str
    for_good: bool
    writes: int = 0
    broken: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: HttpRequest, user: Any) -> Any:
        if request.method == "GET" or "events" in request.path:
            return await self.the.on.server.answer(request, user)
        self.writes += 1
        if self.writes != self.number:
            return await self.the.on.server.answer(request, user)
        if self.moment == "after":
            await self.the.on.server.answer(request, user)
        self.broken.set()
        if self.for_good:
            await asyncio.get_running_loop().create_future()
        raise ConnectionBroken("the connection broke")


async def history(the: PluginWorld) -> None:
    the.make("a", Plugin(A, node_id="old", topology={"zone": "z"}, max_volumes=2))
    await the.settle(5.0)
    the.make("b", Plugin(B, topology={"rack": "r"}))
    the.make("a", Plugin(A, node_id="new", topology={"zone": "z"}, max_volumes=3))
    await the.settle(5.0)


async def assert_right(the: PluginWorld) -> None:
    entries = {entry["name"]: entry for entry in await the.csi_drivers()}
    assert entries == {
        A: {"name": A, "nodeID": "new", "topologyKeys": ["zone"], "allocatable": {"count": 3}},
        B: {"name": B, "nodeID": "id-1", "topologyKeys": ["rack"]},
    }
    assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "new", B: "id-1"}
    assert await the.labels() == {"zone": "z", "rack": "r"}


@pytest.mark.virtual_time
@pytest.mark.parametrize(("number", "moment"), WRITES)
async def test_a_watcher_that_was_killed_at_a_write_is_right_after_its_restart(number: int, moment: str):
    async with PluginWorld() as the:
        server = Breaking(the, number, moment, for_good=True)
        async with the.watcher(server):
            await history(the)
        async with the.watcher() as watcher:
            await the.settle(30.0)

            assert set(watcher.drivers) == {A, B}
            await assert_right(the)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("number", "moment"), WRITES)
async def test_a_connection_that_broke_at_a_write_does_no_harm(number: int, moment: str):
    async with PluginWorld() as the:
        server = Breaking(the, number, moment, for_good=False)
        async with the.watcher(server) as watcher:
            await history(the)
            await the.settle(300.0)

            assert set(watcher.drivers) == {A, B}
            await assert_right(the)


@pytest.mark.virtual_time
async def test_the_history_has_as_many_writes_as_are_broken():
    async with PluginWorld() as the:
        server = Breaking(the, 0, "never", for_good=False)
        async with the.watcher(server):
            await history(the)

        assert MOST_WRITES - 4 <= server.writes <= MOST_WRITES


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_one_write_that_failed_is_repeated_and_no_plugin_hears_of_it(moment: str):
    async with PluginWorld() as the:
        server = Breaking(the, 2, moment, for_good=False)
        async with the.watcher(server):
            await the.settle()
            plugin = the.make("a", Plugin(A))
            await the.settle()

            assert server.broken.is_set()
            assert plugin.told == [(True, "")]
