"""An API server on virtual time with the protection of its claims and volumes beside it, which comes and goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onenode.apiserver.edge.in_process_client import Server
from onenode.controllers.storage_protection import storage_protection
from support.api.api_objects import pod
from support.worlds import ClusterWorld, Object


class ProtectionWorld(ClusterWorld):
    @asynccontextmanager
    async def protection(self, through: Server | None = None) -> AsyncIterator[None]:
        """`through` stands between the server and the protection alone."""
        async with (
            self.controller_parts("storage-protection", self.transport(through)) as the,
            storage_protection(the.kube, the.informers, the.runtime, the.queue_metrics),
        ):
            yield


def user_of(claim_name: str, name: str = "p", **spec: Any) -> Object:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}]
    return pod(name, volumes=volumes, **{"nodeName": "n1", **spec})
