"""A way to an API server on which a test counts what is asked, comes first with a write of its own, or breaks it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport

Before = Callable[[HttpRequest], Awaitable[HttpResponse | None]]
"""Told of each request before it is carried; what it gives is answered in its place."""


BeforeEvent = Callable[[], Awaitable[None]]
"""Awaited before each piece of a watch is delivered."""


async def _nothing(_request: HttpRequest) -> None:
    """Every request is carried."""


def refusal(code: int, reason: str, message: str = "") -> HttpResponse:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}
    return HttpResponse(code, {"content-type": "application/json"}, json.dumps(status).encode())


NO_RIGHT_TO_LEASES = refusal(
    403,
    "Forbidden",
    'leases.coordination.k8s.io is forbidden: User "system:serviceaccount:kube-system:csi" cannot update resource '
    '"leases" in API group "coordination.k8s.io" in the namespace "kube-system"',
)
"""As every authorizer words it."""


def failing(*starts: str, times: int = 1, answer: HttpResponse | None = None) -> Before:
    """So many of the requests that begin like this, such as `PATCH persistentvolumes`."""
    left = times

    async def before(request: HttpRequest) -> HttpResponse | None:
        nonlocal left
        if not left or not _told(request).startswith(starts):
            return None
        left -= 1
        return answer or refusal(500, "InternalError", "the disk of the database is full")

    return before


@dataclass
class Wire:
    """`requests` are those of one answer each; watches are not among them."""

    before: Before = _nothing
    before_event: BeforeEvent | None = None
    requests: list[HttpRequest] = field(default_factory=list)

    def around(self, inner: Transport) -> Transport:
        return _Tapped(self, inner)

    def asked(self, since: int = 0, *, beside: str = "/events") -> list[str]:
        """Such as `PATCH persistentvolumes/pv1`."""
        told = map(_told, self.requests[since:])
        return [one for one in told if beside not in one]

    def written(self, since: int = 0) -> list[str]:
        return [one for one in self.asked(since) if not one.startswith("GET")]


def _told(request: HttpRequest) -> str:
    """Without the group and the version."""
    parts = request.path.strip("/").split("/")
    return f"{request.method} {'/'.join(parts[3:] if parts[0] == 'apis' else parts[2:])}"


@dataclass
class _Tapped:
    is_remote: ClassVar[bool] = False
    wire: Wire
    inner: Transport

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        self.wire.requests.append(request)
        instead = await self.wire.before(request)
        return instead if instead is not None else await self.inner.exchange(request, within)

    def open(self, request: HttpRequest, within: float) -> AbstractAsyncContextManager[HttpStream]:
        return _delivered(self.wire, self.inner.open(request, within))

    async def renew_credentials(self) -> None:
        await self.inner.renew_credentials()

    async def close(self) -> None:
        await self.inner.close()


@asynccontextmanager
async def _delivered(wire: Wire, opened: AbstractAsyncContextManager[HttpStream]) -> AsyncIterator[HttpStream]:
    async with opened as stream:
        yield replace(stream, pieces=_pieces(wire, stream))


async def _pieces(wire: Wire, stream: HttpStream) -> AsyncIterator[bytes]:
    async for piece in stream.pieces:
        if wire.before_event is not None:
            await wire.before_event()
        yield piece
