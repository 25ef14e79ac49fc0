"""No more than so many requests a second, for who was told to spare the API server; a burst may go ahead of them.

A watch counts as one request. Who asked first goes first.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orlop.foundation.clock import Clock
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream, Transport


class LimitedTransport:
    def __init__(self, inner: Transport, *, per_second: float, burst: int, clock: Clock) -> None:
        if per_second <= 0 or burst < 1:
            raise ValueError(f"a rate of {per_second} a second, {burst} at once, would never let anything pass")
        self._inner = inner
        self._clock = clock
        self._seconds = 1 / per_second
        self._ahead = (burst - 1) * self._seconds
        self._next = -math.inf
        """When the next request goes that comes after all that are waiting."""

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
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
