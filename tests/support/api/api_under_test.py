"""An API server as the contract suite sees it: requests through a `Transport`, answers looked at in full.

Whichever server stands behind it, each test gets a namespace of its own with a random name. What was made is
remembered, so that a server that goes on living can be left as it was found.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Any, Protocol

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube import kinds
from orlop.kube.client import JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpStream, Transport
from orlop.kube.kinds import Kind

Object = dict[str, Any]
PATCH_TYPES = {"json": JSON_PATCH, "merge": MERGE_PATCH, "strategic": STRATEGIC_PATCH}
ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class DriverCapabilities:
    """What not every API server can do; a test that needs one says so, and is skipped with that reason."""

    empties_namespaces: bool = True
    """A bare kube-apiserver has no namespace controller, so a namespace stays Terminating for ever."""
    authenticates: bool = True
    """In process nobody proves who he is: the transport is handed a user."""
    listens: bool = True
    """Whether there is a socket between us."""
    is_orlops: bool = True
    waits_gladly: bool = True
    """In process time is virtual, and a foreign server is asked by hand; elsewhere seconds are too long."""
    is_thrown_away: bool = True
    """Nobody has to clean up."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def made(self) -> Object:
        """The object of an answer that must be a success."""
        assert self.status in {200, 201}, self.text
        return dict(self.json)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Which fields were wrong, and how."""
        return [(each["reason"], each.get("field", "")) for each in self.json["details"].get("causes", [])]

    @property
    def cause_messages(self) -> dict[str, str]:
        return {each.get("field", ""): each["message"] for each in self.json["details"].get("causes", [])}

    def is_refused(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        """The whole answer is this `Status` and nothing else."""
        expected: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        expected |= {"message": message, "code": code}
        expected |= {"reason": reason} if reason else {}
        if details is not None:
            expected["details"] = details
        assert (self.status, self.json) == (code, expected)
        assert self.headers["content-type"] == JSON

    def is_invalid(self, *causes: tuple[str, str]) -> None:
        """The object was understood and is wrong in these fields, in this order."""
        assert (self.status, self.json.get("reason")) == (422, "Invalid"), self.text
        assert self.causes == list(causes), self.text

    def says(self, code: int, reason: str, part: str) -> None:
        """Where the rest of the sentence is the server's own affair."""
        assert (self.status, self.json["reason"], self.json["code"]) == (code, reason, code), self.text
        assert part in self.json["message"]


class Watching:
    """One watch, event by event."""

    def __init__(self, stream: HttpStream) -> None:
        self.status = stream.status
        self.headers = stream.headers
        self._lines = _lines(stream.pieces)

    async def next(self) -> Object:
        async with asyncio.timeout(ANSWER_SECONDS):
            return dict(json.loads(await anext(self._lines)))

    async def events(self, count: int) -> list[tuple[str, str]]:
        """Type and name of so many events."""
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in await self.all(count)]

    async def all(self, count: int) -> list[Object]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Object]:
        """Everything until the server ends the watch."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return [json.loads(line) async for line in self._lines]


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    assert not rest, f"the watch ended in the middle of a line: {rest!r}"


@dataclass(frozen=True)
class Actor:
    """Somebody the admin speaks for."""

    user: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bearer:
    """Whoever this token proves; without one, nobody."""

    token: str = ""


class Served(Protocol):
    """A server that runs."""

    capabilities: DriverCapabilities

    def admin(self) -> AbstractAsyncContextManager[Transport]:
        """Speaks for the admin, in the event loop of one test."""

    def speaking_for(self, admin: Transport, who: Actor | Bearer) -> Transport:
        """May share the admin's connections."""

    def forget(self) -> bool:
        """Makes it forget what it keeps for watches; False where nobody can."""


