"""Wiring of the master of static volumes, which `orlop static-master` and `orlop controller` share.

The configuration is read from files, as the workers read it. Files that cannot be used keep the configuration before;
until the first that can, the master does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from orlop.foundation.clock import Clock
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.static_disks.configuration_files import read_configuration_files
from orlop.host.threads import OwnThreads
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.static_settings import StaticMasterFlags
from orlop.static_pv.configuration_watch import ConfigurationWatch
from orlop.static_pv.lost_claims import LostClaims
from orlop.static_pv.master import StaticMaster
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_view import master_view


def configuration_watch(flags: StaticMasterFlags, runtime: Runtime) -> ConfigurationWatch:
    valid = runtime.metrics.gauge(
        "orlop_static_configuration_valid", "Whether the configuration files that are there could be used."
    )
    in_thread = OwnThreads()  # a folder that hangs keeps one thread
    read = partial(in_thread, partial(read_configuration_files, flags.static_config))
    return ConfigurationWatch(read, lambda is_valid: valid.set(float(is_valid)), runtime=runtime)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterServices:
    """What a process that leads has for the master."""

    runtime: Runtime
    kube: KubeClient
    events: EventRecorder
    metrics: MasterMetrics
    queue_metrics: WorkqueueMetrics
    may_act: Callable[[], None]
    stop: asyncio.Event


async def run_static_master(
    flags: StaticMasterFlags, configuration: ConfigurationWatch, services: MasterServices
) -> None:
    """Run the master until `stop` is set; the write in flight then ends."""
    runtime = services.runtime
    async with (
        Informers(services.kube, clock=runtime.clock, random=runtime.random, log=runtime.log) as informers,
        master_view(informers, flags.static_namespace) as view,
        TaskGroup() as tasks,
    ):
        master = StaticMaster(
            view,
            lambda: configuration.current,
            runtime=runtime,
            kube=services.kube,
            events=services.events,
            metrics=services.metrics,
            queue_metrics=services.queue_metrics,
            may_act=services.may_act,
        )
        reload = _reload(configuration, master, runtime.clock, flags.static_config_sync_period.seconds)
        running = [tasks.start(reload, name="configuration of static volumes")]
        if flags.static_lost_claim_delay.nanoseconds:
            lost = LostClaims(
                view,
                flags.static_lost_claim_delay.seconds,
                runtime=runtime,
                kube=services.kube,
                events=services.events,
                metrics=services.metrics,
                may_act=services.may_act,
            )
            running.append(tasks.start(lost.run(), name="claims of lost nodes"))
        running.append(tasks.start(_stop_with(services.stop, master), name="stop of static master"))
        runtime.log.info("serving static volumes", namespace=flags.static_namespace, folder=flags.static_config)
        await master.run()
        for task in running:
            task.cancel()


async def _reload(configuration: ConfigurationWatch, master: StaticMaster, clock: Clock, period: float) -> None:
    while True:
        if await configuration.load():
            master.enqueue_all()
        await clock.sleep(period)


async def _stop_with(stop: asyncio.Event, master: StaticMaster) -> None:
    await stop.wait()
    master.stop()
