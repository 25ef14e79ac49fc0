"""Wiring of a node's reports to the API server: its devices, its drives, the status of its volumes, and its requests.

The node serves pods without the API server. Its address and credentials are searched in the background, with a warning
in the log as long as there are none. A kubeconfig named with --kubeconfig may appear later: `orlop up` writes one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from orlop.driver.persistent.reports.reporting import reporting
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.block.device_events import DeviceEvents
from orlop.kube.cache.informers import Informers
from orlop.kube.config.cluster_access import ClusterAccess
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import recording
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn
from orlop.processes.kube_wiring import RequestRate, kube_access, kube_client

NAME: Final = "orlop-node"
RATE: Final = RequestRate(per_second=10.0, burst=50)
"""Of each node: a cluster has thousands."""
CHECK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 20.0
"""How long a kubeconfig may be missing before a warning is logged."""


@asynccontextmanager
async def noticing_devices(drives: NodeDrives, folder_root: str) -> AsyncIterator[None]:
    """Survey the node at once whenever a device or a folder comes or goes."""
    events = DeviceEvents(("/dev", folder_root))
    try:
        with events.waking(asyncio.get_running_loop(), drives.watch.wake):
            yield
    finally:
        events.close()


@asynccontextmanager
async def reporting_drives(drives: NodeDrives, kubeconfig: str, runtime: Runtime) -> AsyncIterator[None]:
    """Report in this context, as soon as the API server can be reached."""
    async with TaskGroup() as tasks:
        task = tasks.start(_report(drives, kubeconfig, runtime), name="reports to the API server")
        try:
            yield
        finally:
            task.cancel()


async def _report(drives: NodeDrives, kubeconfig: str, runtime: Runtime) -> None:
    access = await _access(kubeconfig, runtime)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(kube_client(access, runtime, name=NAME, rate=RATE))
        events = await stack.enter_async_context(recording(client, Reporter(NAME, drives.node_name), runtime))
        informers = await stack.enter_async_context(
            Informers(client, clock=runtime.clock, random=runtime.random, log=runtime.log)
        )
        metrics = WorkqueueMetrics(runtime.metrics)
        await stack.enter_async_context(reporting(drives, client, informers, events, runtime, metrics))
        runtime.log.info("reporting drives", node=drives.node_name)
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
            runtime.log.warning("nothing is reported of drives", why=why)
            logged = why
        await runtime.clock.sleep(seconds)
