"""Both ends of CSI around services that a test gives, over each of the transports."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import parse_endpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, Methods, methods_of
from orlop.csi.server import serving
from orlop.csi.transport import ClientTransport
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Level, Log, line_log
from support.csi.grpcio_client import GrpcioConnection

TRANSPORTS = ("socket", "tcp", "grpcio", "in process")
"""The third is the socket, called by somebody else's client."""


@dataclass
class Ends:
    """A client, the server's interceptor, and all that both of them logged and counted."""

    client: CsiClient
    transport: ClientTransport
    interceptor: CallInterceptor
    metrics: Metrics
    lines: list[str]

    @property
    def logged(self) -> str:
        return "".join(self.lines)

    @property
    def counted(self) -> str:
        return self.metrics.render()[0].decode()


@dataclass
class Workshop:
    """Makes ends of one kind; `level` is how much is logged."""

    kind: str
    folder: Path
    clock: Clock = field(default_factory=SystemClock)
    level: Level = Level.DEBUG
    lines: list[str] = field(default_factory=list)

    def interceptor(self, *services: object, methods: Methods | None = None) -> tuple[CallInterceptor, Metrics]:
        metrics = Metrics("test")
        numbers = itertools.count(1)
        made = CallInterceptor(
            methods_of(*services) if methods is None else methods,
            driver_name="test.example.com",
            log=self.log(),
            metrics=metrics,
            clock=self.clock,
            new_id=lambda: f"r-{next(numbers)}",
        )
        return made, metrics

    def log(self) -> Log:
        return line_log(self.lines.append, now=self.clock.now, level=self.level)

    @property
    def address(self) -> str:
        return "tcp://127.0.0.1:0" if self.kind == "tcp" else f"unix://{self.folder}/csi.sock"

    def client(self, transport: ClientTransport, metrics: Metrics) -> CsiClient:
        return CsiClient(transport, log=self.log(), metrics=metrics, clock=self.clock, random=Random(1), timeout=5.0)

    @asynccontextmanager
    async def ends(self, *services: object, grace: float = 1.0, methods: Methods | None = None) -> AsyncIterator[Ends]:
        interceptor, metrics = self.interceptor(*services, methods=methods)
        async with self._served(interceptor, grace) as connect:
            transport = connect()
            try:
                yield Ends(self.client(transport, metrics), transport, interceptor, metrics, self.lines)
            finally:
                await transport.close()
                await interceptor.drain(5.0)

    @asynccontextmanager
    async def _served(self, interceptor: CallInterceptor, grace: float) -> AsyncIterator[Callable[[], Any]]:
        if self.kind == "in process":
            yield lambda: InProcessConnection(interceptor)
            return
        async with serving(parse_endpoint(self.address), interceptor, grace=grace, log=self.log()) as bound:
            yield lambda: (GrpcioConnection if self.kind == "grpcio" else GrpcConnection)(bound)
