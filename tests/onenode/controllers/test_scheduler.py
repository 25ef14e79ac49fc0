"""Pods that wait for a node get one, with the words people look for; on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onenode.controllers.scheduler import scheduler
from orlop.kube.kinds import CORE_EVENT, NODE, POD
from orlop.kube.objects import ObjectName, condition
from support.api.api_objects import named, pod
from support.worlds import ClusterWorld, Object

pytestmark = pytest.mark.virtual_time
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


class SchedulerWorld(ClusterWorld):
    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        async with (
            self.controller_parts("default-scheduler") as the,
            scheduler(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
        ):
            yield

    async def node(self, name: str = "n1", **spec: Any) -> None:
        """Admission taints it until its kubelet says that it is ready."""
        await self.create(NODE, named(name, spec=spec))
        await self.merge(NODE, name, READY, "status")
        await self.merge(NODE, name, {"spec": {"taints": None}})

    async def change_node(self, **spec: Any) -> None:
        await self.merge(NODE, "n1", {"spec": spec})

    async def make(self, name: str = "p", **spec: Any) -> None:
        await self.create(POD, pod(name, **spec))

    async def pod(self, name: str = "p") -> Object:
        return await self.client.get(POD, ObjectName("default", name))

    async def node_of(self, name: str = "p") -> str | None:
        return (await self.pod(name))["spec"].get("nodeName")

    async def events(self) -> list[tuple[str, str, str]]:
        found = (await self.client.list(CORE_EVENT)).items
        return [(one["type"], one["reason"], one["message"]) for one in found]


async def test_a_pod_is_bound_and_people_are_told():
    async with SchedulerWorld() as w:
        await w.node()
        async with w.scheduling():
            await w.make()
            await w.clock.sleep(1)
        found = await w.pod()

        assert found["spec"]["nodeName"] == "n1"
        assert (condition(found, "PodScheduled") or {})["status"] == "True"
        assert await w.events() == [("Normal", "Scheduled", "Successfully assigned default/p to n1")]


async def test_a_pod_waits_with_the_reason_on_it_until_its_node_may_be_used():
    async with SchedulerWorld() as w:
        await w.node(unschedulable=True)
        async with w.scheduling():
            await w.make()
            await w.clock.sleep(600)
            waiting = await w.pod()
            await w.change_node(unschedulable=None)
            await w.clock.sleep(1)
            bound = await w.pod()

        told = "0/1 nodes are available: 1 node(s) were unschedulable."
        found = condition(waiting, "PodScheduled") or {}
        assert (found["status"], found["reason"], found["message"]) == ("False", "Unschedulable", told)
        assert bound["spec"]["nodeName"] == "n1"
        assert (condition(bound, "PodScheduled") or {})["status"] == "True"
        assert await w.events() == [
            ("Warning", "FailedScheduling", told),
            ("Normal", "Scheduled", "Successfully assigned default/p to n1"),
        ]


async def test_pods_that_came_before_their_node_get_it():
    async with SchedulerWorld() as w, w.scheduling():
        for number in range(20):
            await w.make(f"p{number}")
        await w.clock.sleep(1)
        before = {await w.node_of(f"p{number}") for number in range(20)}
        await w.node()
        await w.clock.sleep(1)

        assert before == {None}
        assert {await w.node_of(f"p{number}") for number in range(20)} == {"n1"}


async def test_pods_of_other_schedulers_and_behind_gates_are_left_alone():
    async with SchedulerWorld() as w:
        await w.node()
        async with w.scheduling():
            await w.make("other", schedulerName="mine")
            await w.make("gated", schedulingGates=[{"name": "example.com/wait"}])
            await w.clock.sleep(60)

            assert await w.node_of("other") is None
            assert await w.node_of("gated") is None
        assert await w.events() == []


async def test_heartbeats_of_a_node_that_cannot_be_used_tell_nothing_anew():
    async with SchedulerWorld() as w:
        await w.node(unschedulable=True)
        async with w.scheduling():
            await w.make()
            for minute in range(20):
                beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:{minute:02}:00Z"}
                await w.merge(NODE, "n1", {"status": {"conditions": [beat]}}, "status")
                await w.clock.sleep(60)

        assert len(await w.events()) == 1
