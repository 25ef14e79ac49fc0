"""A cluster on virtual time for the scheduler: an API server, Nodes, classes, claims, volumes and pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from onenode.controllers.scheduler import scheduler
from orlop.kube.client import DeleteOptions
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import (
    CORE_EVENT,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
)
from orlop.kube.objects import condition
from support.api.api_objects import claim, named, pod, volume
from support.scheduling.fake_binder import DRIVER, HOST, FakeBinder
from support.worlds import ClusterWorld

Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)
LATE = "WaitForFirstConsumer"


class SchedulingWorld(ClusterWorld):
    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        self.binder = FakeBinder(self.on.client(), self.on.clock)

    @asynccontextmanager
    async def scheduling(self, way: Transport | None = None) -> AsyncIterator[None]:
        """One life of the scheduler."""
        async with (
            self.controller_parts("default-scheduler", way) as the,
            scheduler(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
        ):
            yield

    # ---- objects -------------------------------------------------------------------------------------------------

    async def node(self, name: str = "n1", allocatable: Object | None = None, **labels: str) -> None:
        """A node that is ready: admission taints it until its kubelet says so."""
        body = {"metadata": {"name": name, "labels": {HOST: name, **labels}}}
        await self.client.create(NODE, body)
        status: Object = {"conditions": [{"type": "Ready", "status": "True"}]}
        if allocatable is not None:
            status |= {"allocatable": allocatable, "capacity": allocatable}
        await self.merge(NODE, name, {"status": status}, "status")
        await self.merge(NODE, name, {"spec": {"taints": None}})

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


@asynccontextmanager
async def scheduling_world(*, binds: bool = True) -> AsyncIterator[SchedulingWorld]:
    """With a binder, unless a test says otherwise; the scheduler is the test's to start."""
    async with SchedulingWorld() as world:
        world.binder.is_asleep = not binds
        async with world.binder.binding():
            yield world
        assert world.binder.broken == []
