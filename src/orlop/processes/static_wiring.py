"""Wiring of the worker of static volumes: how it works with the API server, on the disks of this machine.

Order: open the kernel's events → watch the disks and wipe released ones. At the end: stop watching → abandon wipes
between two pieces; the next process resumes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from orlop.foundation.runtime import Runtime
from orlop.host.static_disks.disk_events import DiskEvents
from orlop.host.static_disks.linux_static_host import LinuxStaticHost
from orlop.host.threads import OwnThreads, idle_threads
from orlop.processes.node_reporting import ApiUse, ReportingClient
from orlop.processes.static_settings import StaticSettings
from orlop.static_pv.configuration_watch import StaticMachine
from orlop.static_pv.wiping import WipeLimits
from orlop.static_pv.worker import WorkerParts, WorkerSettings, working


def static_work(settings: StaticSettings, node: str, runtime: Runtime) -> ApiUse:
    """Return the worker of a node, to be run with a client of the API server."""
    settings.refuse_without_root()
    limits = WipeLimits(settings.static_wipes, settings.static_wipe_rate.value())
    period = settings.static_discovery_period.seconds
    worker = WorkerSettings(node, settings.static_namespace, settings.static_config, limits, period)
    return partial(_working, worker, runtime)


@asynccontextmanager
async def _working(settings: WorkerSettings, runtime: Runtime, api: ReportingClient) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    host = LinuxStaticHost(runtime.clock, runtime.random, os.environ)
    parts = WorkerParts(api.client, api.informers, api.events, runtime, api.queue_metrics)
    threads = OwnThreads()
    with DiskEvents() as events:
        machine = StaticMachine(host, threads, idle_threads(threads), events.watch)
        async with working(settings, machine, parts, partial(events.waking, loop)):
            runtime.log.info("working on static volumes", node=settings.node, config=settings.configuration_folder)
            yield
