"""`orlop static-master`: makes PersistentVolumes of the disks that workers list, and has released ones wiped.

Order: acquire the lease, with leader election → fill the caches → reconcile every node. When the process is stopped,
the write in flight ends, and the lease is released.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from orlop import __version__
from orlop.csi.endpoint import TcpEndpoint, parse_optional_http_address
from orlop.foundation.go_flags import boolean, flag, floating, group, integer, text
from orlop.foundation.runtime import Runtime
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import recording
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.kube_wiring import RequestRate, kube_access, kube_client
from orlop.processes.lease_wiring import LeaderSettings, LeaseWiring
from orlop.processes.static_master_wiring import MasterServices, configuration_watch, run_static_master
from orlop.processes.static_settings import StaticMasterFlags, needed_configuration
from orlop.static_pv.configuration_watch import ConfigurationWatch
from orlop.static_pv.master_metrics import MasterMetrics

NAME: Final = "orlop-static-master"
LEASE: Final = "orlop-static-master"
BURST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFlags(StaticMasterFlags):
    static_config: str = needed_configuration()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMasterSettings:
    static: MasterFlags = group(MasterFlags)
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="How to reach the API server. Default: as kubectl does, otherwise the pod's service account.",
    )
    kube_api_qps: float = flag(
        floating,
        default="0",
        metavar="COUNT",
        help="Limit of requests per second to the API server; 0 or less: no limit.",
    )
    kube_api_burst: int = flag(
        integer, default="10", metavar="COUNT", help="Number of requests that may exceed --kube-api-qps at once."
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        default="",
        aliases=("listen-address",),
        metavar="HOST:PORT",
        help="The address to serve metrics, /healthz/leader-election and /readyz on; default: none.",
    )
    metrics_path: str = flag(text, default="/metrics", metavar="PATH", help="HTTP path of the metrics.")
    version: bool = flag(boolean, default="false", help="Print the version and exit.")
    leader: LeaderSettings = group(LeaderSettings)
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    @property
    def rate(self) -> RequestRate | None:
        return RequestRate(self.kube_api_qps, self.kube_api_burst or BURST) if self.kube_api_qps > 0 else None


DAEMON: Final = Daemon(
    "orlop static-master",
    "Makes PersistentVolumes of the disks that static workers list, and has released ones wiped.",
    StaticMasterSettings,
    lambda settings: f"orlop static-master {__version__}\n" if settings.version else None,
)


async def run(settings: StaticMasterSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        access = kube_access(settings.kubeconfig, runtime)
        kube = await stack.enter_async_context(kube_client(access, runtime, name=NAME, rate=settings.rate))
        unlimited = kube
        if settings.rate is not None:
            unlimited = await stack.enter_async_context(kube_client(access, runtime, name=NAME))
        leases = LeaseWiring(settings.leader, runtime, unlimited, access.namespace)
        configuration = configuration_watch(settings.static, runtime)
        await configuration.load()
        if settings.http_endpoint is not None:
            from orlop.processes.http_wiring import serving_http  # noqa: PLC0415 - saves memory if HTTP is not served

            liveness = {"leader-election": leases.why_not_leading} if settings.leader.leader_election else {}
            readiness = {"configuration": partial(_why_not_configured, configuration)}
            await stack.enter_async_context(
                serving_http(
                    settings.http_endpoint, runtime, readiness, liveness=liveness, metrics_path=settings.metrics_path
                )
            )
        queue_metrics, metrics = WorkqueueMetrics(runtime.metrics), MasterMetrics(runtime.metrics)

        async def lead() -> None:
            async with leases.leading(LEASE) as may_act, recording(kube, _reporter(), runtime) as events:
                services = MasterServices(
                    runtime=runtime,
                    kube=kube,
                    events=events,
                    metrics=metrics,
                    queue_metrics=queue_metrics,
                    may_act=may_act,
                    stop=stop,
                )
                is_leading.set()
                await run_static_master(settings.static, configuration, services)

        is_leading = asyncio.Event()
        try:
            await _until_stopped(lead, is_leading, stop)
        except LeadershipLost as error:
            raise CannotGoOn(str(error)) from None


async def _why_not_configured(configuration: ConfigurationWatch) -> str | None:
    return None if configuration.current is not None else f"no configuration: {configuration.fault or 'not read yet'}"


def _reporter() -> Reporter:
    return Reporter(NAME, socket.gethostname())


async def _until_stopped(lead: Callable[[], Awaitable[None]], is_leading: asyncio.Event, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Waiting for the lease is cancelled then, work in progress ends by itself."""
    leading = asyncio.ensure_future(lead())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not is_leading.is_set():
            leading.cancel()
        await asyncio.wait((leading,))
    finally:
        for task in (leading, stopping):
            task.cancel()
        await asyncio.wait((leading, stopping))
    if not leading.cancelled():
        leading.result()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
