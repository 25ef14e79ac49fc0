"""The API server: a request and who sent it come in, an answer goes out.

Order: the path is read → access is decided → the body is read → the verb is carried out (what that does, and in which
order, the modules of the verbs say) → the answer is written in the form the client takes. Access is decided before
anything is said about what is there. Nothing escapes: what goes wrong is an answer with a `Status`.

Must not know sockets, and must not know how one proves who one is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from onenode.apiserver.access.access_policy import AccessPolicy
from onenode.apiserver.access.rbac_rules import Denied, PathQuestion, ResourceQuestion, User
from onenode.apiserver.admission.admission_policies import AccessControl, AdmissionPolicies
from onenode.apiserver.answers.discovery import discovery_answer
from onenode.apiserver.answers.status_answers import (
    LARGEST_BODY,
    PAGE_NOT_FOUND,
    Refusal,
    body_too_large,
    denied,
    internal_error,
    method_not_allowed,
    no_such_resource,
    unavailable,
)
from onenode.apiserver.custom_resources.custom_kinds import KindRegistry
from onenode.apiserver.edge.http_upgrade import ServerAnswer
from onenode.apiserver.requests.request_options import asks_to_watch
from onenode.apiserver.requests.request_paths import PlainPath, ResourcePath, read_path, resource_request, verb_of
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import StoreClosed, WriteFailed
from onenode.apiserver.upkeep.definition_deletion import DefinitionDeletion, FreedNames
from onenode.apiserver.upkeep.event_expiry import EventExpiry
from onenode.apiserver.upkeep.first_objects import make_first_objects
from onenode.apiserver.upkeep.namespace_deletion import NamespaceDeletion
from onenode.apiserver.verbs.kubelet_streams import NO_KUBELETS, KubeletSockets
from onenode.apiserver.verbs.resource_verbs import BesideObjects, ResourceVerbs
from onenode.apiserver.verbs.subresources import NO_REVIEWS, Reviews
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import BUILT_IN, Kind
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import FieldSelector

PathHandler = Callable[[HttpRequest, User], Awaitable[HttpResponse]]

DEFAULT_ADDRESS: Final = "127.0.0.1"
GROUP_DEPTH: Final = 2
"""The slashes of `/apis/GROUP`."""
ON_COLLECTIONS: Final = frozenset({"list", "watch", "deletecollection"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What a server serves.

    `extra_paths` are paths that lead to no object; one that ends with a slash stands for all paths below it.
    `kubelets` gives the socket of a node's kubelet by the node's name, for logs, commands and `nodes/proxy`. `not_run`
    are kinds that no controller acts on, besides those that none ever does.
    """

    kinds: Sequence[Kind] = BUILT_IN
    extra_paths: Mapping[str, PathHandler] = field(default_factory=dict)
    reviews: Reviews = NO_REVIEWS
    address: str = DEFAULT_ADDRESS
    kubelets: KubeletSockets = NO_KUBELETS
    not_run: Sequence[Kind] = ()


