"""API servers for tests, asked in HTTP: those of `onenode.testing.api_server`, with what tests look for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.store.store import ObjectStore, memory_store
from onenode.apiserver.store.versions import DEFAULT_LIMITS, Limits
from onenode.testing import api_server as shipped
from onenode.testing.api_server import RunningServer
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.structured_log import Log
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream

Object = dict[str, Any]


@dataclass
class Told:
    """A log that a test can look into."""

    entries: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)

    def __call__(self, _level: object, message: str, fields: Mapping[str, object]) -> None:
        self.entries.append((message, dict(fields)))


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass
class TestServer(RunningServer):
    """An API server, asked in the words of HTTP, as an admin unless a test says otherwise."""

    __test__ = False

    told: Told
    """What it says in its log."""

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: User = ADMIN,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Answer:
        """`path` may hold a query, unquoted; the body is encoded as JSON unless it is bytes."""
        answer = await self.raw(method, path, body, user=user, accept=accept, content_type=content_type)
        assert isinstance(answer, HttpResponse), "the answer is a stream"
        text = answer.body.decode()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return Answer(answer.status, answer.headers, json.loads(text) if is_json else text)

    async def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: User = ADMIN,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> HttpResponse | HttpStream:
        place, _, query = path.partition("?")
        pairs = tuple(tuple(pair.partition("=")[::2]) for pair in query.split("&") if pair)
        headers = {"accept": accept, **({"content-type": content_type} if body is not None else {})}
        encoded = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.server.answer(HttpRequest(method, place, pairs, headers, encoded), user)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *, user: User = ADMIN, accept: str = "application/json") -> AsyncIterator[Events]:
        stream = await self.raw("GET", path, user=user, accept=accept)
        assert isinstance(stream, HttpStream), stream
        try:
            yield Events(stream)
        finally:
            await stream.pieces.aclose()  # type: ignore[attr-defined]


class Events:
    """The events of a watch, one by one."""

    def __init__(self, stream: HttpStream) -> None:
        self._stream = stream
        self._ready: list[Object] = []

    async def next(self) -> Object:
        while not self._ready:
            piece = await anext(self._stream.pieces)
            self._ready += [json.loads(line) for line in piece.splitlines()]
        return self._ready.pop(0)

    async def rest(self) -> list[Object]:
        """All that come until the server ends the watch."""
        found, self._ready = self._ready, []
        async for piece in self._stream.pieces:
            found += [json.loads(line) for line in piece.splitlines()]
        return found


@contextlib.asynccontextmanager
async def api_server(
    clock: Clock | None = None, *, limits: Limits = DEFAULT_LIMITS, seed: int = 1, **options: Any
) -> AsyncIterator[TestServer]:
    async with memory_store(limits) as store, api_server_on(store, clock, seed=seed, **options) as server:
        yield server


@contextlib.asynccontextmanager
async def api_server_on(
    store: ObjectStore, clock: Clock | None = None, *, seed: int = 1, **options: Any
) -> AsyncIterator[TestServer]:
    told = Told()
    async with shipped.api_server_on(store, clock or SystemClock(), log=Log(told), seed=seed, **options) as running:
        yield TestServer(running.server, running.store, running.clock, running.log, told)
