"""The HTTP side of a daemon: health, metrics and whatever else its process hands in, on a TCP address or a socket.

Routes are plain values (method, path, handler), handlers take and give plain values: nobody else needs aiohttp.
`/healthz` and `/livez` ask only the liveness checks, `/readyz` those and the readiness checks: a daemon that waits for
something must not be restarted for it.

This module must not log requests and must not answer with the text of an exception: either may hold secrets.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
    from types import TracebackType

BACKLOG = 128
LARGEST_PORT = 65535
PLAIN_TEXT = "text/plain; charset=utf-8"
# Shorter than the second kubelet waits by default, so that the reason of a failure reaches the pod's events.
CHECK_SECONDS = 0.8
STOP_SECONDS = 5.0
ANSWER_HEADERS: Final = {"Server": "orlop", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# aiohttp would write what clients sent into the standard library's log.
SILENT_LOGGER: Final = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001 - it shall not be found by name


# ---- what handlers see -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`parameters` are the parts of the path that the route named in braces; names of headers match in any case."""

    method: str
    path: str
    parameters: Mapping[str, str]
    query: Mapping[str, tuple[str, ...]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A body given in pieces is sent as it comes, in chunks."""

    body: str | bytes | AsyncIterable[bytes] = ""
    status: int = 200
    content_type: str = PLAIN_TEXT
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


UNREADABLE: Final = Response(body="The body of the request cannot be read.\n", status=400)
WENT_WRONG: Final = Response(body="Something went wrong here; the log says what.\n", status=500)

Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"
Route: TypeAlias = "tuple[str, str, Handler]"


# ---- health ----------------------------------------------------------------------------------------------------------

Check: TypeAlias = "Callable[[], Awaitable[str | None]]"  # None when all is well, else the reason


async def _ping() -> None:
    """The check that is always there: that an answer comes at all."""


def health_routes(
    *, liveness: Mapping[str, Check], readiness: Mapping[str, Check], check_seconds: float = CHECK_SECONDS
) -> list[Route]:
    """`/healthz`, `/livez` and `/readyz`, each also for one check alone, as in `/readyz/driver`."""
    live = {"ping": _ping, **liveness}
    ready = {**live, **readiness}
    return [
        *_Health("healthz", live, check_seconds).routes(),
        *_Health("livez", live, check_seconds).routes(),
        *_Health("readyz", ready, check_seconds).routes(),
    ]


class _Health:
    """One endpoint, answering in the words of Kubernetes' own."""

    def __init__(self, name: str, checks: Mapping[str, Check], check_seconds: float) -> None:
        self._name = name
        self._checks = checks
        self._check_seconds = check_seconds

    def routes(self) -> list[Route]:
        return [("GET", f"/{self._name}", self.all), ("GET", f"/{self._name}/{{check}}", self.one)]

    async def all(self, request: Request) -> Response:
        excluded = set(request.query.get("exclude", ()))
        reasons = await self._ask(name for name in self._checks if name not in excluded)
        failed = any(reason is not None for reason in reasons.values())
        if not failed and "verbose" not in request.query:
            return Response(body="ok")
        verdict = f"{self._name} check {'failed' if failed else 'passed'}"
        lines = [*self._lines(reasons), *self._wrong_exclusions(excluded), verdict, ""]
        return Response(body="\n".join(lines), status=500 if failed else 200)

    async def one(self, request: Request) -> Response:
        name = request.parameters["check"]
        if name not in self._checks:
            return Response(body=f"There is no check {name}; there are: {', '.join(self._checks)}.\n", status=404)
        reason = (await self._ask([name]))[name]
        return Response(body="ok") if reason is None else Response(body=f"{name} failed: {reason}\n", status=500)

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

    async def _ask(self, names: Iterable[str]) -> dict[str, str | None]:
        """Asks all at once and waits for none longer than allowed, not even for one that ignores being cancelled."""
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
            return f"no answer within {self._check_seconds} seconds"
        return "the check was cancelled" if task.cancelled() else task.result()


async def _reason_of(check: Check) -> str | None:
    try:
        reason = await check()
    except Exception as error:  # noqa: BLE001 - a check that breaks has failed
        return f"the check itself broke with {type(error).__name__}"
    # One line for each check, whatever the reason holds. An empty reason is still a failure.
    return None if reason is None else " ".join(reason.split()) or "no reason given"


# ---- metrics ---------------------------------------------------------------------------------------------------------


def metrics_route(render: Callable[[str], tuple[bytes, str]], path: str = "/metrics") -> Route:
    """The scrape: `render` is given the Accept header and gives the body and its content type."""

    async def scrape(request: Request) -> Response:
        body, content_type = render(request.headers.get("Accept", ""))
        return Response(body=body, content_type=content_type)

    return ("GET", path, scrape)


# ---- the server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """`:8080`, `127.0.0.1:8080`, `localhost:8080` or `[::1]:8080`; port 0 lets the kernel choose."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (not bracketed and ":" in host) or not (port.isascii() and port.isdecimal()):
        raise ValueError("allowed are addresses such as :8080, 127.0.0.1:8080 and [::1]:8080")
    if int(port) > LARGEST_PORT:
        raise ValueError(f"allowed are ports from 0 to {LARGEST_PORT}")
    return ListenAddress(host[1:-1] if bracketed else host, int(port))


def _ignore(_where: str, _error: Exception) -> None:
    pass


class HttpEdge:
    """Serves routes while it is entered. A socket handed in must be bound, and is closed at the end.

    Leaving lets requests under way finish, for `stop_seconds` at most. `on_error` is told of each exception a handler
    raised; the client learns only that there was one.
    """

    def __init__(
        self,
        listen: ListenAddress | socket.socket,
        routes: Iterable[Route],
        *,
        on_error: Callable[[str, Exception], None] = _ignore,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._listen = listen
        self._on_error = on_error
        self._address: str | None = None
        application = web.Application()
        for method, path, handler in routes:
            self._add(application, method, path, handler)
        self._runner = web.AppRunner(
            application, access_log=None, logger=SILENT_LOGGER, shutdown_timeout=stop_seconds
        )  # fmt: skip

    @property
    def address(self) -> str:
        """Where it listens: `host:port` with the port the kernel chose, or the path of the socket."""
        if self._address is None:
            raise RuntimeError("The HTTP edge has no address before it is entered.")
        return self._address

    async def __aenter__(self) -> Self:
        listener = self._listen if isinstance(self._listen, socket.socket) else await _bound_socket(self._listen)
        listener.setblocking(False)
        self._address = _address_of(listener)
        try:
            await self._runner.setup()
            await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        except BaseException:
            listener.close()
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def _add(self, application: web.Application, method: str, path: str, handler: Handler) -> None:
        answer = partial(self._answer, handler)
        if method == "GET":
            application.router.add_get(path, answer)  # HEAD comes with it
        else:
            application.router.add_route(method, path, answer)

    async def _answer(self, handler: Handler, request: web.Request) -> web.Response:
        where = f"{request.method} {request.path}"
        try:
            return self._web_response(await handler(await _plain_request(request)), where)
        except web.HTTPException:  # of the request itself, such as a body that is too large
            raise
        except web.RequestPayloadError:
            return self._web_response(UNREADABLE, where)
        except Exception as error:  # noqa: BLE001 - the edge of the process: told to the log, not to the client
            self._on_error(where, error)
            return self._web_response(WENT_WRONG, where)

    def _web_response(self, response: Response, where: str) -> web.Response:
        headers = {**ANSWER_HEADERS, "Content-Type": response.content_type, **response.headers}
        match response.body:
            case str():
                body: Any = response.body.encode()
            case bytes():
                body = response.body
            case pieces:
                body = self._watched(pieces, where)
        return web.Response(body=body, status=response.status, headers=headers)

    async def _watched(self, pieces: AsyncIterable[bytes], where: str) -> AsyncIterator[bytes]:
        """A stream that breaks is cut off, so that the client cannot take a part for the whole."""
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:
            self._on_error(where, error)
            raise


def _address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else str(ListenAddress(name[0], name[1]))


async def _bound_socket(address: ListenAddress) -> socket.socket:
    try:
        if address.host:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            family, _, _, _, name = found[0]
            return socket.create_server(name[:2], family=family, backlog=BACKLOG)
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(f"The address {address} cannot be listened on: {error.strerror or error}.") from error
    except UnicodeError as error:  # what idna says of a name that no host can have
        raise OSError(f"The address {address} cannot be listened on: it names no host.") from error


async def _plain_request(request: web.Request) -> Request:
    return Request(
        method=request.method,
        path=request.path,
        parameters=dict(request.match_info),
        query={name: tuple(request.query.getall(name)) for name in request.query},
        headers=request.headers,
        body=await request.read(),
    )
