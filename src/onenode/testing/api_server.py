"""An API server for tests: in memory, with no socket, on the clock it is given.

    async with api_server(clock) as server:
        client = server.client()          # an admin's; `server.client(User("jane"))` is hers
        transport = server.transport()    # for a client of your own, and for the explorer: `ExploredTransport(life, …)`

It is the one of `orlop up`, with its rules, its watches and what it has from the beginning. All ends with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.edge.in_process_client import InProcessTransport
from onenode.apiserver.requests.request_handler import ApiServer, ServerOptions
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.store import ObjectStore, memory_store
from onenode.apiserver.store.versions import DEFAULT_LIMITS, Limits
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log, silent_log
from orlop.kube.client import KubeClient


@dataclass
class RunningServer:
    """`store` is what it keeps: to be looked into without asking."""

    server: ApiServer
    store: ObjectStore
    clock: Clock
    log: Log

    def transport(self, user: User = ADMIN) -> InProcessTransport:
        return InProcessTransport(self.server, user)

    def client(self, user: User = ADMIN) -> KubeClient:
        return KubeClient(self.transport(user), clock=self.clock, random=Random(1), log=self.log)  # noqa: S311 - no secret


@asynccontextmanager
async def api_server(
    clock: Clock, *, log: Log | None = None, limits: Limits = DEFAULT_LIMITS, seed: int = 1, **options: Any
) -> AsyncIterator[RunningServer]:
    """`options` are those of `ServerOptions`, such as the kinds that are served; the same seed gives the same uids."""
    async with memory_store(limits) as store, api_server_on(store, clock, log=log, seed=seed, **options) as server:
        yield server


@asynccontextmanager
async def api_server_on(
    store: ObjectStore, clock: Clock, *, log: Log | None = None, seed: int = 1, **options: Any
) -> AsyncIterator[RunningServer]:
    """The same on what somebody else keeps: it is still there afterwards."""
    used = log or silent_log()
    random, metrics = Random(seed), Metrics("test", of_process=False)  # noqa: S311 - no secret
    runtime = Runtime(clock=clock, random=random, log=used, metrics=metrics)
    server = ApiServer(store, schemas(), runtime, ServerOptions(**options))
    async with server.running():
        yield RunningServer(server, store, clock, used)


@cache
def schemas() -> Schemas:
    """Read once: a test has many servers."""
    return Schemas.load()
