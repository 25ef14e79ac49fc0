"""Pods and their volumes joined on one node, in virtual time: it can die and come back on the same machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onenode.kubelet.node.managed_volumes import ManagedVolumes
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.plain_volumes.plain_volumes import plain_volumes
from onenode.kubelet.pods.pod_manager import pod_manager
from onenode.kubelet.pods.pod_seams import PodSettings
from onenode.testing.fake_containers import FakeContainers
from onenode.testing.fake_plain_volume_host import FakePlainVolumeHost
from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName
from orlop.testing.kill_points import KillPoints
from support.api.api_objects import container
from support.kubelet.volume_worlds import DRIVER, NODE_NAME, VolumeWorld
from support.worlds import running

INLINE: dict[str, Any] = {"attachRequired": False, "podInfoOnMount": True, "volumeLifecycleModes": ["Ephemeral"]}
ALLOCATABLE = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "10Gi"}


class Node:
    """A kubelet's pods and volumes; it can die and come back."""

    def __init__(self, world: VolumeWorld) -> None:
        self.world = world
        self.containers = FakeContainers(world.clock)

    @asynccontextmanager
    async def running(self, points: KillPoints | None = None) -> AsyncIterator[None]:
        world = self.world
        async with world.manager(points, known=False) as manager:
            the, plain_host = world.parts, FakePlainVolumeHost(world.machine, points)
            api = NodeApi(NODE_NAME, the.kube, the.events)
            async with plain_volumes(api, world.disk, plain_host, ALLOCATABLE, the.runtime) as plain:
                volumes = ManagedVolumes(manager, plain, world.runtime("volume syncs"))
                await manager.wait_reconstructed()
                settings, runtime = PodSettings(NODE_NAME), world.runtime("pods")
                async with running(volumes.run()):
                    try:
                        async with pod_manager(the.informers, api, self.containers, volumes, settings, runtime):
                            yield
                    finally:
                        self.containers.die()

    async def make(self, name: str = "p", *mounts: dict[str, Any], **spec: Any) -> dict[str, Any]:
        used = list(mounts) or [{"name": "scratch", "mountPath": "/scratch"}]
        one = container(command=["sleep", "100000"], volumeMounts=used)
        volume = {"name": "scratch", "csi": {"driver": DRIVER}}
        return await self.world.pod(name, **{"containers": [one], "volumes": [volume], **spec})

    async def status(self, name: str = "p") -> dict[str, Any]:
        return (await self.world.client.get(POD, ObjectName("default", name)))["status"]

    async def phase(self, name: str = "p") -> str:
        return (await self.status(name))["phase"]

    async def delete(self, name: str = "p") -> None:
        await self.world.delete(POD, name, DeleteOptions(grace_seconds=1))

    async def is_gone(self, name: str = "p") -> bool:
        return await self.world.find(POD, name) is None

    async def settle(self, seconds: float = 1.0) -> None:
        await self.world.settle(seconds)


@asynccontextmanager
async def node_with_driver(**driver: Any) -> AsyncIterator[tuple[Node, VolumeWorld]]:
    async with VolumeWorld() as world:
        await world.csi_driver(**{**INLINE, **driver})
        yield Node(world), world
