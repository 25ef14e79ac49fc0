"""A small model of an API server behind the client's seam: objects, one version counter, watches, and faults on demand.

It knows nothing of kinds: whatever a path says exists. Reads and writes take no time unless a fault says so.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from orlop.foundation.structured_log import Log, silent_log
from orlop.kube.api_errors import ApiError, ConnectionBroken
from orlop.kube.client import JSON_PATCH, KubeClient
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import Kind
from orlop.kube.objects import labels
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch, apply_merge_patch
from orlop.kube.selectors import FieldSelector, LabelSelector
from orlop.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from aiohttp import web

Obj = dict[str, Any]
Fault = HttpResponse | ApiError
Matches = Callable[[Obj], bool]


def status(code: int, reason: str, message: str = "", **headers: str) -> HttpResponse:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message or reason}
    return HttpResponse(code, {name.replace("_", "-"): value for name, value in headers.items()}, encoded(body))


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


@dataclass(frozen=True)
class Change:
    version: int
    key: tuple[str, str]  # the collection over all namespaces, and namespace/name
    before: Obj | None
    after: Obj | None


@dataclass(eq=False)
class Watch:
    collection: str
    matches: Matches
    bookmarks: bool
    seconds: float | None = None
    lines: deque[bytes] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    end: ApiError | str = ""

    def send(self, kind: str, obj: Obj) -> None:
        self.lines.append(encoded({"type": kind, "object": obj}) + b"\n")
        self.news.set()

    def finish(self, how: ApiError | str) -> None:
        """Without an error, or as a connection that broke."""
        self.end = how
        self.news.set()


class ModelServer:
    is_remote = False

    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[tuple[str, str], Obj] = {}
        self.history: list[Change] = []
        self.everything: list[Change] = []
        """As `history`, but never compacted: what really happened."""
        self.oldest = 10
        self.watches: set[Watch] = set()
        self.asked: list[HttpRequest] = []
        self.faults: deque[Fault] = deque()
        """Given to the next requests, whatever they are."""
        self.refuse: Callable[[HttpRequest], Fault | None] = lambda _: None
        self.delay = 0.0
        self.renewed = 0
        self.largest_page = 1000
        self.page_began: Callable[[], None] = lambda: None

    def client(self, log: Log | None = None, name: str = "test") -> KubeClient:
        return KubeClient(self, clock=VirtualClock(), random=Random(1), log=log or silent_log(), name=name)

    # ---- what tests do to it -------------------------------------------------------------------------------------

    def put(self, kind: Kind, name: str, namespace: str | None = None, **parts: Any) -> Obj:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **parts.pop("metadata", {})}
        obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **parts}
        return self._store((kind.collection_path(), f"{namespace or ''}/{name}"), obj)

    def remove(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        self._forget((kind.collection_path(), f"{namespace or ''}/{name}"))

    def of(self, kind: Kind) -> list[Obj]:
        return [obj for (collection, _), obj in self.objects.items() if collection == kind.collection_path()]

    def end_watches(self, how: ApiError | str = "done") -> None:
        for watch in tuple(self.watches):
            watch.finish(how)

    def send_bookmarks(self) -> None:
        for watch in self.watches:
            if watch.bookmarks:
                watch.send("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def compact(self) -> None:
        """Watches under way go on; no other may begin before now."""
        self.oldest = self.version
        self.history.clear()

    def lists(self) -> int:
        return sum("watch=true" not in one.target and one.method == "GET" for one in self.asked)

    # ---- what clients do to it -----------------------------------------------------------------------------------

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:  # noqa: PLR0911 - one per case
        refused = await self._arrive(request)
        if refused is not None:
            return refused
        collection, namespace, name = located(request.path)
        key = collection, f"{namespace}/{name}"
        if request.method == "GET" and not name:
            return self._listed(request, collection, namespace)
        if request.method == "POST":
            return self._created(request, collection, namespace)
        if key not in self.objects:
            return status(404, "NotFound")
        if request.method == "GET":
            return HttpResponse(200, {}, encoded(self.objects[key]))
        if request.method == "DELETE":
            self._forget(key)
            return status(200, "", "Success")
        return self._updated(request, key)

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        refused = await self._arrive(request)
        if refused is not None:
            yield HttpStream(refused.status, refused.headers, _once(refused.body))
            return
        watch = self._watch(request)
        self.watches.add(watch)
        try:
            yield HttpStream(200, {}, self._lines(watch))
        finally:
            self.watches.discard(watch)

    async def renew_credentials(self) -> None:
        self.renewed += 1

    async def close(self) -> None: ...

    # ---- inside --------------------------------------------------------------------------------------------------

    async def _arrive(self, request: HttpRequest) -> HttpResponse | None:
        self.asked.append(request)
        if self.delay:
            await VirtualClock().sleep(self.delay)
        fault = self.faults.popleft() if self.faults else self.refuse(request)
        if isinstance(fault, ApiError):
            raise fault
        return fault

    def _listed(self, request: HttpRequest, collection: str, namespace: str) -> HttpResponse:
        query = dict(request.query)
        assert "resourceVersion" not in query, "a list must be a consistent read"
        version, start = self.version, ""
        if "continue" in query:
            self.page_began()
            text, start = query["continue"].split("|")
            version = int(text)
            if version < self.oldest:
                return status(410, "Expired")
        found = self._at(version, collection, _matching(request, namespace))
        names = sorted(name for name in found if name > start)
        page = names[: min(int(query["limit"]), self.largest_page)] if "limit" in query else names
        metadata = {"resourceVersion": str(version)}
        if len(page) < len(names):
            metadata["continue"] = f"{version}|{page[-1]}"
        return HttpResponse(200, {}, encoded({"metadata": metadata, "items": [found[name] for name in page]}))

    def _at(self, version: int, collection: str, matches: Matches) -> dict[str, Obj]:
        state = {name: obj for (where, name), obj in self.objects.items() if where == collection}
        for change in reversed(self.history):
            if change.version > version and change.key[0] == collection:
                if change.before is None:
                    state.pop(change.key[1], None)
                else:
                    state[change.key[1]] = change.before
        return {name: obj for name, obj in state.items() if matches(obj)}

    def _created(self, request: HttpRequest, collection: str, namespace: str) -> HttpResponse:
        obj = json.loads(request.body)
        key = collection, f"{namespace}/{obj['metadata']['name']}"
        if key in self.objects:
            return status(409, "AlreadyExists")
        return HttpResponse(201, {}, encoded(self._store(key, obj)))

    def _updated(self, request: HttpRequest, key: tuple[str, str]) -> HttpResponse:
        sent, known = json.loads(request.body), self.objects[key]
        if request.headers.get("content-type") == JSON_PATCH:
            return self._json_patched(sent, key)
        version = (sent.get("metadata") or {}).get("resourceVersion")
        if version and version != known["metadata"]["resourceVersion"]:
            return status(409, "Conflict")
        new = sent if request.method == "PUT" else apply_merge_patch(known, sent)
        return HttpResponse(200, {}, encoded(self._store(key, new)))

    def _json_patched(self, patch: Any, key: tuple[str, str]) -> HttpResponse:
        try:
            new = apply_json_patch(self.objects[key], patch)
        except PatchDoesNotApply as error:
            return status(422, "Invalid", str(error))
        return HttpResponse(200, {}, encoded(self._store(key, new)))

    def _store(self, key: tuple[str, str], obj: Obj) -> Obj:
        known = self.objects.get(key)
        obj = deepcopy(obj)
        self.version += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        obj["metadata"].update(resourceVersion=str(self.version), uid=uid)
        self.objects[key] = obj
        self._tell(Change(self.version, key, known, obj))
        return obj

    def _forget(self, key: tuple[str, str]) -> None:
        known = self.objects.pop(key, None)
        if known is not None:
            self.version += 1
            self._tell(Change(self.version, key, known, None))

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        self.everything.append(change)
        for watch in self.watches:
            self._send(watch, change)

    def _send(self, watch: Watch, change: Change) -> None:
        if watch.collection != change.key[0]:
            return
        was = change.before is not None and watch.matches(change.before)
        if change.after is not None and watch.matches(change.after):
            watch.send("MODIFIED" if was else "ADDED", change.after)
        elif was:
            gone = deepcopy(change.before)
            gone["metadata"]["resourceVersion"] = str(change.version)
            watch.send("DELETED", gone)

    def _watch(self, request: HttpRequest) -> Watch:
        query = dict(request.query)
        collection, namespace, _ = located(request.path)
        seconds = float(query["timeoutSeconds"]) if "timeoutSeconds" in query else None
        watch = Watch(collection, _matching(request, namespace), "allowWatchBookmarks" in query, seconds)
        after = int(query["resourceVersion"])
        if after < self.oldest:
            watch.send("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        for change in self.history:
            if change.version > after:
                self._send(watch, change)
        return watch

    async def _lines(self, watch: Watch) -> AsyncIterator[bytes]:
        end = None if watch.seconds is None else asyncio.get_running_loop().time() + watch.seconds
        while True:
            while watch.lines:
                yield watch.lines.popleft()
            if isinstance(watch.end, ApiError):
                raise watch.end
            if watch.end:
                return
            watch.news.clear()
            try:
                async with asyncio.timeout_at(end):
                    await watch.news.wait()
            except TimeoutError:
                if watch in self.watches:
                    return
                end = None  # a test took it out: it hangs as on a connection that died


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def located(path: str) -> tuple[str, str, str]:
    """The collection over all namespaces, the namespace and the name; of what has none, the empty text."""
    parts = path.strip("/").split("/")
    prefix, rest = (parts[:2], parts[2:]) if parts[0] == "api" else (parts[:3], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return "/" + "/".join((*prefix, rest[0])), namespace, rest[1] if len(rest) > 1 else ""


def _matching(request: HttpRequest, namespace: str) -> Matches:
    query = dict(request.query)
    by_labels = LabelSelector.parse(query.get("labelSelector", ""))
    by_fields = FieldSelector.parse(query.get("fieldSelector", ""))

    def matches(obj: Obj) -> bool:
        inside = not namespace or obj["metadata"].get("namespace") == namespace
        return inside and by_labels.matches(labels(obj)) and by_fields.matches(obj)

    return matches


async def over_http(server: ModelServer, request: web.BaseRequest) -> web.StreamResponse:
    """Answer a request that came over a real socket."""
    from aiohttp import web  # noqa: PLC0415 - most tests of the model need no HTTP

    query = tuple(request.query.items())
    asked = HttpRequest(request.method, request.path, query, {}, await request.read())
    if ("watch", "true") not in query:
        answer = await server.exchange(asked, 30)
        return web.Response(status=answer.status, body=answer.body)
    async with server.open(asked, 30) as stream:
        response = web.StreamResponse(status=stream.status)
        await response.prepare(request)
        async for piece in stream.pieces:
            await response.write(piece)
        return response


BROKEN = ConnectionBroken("the connection was reset")