class ApiServer:
    def __init__(
        self, store: ObjectStore, schemas: Schemas, runtime: Runtime, served: ServerOptions | None = None
    ) -> None:
        served = served or ServerOptions()
        self.registry = KindRegistry(store, schemas, served.kinds)
        self.policy = AccessPolicy(store)
        self._store = store
        self._schemas = schemas = self.registry.schemas
        self._log = runtime.log
        self._extra_paths = dict(served.extra_paths)
        self._address = served.address
        self._admission = AdmissionPolicies(store, self.registry.current)
        control = AccessControl(self.policy, self._admission)
        others = BesideObjects(served.reviews, served.kubelets, served.not_run)
        self._verbs = ResourceVerbs(store, schemas, runtime, control, others)
        self._namespace_deletion = NamespaceDeletion(
            store, runtime, lambda: self.registry.current().stored, self._verbs.deleter, self._verbs.updater
        )
        self._definition_deletion = DefinitionDeletion(
            store, runtime, lambda: self.registry.current().stored, self._verbs.deleter, self._verbs.updater
        )
        self._freed_names = FreedNames(store, runtime, self._verbs.updater)
        self._event_expiry = EventExpiry(store, runtime, self._verbs.deleter)

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        try:
            answer: ServerAnswer = await self._answer(request, user)
        except Refusal as refusal:
            answer = refusal.answer()
        except StoreClosed:
            answer = unavailable("the API server is shutting down").answer()
        except WriteFailed as error:
            self._log.error("write failed", path=request.path, error=error)
            answer = internal_error(f"the change could not be made durable: {error.reason}").answer()
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._log.error("request failed", method=request.method, path=request.path, error=error)
            answer = internal_error("the request failed; the server's log says why").answer()
        return _prettily(request, answer) if isinstance(answer, HttpResponse) else answer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """While it runs, ending namespaces are emptied, old events go, and what must be there from the beginning is."""
        try:
            await make_first_objects(self._store, self._schemas, self._verbs.creator)
            async with TaskGroup() as group:
                loops = [
                    group.start(self._namespace_deletion.run(), name="namespace deletion"),
                    group.start(self._definition_deletion.run(), name="definition deletion"),
                    group.start(self._freed_names.run(), name="names of definitions"),
                    group.start(self._event_expiry.run(), name="event expiry"),
                ]
                yield self
                for loop in loops:
                    loop.cancel()
        finally:
            self._admission.close()
            self.policy.close()
            self.registry.close()

    async def _answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        if len(request.body) > LARGEST_BODY:
            raise body_too_large()
        path = read_path(request.path)
        if isinstance(path, PlainPath):
            return await self._plain(request, path.path, user)
        verb = verb_of(request.method, path, watch=asks_to_watch(request.query))
        self._authorize(path, verb or request.method.lower(), request, user)
        named = (path.group, path.version, path.resource)
        if not self.registry.is_built_in(named):
            # Objects that are written behind a change of their schema count as having its shape. So a schema that is on
            # its way to the disk is waited for; from here to the decision of a write nothing else runs.
            await self._verbs.creator.definitions_written()
        served = self.registry.current()
        is_known = named in served.by_path
        has_version = (path.group, path.version) in served.group_versions
        has_group = has_version or served.has_group(path.group)
        if not has_group or (path.group in served.custom_groups and not is_known):
            return PAGE_NOT_FOUND
        if not has_version:
            raise no_such_resource()
        return await self._verbs.carry_out(resource_request(served.by_path, request, path, verb), user)

    def _authorize(self, path: ResourcePath, verb: str, request: HttpRequest, user: User) -> None:
        name = path.name or (_selected_name(request) if verb in ON_COLLECTIONS else "")
        question = ResourceQuestion(verb, path.group, path.resource, path.subresource, path.scope, name)
        decision = self.policy.decide(user, question)
        if isinstance(decision, Denied):
            about = {"name": name, "group": path.group, "kind": path.resource}
            raise denied(decision.message, {key: text for key, text in about.items() if text})

    async def _plain(self, request: HttpRequest, path: str, user: User) -> HttpResponse:
        decision = self.policy.decide(user, PathQuestion(request.method.lower(), path))
        if isinstance(decision, Denied):
            raise denied(decision.message, {})
        if handler := self._extra_handler(path):
            return await handler(request, user)
        served, accept = self.registry.current(), request.headers.get("accept", "")
        found = discovery_answer(served.kinds, served.storage_hashes, path, accept, self._address)
        if found is None:
            return PAGE_NOT_FOUND
        # Kubernetes' aggregation layer answers for the groups, and takes HEAD; the other documents are not its own.
        is_of_groups = path.split("/")[1] == "apis" and path.count("/") <= GROUP_DEPTH
        if request.method != "GET" and not (request.method == "HEAD" and is_of_groups):
            raise method_not_allowed()
        return found

    def _extra_handler(self, path: str) -> PathHandler | None:
        if path in self._extra_paths:
            return self._extra_paths[path]
        above = [known for known in self._extra_paths if known.endswith("/") and path.startswith(known)]
        return self._extra_paths[max(above, key=len)] if above else None


def _selected_name(request: HttpRequest) -> str:
    """The one name that a selector leaves; what is wrong with the selector is said later."""
    text = next((value for key, value in request.query if key == "fieldSelector"), "")
    try:
        return FieldSelector.parse(text).exact_value("metadata.name") or ""
    except InvalidSelector:
        return ""


def _prettily(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    wanted = any(key == "pretty" and value not in {"false", "0"} for key, value in request.query)
    if not wanted or not answer.body or not answer.headers.get("content-type", "").startswith("application/json"):
        return answer
    return HttpResponse(answer.status, answer.headers, msgspec.json.format(answer.body.strip(), indent=2) + b"\n")
