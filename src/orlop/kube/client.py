"""A client for any API server: Kubernetes' verbs on plain objects.

Objects stay dicts as they came, so that unknown fields survive. Errors are those of `api_errors`; `retry_rules` decides
which requests are retried, and this module waits in between. A list follows its pages. A watch is one request: to go on
after it ended, start another (see `cache.informer`).

Must not know storage, must not cache what it read, and must not log a body.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.api_errors import ApiError, ConnectionBroken, Expired, StatusError, error_from_status
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.kube.kinds import LEASE, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.kube.patches import JsonPatch
from orlop.kube.retry_rules import MOST_ATTEMPTS, GiveUp, RenewCredentials, Retry, Verb, after_failure

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
PAGE: Final = 200  # client-go has 500: a start lists several kinds at once, and smaller pages save 2 MB
RETRY_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=10.0, jitter=0.5)
MOST_RELISTS: Final = 3
UNAUTHORIZED: Final = 401
UNKNOWN_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class MergePatch:
    """Set the fields it names, whatever their value is now: add a resourceVersion where that matters."""

    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """As a merge patch, but lists with merge keys are merged; for built-in kinds only."""

    changes: Mapping[str, Any]


Patch = JsonPatch | MergePatch | StrategicPatch
SlimObject = Callable[[Object], Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: one namespace or all, with a label selector and a field selector."""

    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    def query(self) -> list[tuple[str, str]]:
        named = (("labelSelector", self.labels), ("fieldSelector", self.fields))
        return [(name, value) for name, value in named if value]


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects at one resourceVersion."""

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised instead."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete; `uid` and `version` are preconditions, so that no other object of the name is deleted."""

    uid: str = ""
    version: str = ""
    propagation: str = ""
    grace_seconds: int | None = None

    def body(self) -> Object:
        guards = {"uid": self.uid, "resourceVersion": self.version}
        options: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions := {name: value for name, value in guards.items() if value}:
            options["preconditions"] = preconditions
        if self.propagation:
            options["propagationPolicy"] = self.propagation
        if self.grace_seconds is not None:
            options["gracePeriodSeconds"] = self.grace_seconds
        return options


NO_OPTIONS: Final = DeleteOptions()


@dataclass(frozen=True, slots=True)
class _ApiCall:
    """A request, with what is needed to decide whether it may be retried."""

    verb: Verb
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = JSON
    goes_first: bool = False

    def request(self, agent: str) -> HttpRequest:
        headers = {"accept": JSON, "user-agent": agent}
        if self.body is None:
            return HttpRequest(_METHODS[self.verb], self.path, self.query, headers)
        headers["content-type"] = self.content_type
        body = msgspec.json.encode(self.body)
        return HttpRequest(_METHODS[self.verb], self.path, self.query, headers, body, self.goes_first)


