"""A connection to the API server on which the events of one kind come late: a cache that is behind the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from orlop.foundation.clock import Clock
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.kube.kinds import Kind
from support.api.api_wires import Wire

SECONDS_LATE = 5.0


class LateWatch(Wire):
    """Delivers events of the kind five seconds late, once `is_late`."""

    def __init__(self, kind: Kind, clock: Clock) -> None:
        super().__init__()
        self.is_late = False
        self.kind = kind
        self.clock = clock

    def around(self, inner: Transport) -> Transport:
        return _Late(self, super().around(inner))


@dataclass
class _Late:
    is_remote: ClassVar[bool] = False
    wire: LateWatch
    inner: Transport

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        return await self.inner.exchange(request, within)

    def open(self, request: HttpRequest, within: float) -> AbstractAsyncContextManager[HttpStream]:
        opened = self.inner.open(request, within)
        return self._delayed(opened) if request.path.endswith(f"/{self.wire.kind.plural}") else opened

    @asynccontextmanager
    async def _delayed(self, opened: AbstractAsyncContextManager[HttpStream]) -> AsyncIterator[HttpStream]:
        async def pieces(stream: HttpStream) -> AsyncIterator[bytes]:
            async for piece in stream.pieces:
                if self.wire.is_late:
                    await self.wire.clock.sleep(SECONDS_LATE)
                yield piece

        async with opened as stream:
            yield replace(stream, pieces=pieces(stream))

    async def renew_credentials(self) -> None:
        await self.inner.renew_credentials()

    async def close(self) -> None:
        await self.inner.close()
