"""A client of any API server: Kubernetes' verbs on plain objects.

Objects stay dicts as they came, so that fields we do not know survive. Errors are those of `errors`; what may be asked
again after one, `retry_rules` decides, and this module waits. A list follows its pages. A watch is one connection: who
wants to go on after it ended begins another (see the informer).

Must not know storage, must not keep what it read, and must not log a body.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.errors import ApiError, ConnectionBroken, Expired, StatusError, error_from_status
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream, Transport
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.kube.retry_rules import MOST_ATTEMPTS, AskAgain, GiveUp, RenewCredentials, Verb, after_failure

Object = dict[str, Any]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
PAGE: Final = 500
RETRY_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=10.0, jitter=0.5)
MOST_RELISTS: Final = 3
UNAUTHORIZED: Final = 401
UNKNOWN_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class MergePatch:
    """Changes what it names, on whatever is there: guard it with a resourceVersion where that matters."""

    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """As a merge patch, but lists with merge keys are merged; built-in kinds alone know it."""

    changes: Mapping[str, Any]


Patch = JsonPatch | MergePatch | StrategicPatch


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: of one namespace or all, by labels and fields, in the API's own words."""

    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    def query(self) -> list[tuple[str, str]]:
        named = (("labelSelector", self.labels), ("fieldSelector", self.fields))
        return [(name, value) for name, value in named if value]


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class ObjectList:
    """Every object there was at one version."""

    items: list[Object]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised instead."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """`uid` and `version` are preconditions: nothing is deleted but the very object that was meant."""

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
class _Question:
    """A request with what is needed to decide whether it may be asked again."""

    verb: Verb
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = JSON

    def request(self, agent: str) -> HttpRequest:
        headers = {"accept": JSON, "user-agent": agent}
        if self.body is None:
            return HttpRequest(_METHODS[self.verb], self.path, self.query, headers)
        headers["content-type"] = self.content_type
        return HttpRequest(_METHODS[self.verb], self.path, self.query, headers, msgspec.json.encode(self.body))


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
    """How long an answer may take, and how often a request may be made before whoever asked is told of the failure."""

    seconds: float = 30.0
    attempts: int = MOST_ATTEMPTS


class KubeClient:
    """Speaks to one API server through one transport; `name` is told as the field manager of our writes."""

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

    async def get(self, kind: Kind, name: ObjectName, *, subresource: str = "", version: str = "") -> Object:
        query = (("resourceVersion", version),) if version else ()
        path = kind.object_path(name.namespace, name.name, subresource)
        return await self._ask(_Question(Verb.GET, path, query))

    async def list(self, kind: Kind, selection: Selection = EVERYTHING, *, page: int = PAGE) -> ObjectList:
        """Everything that is selected, at one version; begins anew when the server forgot that version on the way."""
        for _ in range(MOST_RELISTS):
            try:
                return await self._list_pages(kind, selection, page)
            except Expired:
                continue
        return await self._list_pages(kind, selection, 0)

    async def _list_pages(self, kind: Kind, selection: Selection, page: int) -> ObjectList:
        query = [*selection.query(), *([("limit", str(page))] if page else [])]
        items: list[Object] = []
        proceed: list[tuple[str, str]] = []
        followed: set[str] = set()
        while True:
            question = _Question(Verb.LIST, kind.collection_path(selection.namespace), (*query, *proceed))
            found, version, token = _page(await self._ask(question), kind)
            items += found
            if not token:
                return ObjectList(items, version)
            if token in followed:
                raise ConnectionBroken("the server's list does not end: it gave one continue token twice")
            followed.add(token)
            proceed = [("continue", token)]

    async def create(
        self, kind: Kind, obj: Mapping[str, Any], *, namespace: str | None = None, dry_run: bool = False
    ) -> Object:
        where = namespace or (obj.get("metadata") or {}).get("namespace") if kind.namespaced else None
        query = (*self._manager, *_dry(dry_run))
        return await self._ask(_Question(Verb.CREATE, kind.collection_path(where), query, _with_kind(obj, kind)))

    async def create_subresource(
        self, kind: Kind, name: ObjectName, subresource: str, body: Mapping[str, Any]
    ) -> Object:
        """Such as a pod's binding, or a service account's token."""
        path = kind.object_path(name.namespace, name.name, subresource)
        return await self._ask(_Question(Verb.CREATE, path, self._manager, body))

    async def replace(
        self, kind: Kind, obj: Mapping[str, Any], *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """With its resourceVersion: refused as `Conflict` when somebody wrote since."""
        metadata = obj.get("metadata") or {}
        path = kind.object_path(metadata.get("namespace"), metadata.get("name", ""), subresource)
        query = (*self._manager, *_dry(dry_run))
        return await self._ask(_Question(Verb.UPDATE, path, query, _with_kind(obj, kind)))

    async def patch(
        self, kind: Kind, name: ObjectName, patch: Patch, *, subresource: str = "", dry_run: bool = False
    ) -> Object:
        path = kind.object_path(name.namespace, name.name, subresource)
        body, content_type = _patch_body(patch)
        query = (*self._manager, *_dry(dry_run))
        return await self._ask(_Question(Verb.PATCH, path, query, body, content_type))

    async def delete(self, kind: Kind, name: ObjectName, options: DeleteOptions = NO_OPTIONS) -> Object:
        """The object as it was or still is, or the server's `Status`."""
        path = kind.object_path(name.namespace, name.name)
        return await self._ask(_Question(Verb.DELETE, path, (), options.body()))

    async def delete_all(
        self, kind: Kind, selection: Selection = EVERYTHING, options: DeleteOptions = NO_OPTIONS
    ) -> Object:
        path = kind.collection_path(selection.namespace)
        return await self._ask(_Question(Verb.DELETE_COLLECTION, path, tuple(selection.query()), options.body()))

    async def watch(
        self, kind: Kind, selection: Selection = EVERYTHING, *, after: str = "", seconds: int | None = None
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after a version until the server ends the watch, which it may at any time and without an error."""
        query = [*selection.query(), ("watch", "true"), ("allowWatchBookmarks", "true")]
        query += [("resourceVersion", after)] if after else []
        query += [("timeoutSeconds", str(seconds))] if seconds is not None else []
        question = _Question(Verb.WATCH, kind.collection_path(selection.namespace), tuple(query))
        async with self._transport.open(question.request(self._name), self._timeout) as stream:
            if stream.status == UNAUTHORIZED:  # who watches again is to have other credentials
                await self._transport.renew_credentials()
            await _raise_for_stream(stream)
            async with aclosing(_events(stream.pieces)) as events:
                async for event in events:
                    yield event

    async def close(self) -> None:
        await self._transport.close()

    async def _ask(self, question: _Question) -> Object:
        request = question.request(self._name)
        failures: list[ApiError] = []
        while True:
            try:
                return _object_of(await self._transport.exchange(request, self._timeout))
            except ApiError as error:
                await self._wait_or_raise(question, error, failures)
                failures.append(error)

    async def _wait_or_raise(self, question: _Question, error: ApiError, failures: Sequence[ApiError]) -> None:
        match after_failure(question.verb, question.body, error, failures, self._attempts):
            case GiveUp():
                raise error
            case RenewCredentials():
                await self._transport.renew_credentials()
            case AskAgain(after):
                seconds = after if after is not None else RETRY_BACKOFF.delay(len(failures) + 1, self._random)
                self._log.debug("asking again", path=question.path, error=error.message, seconds=round(seconds, 3))
                await self._clock.sleep(seconds)


def _dry(dry_run: bool) -> tuple[tuple[str, str], ...]:  # noqa: FBT001 - the API's own option
    return (("dryRun", "All"),) if dry_run else ()


def _patch_body(patch: Patch) -> tuple[Any, str]:
    match patch:
        case JsonPatch():
            return patch.operations, JSON_PATCH  # only read from here on
        case MergePatch(changes):
            return changes, MERGE_PATCH
        case StrategicPatch(changes):
            return changes, STRATEGIC_PATCH


def _with_kind(obj: Mapping[str, Any], kind: Kind) -> Object:
    """Items of a list come without their kind, and who makes an object need not repeat it."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


def _page(answer: Object, kind: Kind) -> tuple[list[Object], str, str]:
    """The items of one page, the version of the list, and the token for the next page, if there is one."""
    items, metadata = answer.get("items") or [], answer.get("metadata") or {}
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ConnectionBroken("the server's list holds items that are no objects: is this an API server?")
    token = (metadata.get("continue") or "") if isinstance(metadata, dict) else None
    if not isinstance(token, str):
        raise ConnectionBroken("the server's list has metadata that are none: is this an API server?")
    return [_with_kind(item, kind) for item in items], str(metadata.get("resourceVersion", "")), token


def _object_of(answer: HttpAnswer) -> Object:
    if answer.is_error:
        raise _error_of(answer.status, answer.headers, answer.body)
    read = _decoded(answer.body)
    if not isinstance(read, dict):
        raise ConnectionBroken("the server's answer is no JSON object: is this an API server?")
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
    """One JSON object per line; a line may come in several pieces, and a piece hold several lines."""
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
