"""A daemon whose one call hangs in a thread and ignores everything: what a dead disk does to a driver."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass

from orlop.csi.endpoint import parse_endpoint
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, services
from orlop.csi.server import serving
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.processes.daemon import Daemon, LogSettings, request_ids, run_daemon


@dataclass(frozen=True, kw_only=True)
class Settings:
    endpoint: str = flag(text, required=True, help="Where to listen.")
    log: LogSettings = group(LogSettings)


class Stuck(services.Identity):
    async def Probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        await asyncio.to_thread(threading.Event().wait)
        return csi_pb2.ProbeResponse()


async def run(settings: Settings, runtime: Runtime, stop: asyncio.Event) -> None:
    interceptor = CallInterceptor(
        methods_of(Stuck()),
        driver_name="stuck.example.com",
        log=runtime.log,
        metrics=runtime.metrics,
        clock=runtime.clock,
        new_id=request_ids(runtime.random),
    )
    async with serving(parse_endpoint(settings.endpoint), interceptor, grace=0.2, log=runtime.log):
        await stop.wait()


sys.exit(run_daemon(Daemon("stuck", "Hangs.", Settings), sys.argv[1:], run))
