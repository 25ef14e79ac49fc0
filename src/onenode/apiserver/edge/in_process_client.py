"""The way to the API server without a socket: for simulations on virtual time, and for roles beside it in one process.

Its requests are those of the user that it was made with. Requests and answers are the bytes they would be on the wire;
time limits hold as well. Closing ends what is under way with `ConnectionBroken`, as a broken connection would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.edge.http_upgrade import HttpUpgrade, ServerAnswer
from orlop.kube.api_errors import ConnectionBroken, NotConnected, ResponseTimeout
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream

T = TypeVar("T")


class Server(Protocol):
    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer: ...


class InProcessTransport:
    def __init__(self, server: Server, user: User) -> None:
        self._server = server
        self._user = user
        self._under_way: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def is_remote(self) -> bool:
        return False

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        try:
            async with asyncio.timeout(within):
                answer = await self._answered(request)
                if isinstance(answer, HttpResponse):
                    return answer
                return HttpResponse(answer.status, answer.headers, await self._whole(answer))
        except TimeoutError:
            raise ResponseTimeout(f"no answer within {within:g} seconds: {request.method} {request.path}") from None

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        try:
            async with asyncio.timeout(within):
                answer = await self._answered(request)
        except TimeoutError:
            raise ResponseTimeout(f"no answer within {within:g} seconds: {request.method} {request.path}") from None
        source = _one_piece(answer.body) if isinstance(answer, HttpResponse) else answer.pieces
        pieces = self._pieces(source)
        try:
            yield HttpStream(answer.status, answer.headers, pieces)
        finally:
            await pieces.aclose()
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    async def renew_credentials(self) -> None:
        """There are none: who we are was said when this was made."""

    async def close(self) -> None:
        self._closed = True
        for waiting in self._under_way:
            waiting.cancel()

    async def _answered(self, request: HttpRequest) -> HttpResponse | HttpStream:
        answer = await self._received(self._server.answer(request, self._user))
        if isinstance(answer, HttpUpgrade):
            answer.close()
            raise ConnectionBroken("nothing can be upgraded without a socket")
        return answer

    def _is_closed(self) -> bool:
        return self._closed

    async def _whole(self, stream: HttpStream) -> bytes:
        return b"".join([piece async for piece in self._pieces(stream.pieces)])

    async def _pieces(self, source: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        while (piece := await self._received(anext(source, None))) is not None:
            yield piece

    async def _received(self, awaited: Awaitable[T]) -> T:
        """What the server gives, unless the connection is closed before."""
        if self._is_closed():
            _discard(awaited)
            raise NotConnected("the connection to the API server was closed")
        waiting = asyncio.ensure_future(awaited)
        self._under_way.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._is_closed() and waiting.cancelled() and not _is_being_cancelled():
                raise ConnectionBroken("the connection to the API server was closed") from None
            raise
        finally:
            self._under_way.discard(waiting)


def _is_being_cancelled() -> bool:
    caller = asyncio.current_task()
    return caller is not None and caller.cancelling() > 0


def _discard(awaited: Awaitable[Any]) -> None:
    """Nobody will run it, and Python would warn of that far from here."""
    close = getattr(awaited, "close", None)
    if close is not None:
        close()


async def _one_piece(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
