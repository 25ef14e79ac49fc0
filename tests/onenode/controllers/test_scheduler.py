"""Pods that wait for a node get one, with the words people look for; on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from onenode.controllers.scheduler import scheduler
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informers import Informers
from orlop.kube.client import MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import CORE_EVENT, NODE, POD, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, condition
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import named, pod
from support.api.api_servers import TestServer, api_server

pytestmark = pytest.mark.virtual_time
Object = dict[str, Any]
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


class World:
    def __init__(self, on: TestServer) -> None:
        self.on = on
        self.clock = on.clock
        self.client = on.client()

    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        log, metrics = self.on.log, Metrics("t", of_process=False)
        client, reporter = self.on.client(), Reporter("default-scheduler", "default-scheduler-n1")
        events = EventRecorder(client, reporter, clock=self.clock, random=Random(1), log=log, metrics=metrics)
        runtime = Runtime(clock=self.clock, random=Random(2), log=log, metrics=metrics)
        async with Informers(client, clock=self.clock, random=Random(3), log=log) as informers, TaskGroup() as tasks:
            telling = tasks.start(events.run(), name="events")
            async with scheduler(client, informers, runtime, events, WorkqueueMetrics(metrics)):
                yield
            await events.drain(10.0)
            telling.cancel()

    async def node(self, name: str = "n1", **spec: Any) -> None:
        """Admission taints it until its kubelet says that it is ready."""
        await self.client.create(NODE, named(name, spec=spec))
        await self.client.patch(NODE, ObjectName(None, name), MergePatch(READY), subresource="status")
        await self.client.patch(NODE, ObjectName(None, name), MergePatch({"spec": {"taints": None}}))

    async def change_node(self, **spec: Any) -> None:
        await self.client.patch(NODE, ObjectName(None, "n1"), MergePatch({"spec": spec}))

    async def make(self, name: str = "p", **spec: Any) -> None:
        await self.client.create(POD, pod(name, **spec), namespace="default")

    async def find(self, name: str = "p") -> Object:
        return await self.client.get(POD, ObjectName("default", name))

    async def node_of(self, name: str = "p") -> str | None:
        return (await self.find(name))["spec"].get("nodeName")

    async def events(self) -> list[tuple[str, str, str]]:
        found = (await self.client.list(CORE_EVENT)).items
        return [(one["type"], one["reason"], one["message"]) for one in found]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with api_server(VirtualClock()) as on:
        await on.client().create(SERVICE_ACCOUNT, named("default"), namespace="default")
        yield World(on)


async def test_a_pod_is_bound_and_people_are_told():
    async with world() as w:
        await w.node()
        async with w.scheduling():
            await w.make()
            await w.clock.sleep(1)
        found = await w.find()

        assert found["spec"]["nodeName"] == "n1"
        assert (condition(found, "PodScheduled") or {})["status"] == "True"
        assert await w.events() == [("Normal", "Scheduled", "Successfully assigned default/p to n1")]


async def test_a_pod_waits_with_the_reason_on_it_until_its_node_may_be_used():
    async with world() as w:
        await w.node(unschedulable=True)
        async with w.scheduling():
            await w.make()
            await w.clock.sleep(600)
            waiting = await w.find()
            await w.change_node(unschedulable=None)
            await w.clock.sleep(1)
            bound = await w.find()

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
    async with world() as w, w.scheduling():
        for number in range(20):
            await w.make(f"p{number}")
        await w.clock.sleep(1)
        before = {await w.node_of(f"p{number}") for number in range(20)}
        await w.node()
        await w.clock.sleep(1)

        assert before == {None}
        assert {await w.node_of(f"p{number}") for number in range(20)} == {"n1"}


async def test_pods_of_other_schedulers_and_behind_gates_are_left_alone():
    async with world() as w:
        await w.node()
        async with w.scheduling():
            await w.make("other", schedulerName="mine")
            await w.make("gated", schedulingGates=[{"name": "example.com/wait"}])
            await w.clock.sleep(60)

            assert await w.node_of("other") is None
            assert await w.node_of("gated") is None
        assert await w.events() == []


async def test_heartbeats_of_a_node_that_cannot_be_used_tell_nothing_anew():
    async with world() as w:
        await w.node(unschedulable=True)
        async with w.scheduling():
            await w.make()
            for minute in range(20):
                beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-01T00:{minute:02}:00Z"}
                patch = MergePatch({"status": {"conditions": [beat]}})
                await w.client.patch(NODE, ObjectName(None, "n1"), patch, subresource="status")
                await w.clock.sleep(60)

        assert len(await w.events()) == 1
