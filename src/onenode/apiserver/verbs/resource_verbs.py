"""Kubernetes' verbs on objects: read from the request, carried out, and answered in the form the client takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from onenode.apiserver.access.rbac_rules import Denied, ResourceQuestion, User
from onenode.apiserver.admission.admission_policies import AccessControl, Admission
from onenode.apiserver.admission.write_attributes import Admit, admit_all
from onenode.apiserver.answers.answer_forms import Form, form_of
from onenode.apiserver.answers.status_answers import JSON_HEADERS, about, denied, no_such_resource, warning_header
from onenode.apiserver.custom_resources.definition_rules import definition_warnings
from onenode.apiserver.edge.http_upgrade import ServerAnswer
from onenode.apiserver.requests.media_types import answer_form
from onenode.apiserver.requests.request_bodies import read_delete_options, read_object
from onenode.apiserver.requests.request_options import (
    ListOptions,
    WriteOptions,
    read_deletion_options,
    read_list_options,
    read_write_options,
)
from onenode.apiserver.requests.request_paths import ResourceRequest
from onenode.apiserver.schema.metadata_rules import finalizer_warnings
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import FINALIZE, MAIN, STATUS
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Stored
from onenode.apiserver.verbs.creating import Creator
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.kubelet_streams import NO_KUBELETS, KubeletSockets, KubeletStreams
from onenode.apiserver.verbs.namespace_gate import NamespaceGate
from onenode.apiserver.verbs.object_patches import read_patch
from onenode.apiserver.verbs.reading import ObjectReader
from onenode.apiserver.verbs.scaling import SCALES, Scales
from onenode.apiserver.verbs.selection import Selection
from onenode.apiserver.verbs.subresources import Reviews, Subresources, kind_of_part
from onenode.apiserver.verbs.updating import Updater, WriteResult, WriteTarget
from onenode.apiserver.verbs.watch_stream import WatchRequest, WatchStreams
from orlop.foundation.runtime import Runtime
from orlop.kube.http.http_messages import HttpResponse, HttpStream
from orlop.kube.kinds import BINDING, CREATE, CUSTOM_RESOURCE_DEFINITION, DAEMON_SET, STORED_ONLY, Kind

Object = dict[str, Any]
Answer = TypeVar("Answer", bound=HttpResponse | HttpStream)

OK: Final = 200
NOT_RUN: Final = frozenset({*STORED_ONLY, DAEMON_SET})
CREATED: Final = 201
SCALE: Final = "scale"
SERVED_PARTS: Final = frozenset({MAIN, STATUS, FINALIZE, SCALE})
STREAM_HEADERS: Final = {**JSON_HEADERS, "cache-control": "no-cache, private"}


@dataclass(frozen=True, slots=True)
class BesideObjects:
    """What requests reach beside the objects: reviews, and kubelets; `not_run` are kinds that no controller acts on."""

    reviews: Reviews
    kubelets: KubeletSockets = NO_KUBELETS
    not_run: Sequence[Kind] = ()


class ResourceVerbs:
    def __init__(
        self,
        store: ObjectStore,
        schemas: Schemas,
        runtime: Runtime,
        control: AccessControl,
        others: BesideObjects,
    ) -> None:
        self._not_run = NOT_RUN.union(others.not_run)
        self._schemas = schemas
        self._runtime = runtime
        self._policy = policy = control.rights
        self._admission = control.admission
        gate = NamespaceGate(store)
        self.reader = ObjectReader(store, runtime.clock)
        self.creator = Creator(store, schemas, runtime, gate)
        self.updater = Updater(store, schemas, runtime, self.creator)
        self.deleter = Deleter(store, runtime, gate)
        self._parts = Subresources(store, schemas, runtime, self.deleter, others.reviews)
        self._scales = Scales(schemas, self.reader, self.updater)
        self._watches = WatchStreams(store, runtime, self.reader)
        self._kubelets = KubeletStreams(self.reader, policy, others.kubelets, runtime.clock)
        self._verbs: Mapping[str, Callable[[ResourceRequest, User], Awaitable[HttpResponse | HttpStream]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def carry_out(self, request: ResourceRequest, user: User) -> ServerAnswer:
        if self._kubelets.answers(request):
            return await self._kubelets.answer(request, user)
        answer = await self._verbs[request.verb](request, user)
        return _with_warnings(answer, [request.kind.warning]) if request.kind.warning else answer

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def _get(self, request: ResourceRequest, _user: User) -> HttpResponse:
        form = self._form(request)
        if _part(request) == SCALE:
            return HttpResponse(OK, JSON_HEADERS, form.one(SCALES, await self._scales.get(request)))
        stored = await self.reader.get(request.kind, request.key, request.option("resourceVersion"))
        return HttpResponse(OK, JSON_HEADERS, form.one(request.kind, stored))

    async def _list(self, request: ResourceRequest, _user: User) -> HttpResponse:
        form, options = self._form(request), read_list_options(request.http.query)
        items, metadata = await self.reader.list(_selection(request, options), options)
        return HttpResponse(OK, JSON_HEADERS, form.many(request.kind, items, metadata))

    async def _watch(self, request: ResourceRequest, _user: User) -> HttpStream:
        form, options = self._form(request), read_list_options(request.http.query)
        watch = self._watches.open(WatchRequest(_selection(request, options), options, form))
        return HttpStream(OK, STREAM_HEADERS, watch.pieces, watch.given_up)

    def _form(self, request: ResourceRequest) -> Form:
        return form_of(answer_form(request.accept), request.option("includeObject"), self._runtime.clock.now)

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def _create(self, request: ResourceRequest, user: User) -> HttpResponse:
        form, options = self._form(request), read_write_options(request.http.query, "CreateOptions")
        kind = request.kind.kind
        if kind.verbs == CREATE and kind is not BINDING:  # a review, which no policy judges
            return _json(CREATED, await self._parts.review(request, kind, user, admit_all))
        admission = self._admission_of(request, user, options)
        if request.subresource is not None:
            response = _json(CREATED, await self._parts.create(request, request.subresource, user, admission.admit))
        elif kind is BINDING:
            response = _json(CREATED, await self._parts.bind(request, admission.admit))
        else:
            body = read_object(self._schemas, request.http, kind.api_version, kind.kind, options)
            noted = _NotedWarnings(request, admission.admit)
            stored = await self.creator.create(
                request.kind, request.namespace, body.object, dry_run=options.dry_run, admit=noted.admit
            )
            warnings = (*body.warnings, *noted.warnings, *self._unused(kind))
            response = _shown(form, request, WriteResult(stored, created=True, warnings=warnings))
        return _with_warnings(response, admission.warnings)

    async def _update(self, request: ResourceRequest, user: User) -> HttpResponse:
        form, options = self._form(request), read_write_options(request.http.query, "UpdateOptions")
        admission = self._admission_of(request, user, options)
        if _part(request) == SCALE:
            stored = await self._scales.replace(request, admission.admit)
            return _with_warnings(HttpResponse(OK, JSON_HEADERS, form.one(SCALES, stored)), admission.warnings)
        kind = request.kind.kind
        body = read_object(self._schemas, request.http, kind.api_version, kind.kind, options)
        noted = _NotedWarnings(request, admission.admit)
        written = await self.updater.replace(
            _place(request),
            body,
            noted.admit,
            dry_run=options.dry_run,
            allow_create=lambda: self._allow_create(request, user),
        )
        return _with_warnings(_shown(form, request, written), [*noted.warnings, *admission.warnings])

    async def _patch(self, request: ResourceRequest, user: User) -> HttpResponse:
        form, options = self._form(request), read_write_options(request.http.query, "PatchOptions")
        admission = self._admission_of(request, user, options)
        if _part(request) == SCALE:
            stored = await self._scales.patch(request, admission.admit)
            return _with_warnings(HttpResponse(OK, JSON_HEADERS, form.one(SCALES, stored)), admission.warnings)
        noted = _NotedWarnings(request, admission.admit)
        written = await self.updater.patch(_place(request), read_patch(request.http), options, noted.admit)
        return _with_warnings(_shown(form, request, written), [*noted.warnings, *admission.warnings])

    async def _delete(self, request: ResourceRequest, user: User) -> HttpResponse:
        form = self._form(request)
        body = read_delete_options(self._schemas, request.http)
        options = read_deletion_options(request.http.query, body)
        admission = self._admission.admission(request, user, dry_run=options.dry_run, deletion=options)
        deleted = await self.deleter.delete(request.kind, request.key, options, admit=admission.admit)
        if deleted.status is not None:
            answer = _json(OK, deleted.status)
        else:
            answer = HttpResponse(OK, JSON_HEADERS, form.one(request.kind, deleted.stored))
        return _with_warnings(answer, admission.warnings)

    async def _delete_collection(self, request: ResourceRequest, user: User) -> HttpResponse:
        form, options = self._form(request), read_list_options(request.http.query)
        body = read_delete_options(self._schemas, request.http)
        deletion = read_deletion_options(request.http.query, body)
        items, metadata = await self.reader.list(_selection(request, options), options)
        admission = self._admission.admission(request, user, dry_run=deletion.dry_run, deletion=deletion)
        await self.deleter.delete_all(request.kind, items, deletion, admit=admission.admit)
        answer = HttpResponse(OK, JSON_HEADERS, form.many(request.kind, items, metadata))
        return _with_warnings(answer, admission.warnings)

    def _unused(self, kind: Kind) -> Sequence[str]:
        what = f"{kind.plural} are stored and watched here, and nothing acts on them"
        return (what,) if kind in self._not_run else ()

    def _admission_of(self, request: ResourceRequest, user: User, options: WriteOptions) -> Admission:
        part = request.subresource
        kind = kind_of_part(part) if part is not None and part.kind else None
        return self._admission.admission(request, user, dry_run=options.dry_run, part_kind=kind)

    def _allow_create(self, request: ResourceRequest, user: User) -> None:
        kind = request.kind.kind
        question = ResourceQuestion("create", kind.group, kind.plural, namespace=request.namespace, name=request.name)
        decision = self._policy.decide(user, question)
        if isinstance(decision, Denied):
            raise denied(decision.message, about(kind, request.name))


class _NotedWarnings:
    """What the client is to be warned of in the object that it writes, seen when the object is judged."""

    def __init__(self, request: ResourceRequest, admit: Admit) -> None:
        self._kind = request.kind.kind
        self._is_custom = request.kind.is_custom
        self._is_whole = request.subresource is None
        self._admit = admit
        self.warnings: list[str] = []

    def admit(self, new: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> None:
        self._admit(new, old)
        if new is None or not self._is_whole:
            return
        if self._kind is CUSTOM_RESOURCE_DEFINITION:
            self.warnings = definition_warnings(new, old)
        elif self._is_custom:
            self.warnings = list(finalizer_warnings((old or {}).get("metadata", {}), new["metadata"]))


def _selection(request: ResourceRequest, options: ListOptions) -> Selection:
    return Selection(request.kind, request.namespace or None, options.labels, options.fields)


def _part(request: ResourceRequest) -> str:
    """The part of the object that is meant, and is served here."""
    name = request.subresource.name if request.subresource else MAIN
    if name not in SERVED_PARTS:
        raise no_such_resource()
    return name


def _place(request: ResourceRequest) -> WriteTarget:
    return WriteTarget(request.kind, request.key, _part(request))


def _json(code: int, document: Object) -> HttpResponse:
    return HttpResponse(code, JSON_HEADERS, msgspec.json.encode(document) + b"\n")


def _with_warnings(answer: Answer, texts: Sequence[str]) -> Answer:
    if not texts:
        return answer
    others = answer.headers.get("warning", "")
    warning = ", ".join(filter(None, (others, warning_header(texts))))
    return replace(answer, headers={**answer.headers, "warning": warning})


def _shown(form: Form, request: ResourceRequest, written: WriteResult) -> HttpResponse:
    headers = JSON_HEADERS
    if written.warnings:
        headers = {**JSON_HEADERS, "warning": warning_header(written.warnings)}
    stored: Stored = written.stored
    return HttpResponse(CREATED if written.created else OK, headers, form.one(request.kind, stored))
