"""An API server on virtual time with a binder and the protection of claims and volumes, which come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from onenode.controllers.binder import binder
from onenode.controllers.storage_protection import storage_protection
from orlop.kube.client import DeleteOptions
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.kube.kinds import (
    CORE_EVENT,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    Kind,
)
from support.api.api_objects import pod
from support.provisioning import binding_objects
from support.worlds import ClusterWorld

Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)


class MeddledWay:
    """The binder's way to the API server, on which something happens before some of its requests."""

    def __init__(self, world: BindingWorld, before: Callable[[HttpRequest], Awaitable[object]]) -> None:
        self._inner = world.on.transport()
        self._before = before

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        await self._before(request)
        return await self._inner.exchange(request, within)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LateVolumes(MeddledWay):
    """The binder's way to the API server, on which changes of volumes arrive late."""

    def __init__(self, world: BindingWorld, seconds: float) -> None:
        super().__init__(world, lambda _request: world.clock.sleep(0))
        self._clock = world.clock
        self._seconds = seconds

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        async with self._inner.open(request, within) as stream:
            is_late = request.path.endswith("/persistentvolumes")
            yield HttpStream(stream.status, stream.headers, self._late(stream.pieces)) if is_late else stream

    async def _late(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            await self._clock.sleep(self._seconds)
            yield piece


class BindingWorld(ClusterWorld):
    @asynccontextmanager
    async def binder(self, way: Transport | None = None) -> AsyncIterator[None]:
        """One life of the binder; `way` is its way to the API server."""
        async with (
            self.controller_parts("persistentvolume-controller", way) as the,
            binder(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
        ):
            yield

    @asynccontextmanager
    async def protection(self) -> AsyncIterator[None]:
        async with (
            self.controller_parts("storage-protection") as the,
            storage_protection(the.kube, the.informers, the.runtime, the.queue_metrics),
        ):
            yield

    # ---- objects -------------------------------------------------------------------------------------------------

    async def claim(self, name: str = "c", **what: Any) -> Object:
        return await self._create(PERSISTENT_VOLUME_CLAIM, binding_objects.claim(name, **what))

    async def volume(self, name: str = "v", **what: Any) -> Object:
        return await self._create(PERSISTENT_VOLUME, binding_objects.volume(name, **what))

    async def storage_class(self, name: str, **what: Any) -> Object:
        return await self._create(STORAGE_CLASS, binding_objects.storage_class(name, **what))

    async def pod(self, name: str = "p", claim: str = "c", **spec: Any) -> Object:
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        return await self.client.create(POD, pod(name, volumes=volumes, **spec), namespace="default")

    async def _create(self, kind: Kind, obj: Object) -> Object:
        """The uid and the version are the server's."""
        kept = ("name", "namespace", "annotations", "labels")
        metadata = {key: value for key, value in obj["metadata"].items() if key in kept}
        body = {**obj, "metadata": metadata}
        body.pop("status", None)
        return await self.client.create(kind, body)

    async def strip(self, kind: Kind, name: str) -> None:
        """Remove all finalizers."""
        await self.merge(kind, name, {"metadata": {"finalizers": None}})

    async def phase(self, kind: Kind, name: str) -> str:
        found = await self.find(kind, name)
        return "gone" if found is None else str(found["status"]["phase"])

    async def claim_phase(self, name: str = "c") -> str:
        return await self.phase(PERSISTENT_VOLUME_CLAIM, name)

    async def volume_phase(self, name: str = "v") -> str:
        return await self.phase(PERSISTENT_VOLUME, name)

    async def volume_of(self, name: str = "c") -> str:
        found = await self.find(PERSISTENT_VOLUME_CLAIM, name)
        return str((found or {}).get("spec", {}).get("volumeName", ""))

    async def events(self, name: str = "c") -> list[str]:
        found = (await self.client.list(CORE_EVENT)).items
        of_name = [one for one in found if one["involvedObject"]["name"] == name]
        return [f"{one['type']} {one['reason']}: {one['message']}" for one in of_name]

    async def settle(self, seconds: float = 0.5) -> None:
        """Far less than the 15 seconds after which Kubernetes would look again."""
        await self.clock.sleep(seconds)
