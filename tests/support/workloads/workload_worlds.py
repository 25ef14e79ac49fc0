"""An API server on virtual time with the garbage collector, ephemeral claims and workloads, which come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from onenode.controllers.ephemeral_claims import ephemeral_claims
from onenode.controllers.garbage_collection.collected_kinds import COLLECTED
from onenode.controllers.garbage_collection.garbage_collector import garbage_collector
from onenode.controllers.storage_protection import storage_protection
from onenode.controllers.workloads.workloads import workloads
from orlop.kube.client import DeleteOptions
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import CORE_EVENT, Kind
from orlop.kube.objects import uid
from support.workloads.playing_kubelet import PlayingKubelet
from support.worlds import ClusterWorld, Object, object_name


def owned_by(
    owner: Object, kind: Kind, obj: Object, *, blocks: bool = False, controller: bool = False, **changes: Any
) -> Object:
    """Return the object with one more owner; `changes` replace fields of the reference."""
    named = {"apiVersion": kind.api_version, "kind": kind.kind, "name": owner["metadata"]["name"], "uid": uid(owner)}
    reference = {**named, **({"blockOwnerDeletion": True} if blocks else {}), **changes}
    if controller:
        reference["controller"] = True
    before = obj["metadata"].get("ownerReferences", [])
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [*before, reference]}}


class WorkloadWorld(ClusterWorld):
    @asynccontextmanager
    async def collector(self, way: Transport | None = None, kinds: Iterable[Kind] = COLLECTED) -> AsyncIterator[None]:
        async with (
            self.controller_parts("garbage-collector-controller", way) as the,
            garbage_collector(the.kube, the.runtime, the.events, the.queue_metrics, kinds),
        ):
            yield

    @asynccontextmanager
    async def ephemeral(self, way: Transport | None = None) -> AsyncIterator[None]:
        async with (
            self.controller_parts("ephemeral_volume", way) as the,
            ephemeral_claims(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
        ):
            yield

    @asynccontextmanager
    async def protection(self) -> AsyncIterator[None]:
        async with (
            self.controller_parts("storage-protection") as the,
            storage_protection(the.kube, the.informers, the.runtime, the.queue_metrics),
        ):
            yield

    @asynccontextmanager
    async def workloads(self, way: Transport | None = None) -> AsyncIterator[None]:
        async with (
            self.controller_parts("workloads", way) as the,
            workloads(the.kube, the.informers, the.runtime, the.queue_metrics),
        ):
            yield

    @asynccontextmanager
    async def playing(self, **settings: Any) -> AsyncIterator[PlayingKubelet]:
        kubelet = PlayingKubelet(self.client, self.clock, **settings)
        self.start(kubelet.run(), "a kubelet that plays")
        yield kubelet

    async def remove(self, kind: Kind, name: str, propagation: str = "Background") -> None:
        await self.client.delete(kind, object_name(kind, name), DeleteOptions(propagation=propagation))

    async def names(self, kind: Kind) -> list[str]:
        return sorted(each["metadata"]["name"] for each in (await self.client.list(kind)).items)

    async def events(self, name: str) -> list[str]:
        found = (await self.client.list(CORE_EVENT)).items
        of_name = [one for one in found if one["involvedObject"]["name"] == name]
        return [f"{one['type']} {one['reason']}: {one['message']}" for one in of_name]
