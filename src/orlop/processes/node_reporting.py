"""What a node does with the API server, as soon as there is one: one client, for drives and static volumes alike.

The node serves pods without the API server. Its address and credentials are searched in the background, with a warning
in the log as long as there are none. A kubeconfig named with --kubeconfig may appear later: `orlop up` writes one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.config.cluster_access import ClusterAccess
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder, recording
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn
from orlop.processes.kube_wiring import RequestRate, kube_access, kube_client

RATE: Final = RequestRate(per_second=10.0, burst=50)
"""The limit of one node: a cluster has thousands."""
CHECK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 20.0
"""How long a kubeconfig may be missing before a warning is logged."""


@dataclass(frozen=True, slots=True)
class ReportingClient:
    """The client of a node, and what is built on it."""

    client: KubeClient
    informers: Informers
    events: EventRecorder
    queue_metrics: WorkqueueMetrics


ApiUse = Callable[[ReportingClient], AbstractAsyncContextManager[object]]
"""A part of the node that works with the API server while its context lasts."""


@asynccontextmanager
async def using_api(
    uses: Sequence[ApiUse], program: str, node: str, kubeconfig: str, runtime: Runtime
) -> AsyncIterator[None]:
    """Run the parts in this context, as soon as the API server can be reached. `program` is our field manager."""
    async with TaskGroup() as tasks:
        task = tasks.start(_use(uses, Reporter(program, node), kubeconfig, runtime), name="work with the API server")
        try:
            yield
        finally:
            task.cancel()


async def _use(uses: Sequence[ApiUse], reporter: Reporter, kubeconfig: str, runtime: Runtime) -> None:
    access = await _access(kubeconfig, runtime)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(kube_client(access, runtime, name=reporter.controller, rate=RATE))
        events = await stack.enter_async_context(recording(client, reporter, runtime))
        informers = await stack.enter_async_context(
            Informers(client, clock=runtime.clock, random=runtime.random, log=runtime.log)
        )
        api = ReportingClient(client, informers, events, WorkqueueMetrics(runtime.metrics))
        for use in uses:
            await stack.enter_async_context(use(api))
        await asyncio.Event().wait()


async def _access(kubeconfig: str, runtime: Runtime) -> ClusterAccess:
    """Wait until there are an address and credentials of the API server, and return them."""
    logged, patience = "", runtime.clock.deadline(PATIENCE_SECONDS)
    while True:
        seconds = RETRY_SECONDS
        try:
            if not kubeconfig or os.access(kubeconfig, os.F_OK):
                return kube_access(kubeconfig, runtime)
            why, seconds = f"{kubeconfig} does not exist yet", CHECK_SECONDS
        except CannotGoOn as error:
            why = str(error)
        # `orlop up` writes the kubeconfig after this process has started: a missing one is no problem at first.
        if why != logged and (seconds == RETRY_SECONDS or patience.passed()):
            runtime.log.warning("api server not configured; reporting nothing", why=why)
            logged = why
        await runtime.clock.sleep(seconds)