_METHODS: Final = {
    Verb.GET: "GET",
    Verb.LIST: "GET",
    Verb.WATCH: "GET",
    Verb.CREATE: "POST",
    Verb.UPDATE: "PUT",
    Verb.PATCH: "PATCH",
    Verb.DELETE: "DELETE",
    Verb.DELETE_COLLECTION: "DELETE",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a response may take, and how often a request is attempted before the caller gets the error."""

    seconds: float = 30.0
    attempts: int = MOST_ATTEMPTS


def _unchanged(obj: Object) -> Object:
    return obj


class KubeClient:
    """Talk to one API server through one transport; `name` is the field manager of our writes."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        random: Random,
        log: Log,
        name: str = "orlop",
        patience: Patience = Patience(),  # noqa: B008 - a value, and frozen
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._random = random
        self._log = log
        self._timeout = patience.seconds
        self._attempts = patience.attempts
        self._name = name
        self._manager = (("fieldManager", name),)
        self._may_write: Callable[[], None] | None = None

    def guarded(self, may_write: Callable[[], None]) -> KubeClient:
        """Return a client on the same connections that calls `may_write` before each attempt of a write.

        For a process that must be the only one that writes: `may_write` raises if it has lost its lease. To call it
        before the request alone is not enough, since the lease may be lost while the client waits to repeat it.
        """
        client = copy(self)
        client._may_write = may_write  # noqa: SLF001 - of the same class
        return client

    @property
    def is_remote(self) -> bool:
        """Whether a network is between us and the server, where a connection can fall silent."""
        return self._transport.is_remote

    async def get(self, kind: Kind, name: ObjectName, *, subresource: str = "", version: str = "") -> Object:
        query = (("resourceVersion", version),) if version else ()
        path = kind.object_path(name.namespace, name.name, subresource)
        return await self._request(_ApiCall(Verb.GET, path, query))

    async def list(
        self, kind: Kind, selection: Selection = EVERYTHING, *, page: int = PAGE, transform: SlimObject = _unchanged
    ) -> ObjectList:
        """Return all selected objects at one resourceVersion.

        Each page is transformed before the next one is read: only one page of whole objects is in memory.
        """
        # The server may drop the resourceVersion between two pages: start again, in the end without pages.
        for _ in range(MOST_RELISTS):
            try:
                return await self._list_pages(kind, selection, page, transform)
            except Expired:
                continue
        return await self._list_pages(kind, selection, 0, transform)

    async def _list_pages(self, kind: Kind, selection: Selection, page: int, transform: SlimObject) -> ObjectList:
        query = [*selection.query(), *([("limit", str(page))] if page else [])]
        items: list[Object] = []
        proceed: list[tuple[str, str]] = []
        followed: set[str] = set()
        while True:
            call = _ApiCall(Verb.LIST, kind.collection_path(selection.namespace), (*query, *proceed))
            page_items, version, token = _page(await self._request(call), kind)
            items += map(transform, page_items)
            if not token:
                return ObjectList(items, version)
            if token in followed:
                raise ConnectionBroken("the server's list does not end: it returned a continue token twice")
            followed.add(token)
            proceed = [("continue", token)]

    async def create(
        self, kind: Kind, obj: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        where = namespace or (obj.get("metadata") or {}).get("namespace") if kind.namespaced else None
        query = (*self._manager, *_dry(dry_run))
        return await self._request(_ApiCall(Verb.CREATE, kind.collection_path(where), query, _with_kind(obj, kind)))

    async def create_subresource(
        self, kind: Kind, name: ObjectName, subresource: str, body: Mapping[str, Any]
    ) -> Object:
        """Create a subresource, such as a pod's binding or a service account's token."""
        path = kind.object_path(name.namespace, name.name, subresource)
        return await self._request(_ApiCall(Verb.CREATE, path, self._manager, body))

    async def replace(
        self, kind: Kind, obj: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Update an object; with its resourceVersion, raise `Conflict` if it has changed since."""
        metadata = obj.get("metadata") or {}
        path = kind.object_path(metadata.get("namespace"), metadata.get("name", ""), subresource)
        query = (*self._manager, *_dry(dry_run))
        # A Lease that is renewed too late costs the leadership, and many volumes wait for one write of the journal:
        # neither may wait behind hundreds of other requests.
        body, goes_first = _with_kind(obj, kind), kind == LEASE
        return await self._request(_ApiCall(Verb.UPDATE, path, query, body, goes_first=goes_first))

    async def patch(
        self, kind: Kind, name: ObjectName, patch: Patch, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        path = kind.object_path(name.namespace, name.name, subresource)
        body, content_type = _patch_body(patch)
        query = (*self._manager, *_dry(dry_run))
        return await self._request(_ApiCall(Verb.PATCH, path, query, body, content_type))

    async def delete(self, kind: Kind, name: ObjectName, options: DeleteOptions = NO_OPTIONS) -> Object:
        """Delete an object; return it, or the server's `Status`."""
        path = kind.object_path(name.namespace, name.name)
        return await self._request(_ApiCall(Verb.DELETE, path, (), options.body()))

    async def delete_all(
        self, kind: Kind, selection: Selection = EVERYTHING, options: DeleteOptions = NO_OPTIONS
    ) -> Object:
        path = kind.collection_path(selection.namespace)
        return await self._request(_ApiCall(Verb.DELETE_COLLECTION, path, tuple(selection.query()), options.body()))

    async def watch(
        self, kind: Kind, selection: Selection = EVERYTHING, *, after: str = "", seconds: int | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events after a resourceVersion until the server ends the watch, which it may do at any time."""
        query = [*selection.query(), ("watch", "true"), ("allowWatchBookmarks", "true")]
        query += [("resourceVersion", after)] if after else []
        query += [("timeoutSeconds", str(seconds))] if seconds is not None else []
        call = _ApiCall(Verb.WATCH, kind.collection_path(selection.namespace), tuple(query))
        async with self._transport.open(call.request(self._name), self._timeout) as stream:
            if stream.status == UNAUTHORIZED:
                # The caller starts another watch, which needs other credentials.
                await self._transport.renew_credentials()
            await _raise_for_stream(stream)
            async with aclosing(_events(stream.pieces)) as events:
                async for event in events:
                    yield event

    async def close(self) -> None:
        await self._transport.close()

    async def _request(self, call: _ApiCall) -> Object:
        request = call.request(self._name)
        failures: list[ApiError] = []
        while True:
            if self._may_write is not None and request.method != "GET":
                self._may_write()
            try:
                return _object_of(await self._transport.exchange(request, self._timeout))
            except ApiError as error:
                await self._wait_or_raise(call, error, failures)
                failures.append(error)

    async def _wait_or_raise(self, call: _ApiCall, error: ApiError, failures: Sequence[ApiError]) -> None:
        match after_failure(call.verb, call.body, error, failures, self._attempts):
            case GiveUp():
                raise error
            case RenewCredentials():
                await self._transport.renew_credentials()
            case Retry(after):
                seconds = after if after is not None else RETRY_BACKOFF.delay(len(failures) + 1, self._random)
                self._log.debug("request retried", path=call.path, error=error.message, after_seconds=round(seconds, 3))
                await self._clock.sleep(seconds)


def _dry(dry_run: bool) -> tuple[tuple[str, str], ...]:  # noqa: FBT001 - the API's own option
    return (("dryRun", "All"),) if dry_run else ()


def _patch_body(patch: Patch) -> tuple[Any, str]:
    match patch:
        case JsonPatch():
            return patch.operations, JSON_PATCH  # Not copied: nobody changes them from here on.
        case MergePatch(changes):
            return changes, MERGE_PATCH
        case StrategicPatch(changes):
            return changes, STRATEGIC_PATCH


def _with_kind(obj: Mapping[str, Any], kind: Kind) -> Object:
    """Add apiVersion and kind: items of a list come without them, and callers of `create` may omit them."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


def _page(answer: Object, kind: Kind) -> tuple[list[Object], str, str]:
    """Return the items of one page, the list's resourceVersion, and the token of the next page or ""."""
    items, metadata = answer.get("items") or [], answer.get("metadata") or {}
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ConnectionBroken("the server's list has items that are no objects: is this an API server?")
    token = (metadata.get("continue") or "") if isinstance(metadata, dict) else None
    if not isinstance(token, str):
        raise ConnectionBroken("the server's list has no valid metadata: is this an API server?")
    return [_with_kind(item, kind) for item in items], str(metadata.get("resourceVersion", "")), token


def _object_of(answer: HttpResponse) -> Object:
    if answer.is_error:
        raise _error_of(answer.status, answer.headers, answer.body)
    read = _decoded(answer.body)
    if not isinstance(read, dict):
        raise ConnectionBroken("the server's response is no JSON object: is this an API server?")
    return read


def _error_of(status: int, headers: Mapping[str, str], body: bytes) -> StatusError:
    read = _decoded(body)
    return error_from_status(status, read if isinstance(read, dict) and read.get("kind") == "Status" else None, headers)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def _raise_for_stream(stream: HttpStream) -> None:
    if stream.is_error:
        body = b"".join([piece async for piece in stream.pieces])
        raise _error_of(stream.status, stream.headers, body)


async def _events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent, None]:
    """Yield the events of a watch: one JSON object per line, however the lines are split into pieces."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:
                yield _event(line)
    if rest.strip():
        raise ConnectionBroken("the watch ended in the middle of an event")


def _event(line: bytes) -> WatchEvent:
    read = _decoded(line)
    if not isinstance(read, dict) or not isinstance(read.get("object"), dict):
        raise ConnectionBroken("the watch sent a line that is no event")
    if read.get("type") == "ERROR":
        status = read["object"]
        code = status.get("code")
        raise error_from_status(code if type(code) is int and code else UNKNOWN_ERROR, status, {})
    return WatchEvent(str(read.get("type", "")), read["object"])