@dataclass
class Api:
    """The admin, or whoever `acting_as` or `bearing` names, speaking to the server under test."""

    served: Served
    transport: Transport
    namespace: str
    left: list[str] = field(default_factory=list)
    random: Random = field(default_factory=SystemRandom)

    @property
    def can(self) -> DriverCapabilities:
        return self.served.capabilities

    @property
    def client(self) -> KubeClient:
        return KubeClient(self.transport, clock=SystemClock(), random=self.random, log=silent_log())

    def unique(self, what: str) -> str:
        """A name for an object that has no namespace to keep it apart from others."""
        return f"{what}-{self.namespace}"

    def acting_as(self, user: str, *groups: str) -> Api:
        """`system:authenticated` is added, as Kubernetes does."""
        return replace(self, transport=self.served.speaking_for(self.transport, Actor(user, groups)))

    def bearing(self, token: str) -> Api:
        return replace(self, transport=self.served.speaking_for(self.transport, Bearer(token)))

    def nobody(self) -> Api:
        return self.bearing("")

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Answer:
        sent = {"accept": accept, **(headers or {})}
        if body is not None and content_type:
            sent["content-type"] = content_type
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = HttpRequest(method, path, tuple(query.items()), sent, payload)
        got = await self.transport.exchange(request, ANSWER_SECONDS)
        answer = Answer(got.status, {name.lower(): value for name, value in got.headers.items()}, got.body)
        self._remember(method, path, query, answer)
        return answer

    def _remember(self, method: str, path: str, query: Mapping[str, str], answer: Answer) -> None:
        if answer.status != 201 or method not in {"POST", "PUT"} or "dryRun" in query:
            return
        metadata = answer.json.get("metadata") or {}
        if metadata.get("uid"):
            self.left.append(path if method == "PUT" else f"{path}/{metadata['name']}")

    def path(self, kind: Kind, name: str = "", subresource: str = "", namespace: str | None = None) -> str:
        where = (namespace or self.namespace) if kind.namespaced else None
        return kind.object_path(where, name, subresource) if name else kind.collection_path(where)

    async def create(self, kind: Kind, obj: Object, **query: str) -> Answer:
        namespace = obj.get("metadata", {}).get("namespace")
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **obj}
        return await self.ask("POST", self.path(kind, namespace=namespace), whole, **query)

    async def make(self, kind: Kind, obj: Object) -> Object:
        return (await self.create(kind, obj)).made

    async def get(self, kind: Kind, name: str, subresource: str = "", **query: str) -> Answer:
        return await self.ask("GET", self.path(kind, name, subresource), **query)

    async def read(self, kind: Kind, name: str) -> Object:
        return (await self.get(kind, name)).made

    async def list(self, kind: Kind, headers: Mapping[str, str] | None = None, **query: str) -> Answer:
        return await self.ask("GET", self.path(kind), headers=headers, **query)

    async def names(self, kind: Kind, **query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await self.list(kind, **query)).made["items"]]

    async def put(self, kind: Kind, obj: Object, subresource: str = "", **query: str) -> Answer:
        return await self.ask("PUT", self.path(kind, obj["metadata"]["name"], subresource), obj, **query)

    async def patch(
        self, kind: Kind, name: str, patch: Any, form: str = "merge", subresource: str = "", **query: str
    ) -> Answer:
        path = self.path(kind, name, subresource)
        return await self.ask("PATCH", path, patch, content_type=PATCH_TYPES.get(form, form), **query)

    async def delete(self, kind: Kind, name: str, options: Object | None = None, **query: str) -> Answer:
        return await self.ask("DELETE", self.path(kind, name), options, **query)

    @asynccontextmanager
    async def watch(self, kind: Kind, *, accept: str = JSON, **query: str) -> AsyncIterator[Watching]:
        async with self.watch_path(self.path(kind), accept=accept, **query) as watching:
            assert watching.status == 200, await watching.rest()
            yield watching

    @asynccontextmanager
    async def watch_path(self, path: str, *, accept: str = JSON, **query: str) -> AsyncIterator[Watching]:
        request = HttpRequest("GET", path, (("watch", "true"), *query.items()), {"accept": accept})
        async with self.transport.open(request, ANSWER_SECONDS) as stream:
            yield Watching(stream)

    async def version(self) -> str:
        """The server's newest, to watch from."""
        return str((await self.list(kinds.CONFIG_MAP)).made["metadata"]["resourceVersion"])


@asynccontextmanager
async def opened(served: Served) -> AsyncIterator[Api]:
    """For the length of one test, in its event loop."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(served.admin())
        api = Api(served, transport, f"orlop-{SystemRandom().randbytes(5).hex()}")
        stack.push_async_callback(left_as_found, api)
        await api.make(kinds.NAMESPACE, {"metadata": {"name": api.namespace}})
        yield api


async def left_as_found(api: Api) -> None:
    if api.can.is_thrown_away:
        return
    for path in reversed(api.left):
        await api.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
        await api.ask("DELETE", path, {"gracePeriodSeconds": 0})
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4 and not api.can.empties_namespaces:
            name = path.rsplit("/", 1)[1]
            empty = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"finalizers": []}}
            await api.ask("PUT", f"{path}/finalize", empty)
