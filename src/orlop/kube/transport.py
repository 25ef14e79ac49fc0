"""Requests carried to an API server over HTTP/1.1: one pool of connections, TLS verified, or a plain unix socket.

The only place that says who we are, and the only one of `kube` that knows aiohttp. What went wrong is told by what it
means for the request: `NotConnected` if none of it was sent, `ConnectionBroken` if some of it may have been. Nothing
is ever sent twice from here (that is for `retry_rules` to decide), no redirect is followed (our credentials are for
this server alone), no proxy of the environment is used, and no token goes over a connection that others can read.

A server may close a connection that nobody uses. One that is closed already is never chosen for a request; where the
close and the request cross on their way, nobody can know whether the request was read: `ConnectionBroken`.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from orlop.kube.cluster_access import ANONYMOUS, ClientCertificate, ClusterAccess, Credentials
from orlop.kube.errors import ApiError, ConnectionBroken, NoAnswerInTime, NotConnected
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream
from orlop.kube.tls_context import tls_context

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

UNAUTHORIZED: Final = 401
CONNECTING_SHARE: Final = 0.5
"""Of the time for an answer. What takes longer than this to connect is known to have sent nothing."""
IDLE_SECONDS: Final = 30.0
"""Less than servers and balancers keep an unused connection (Kubernetes: 90 seconds), so that we are first to close."""
LARGE_BODY: Final = 2**19
LARGEST_HEADER: Final = 2**16
"""Warnings of what a server passed over may be many times the 8 KiB that aiohttp reads by itself."""
MOST_TIMEOUTS: Final = 16
"""Callers use a few different ones, and making one is not free."""
# Compressing costs both sides more time than a cluster's network does.
NOT_SENT_BY_ITSELF: Final = ("accept-encoding", "user-agent", "accept", "content-type")


class HttpTransport:
    """To be closed by whoever made it. Connects at the first request, and again whenever that is needed."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._server = access.server.rstrip("/")
        self._secure = self._server.startswith("https://")
        self._shown: Credentials | None = None
        self._refused: Credentials = ANONYMOUS
        self._headers: CIMultiDict[str] = CIMultiDict(access.headers)
        self._shown_certificate: ClientCertificate | None = None
        self._tls: ssl.SSLContext | bool = tls_context(access, None) if self._secure else True
        self._session: aiohttp.ClientSession | None = None
        self._under_way: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._closed = False

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
        credentials = await self._access.credentials.current()
        if credentials is not self._shown:
            self._show(credentials)
        timeout = self._timeouts.get(within) or self._timeout(within)
        try:
            async with self._send(request, timeout) as response:
                self._under_way.add(response)
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._told(error, within) from error
        if response.status == UNAUTHORIZED:
            self._refused = credentials
        return HttpAnswer(response.status, _lower(response.headers), body)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        credentials = await self._access.credentials.current()
        self._show(credentials)
        timeout = aiohttp.ClientTimeout(total=None, connect=within * CONNECTING_SHARE)
        try:
            async with asyncio.timeout(within):
                response = await self._send(request, timeout)
        except (aiohttp.ClientError, OSError) as error:
            raise self._told(error, within) from error
        if response.status == UNAUTHORIZED:
            self._refused = credentials
        self._under_way.add(response)
        try:
            yield HttpStream(response.status, _lower(response.headers), _Pieces(response.content, self._told))
        finally:
            response.close()

    async def renew_credentials(self) -> None:
        """Those that the server refused last, and not those that another request has got meanwhile."""
        await self._access.credentials.renew(self._refused)

    async def close(self) -> None:
        self._closed = True
        for response in tuple(self._under_way):  # aiohttp would leave their readers waiting
            response.content.set_exception(aiohttp.ClientConnectionError("it was closed on our side"))
        if self._session is not None:
            await self._session.close()

    def _send(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> aiohttp.client._RequestContextManager:
        headers = self._headers.copy()
        headers.update(request.headers)
        return self._connections().request(
            request.method,
            self._url(request),
            data=_payload(request.body),
            headers=headers,
            allow_redirects=False,
            timeout=timeout,
            ssl=self._tls,
            server_hostname=self._access.tls_server_name,
        )

    def _url(self, request: HttpRequest) -> URL:
        try:
            return URL(self._server + request.target, encoded=True)
        except ValueError as error:
            raise NotConnected(f"{self._server} is no address of a server: {error}") from None

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is not None and not self._closed:
            return self._session
        if self._closed:
            raise NotConnected(f"the connections to {self._place()} have been closed")
        self._session = aiohttp.ClientSession(
            connector=_pool(self._access.unix_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=NOT_SENT_BY_ITSELF,
            max_line_size=LARGEST_HEADER,
            max_field_size=LARGEST_HEADER,
        )
        # It would send some requests a second time by itself, also a DELETE that names no uid.
        self._session._retry_connection = False  # noqa: SLF001 - there is no other way to say so
        return self._session

    def _show(self, credentials: Credentials) -> None:
        """A connection made with another certificate is not used any more: it belongs to another TLS context."""
        if credentials is self._shown:
            return
        headers = CIMultiDict(self._access.headers)
        authorization = credentials.authorization() if self._secure else None
        if authorization is not None:
            headers["authorization"] = authorization.reveal()
        if self._secure and credentials.client_certificate != self._shown_certificate:
            self._tls = tls_context(self._access, credentials.client_certificate)
            self._shown_certificate = credentials.client_certificate
        self._headers, self._shown = headers, credentials

    def _timeout(self, within: float) -> aiohttp.ClientTimeout:
        timeout = aiohttp.ClientTimeout(total=within, connect=within * CONNECTING_SHARE)
        if len(self._timeouts) < MOST_TIMEOUTS:
            self._timeouts[within] = timeout
        return timeout

    def _told(self, error: Exception, within: float | None = None) -> ApiError:
        """What an exception of aiohttp's means. Its text may quote an address, never a header or a body."""
        match error:
            case aiohttp.ConnectionTimeoutError():
                return NotConnected(f"{self._place()} cannot be reached: no connection in time")
            case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
                return NotConnected(f"{self._place()} cannot be reached: {_reason(error)}")
            case TimeoutError() if within is not None:
                return NoAnswerInTime(f"{self._place()} gave no answer within {within:g} seconds")
            case _:
                return ConnectionBroken(f"the connection to {self._place()} broke: {_reason(error)}")

    def _place(self) -> str:
        return self._access.unix_socket or self._server


class _Pieces:
    """A body as it arrives; no generator, as an abandoned one would have to be closed."""

    __slots__ = ("_content", "_told")

    def __init__(self, content: aiohttp.StreamReader, told: Callable[[Exception], ApiError]) -> None:
        self._content = content
        self._told = told

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._told(error) from error
        if not piece:
            raise StopAsyncIteration
        return piece


# ---- connections that the server has not closed ----------------------------------------------------------------------


class _LivePool(aiohttp.BaseConnector):
    """Gives out no used connection that the server has closed, also where the event loop does not know of it yet."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or protocol not in self._used:
                break
            if not _has_something_to_read(connection):
                return connection
            connection.close()
        if protocol is not None:
            self._used.add(protocol)
        return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        if should_close or protocol.should_close:
            # Over TLS a polite end waits for the server's; whoever leaves a watch is not to leave that behind.
            protocol.abort()
            should_close = True
        super()._release(key, protocol, should_close=should_close)


def _has_something_to_read(connection: Connection) -> bool:
    """On a connection where nothing was asked, that is the end, or the server's reason for it."""
    opened = connection.transport.get_extra_info("socket") if connection.transport is not None else None
    if opened is None or opened.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(opened.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _TcpPool(_LivePool, aiohttp.TCPConnector):
    pass


class _UnixPool(_LivePool, aiohttp.UnixConnector):
    pass


def _pool(unix_socket: str) -> _LivePool:
    """Without a limit: each watch takes a connection for itself, and whoever asks much at once limits himself."""
    settings = {"limit": 0, "keepalive_timeout": IDLE_SECONDS}
    return _UnixPool(unix_socket, **settings) if unix_socket else _TcpPool(**settings)


# ---- small things ----------------------------------------------------------------------------------------------------


def _payload(body: bytes) -> bytes | BytesIO | None:
    """A large one goes in pieces, so that others have their turn in between."""
    if len(body) > LARGE_BODY:
        return BytesIO(body)
    return body or None


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    """What came more than once is one list, as HTTP has it."""
    lowered: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        lowered[key] = f"{lowered[key]}, {value}" if key in lowered else value
    return lowered


def _reason(error: Exception) -> str:
    if type(error) in {aiohttp.ClientConnectorError, aiohttp.ClientConnectorDNSError}:
        # Its own sentence names the host once more, and shows an object of ours.
        cause = error.os_error  # type: ignore[attr-defined]
        return cause.strerror or str(cause)
    return str(error) or type(error).__name__
