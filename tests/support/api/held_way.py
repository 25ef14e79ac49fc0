"""A connection to the API server on which a test holds what it chooses: one request, or all events of a watch.

With it a race is played step by step: hold, wait until the request has come, do what happens meanwhile, let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport

LONG = 3600.0


class HeldRequest:
    """The next request of this method whose path has this part; held before the server has it, or after its effect."""

    def __init__(self, method: str, part: str, *, after_effect: bool) -> None:
        self.method, self.part, self.after_effect = method, part, after_effect
        self.has_come = asyncio.Event()
        self.request: HttpRequest | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def let_go(self) -> None:
        self._end.set_result(None)

    def break_off(self) -> None:
        """End it for the caller, who learns nothing of its effect."""
        self._end.set_exception(ConnectionBroken("the connection broke"))

    def matches(self, request: HttpRequest) -> bool:
        return self.request is None and request.method == self.method and self.part in request.path

    async def pass_through(self, request: HttpRequest, inner: Transport, within: float) -> HttpResponse:
        self.request = request
        answer = await inner.exchange(request, within) if self.after_effect else None
        self.has_come.set()
        await self._end
        return answer or await inner.exchange(request, within)


class HeldWay:
    """A transport for the part under test. What a test does itself goes another way, and is never held."""

    is_remote = False

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._requests: list[HeldRequest] = []
        self._watches: dict[str, asyncio.Event] = {}
        self._broken: set[str] = set()

    def hold(self, method: str, part: str, *, after_effect: bool = False) -> HeldRequest:
        self._requests.append(held := HeldRequest(method, part, after_effect=after_effect))
        return held

    def hold_watch(self, resource: str) -> asyncio.Event:
        """Hold all events of a resource until the returned event is set; lists are not held."""
        return self._watches.setdefault(resource, asyncio.Event())

    def break_watches(self, resource: str) -> None:
        """Drop what is held of a resource, and refuse every further watch: who wants to know has to list."""
        self._broken.add(resource)
        self.hold_watch(resource).set()

    async def arrive_late(self, held: HeldRequest) -> HttpResponse:
        """Let the server have a request that was broken off before it came there."""
        assert held.request is not None
        return await self._inner.exchange(held.request, LONG)

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        for held in self._requests:
            if held.matches(request):
                return await held.pass_through(request, self._inner, within)
        return await self._inner.exchange(request, within)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        self._refuse_broken(request.path)
        async with self._inner.open(request, within) as stream:
            yield HttpStream(stream.status, stream.headers, self._late(request.path, stream.pieces))

    async def _late(self, path: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if (event := self._watches.get(path.rpartition("/")[2])) is not None:
                await event.wait()
            self._refuse_broken(path)
            yield piece

    def _refuse_broken(self, path: str) -> None:
        if path.rpartition("/")[2] in self._broken:
            raise ConnectionBroken("the connection broke")

    async def renew_credentials(self) -> None:
        await self._inner.renew_credentials()

    async def close(self) -> None:
        await self._inner.close()
