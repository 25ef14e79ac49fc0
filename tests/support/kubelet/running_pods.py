"""An API server on virtual time, a node that runs its pods in a model of a machine, and somebody who makes pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from onenode.apiserver.edge.in_process_client import Server
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.pods.container_rules import Names, SubPathWish, VolumeSources
from onenode.kubelet.pods.pod_manager import PodManager, pod_manager
from onenode.kubelet.pods.pod_seams import PodSettings, SubPathNotReady, VolumesNotReady
from onenode.testing.fake_containers import FakeContainers
from orlop.foundation.clock import Clock
from orlop.kube.client import DeleteOptions
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import CORE_EVENT, POD
from orlop.kube.objects import uid
from orlop.testing.kill_points import KillPoints
from support.api.api_objects import container, pod
from support.worlds import ClusterWorld, Object

NODE = "n1"


@dataclass
class ModelVolumes:
    """Volumes that are there at once, or after some seconds, or never; `held` are the pods that have theirs."""

    clock: Clock
    seconds: float = 0.0
    trouble: str = ""
    no_sub_path: str = ""
    held: set[str] = field(default_factory=set)

    async def ready(self, pod: Mapping[str, Any]) -> VolumeSources:
        await self.clock.sleep(self.seconds)
        if self.trouble:
            raise VolumesNotReady(self.trouble)
        self.held.add(uid(pod))
        names = [volume["name"] for volume in pod["spec"].get("volumes") or ()]
        return VolumeSources({name: ("pods", uid(pod), name) for name in names})

    def all_known(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """As a volume manager does after a restart: what is mounted for pods that are gone is unmounted."""
        self.held &= {uid(pod) for pod in pods}

    async def sub_path(self, pod: Mapping[str, Any], container: str, wish: SubPathWish) -> Names:
        if self.no_sub_path:
            raise SubPathNotReady(self.no_sub_path)
        return ("pods", uid(pod), wish.volume, container, str(wish.index), wish.path)

    async def let_go(self, pod: Mapping[str, Any]) -> None:
        await self.clock.sleep(self.seconds)
        self.held.discard(uid(pod))


class PodWorld(ClusterWorld):
    def __init__(self) -> None:
        super().__init__()
        self.containers = FakeContainers(self.clock)
        self.volumes = ModelVolumes(self.clock)

    @asynccontextmanager
    async def node(
        self, points: KillPoints | None = None, through: Server | None = None, way: Transport | None = None
    ) -> AsyncIterator[PodManager]:
        """A node's life; when it ends, so do its containers. `way` replaces its connection to the API server."""
        async with self.controller_parts("kubelet", way or self.transport(through), NODE) as the:
            writer, containers, volumes = the.kube, self.containers, self.volumes
            if points is not None:
                containers = points.wrap(containers, "start", "forget_pod")
                volumes = points.wrap(volumes, "ready", "let_go")
                writer = points.wrap(writer, "patch", "delete")
            api, settings = NodeApi(NODE, writer, the.events), PodSettings(NODE)
            try:
                async with pod_manager(the.informers, api, containers, volumes, settings, the.runtime) as manager:
                    yield manager
            finally:
                self.containers.die()

    async def make(self, script: str = "sleep 100000", name: str = "p", **spec: Any) -> Object:
        """A pod of one container, unless the spec says otherwise."""
        main = container(command=["sh", "-c", script])
        return await self.create(POD, pod(name, **{"nodeName": NODE, "containers": [main], **spec}))

    async def delete_pod(self, name: str = "p", grace: int | None = None) -> None:
        await self.delete(POD, name, DeleteOptions(grace_seconds=grace))

    async def pod(self, name: str = "p") -> Object | None:
        return await self.find(POD, name)

    async def status(self, name: str = "p") -> Object:
        found = await self.pod(name)
        assert found is not None
        return found["status"]

    async def phase(self, name: str = "p") -> str:
        return (await self.status(name))["phase"]

    async def main_status(self, name: str = "p") -> Object:
        return (await self.status(name))["containerStatuses"][0]

    async def events(self) -> list[tuple[str, str]]:
        found = await self.client.list(CORE_EVENT)
        return [(event["reason"], event["message"]) for event in found.items]
