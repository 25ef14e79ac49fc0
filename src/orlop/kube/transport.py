"""Requests carried to an API server over HTTP/1.1: one pool of connections, TLS verified, or a plain unix socket.

The only place that says who we are. HTTP is written by hand here: for exchanges of a few hundred bytes a library costs
several times what they do (docs/decisions/0005). What went wrong is told by what it means for the request:
`NotConnected` if none of it was sent, `ConnectionBroken` if some of it may have been. Nothing is ever sent twice from
here (that is for `retry_rules` to decide), no redirect is followed (our credentials are for this server alone), no
proxy of the environment is used, and no token goes over a connection that others can read.

A server may close a connection that nobody uses. One that is closed already is never chosen for a request; where the
close and the request cross on their way, nobody can know whether the request was read: `ConnectionBroken`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from orlop.kube.cluster_access import ANONYMOUS, ClientCertificate, ClusterAccess, Credentials
from orlop.kube.connection_pool import ConnectionPool, PoolClosed
from orlop.kube.errors import ApiError, ConnectionBroken, NoAnswerInTime, NotConnected
from orlop.kube.http_connection import HttpConnection, NeverSent
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream
from orlop.kube.server_address import InvalidAddress, ServerAddress, server_address
from orlop.kube.tls_context import tls_context

UNAUTHORIZED: Final = 401
CONNECTING_SHARE: Final = 0.5
"""Of the time for an answer. What takes longer than this to connect is known to have sent nothing."""
MOST_HEADER_BLOCKS: Final = 64
"""Callers send a few different ones, and making one is not free."""
BODILESS: Final = frozenset(("GET", "HEAD", "DELETE"))
_TARGET: Final = re.compile(r"[!-~]+")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BAD_IN_VALUE: Final = re.compile(r"[\r\n\0]")


class HttpTransport:
    """To be closed by whoever made it. Connects at the first request, and again whenever that is needed."""

    def __init__(self, access: ClusterAccess) -> None:
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
        self._pool = ConnectionPool(self._dial)

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        credentials = await self._current()
        said = self._head(request)
        connection = await self._connected(within)
        timer = loop.call_at(deadline, connection.break_off, TimeoutError())
        try:
            await connection.send(said, request.body)
            head, body = await connection.whole_answer()
        except OSError as error:
            raise self._told(error, within) from error
        finally:
            timer.cancel()
            self._pool.give_back(connection)
        if head.status == UNAUTHORIZED:
            self._refused = credentials
        return HttpAnswer(head.status, head.headers, body)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        credentials = await self._current()
        said = self._head(request)
        connection = await self._connected(within)
        try:
            try:
                async with asyncio.timeout(within):
                    await connection.send(said, request.body)
                    head = await connection.answer_head()
            except OSError as error:
                raise self._told(error, within) from error
            if head.status == UNAUTHORIZED:
                self._refused = credentials
            yield HttpStream(head.status, head.headers, _Pieces(connection, self._told))
        finally:
            self._pool.give_back(connection)

    async def renew_credentials(self) -> None:
        """Those that the server refused last, and not those that another request has got meanwhile."""
        await self._access.credentials.renew(self._refused)

    async def close(self) -> None:
        await self._pool.close()

    # ---- connecting ----------------------------------------------------------------------------------------------

    async def _current(self) -> Credentials:
        """Those that are shown from now on."""
        credentials = await self._access.credentials.current()
        if credentials is not self._shown:
            self._show(credentials)
        return credentials

    async def _connected(self, within: float) -> HttpConnection:
        try:
            return await self._pool.take(within * CONNECTING_SHARE)
        except TimeoutError:
            raise NotConnected(f"{self._place()} cannot be reached: no connection in time") from None
        except PoolClosed:
            raise NotConnected(f"the connections to {self._place()} have been closed") from None
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

    # ---- what is said --------------------------------------------------------------------------------------------

    def _show(self, credentials: Credentials) -> None:
        """A connection made with another certificate is not used any more: it belongs to another TLS context."""
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
            raise NotConnected(f"{target!r} cannot be asked for: it is to be quoted")
        named = tuple(request.headers.items())
        headers = self._header_blocks.get(named) or self._header_block(named)
        length = ""
        if request.body or request.method not in BODILESS:
            length = f"content-length: {len(request.body)}\r\n"
        return f"{request.method} {target} HTTP/1.1\r\n{length}".encode() + headers

    def _header_block(self, named: tuple[tuple[str, str], ...]) -> bytes:
        """To the end of the head. What the request says itself is not said for it."""
        said = {name.lower() for name, _ in named}
        own = [(name, value) for name, value in self._own_headers if name.lower() not in said]
        lines = [_header_line(name, value) for name, value in (("host", self._where().host_header), *own, *named)]
        block = "".join((*lines, "\r\n")).encode("utf-8", "surrogateescape")
        if len(self._header_blocks) < MOST_HEADER_BLOCKS:
            self._header_blocks[named] = block
        return block

    # ---- what went wrong -----------------------------------------------------------------------------------------

    def _told(self, error: Exception, within: float | None = None) -> ApiError:
        """Its text may quote an address, never a header or a body."""
        if isinstance(error, TimeoutError) and within is not None:
            return NoAnswerInTime(f"{self._place()} gave no answer within {within:g} seconds")
        if isinstance(error, NeverSent):
            return NotConnected(f"the connection to {self._place()} broke: {_reason(error)}")
        return ConnectionBroken(f"the connection to {self._place()} broke: {_reason(error)}")

    def _place(self) -> str:
        return self._access.unix_socket or self._server


class _Pieces:
    """A body as it arrives; no generator, as an abandoned one would have to be closed."""

    __slots__ = ("_connection", "_told")

    def __init__(self, connection: HttpConnection, told: Callable[[Exception], ApiError]) -> None:
        self._connection = connection
        self._told = told

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._connection.piece()
        except OSError as error:
            raise self._told(error) from error
        if not piece:
            raise StopAsyncIteration
        return piece


def _header_line(name: str, value: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or _BAD_IN_VALUE.search(value):
        # The value may be a secret.
        raise NotConnected(f"the header {name!r} cannot be sent: its name or its value holds what no header may")
    return f"{name}: {value}\r\n"


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
