"""A node's scratch folders as a process of their own, served on a socket: to be stopped, and to be killed."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from orlop.csi.endpoint import parse_endpoint
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.server import serving
from orlop.driver.identity_service import DriverIdentity, IdentityService
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.processes.csi_wiring import EphemeralSettings
from orlop.processes.daemon import Daemon, LogSettings, request_ids, run_daemon
from orlop.processes.ephemeral_wiring import serving_ephemeral

NAME = "csi.orlop.dev"


@dataclass(frozen=True, kw_only=True)
class Settings:
    endpoint: str = flag(text, required=True, help="Where to listen.")
    ephemeral: EphemeralSettings = group(EphemeralSettings)
    log: LogSettings = group(LogSettings)


async def run(settings: Settings, runtime: Runtime, stop: asyncio.Event) -> None:
    async with serving_ephemeral(settings.ephemeral, runtime, NAME, "n1") as side:

        async def ready() -> bool:
            return all([await check() is None for check in side.readiness.values()])

        interceptor = CallInterceptor(
            methods_of(IdentityService(DriverIdentity(NAME, "1"), ready), side.node_service),
            driver_name=NAME,
            log=runtime.log,
            metrics=runtime.metrics,
            clock=runtime.clock,
            new_id=request_ids(runtime.random),
        )
        async with serving(parse_endpoint(settings.endpoint), interceptor, grace=5, log=runtime.log):
            await stop.wait()


sys.exit(run_daemon(Daemon("node", "Serves scratch folders.", Settings), sys.argv[1:], run))
