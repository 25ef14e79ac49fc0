"""Serves a daemon's --http-endpoint: health and metrics. Imported only by a process that has one.

`/healthz` and `/livez` run only the liveness checks, `/readyz` those and the readiness checks: a daemon that only waits
must not be restarted. The text of an exception is never returned, because it may contain secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from orlop.csi.endpoint import TcpEndpoint
from orlop.foundation.http_edge import EdgeRequest, EdgeResponse, HttpEdge, ListenAddress, Route
from orlop.foundation.runtime import Runtime
from orlop.foundation.unix_socket import SocketUnusable

# Shorter than the second kubelet waits by default, so that the reason of a failure reaches the pod's events.
CHECK_SECONDS = 0.8

Check = Callable[[], Awaitable[str | None]]
"""Returns None if all is well, otherwise the reason."""
Healthz = Callable[[], Awaitable[tuple[int, str]]]
"""Returns the HTTP status and text of `/healthz`, instead of the liveness checks."""


@asynccontextmanager
async def serving_http(
    address: TcpEndpoint,
    runtime: Runtime,
    readiness: Mapping[str, Check],
    *,
    liveness: Mapping[str, Check] | None = None,
    healthz: Healthz | None = None,
    metrics_path: str = "/metrics",
) -> AsyncIterator[None]:
    """Serve health and metrics on `address` inside this context."""
    routes = [
        *health_routes(liveness=liveness or {}, readiness=readiness),
        metrics_route(runtime.metrics.render, metrics_path),
    ]
    if healthz is not None:
        routes = [_healthz_route(healthz), *(route for route in routes if route[1] != "/healthz")]

    def on_error(where: str, error: Exception) -> None:
        runtime.log.exception("HTTP request failed", error, where=where)

    edge = HttpEdge(ListenAddress(address.host.strip("[]"), address.port), routes, on_error=on_error)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(edge)
        except OSError as error:
            raise SocketUnusable(str(error)) from None
        runtime.log.info("serving HTTP", address=edge.address)
        yield


def _healthz_route(healthz: Healthz) -> Route:
    async def handle(_request: EdgeRequest) -> EdgeResponse:
        status, text = await healthz()
        return EdgeResponse(body=text, status=status)

    return ("GET", "/healthz", handle)


# ---- health ----------------------------------------------------------------------------------------------------------


async def _ping() -> None:
    """The check that always exists: it fails only if no response comes at all."""


def health_routes(
    *, liveness: Mapping[str, Check], readiness: Mapping[str, Check], check_seconds: float = CHECK_SECONDS
) -> list[Route]:
    """Return `/healthz`, `/livez` and `/readyz`, each also for a single check, as in `/readyz/driver`."""
    live = {"ping": _ping, **liveness}
    ready = {**live, **readiness}
    return [
        *_Health("healthz", live, check_seconds).routes(),
        *_Health("livez", live, check_seconds).routes(),
        *_Health("readyz", ready, check_seconds).routes(),
    ]


class _Health:
    """One endpoint; its responses have the format of Kubernetes' health endpoints."""

    def __init__(self, name: str, checks: Mapping[str, Check], check_seconds: float) -> None:
        self._name = name
        self._checks = checks
        self._check_seconds = check_seconds

    def routes(self) -> list[Route]:
        return [("GET", f"/{self._name}", self.handle_all), ("GET", f"/{self._name}/{{check}}", self.handle_one)]

    async def handle_all(self, request: EdgeRequest) -> EdgeResponse:
        excluded = set(request.query.get("exclude", ()))
        reasons = await self._run_checks(name for name in self._checks if name not in excluded)
        failed = any(reason is not None for reason in reasons.values())
        if not failed and "verbose" not in request.query:
            return EdgeResponse(body="ok")
        verdict = f"{self._name} check {'failed' if failed else 'passed'}"
        lines = [*self._lines(reasons), *self._wrong_exclusions(excluded), verdict, ""]
        return EdgeResponse(body="\n".join(lines), status=500 if failed else 200)

    async def handle_one(self, request: EdgeRequest) -> EdgeResponse:
        name = request.parameters["check"]
        if name not in self._checks:
            return EdgeResponse(body=f"There is no check {name}; there are: {', '.join(self._checks)}.\n", status=404)
        reason = (await self._run_checks([name]))[name]
        return (
            EdgeResponse(body="ok") if reason is None else EdgeResponse(body=f"{name} failed: {reason}\n", status=500)
        )

    def _lines(self, reasons: Mapping[str, str | None]) -> Iterator[str]:
        for name in self._checks:
            if name not in reasons:
                yield f"[+]{name} excluded: ok"
            elif reasons[name] is None:
                yield f"[+]{name} ok"
            else:
                yield f"[-]{name} failed: {reasons[name]}"

    def _wrong_exclusions(self, excluded: set[str]) -> Iterator[str]:
        if unknown := sorted(excluded - self._checks.keys()):
            yield f"warn: some health checks cannot be excluded: no matches for {', '.join(map(repr, unknown))}"

    async def _run_checks(self, names: Iterable[str]) -> dict[str, str | None]:
        """Run all checks concurrently. A check that takes too long is cancelled, and not waited for."""
        tasks = {name: asyncio.ensure_future(_reason_of(self._checks[name])) for name in names}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._check_seconds)
        finally:
            for task in tasks.values():
                task.cancel()
        return {name: self._outcome(task) for name, task in tasks.items()}

    def _outcome(self, task: asyncio.Future[str | None]) -> str | None:
        if not task.done():
            return f"no result within {self._check_seconds} seconds"
        return "the check was cancelled" if task.cancelled() else task.result()


async def _reason_of(check: Check) -> str | None:
    try:
        reason = await check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed
        return f"the check itself failed with {type(error).__name__}"
    # The response has one line for each check, so join the lines of a reason. An empty reason is still a failure.
    return None if reason is None else " ".join(reason.split()) or "unknown reason"


# ---- metrics ---------------------------------------------------------------------------------------------------------


def metrics_route(render: Callable[[str], tuple[bytes, str]], path: str = "/metrics") -> Route:
    """Return the route for scrapes; `render` takes the Accept header and returns the body and its content type."""

    async def scrape(request: EdgeRequest) -> EdgeResponse:
        body, content_type = render(request.headers.get("Accept", ""))
        return EdgeResponse(body=body, content_type=content_type)

    return ("GET", path, scrape)
