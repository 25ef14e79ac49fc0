"""Kubernetes' verbs on objects: read from the request, carried out, and answered in the form the client takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from orlop.embedded.apiserver.access_policy import AccessPolicy
from orlop.embedded.apiserver.access_rules import Denied, ResourceQuestion, User
from orlop.embedded.apiserver.answer_forms import Form, form_of
from orlop.embedded.apiserver.creating import Creator
from orlop.embedded.apiserver.deleting import Deleter
from orlop.embedded.apiserver.http_upgrade import ServerAnswer
from orlop.embedded.apiserver.kubelet_streams import NO_KUBELETS, KubeletSockets, KubeletStreams
from orlop.embedded.apiserver.media_types import answer_form
from orlop.embedded.apiserver.namespace_gate import NamespaceGate
from orlop.embedded.apiserver.object_patches import read_patch
from orlop.embedded.apiserver.object_store.versions import Stored
from orlop.embedded.apiserver.reading import Reader
from orlop.embedded.apiserver.request_bodies import read_delete_options, read_object
from orlop.embedded.apiserver.request_options import (
    ListOptions,
    read_deletion_options,
    read_list_options,
    read_write_options,
)
from orlop.embedded.apiserver.resource_requests import ResourceRequest
from orlop.embedded.apiserver.selection import Selection
from orlop.embedded.apiserver.server_tools import ServerTools
from orlop.embedded.apiserver.status_answers import JSON_HEADERS, about, denied, no_such_resource
from orlop.embedded.apiserver.subresources import SCALE, Reviews, Subresources
from orlop.embedded.apiserver.updating import Place, Updater, Written
from orlop.embedded.apiserver.validation_rules import FINALIZE, MAIN, STATUS
from orlop.embedded.apiserver.warning_rules import warning_header
from orlop.embedded.apiserver.watch_stream import WatchRequest, WatchStreams
from orlop.kube.http_messages import HttpAnswer, HttpStream
from orlop.kube.kinds import CREATE

Object = dict[str, Any]

OK: Final = 200
CREATED: Final = 201
SERVED_PARTS: Final = frozenset({MAIN, STATUS, FINALIZE, SCALE})
STREAM_HEADERS: Final = {**JSON_HEADERS, "cache-control": "no-cache, private"}


class ResourceVerbs:
    def __init__(
        self, tools: ServerTools, policy: AccessPolicy, reviews: Reviews, kubelets: KubeletSockets = NO_KUBELETS
    ) -> None:
        self._tools = tools
        self._policy = policy
        gate = NamespaceGate(tools.store)
        self.reader = Reader(tools.store, tools.clock)
        self.creator = Creator(tools, gate)
        self.updater = Updater(tools, self.creator)
        self.deleter = Deleter(tools, gate)
        self._parts = Subresources(tools, self.updater, self.deleter, reviews)
        self._watches = WatchStreams(tools, self.reader)
        self._kubelets = KubeletStreams(self.reader, policy, kubelets, tools.clock)
        self._verbs: Mapping[str, Callable[[ResourceRequest, User], Awaitable[HttpAnswer | HttpStream]]] = {
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
        return await self._verbs[request.verb](request, user)

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def _get(self, request: ResourceRequest, _user: User) -> HttpAnswer:
        form = self._form(request)
        if _part(request) == SCALE:
            return _json(OK, await self._parts.get_scale(request))
        stored = await self.reader.get(request.kind, request.key, request.option("resourceVersion"))
        return HttpAnswer(OK, JSON_HEADERS, form.one(request.kind, stored))

    async def _list(self, request: ResourceRequest, _user: User) -> HttpAnswer:
        form, options = self._form(request), read_list_options(request.http.query)
        items, metadata = await self.reader.list(_selection(request, options), options)
        return HttpAnswer(OK, JSON_HEADERS, form.many(request.kind, items, metadata))

    async def _watch(self, request: ResourceRequest, _user: User) -> HttpStream:
        form, options = self._form(request), read_list_options(request.http.query)
        watch = self._watches.open(WatchRequest(_selection(request, options), options, form))
        return HttpStream(OK, STREAM_HEADERS, watch.pieces, watch.given_up)

    def _form(self, request: ResourceRequest) -> Form:
        return form_of(answer_form(request.accept), request.option("includeObject"), self._tools.now)

    # ---- writing -----------------------------------------------------------------------------------------------------

    async def _create(self, request: ResourceRequest, user: User) -> HttpAnswer:
        form, options = self._form(request), read_write_options(request.http.query, "CreateOptions")
        kind = request.kind.kind
        if request.subresource is not None:
            return _json(CREATED, await self._parts.create(request, request.subresource, user))
        if kind.verbs == CREATE:
            return _json(CREATED, await self._parts.review(request, kind, user))
        given = read_object(self._tools.schemas, request.http, kind.api_version, kind.kind, options)
        stored = await self.creator.create(request.kind, request.namespace, given.object, dry_run=options.dry_run)
        return _shown(form, request, Written(stored, created=True, warnings=given.warnings))

    async def _update(self, request: ResourceRequest, user: User) -> HttpAnswer:
        form, options = self._form(request), read_write_options(request.http.query, "UpdateOptions")
        if _part(request) == SCALE:
            return _json(OK, await self._parts.replace_scale(request))
        kind = request.kind.kind
        given = read_object(self._tools.schemas, request.http, kind.api_version, kind.kind, options)
        written = await self.updater.replace(
            _place(request), given, dry_run=options.dry_run, allow_create=lambda: self._allow_create(request, user)
        )
        return _shown(form, request, written)

    async def _patch(self, request: ResourceRequest, _user: User) -> HttpAnswer:
        form, options = self._form(request), read_write_options(request.http.query, "PatchOptions")
        if _part(request) == SCALE:
            return _json(OK, await self._parts.patch_scale(request))
        written = await self.updater.patch(_place(request), read_patch(request.http), options)
        return _shown(form, request, written)

    async def _delete(self, request: ResourceRequest, _user: User) -> HttpAnswer:
        form = self._form(request)
        body = read_delete_options(self._tools.schemas, request.http)
        options = read_deletion_options(request.http.query, body)
        deleted = await self.deleter.delete(request.kind, request.key, options)
        if deleted.status is not None:
            return _json(OK, deleted.status)
        return HttpAnswer(OK, JSON_HEADERS, form.one(request.kind, deleted.stored))

    async def _delete_collection(self, request: ResourceRequest, _user: User) -> HttpAnswer:
        form, options = self._form(request), read_list_options(request.http.query)
        body = read_delete_options(self._tools.schemas, request.http)
        deletion = read_deletion_options(request.http.query, body)
        items, metadata = await self.reader.list(_selection(request, options), options)
        await self.deleter.delete_all(request.kind, items, deletion)
        return HttpAnswer(OK, JSON_HEADERS, form.many(request.kind, items, metadata))

    def _allow_create(self, request: ResourceRequest, user: User) -> None:
        kind = request.kind.kind
        question = ResourceQuestion("create", kind.group, kind.plural, namespace=request.namespace, name=request.name)
        decision = self._policy.decide(user, question)
        if isinstance(decision, Denied):
            raise denied(decision.message, about(kind, request.name))


def _selection(request: ResourceRequest, options: ListOptions) -> Selection:
    return Selection(request.kind, request.namespace or None, options.labels, options.fields)


def _part(request: ResourceRequest) -> str:
    """The part of the object that is meant, and is served here."""
    name = request.subresource.name if request.subresource else MAIN
    if name not in SERVED_PARTS:
        raise no_such_resource()
    return name


def _place(request: ResourceRequest) -> Place:
    return Place(request.kind, request.key, _part(request))


def _json(code: int, document: Object) -> HttpAnswer:
    return HttpAnswer(code, JSON_HEADERS, msgspec.json.encode(document) + b"\n")


def _shown(form: Form, request: ResourceRequest, written: Written) -> HttpAnswer:
    headers = JSON_HEADERS
    if written.warnings:
        headers = {**JSON_HEADERS, "warning": warning_header(written.warnings)}
    stored: Stored = written.stored
    return HttpAnswer(CREATED if written.created else OK, headers, form.one(request.kind, stored))
