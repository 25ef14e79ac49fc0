"""Waiting for a revision that others are going to make."""

from __future__ import annotations

import asyncio

from orlop.embedded.apiserver.object_store.errors import StoreClosed


class Arrivals:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def wait_for(self, revision: int) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = revision
        try:
            await waiter
        finally:
            del self._waiting[waiter]

    def arrived(self, revision: int) -> None:
        for waiter, awaited in self._waiting.items():
            if awaited <= revision and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StoreClosed())
