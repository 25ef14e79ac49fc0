"""A pool of connections to one API server: idle ones are reused, the most recent first; more are dialled when needed.

A request that finds no idle connection waits for whichever comes first: one that another request returns, or a new one.
Only a few are dialled at a time, and beyond `PLENTY` slowly: a busy server gains nothing from more connections, and a
TLS handshake costs both ends as much as several requests. Where responses take long, each request gets its own
connection after a while. There is no other limit: each watch needs a connection, and callers limit their own requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from orlop.foundation.tcp_keepalive import KEEPALIVE, TcpKeepalive
from orlop.kube.http.client_connection import HttpConnection

IDLE_SECONDS: Final = 30.0
"""Shorter than servers and balancers keep an idle connection (Kubernetes: 90 seconds), so that we close it first."""
MOST_BEING_MADE: Final = 4
PLENTY: Final = 32
"""Enough for a thousand requests per second that take 32 ms each."""
SECONDS_FOR_ONE_MORE: Final = 0.25
"""With one every 50 ms, handshakes were six percent of what the deletion of volumes cost a kube-apiserver; now two."""

Dial: TypeAlias = Callable[[Callable[[], HttpConnection]], Awaitable[object]]
"""Connect the protocol that the function creates to the server."""


class PoolClosed(ConnectionError):
    """The pool was closed."""


class ConnectionPool:
    def __init__(self, dial: Dial, keepalive: TcpKeepalive = KEEPALIVE) -> None:
        self._dial = dial
        self._keepalive = keepalive
        self._generation = 0
        self._idle: list[tuple[HttpConnection, float]] = []
        self._waiting: deque[asyncio.Future[HttpConnection]] = deque()
        self._being_made: set[asyncio.Task[HttpConnection]] = set()
        self._open: set[HttpConnection] = set()
        self._all_lost = asyncio.Event()
        self._tidying: asyncio.TimerHandle | None = None
        self._one_more: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self, within: float, *, goes_first: bool = False) -> HttpConnection:
        """Return a connection; call `give_back` with it. Raise the error of the last dial, or TimeoutError."""
        if self._closed:
            raise PoolClosed("the connections were closed")
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_live():
                return connection
            connection.abort()
        waiter: asyncio.Future[HttpConnection] = asyncio.get_running_loop().create_future()
        if goes_first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        self._make_more()
        try:
            async with asyncio.timeout(within):
                return await waiter
        except BaseException:
            self._leave(waiter)
            raise

    def give_back(self, connection: HttpConnection) -> None:
        """Return a connection after use; one with an unfinished response is closed."""
        is_of_use = connection.is_reusable() and connection.generation == self._generation and not self._closed
        if is_of_use and (not self._waiting or connection.is_live()):
            connection.be_idle()
            self._offer(connection)
        else:
            if connection.fell_silent():
                # The network between may drop everything. Then idle connections are as dead as this one, though the
                # kernel does not know it yet: each would cost a request its whole timeout, a new one only a handshake.
                self.forget_idle()
            connection.abort()
            self._make_more()

    def forget_idle(self) -> None:
        """Reuse no connection made until now; requests in flight on them go on."""
        self._generation += 1
        while self._idle:
            self._idle.pop()[0].abort()

    async def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        for timer in (self._tidying, self._one_more):
            if timer is not None:
                timer.cancel()
        for task in self._being_made:
            task.cancel()
        for waiter in self._waiting:
            _fail(waiter, PoolClosed("the connections were closed"))
        for connection in tuple(self._open):
            connection.break_off(ConnectionError("we closed it"))
        await asyncio.gather(*self._being_made, return_exceptions=True)
        if self._open:
            await self._all_lost.wait()

    # ---- making them ---------------------------------------------------------------------------------------------

    def _make_more(self) -> None:
        while len(self._being_made) < min(len(self._waiting), MOST_BEING_MADE) and not self._closed:
            if len(self._open) + len(self._being_made) >= PLENTY:
                self._make_one_later()
                return
            self._make_one()

    def _make_one_later(self) -> None:
        if self._one_more is None:
            self._one_more = asyncio.get_running_loop().call_later(SECONDS_FOR_ONE_MORE, self._make_one_if_wanted)

    def _make_one_if_wanted(self) -> None:
        self._one_more = None
        if self._waiting:
            self._make_one()
            self._make_one_later()

    def _make_one(self) -> None:
        task = asyncio.get_running_loop().create_task(self._made(), name="connecting to the API server")
        self._being_made.add(task)
        task.add_done_callback(self._end_making)

    async def _made(self) -> HttpConnection:
        generation = self._generation
        connection: HttpConnection | None = None

        def make() -> HttpConnection:
            nonlocal connection
            connection = HttpConnection(generation, self._lose, self._keepalive)
            return connection

        await self._dial(make)
        assert connection is not None  # noqa: S101 - it is connected
        if not connection.is_lost:
            self._open.add(connection)
        return connection

    def _lose(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if self._closed and not self._open:
            self._all_lost.set()

    def _end_making(self, task: asyncio.Task[HttpConnection]) -> None:
        self._being_made.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._offer(task.result())
        elif (waiter := self._next_waiter()) is not None:
            _fail(waiter, error)
        if self._waiting:
            self._make_more()

    def _offer(self, connection: HttpConnection) -> None:
        if self._closed:
            connection.abort()
        elif (waiter := self._next_waiter()) is not None:
            waiter.set_result(connection)
        else:
            loop = asyncio.get_running_loop()
            self._idle.append((connection, loop.time()))
            if self._tidying is None:
                self._tidying = loop.call_later(IDLE_SECONDS, self._tidy)

    def _next_waiter(self) -> asyncio.Future[HttpConnection] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _leave(self, waiter: asyncio.Future[HttpConnection]) -> None:
        """Remove a waiter that gave up: pass its connection on, and cancel dials that no waiter needs."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._offer(waiter.result())
        if not self._waiting:
            for task in self._being_made:
                task.cancel()

    def _tidy(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_SECONDS
        for connection, since in self._idle:
            if since <= oldest:
                connection.abort()
        self._idle = [(connection, since) for connection, since in self._idle if since > oldest]
        again = self._idle[0][1] - oldest if self._idle else None
        self._tidying = loop.call_later(again, self._tidy) if again is not None else None


def _fail(waiter: asyncio.Future[HttpConnection], error: BaseException) -> None:
    if not waiter.done():
        waiter.set_exception(error)
