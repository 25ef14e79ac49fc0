"""Health and metrics of a daemon over HTTP. Imported only by a process that was asked to serve them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from orlop.csi.endpoint import TcpEndpoint
from orlop.foundation.http_edge import Handler, HttpEdge, ListenAddress, Request, Response
from orlop.foundation.unix_socket import SocketUnusable
from orlop.processes.daemon import Surroundings
from orlop.processes.health_routes import Check, health_routes, metrics_route

Healthz = Callable[[], Awaitable[tuple[int, str]]]
"""What `/healthz` answers in place of the usual: a status and a text."""


@asynccontextmanager
async def http_side(
    address: TcpEndpoint,
    given: Surroundings,
    readiness: Mapping[str, Check],
    *,
    liveness: Mapping[str, Check] | None = None,
    healthz: Healthz | None = None,
    metrics_path: str = "/metrics",
) -> AsyncIterator[None]:
    health = health_routes(liveness=liveness or {}, readiness=readiness)
    routes = [*health, metrics_route(given.metrics.render, metrics_path)]
    if healthz is not None:
        routes = [("GET", "/healthz", _answering(healthz)), *(one for one in routes if one[1] != "/healthz")]

    def told(where: str, error: Exception) -> None:
        given.log.exception("a request over HTTP failed", error, where=where)

    edge = HttpEdge(ListenAddress(address.host.strip("[]"), address.port), routes, on_error=told)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(edge)
        except OSError as error:
            raise SocketUnusable(str(error)) from None
        given.log.info("serving HTTP", address=edge.address)
        yield


def _answering(healthz: Healthz) -> Handler:
    async def answer(_request: Request) -> Response:
        status, text = await healthz()
        return Response(body=text, status=status)

    return answer
