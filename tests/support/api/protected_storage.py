"""An API server on virtual time with the protection of its claims and volumes beside it, which comes and goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from onenode.apiserver.access.access_rules import ADMIN
from onenode.apiserver.edge.in_process_client import InProcessTransport, Server
from onenode.controllers.storage_protection import storage_protection
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch
from orlop.kube.kinds import SERVICE_ACCOUNT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import pod
from support.api.api_servers import TestServer, api_server

Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)


class World:
    """An API server on virtual time, somebody who uses it, and the protection, which comes and goes."""

    def __init__(self, on: TestServer) -> None:
        self.on = on
        self.client = on.client()
        self.clock = on.clock

    @asynccontextmanager
    async def protection(self, through: Server | None = None) -> AsyncIterator[None]:
        """`through` stands between the server and the protection alone."""
        log = self.on.log
        transport = InProcessTransport(through or self.on.server, ADMIN)
        client = KubeClient(transport, clock=self.clock, random=Random(2), log=log)
        runtime = Runtime(clock=self.clock, random=Random(3), log=log, metrics=Metrics("test", of_process=False))
        async with (
            Informers(client, clock=self.clock, random=Random(4), log=log) as informers,
            storage_protection(client, informers, runtime, WorkqueueMetrics(runtime.metrics)),
        ):
            yield

    async def settle(self, seconds: float = 1.0) -> None:
        await self.clock.sleep(seconds)

    async def make(self, kind: Kind, obj: Object) -> Object:
        return await self.client.create(kind, obj, namespace="default" if kind.namespaced else None)

    async def delete(self, kind: Kind, name: str, options: DeleteOptions = AT_ONCE) -> None:
        await self.client.delete(kind, of(kind, name), options)

    async def find(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.client.get(kind, of(kind, name))
        except NotFound:
            return None

    async def merge(self, kind: Kind, name: str, changes: Object, subresource: str = "") -> Object:
        return await self.client.patch(kind, of(kind, name), MergePatch(changes), subresource=subresource)


def of(kind: Kind, name: str) -> ObjectName:
    return ObjectName("default" if kind.namespaced else None, name)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with api_server(VirtualClock()) as on:
        client = on.client()
        await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, namespace="default")
        yield World(on)


def user_of(claim_name: str, name: str = "p", **spec: Any) -> Object:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}]
    return pod(name, volumes=volumes, **{"nodeName": "n1", **spec})
