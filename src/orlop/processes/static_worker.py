"""`orlop static-worker`: lists the disks of a node that become PersistentVolumes, and wipes released ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from orlop.csi.endpoint import TcpEndpoint, parse_optional_http_address
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.node_reporting import using_api
from orlop.processes.static_settings import StaticSettings, needed_configuration
from orlop.processes.static_wiring import static_work

NAME: Final = "orlop-static-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDiskSettings(StaticSettings):
    static_config: str = needed_configuration()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticWorkerSettings:
    node_name: str = flag(
        text, default="", env="MY_NODE_NAME", metavar="NAME", help="The name of this node in the cluster."
    )
    disks: WorkerDiskSettings = group(WorkerDiskSettings)
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="How to reach the API server. Default: as kubectl does, otherwise the pod's service account.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        default="",
        aliases=("listen-address",),
        metavar="HOST:PORT",
        help="The address to serve metrics, /healthz, /livez and /readyz on; default: none.",
    )
    metrics_path: str = flag(text, default="/metrics", metavar="PATH", help="HTTP path of the metrics.")
    config_sync_period: Duration | None = flag(
        Duration.parse,
        metavar="DURATION",
        help="Accepted for compatibility with local-static-provisioner, without effect: changes are events.",
    )
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)


DAEMON: Final = Daemon(
    "orlop static-worker",
    "Lists the disks of this node that become PersistentVolumes, and wipes released ones; run one on every node.",
    StaticWorkerSettings,
)


async def run(settings: StaticWorkerSettings, runtime: Runtime, stop: asyncio.Event) -> None:
    if not settings.node_name:
        raise CannotGoOn("the name of the node is missing: set --node-name, or MY_NODE_NAME from spec.nodeName")
    async with AsyncExitStack() as stack:
        if settings.http_endpoint is not None:
            from orlop.processes.http_wiring import serving_http  # noqa: PLC0415 - saves memory if HTTP is not served

            await stack.enter_async_context(
                serving_http(settings.http_endpoint, runtime, {}, metrics_path=settings.metrics_path)
            )
        uses = (static_work(settings.disks, settings.node_name, runtime),)
        await stack.enter_async_context(using_api(uses, NAME, settings.node_name, settings.kubeconfig, runtime))
        await stop.wait()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
