"""Carry requests to an API server over HTTP/1.1: one pool of connections, with verified TLS or over a unix socket.

Only this module adds our credentials. HTTP is written by hand: for requests of a few hundred bytes a library costs
several times as much (docs/decisions/0005). Errors are classified by what they mean for the request: `NotConnected` if
nothing was sent, `ConnectionBroken` if something may have been. Nothing is sent twice from here (`retry_rules` decides
that), no redirect is followed (our credentials are for this server alone), no proxy of the environment is used, and no
token is sent without TLS.

A server may close an idle connection. A closed one is never chosen for a request; if the close and the request cross,
nobody can know whether the request was read: `ConnectionBroken`.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.tcp_keepalive import KEEPALIVE, TcpKeepalive
from orlop.kube.api_errors import ApiError, ConnectionBroken, NotConnected, ResponseTimeout
from orlop.kube.config.cluster_access import ANONYMOUS, ClientCertificate, ClusterAccess, Credentials
from orlop.kube.http.client_connection import HttpConnection, NeverSent
from orlop.kube.http.connection_pool import ConnectionPool, PoolClosed
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.kube.http.server_endpoint import InvalidAddress, ServerAddress, server_address, tls_context

UNAUTHORIZED: Final = 401
CONNECTING_SHARE: Final = 0.5
"""The part of a request's timeout for connecting. When it has passed, certainly nothing was sent."""
MOST_HEADER_BLOCKS: Final = 64
"""How many encoded header blocks are cached: callers use a few, and encoding is not free."""
BODILESS: Final = frozenset(("GET", "HEAD", "DELETE"))
_TARGET: Final = re.compile(r"[!-~]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BAD_IN_VALUE: Final = re.compile(r"[\r\n\0]")


class HttpTransport:
    """A `Transport` over HTTP; close it after use. Connects at the first request, and again when needed."""

    def __init__(self, access: ClusterAccess, *, keepalive: TcpKeepalive = KEEPALIVE) -> None:
        self._access = access
        self._server = access.server.rstrip("/")
        self._secure = self._server.startswith("https://")
        self._shown: Credentials | None = None
        self._refused: Credentials = ANONYMOUS
        self._own_headers: tuple[tuple[str, str], ...] = access.headers
        self._header_blocks: dict[tuple[tuple[str, str], ...], bytes] = {}
        self._shown_certificate: ClientCertificate | None = None
        self._tls: ssl.SSLContext | None = tls_context(access, None) if self._secure else None
        self._address: ServerAddress | None = None
        self._pool = ConnectionPool(self._dial, keepalive)

    @property
    def is_remote(self) -> bool:
        return not self._access.unix_socket

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        credentials = await self._current()
        request_head = self._head(request)
        connection = await self._connected(within, goes_first=request.goes_first)
        timer = loop.call_at(deadline, connection.break_off, TimeoutError())
        try:
            await connection.send(request_head, request.body)
            head, body = await connection.whole_answer()
        except OSError as error:
            raise self._classified(error, within) from error
        finally:
            timer.cancel()
            self._pool.give_back(connection)
        if head.status == UNAUTHORIZED:
            self._refused = credentials
        return HttpResponse(head.status, head.headers, body)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        credentials = await self._current()
        request_head = self._head(request)
        connection = await self._connected(within)
        try:
            try:
                async with asyncio.timeout(within):
                    await connection.send(request_head, request.body)
                    head = await connection.answer_head()
            except OSError as error:
                raise self._classified(error, within) from error
            if head.status == UNAUTHORIZED:
                self._refused = credentials
            yield HttpStream(head.status, head.headers, _Pieces(connection, self._classified))
        finally:
            self._pool.give_back(connection)

    async def renew_credentials(self) -> None:
        """Renew the credentials that the server refused, unless another request has renewed them already."""
        await self._access.credentials.renew(self._refused)

    async def close(self) -> None:
        await self._pool.close()

    # ---- connecting ----------------------------------------------------------------------------------------------

    async def _current(self) -> Credentials:
        """Return the current credentials, and use them for the next requests."""
        credentials = await self._access.credentials.current()
        if credentials is not self._shown:
            self._show(credentials)
        return credentials

    async def _connected(self, within: float, *, goes_first: bool = False) -> HttpConnection:
        try:
            return await self._pool.take(within * CONNECTING_SHARE, goes_first=goes_first)
        except TimeoutError:
            raise NotConnected(f"{self._place()} cannot be reached: no connection in time") from None
        except PoolClosed:
            raise NotConnected(f"the connections to {self._place()} were closed") from None
        except (OSError, ValueError) as error:
            raise NotConnected(f"{self._place()} cannot be reached: {_reason(error)}") from error

    async def _dial(self, make: Callable[[], HttpConnection]) -> None:
        loop = asyncio.get_running_loop()
        address = self._where()
        if self._access.unix_socket:
            await loop.create_unix_connection(make, self._access.unix_socket)
            return
        named = (self._access.tls_server_name or address.host) if self._tls is not None else None
        await loop.create_connection(make, address.host, address.port, ssl=self._tls, server_hostname=named)

    def _where(self) -> ServerAddress:
        if self._address is None:
            try:
                self._address = server_address(self._server)
            except InvalidAddress as error:
                raise NotConnected(str(error)) from None
        return self._address

    # ---- request heads -------------------------------------------------------------------------------------------

    def _show(self, credentials: Credentials) -> None:
        """Use these credentials. Connections with another client certificate are not reused: TLS sent it already."""
        own = list(self._access.headers)
        authorization = credentials.authorization() if self._secure else None
        if authorization is not None:
            own.append(("authorization", authorization.reveal()))
        if self._secure and credentials.client_certificate != self._shown_certificate:
            self._tls = tls_context(self._access, credentials.client_certificate)
            self._shown_certificate = credentials.client_certificate
            self._pool.forget_idle()
        self._own_headers, self._shown = tuple(own), credentials
        self._header_blocks.clear()

    def _head(self, request: HttpRequest) -> bytes:
        target = self._where().path + request.target
        if not _TARGET.fullmatch(target):
            raise NotConnected(f"{target!r} cannot be requested: it must be percent-encoded")
        named = tuple(request.headers.items())
        headers = self._header_blocks.get(named) or self._header_block(named)
        length = ""
        if request.body or request.method not in BODILESS:
            length = f"content-length: {len(request.body)}\r\n"
        return f"{request.method} {target} HTTP/1.1\r\n{length}".encode() + headers

    def _header_block(self, named: tuple[tuple[str, str], ...]) -> bytes:
        """Encode all headers and the end of the head. Headers of the request replace our own of the same name."""
        replaced = {name.lower() for name, _ in named}
        own = [(name, value) for name, value in self._own_headers if name.lower() not in replaced]
        lines = [_header_line(name, value) for name, value in (("host", self._where().host_header), *own, *named)]
        block = "".join((*lines, "\r\n")).encode("utf-8", "surrogateescape")
        if len(self._header_blocks) < MOST_HEADER_BLOCKS:
            self._header_blocks[named] = block
        return block

    # ---- errors --------------------------------------------------------------------------------------------------

    def _classified(self, error: Exception, within: float | None = None) -> ApiError:
        """Return the error as what it means for the request. It may quote an address, never a header or a body."""
        # The kernel's ETIMEDOUT is a TimeoutError as well, and comes long before our own limit.
        if isinstance(error, TimeoutError) and error.errno is None and within is not None:
            return ResponseTimeout(f"{self._place()} sent no response within {within:g} seconds")
        if isinstance(error, NeverSent):
            return NotConnected(f"the connection to {self._place()} broke: {_reason(error)}")
        return ConnectionBroken(f"the connection to {self._place()} broke: {_reason(error)}")

    def _place(self) -> str:
        return self._access.unix_socket or self._server


class _Pieces:
    """A body as it arrives. Not a generator: an abandoned one would have to be closed."""

    __slots__ = ("_classified", "_connection")

    def __init__(self, connection: HttpConnection, classified: Callable[[Exception], ApiError]) -> None:
        self._connection = connection
        self._classified = classified

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._connection.piece()
        except OSError as error:
            raise self._classified(error) from error
        if not piece:
            raise StopAsyncIteration
        return piece


def _header_line(name: str, value: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or _BAD_IN_VALUE.search(value):
        # The value may be a secret.
        raise NotConnected(f"the header {name!r} cannot be sent: its name or value has characters that are not allowed")
    return f"{name}: {value}\r\n"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class LimitedTransport:
    def __init__(self, inner: Transport, *, per_second: float, burst: int, clock: Clock) -> None:
        if per_second <= 0 or burst < 1:
            raise ValueError(f"a rate of {per_second} per second with a burst of {burst} lets no request pass")
        self._inner = inner
        self._clock = clock
        self._seconds = 1 / per_second
        self._ahead = (burst - 1) * self._seconds
        self._next = -math.inf
        """When the next request may be sent, after all that wait."""

    @property
    def is_remote(self) -> bool:
        return self._inner.is_remote

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        await self._turn()
        return await self._inner.exchange(request, within)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        await self._turn()
        async with self._inner.open(request, within) as stream:
            yield stream

    async def renew_credentials(self) -> None:
        await self._inner.renew_credentials()

    async def close(self) -> None:
        await self._inner.close()

    async def _turn(self) -> None:
        now = self._clock.elapsed()
        mine = max(self._next, now - self._ahead)
        self._next = mine + self._seconds
        if mine > now:
            await self._clock.sleep(mine - now)
