"""Kubelets and an attacher, as far as attaching goes, played on virtual time beside the controller that is tested.

They look at the objects from time to time and do what is theirs, as kubelet and an attacher do it. While they do, they
watch over what must always hold: what a kubelet has mounted is attached to its node, and a volume for one node is
published to one. What was broken by somebody's own hand, or by giving a node up, is not held against the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from onenode.kubelet.volumes.volume_values import driver_and_handle
from orlop.kube.api_errors import StatusError
from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName, finalizers, is_being_deleted, name_of
from support.attaching.attaching_worlds import AttachingWorld, attachment_of, unique

HOLD = "a.example/attacher"
LOOK_SECONDS = 0.05
LONGEST_LOOK_SECONDS = 5.0
FINAL = ("Succeeded", "Failed")


@dataclass
class Players:
    """`handles` are the volumes of claims, by the claims' names."""

    world: AttachingWorld
    handles: dict[str, str]
    shared: frozenset[str] = frozenset()
    """Handles that many nodes may have."""
    mounted: dict[str, set[str]] = field(default_factory=dict)
    """By node, the handles that its kubelet uses."""
    published: dict[str, set[str]] = field(default_factory=dict)
    """By handle, the nodes that it is published to."""
    silent: set[str] = field(default_factory=set)
    """Nodes whose kubelet does nothing at present."""
    refuses: int = 0
    """How many more times the driver fails."""
    failed: set[str] = field(default_factory=set)
    """Handles that the driver refused once: a node where that happened keeps them from no other, as in Kubernetes."""
    excused: set[str] = field(default_factory=set)
    """Handles that somebody meddled with."""
    broken: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._play())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _play(self) -> None:
        """Seldom while nothing happens."""
        seen, pause = "", LOOK_SECONDS
        while True:
            await self.world.clock.sleep(pause)
            nodes = await self.world.client.list(NODE)
            pause = min(LONGEST_LOOK_SECONDS, pause * 2) if nodes.version == seen else LOOK_SECONDS
            seen = nodes.version
            if pause == LOOK_SECONDS:
                await self._look(nodes.items)

    async def _look(self, nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            if node["metadata"]["name"] not in self.silent:
                with suppress(StatusError):
                    await self._be_kubelet(node)
        for attachment in (await self.world.client.list(VOLUME_ATTACHMENT)).items:
            with suppress(StatusError):
                await self._be_attacher(attachment)

    # ---- kubelet -------------------------------------------------------------------------------------------------

    async def _be_kubelet(self, node: dict[str, Any]) -> None:
        """In use before it is mounted, unmounted before it is no longer in use; a look passes in between."""
        name = node["metadata"]["name"]
        wanted, mounted = await self._wanted_on(name), self.mounted.setdefault(name, set())
        await self._watch_over(name)
        mounted &= wanted
        told = sorted(unique(handle) for handle in wanted | mounted)
        if (node["status"].get("volumesInUse") or []) != told:
            await self.world.node_says(name, volumesInUse=told or None)
        seen = await self.world.client.get(NODE, ObjectName(None, name))
        attached = {one["name"] for one in seen["status"].get("volumesAttached") or ()}
        for handle in sorted(wanted - mounted):
            if unique(handle) in attached and unique(handle) in (seen["status"].get("volumesInUse") or ()):
                mounted.add(handle)

    async def _wanted_on(self, node: str) -> set[str]:
        found: set[str] = set()
        for pod in (await self.world.client.list(POD)).items:
            is_here = pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in FINAL
            claims = [one["persistentVolumeClaim"] for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
            found |= {self.handles[claim["claimName"]] for claim in claims if is_here}
        return found

    async def _watch_over(self, node: str) -> None:
        for handle in self.mounted[node] - self.excused:
            attachment = await self.world.attachment(handle, node)
            if attachment is None or is_being_deleted(attachment) or node not in self.published.get(handle, ()):
                self.broken.append(f"{handle} is mounted on {node} and not attached there")

    # ---- the attacher --------------------------------------------------------------------------------------------

    async def _be_attacher(self, attachment: dict[str, Any]) -> None:
        handle, node = await self._volume_of(attachment), attachment["spec"]["nodeName"]
        if handle is None:
            return
        nodes = self.published.setdefault(handle, set())
        if is_being_deleted(attachment):
            nodes.discard(node)
            await self._patch(attachment, {"metadata": {"finalizers": None}})
        elif HOLD not in finalizers(attachment):
            await self._patch(attachment, {"metadata": {"finalizers": [HOLD]}})
        elif not attachment.get("status", {}).get("attached"):
            await self._publish(attachment, handle, node)

    async def _publish(self, attachment: dict[str, Any], handle: str, node: str) -> None:
        if self.refuses:
            self.refuses -= 1
            self.failed.add(handle)
            await self._refuse(attachment, f"not now, {self.refuses} more")
            return
        if self.published[handle] - {node} and handle not in self.shared:
            if handle not in self.excused | self.failed:
                self.broken.append(f"{handle} is to be published to {node}, and is to {self.published[handle]}")
            await self._refuse(attachment, "it is published elsewhere")
            return
        self.published[handle].add(node)
        await self._patch(attachment, {"status": {"attached": True, "attachError": None}}, "status")

    async def _refuse(self, attachment: dict[str, Any], why: str) -> None:
        status = {"attached": False, "attachError": {"message": why}}
        await self._patch(attachment, {"status": status}, "status")

    async def _volume_of(self, attachment: dict[str, Any]) -> str | None:
        node = attachment["spec"]["nodeName"]
        known = (
            handle for handle in self.handles.values() if attachment_of(handle, node) == attachment["metadata"]["name"]
        )
        return next(known, None)

    async def _patch(self, attachment: dict[str, Any], changes: dict[str, Any], subresource: str = "") -> None:
        await self.world.client.patch(
            VOLUME_ATTACHMENT, name_of(attachment), MergePatch(changes), subresource=subresource
        )

    # ---- the end -------------------------------------------------------------------------------------------------

    async def check_clean(self) -> None:
        """Nothing is left anywhere, once no pod is."""
        assert self.broken == []
        assert await self.world.attachments() == []
        assert not [nodes for nodes in self.published.values() if nodes]
        for node in (await self.world.client.list(NODE)).items:
            listed = [one["name"] for one in node["status"].get("volumesAttached") or ()]
            assert not [name for name in listed if driver_and_handle(name) is not None]
