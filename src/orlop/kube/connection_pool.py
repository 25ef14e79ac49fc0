"""Connections to one API server: those that are free are used again, the youngest first, and more are made when needed.

Who finds none free waits for whichever comes first: one that another gives back, or a new one. Only a few are made at a
time, and once there are plenty they are made slowly: a server that is busy has no use for more of them, and shaking
hands costs both sides as much as several requests. Where answers take long each request has its own after a while.
There is no other limit: each watch takes a connection for itself, and whoever asks much at once limits himself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from orlop.kube.http_connection import HttpConnection

IDLE_SECONDS: Final = 30.0
"""Less than servers and balancers keep an unused connection (Kubernetes: 90 seconds), so that we are first to close."""
MOST_BEING_MADE: Final = 4
PLENTY: Final = 16
"""Enough for a thousand requests in a second that take 16 ms each."""
SECONDS_FOR_ONE_MORE: Final = 0.05

Dial: TypeAlias = Callable[[Callable[[], HttpConnection]], Awaitable[object]]
"""Connects what the function makes to the server."""


class PoolClosed(ConnectionError):
    """There are no more connections."""


class ConnectionPool:
    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._generation = 0
        self._idle: list[tuple[HttpConnection, float]] = []
        self._waiting: deque[asyncio.Future[HttpConnection]] = deque()
        self._being_made: set[asyncio.Task[HttpConnection]] = set()
        self._open: set[HttpConnection] = set()
        self._all_lost = asyncio.Event()
        self._tidying: asyncio.TimerHandle | None = None
        self._one_more: asyncio.TimerHandle | None = None
        self._closed = False

    async def take(self, within: float) -> HttpConnection:
        """To be given back. Raises what the last attempt to connect raised, or TimeoutError."""
        if self._closed:
            raise PoolClosed("they have been closed")
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.is_live():
                return connection
            connection.abort()
        waiter: asyncio.Future[HttpConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._make_more()
        try:
            async with asyncio.timeout(within):
                return await waiter
        except BaseException:
            self._leave(waiter)
            raise

    def give_back(self, connection: HttpConnection) -> None:
        """Also one on which something is still under way: that is closed."""
        is_of_use = connection.is_reusable() and connection.generation == self._generation and not self._closed
        if is_of_use and (not self._waiting or connection.is_live()):
            connection.be_idle()
            self._offer(connection)
        else:
            connection.abort()
            self._make_more()

    def forget_idle(self) -> None:
        """Those made until now are used for nothing more than what is under way on them."""
        self._generation += 1
        while self._idle:
            self._idle.pop()[0].abort()

    async def close(self) -> None:
        """Breaks what is under way."""
        self._closed = True
        for timer in (self._tidying, self._one_more):
            if timer is not None:
                timer.cancel()
        for task in self._being_made:
            task.cancel()
        for waiter in self._waiting:
            _fail(waiter, PoolClosed("they have been closed"))
        for connection in tuple(self._open):
            connection.break_off(ConnectionError("it was closed on our side"))
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
            connection = HttpConnection(generation, self._lose)
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
        """Who waited no longer does; what he was given meanwhile is for others, and what is made for nobody is not."""
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
