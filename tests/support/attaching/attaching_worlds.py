"""A cluster on virtual time for the attach/detach controller: an API server, Nodes, pods, claims and their volumes.

What kubelets and attachers do is done by the test's own hand, unless it starts an attacher that always succeeds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onenode.controllers.attach_detach import attach_detach
from onenode.kubelet.node.node_status_rules import ATTACH_ANNOTATION
from onenode.kubelet.volumes.volume_values import attachment_name, persistent_name
from orlop.foundation.clock import Clock
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, Transport
from orlop.kube.kinds import (
    CORE_EVENT,
    CSI_DRIVER,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE_ACCOUNT,
    VOLUME_ATTACHMENT,
)
from orlop.kube.objects import ObjectName, uid
from orlop.testing.kill_points import KillPoints
from support.api.api_objects import claim, csi_driver, named, pod, volume
from support.worlds import ClusterWorld, Object

DRIVER = "d.example"
WRITES = ("create", "patch", "delete")


def unique(handle: str = "h1") -> str:
    return persistent_name(DRIVER, handle)


def attachment_of(handle: str = "h1", node: str = "n1") -> str:
    return attachment_name(handle, DRIVER, node)


class LossyWay:
    """The controller's way to the API server, on which so many of its writes are lost, or their answers."""

    def __init__(self, world: AttachingWorld) -> None:
        self._world = world
        self._inner = world.on.transport()

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        counts = request.method != "GET" and "/events" not in request.path
        if counts and self._world.lost_writes:
            self._world.lost_writes -= 1
            raise ConnectionBroken("the connection broke before anything was said")
        answer = await self._inner.exchange(request, within)
        if counts and self._world.lost_answers:
            self._world.lost_answers -= 1
            raise ConnectionBroken("the connection broke before the answer")
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class AttachingWorld(ClusterWorld):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.lost_writes = self.lost_answers = 0

    @asynccontextmanager
    async def controller(self, points: KillPoints | None = None, way: Transport | None = None) -> AsyncIterator[None]:
        """One life of it; what it writes are its effects."""
        async with self.controller_parts("attachdetach-controller", way or LossyWay(self)) as the:
            writing = the.kube if points is None else points.wrap(the.kube, *WRITES)
            async with attach_detach(writing, the.informers, the.runtime, the.events, the.queue_metrics):
                yield

    # ---- objects -------------------------------------------------------------------------------------------------

    async def node(self, name: str = "n1", **status: Any) -> None:
        """Its kubelet leaves attaching to a controller, and is ready."""
        await self.create(NODE, {"metadata": {"name": name, "annotations": {ATTACH_ANNOTATION: "true"}}})
        await self.node_says(name, conditions=[{"type": "Ready", "status": "True"}], **status)

    async def node_says(self, name: str = "n1", **status: Any) -> None:
        await self.merge(NODE, name, {"status": status}, "status")

    async def uses(self, *handles: str, node: str = "n1") -> None:
        """What the node's kubelet has mounted."""
        await self.node_says(node, volumesInUse=[unique(handle) for handle in handles] or None)

    async def taint(self, key: str, name: str = "n1") -> None:
        await self.merge(NODE, name, {"spec": {"taints": [{"key": key, "effect": "NoExecute"}]}})

    async def driver(self, **spec: Any) -> None:
        await self.create(CSI_DRIVER, csi_driver(DRIVER, **spec))

    async def bound_claim(self, name: str = "c", handle: str = "h1", namespace: str = "default", **spec: Any) -> None:
        pv = f"pv-{handle}"
        made = await self.client.create(PERSISTENT_VOLUME_CLAIM, claim(name, volumeName=pv), namespace=namespace)
        reference = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": uid(made)}
        source = {"driver": DRIVER, "volumeHandle": handle}
        await self.create(PERSISTENT_VOLUME, volume(pv, csi=source, claimRef=reference, **spec))
        status = MergePatch({"status": {"phase": "Bound"}})
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, ObjectName(namespace, name), status, subresource="status")

    async def pod(
        self, name: str = "p", claim_name: str = "c", node: str = "n1", namespace: str = "default", **spec: Any
    ) -> Object:
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
        placed = {"nodeName": node} if node else {}
        return await self.client.create(POD, pod(name, **{"volumes": volumes, **placed, **spec}), namespace=namespace)

    async def pod_says(self, name: str = "p", **status: Any) -> None:
        await self.merge(POD, name, {"status": status}, "status")

    async def namespace(self, name: str) -> None:
        await self.create(NAMESPACE, named(name))
        await self.client.create(SERVICE_ACCOUNT, named("default"), namespace=name)

    # ---- attachments ---------------------------------------------------------------------------------------------

    async def attachment(self, handle: str = "h1", node: str = "n1") -> Object | None:
        return await self.find(VOLUME_ATTACHMENT, attachment_of(handle, node))

    async def is_made(self) -> bool:
        return await self.attachment() is not None

    async def attachments(self) -> list[str]:
        found = (await self.client.list(VOLUME_ATTACHMENT)).items
        return sorted(one["metadata"]["name"] for one in found)

    async def attacher_says(self, handle: str = "h1", node: str = "n1", **status: Any) -> None:
        told = {"status": {"attached": False, **status}}
        await self.merge(VOLUME_ATTACHMENT, attachment_of(handle, node), told, "status")

    async def attacher_holds(self, handle: str = "h1", node: str = "n1", *, holds: bool = True) -> None:
        """Its finalizer."""
        finalizers = {"metadata": {"finalizers": ["a.example/attacher"] if holds else None}}
        await self.merge(VOLUME_ATTACHMENT, attachment_of(handle, node), finalizers)

    async def attached(self, handle: str = "h1", node: str = "n1") -> None:
        """As far as an attacher goes, and then the controller."""
        await self.settle()
        await self.attacher_says(handle, node, attached=True)
        await self.settle()

    async def listed(self, node: str = "n1") -> list[str]:
        found = await self.find(NODE, node)
        assert found is not None
        return [one["name"] for one in found["status"].get("volumesAttached") or ()]

    async def events(self, name: str = "p") -> list[tuple[str, str, str]]:
        found = (await self.client.list(CORE_EVENT)).items
        return [(one["type"], one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]


@asynccontextmanager
async def volume_attached() -> AsyncIterator[AttachingWorld]:
    """The same with a controller, and the volume of a pod attached to its node."""
    async with AttachingWorld() as world:
        await world.node()
        await world.bound_claim()
        async with world.controller():
            await world.pod()
            await world.attached()
            yield world
