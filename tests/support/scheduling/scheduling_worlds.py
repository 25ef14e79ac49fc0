"""A cluster on virtual time for the scheduler: an API server, Nodes, classes, claims, volumes and pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from onenode.controllers.scheduler import scheduler
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import (
    CORE_EVENT,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    Kind,
)
from orlop.kube.objects import ObjectName, condition
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import claim, named, pod, volume
from support.api.api_servers import TestServer, api_server
from support.scheduling.fake_binder import DRIVER, HOST, FakeBinder

Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)
LATE = "WaitForFirstConsumer"


class SchedulingWorld:
    def __init__(self, on: TestServer) -> None:
        self.on = on
        self.clock = on.clock
        self.client = on.client()
        self.log: list[LogEntry] = []
        self.binder = FakeBinder(on.client(), on.clock)

    @asynccontextmanager
    async def scheduling(self, way: Transport | None = None) -> AsyncIterator[None]:
        """One life of the scheduler."""
        log, metrics = collecting_log(self.log), Metrics("t", of_process=False)
        used = KubeClient(way or self.on.transport(), clock=self.clock, random=Random(2), log=log, name="scheduler")
        reporter = Reporter("default-scheduler", "default-scheduler-n1")
        events = EventRecorder(used, reporter, clock=self.clock, random=Random(3), log=log, metrics=metrics)
        runtime = Runtime(clock=self.clock, random=Random(4), log=log, metrics=metrics)
        recording = asyncio.get_running_loop().create_task(events.run())
        try:
            async with (
                Informers(used, clock=self.clock, random=Random(5), log=log) as informers,
                scheduler(used, informers, runtime, events, WorkqueueMetrics(metrics)),
            ):
                yield
            await events.drain(10.0)
        finally:
            recording.cancel()
            await asyncio.wait([recording])

    # ---- objects -------------------------------------------------------------------------------------------------

    async def node(self, name: str = "n1", allocatable: Object | None = None, **labels: str) -> None:
        """A node that is ready: admission taints it until its kubelet says so."""
        body = {"metadata": {"name": name, "labels": {HOST: name, **labels}}}
        await self.client.create(NODE, body)
        status: Object = {"conditions": [{"type": "Ready", "status": "True"}]}
        if allocatable is not None:
            status |= {"allocatable": allocatable, "capacity": allocatable}
        await self.change(NODE, name, {"status": status}, "status")
        await self.change(NODE, name, {"spec": {"taints": None}})

    async def late_class(self, name: str = "late", provisioner: str = DRIVER, **rest: Any) -> None:
        await self.client.create(STORAGE_CLASS, named(name, provisioner=provisioner, volumeBindingMode=LATE, **rest))

    async def claim(self, name: str = "c", size: str = "1Gi", **spec: Any) -> Object:
        ask = {"storageClassName": "late", "resources": {"requests": {"storage": size}}, **spec}
        return await self.client.create(PERSISTENT_VOLUME_CLAIM, claim(name, **ask), namespace="default")

    async def local_volume(self, name: str, node: str, size: str = "1Gi", **spec: Any) -> None:
        """A volume that is free on one node; the binder makes it Available."""
        expression = {"key": HOST, "operator": "In", "values": [node]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        body = volume(
            name,
            storageClassName="late",
            capacity={"storage": size},
            csi={"driver": DRIVER, "volumeHandle": name},
            nodeAffinity=affinity,
            **spec,
        )
        await self.client.create(PERSISTENT_VOLUME, body)

    async def pod(self, name: str = "p", *claims: str, **spec: Any) -> Object:
        volumes = [{"name": f"v-{one}", "persistentVolumeClaim": {"claimName": one}} for one in claims]
        return await self.client.create(POD, pod(name, volumes=volumes, **spec), namespace="default")

    async def change(self, kind: Kind, name: str, changes: Object, subresource: str = "") -> None:
        await self.client.patch(kind, _name(kind, name), MergePatch(changes), subresource=subresource)

    async def delete(self, kind: Kind, name: str) -> None:
        await self.client.delete(kind, _name(kind, name), AT_ONCE)

    async def find(self, kind: Kind, name: str) -> Object | None:
        with suppress(NotFound):
            return await self.client.get(kind, _name(kind, name))
        return None

    # ---- what became of them -------------------------------------------------------------------------------------

    async def node_of(self, name: str = "p") -> str | None:
        found = await self.find(POD, name)
        return None if found is None else found["spec"].get("nodeName")

    async def why(self, name: str = "p") -> str:
        """The reason and message of the pod's condition."""
        found = condition(await self.find(POD, name) or {}, "PodScheduled") or {}
        return f"{found.get('reason')}: {found.get('message')}"

    async def events(self, name: str = "p") -> list[str]:
        found = (await self.client.list(CORE_EVENT)).items
        return [f"{one['reason']}: {one['message']}" for one in found if one["involvedObject"]["name"] == name]

    async def settle(self, seconds: float = 1.0) -> None:
        await self.clock.sleep(seconds)


def _name(kind: Kind, name: str) -> ObjectName:
    return ObjectName("default" if kind.namespaced else None, name)


@asynccontextmanager
async def scheduling_world(*, binds: bool = True) -> AsyncIterator[SchedulingWorld]:
    """With a binder, unless a test says otherwise; the scheduler is the test's to start."""
    async with api_server(VirtualClock()) as on:
        await on.client().create(SERVICE_ACCOUNT, named("default"), namespace="default")
        world = SchedulingWorld(on)
        world.binder.is_asleep = not binds
        async with world.binder.binding():
            yield world
        assert world.binder.broken == []
