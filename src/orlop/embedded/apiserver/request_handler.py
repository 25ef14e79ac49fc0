"""The API server: a request and who sent it come in, an answer goes out.

Order: the path is read → access is decided → the body is read → the verb is carried out (what that does, and in which
order, the modules of the verbs say) → the answer is written in the form the client takes. Access is decided before
anything is said about what is there. Nothing escapes: what goes wrong is an answer with a `Status`.

Must not know sockets, and must not know how one proves who one is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Self

import msgspec

from orlop.embedded.apiserver.access_policy import AccessPolicy
from orlop.embedded.apiserver.access_rules import Denied, PathQuestion, ResourceQuestion, User
from orlop.embedded.apiserver.discovery_paths import discovery_answer
from orlop.embedded.apiserver.event_expiry import EventExpiry
from orlop.embedded.apiserver.first_objects import make_first_objects
from orlop.embedded.apiserver.http_upgrade import ServerAnswer
from orlop.embedded.apiserver.kubelet_streams import NO_KUBELETS, KubeletSockets
from orlop.embedded.apiserver.namespace_deletion import NamespaceDeletion
from orlop.embedded.apiserver.object_store.errors import StoreClosed, WriteFailed
from orlop.embedded.apiserver.request_options import asks_to_watch
from orlop.embedded.apiserver.request_paths import PlainPath, ResourcePath, read_path, verb_of
from orlop.embedded.apiserver.resource_requests import resource_request
from orlop.embedded.apiserver.resource_verbs import ResourceVerbs
from orlop.embedded.apiserver.server_tools import ServerTools
from orlop.embedded.apiserver.status_answers import (
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
from orlop.embedded.apiserver.stored_objects import kinds_in_store
from orlop.embedded.apiserver.subresources import NO_REVIEWS, Reviews
from orlop.foundation.task_group import TaskGroup
from orlop.kube.http_messages import HttpAnswer, HttpRequest
from orlop.kube.kinds import BUILT_IN, Kind
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import FieldSelector

PathHandler = Callable[[HttpRequest, User], Awaitable[HttpAnswer]]

DEFAULT_ADDRESS: Final = "127.0.0.1"
ON_COLLECTIONS: Final = frozenset({"list", "watch", "deletecollection"})


class ApiServer:
    """`extra_paths` are paths that lead to no object; one that ends with a slash stands for all paths below it.

    `kubelets` gives the socket of a node's kubelet by the node's name, for logs, commands and `nodes/proxy`.
    """

    def __init__(
        self,
        tools: ServerTools,
        *,
        kinds: Sequence[Kind] = BUILT_IN,
        extra_paths: Mapping[str, PathHandler] | None = None,
        reviews: Reviews = NO_REVIEWS,
        address: str = DEFAULT_ADDRESS,
        kubelets: KubeletSockets = NO_KUBELETS,
    ) -> None:
        self.kinds = tuple(kinds)
        self.policy = AccessPolicy(tools.store)
        self._tools = tools
        self._log = tools.log
        self._served = kinds_in_store(kinds)
        self._groups = {(kind.group, kind.version) for kind in kinds}
        self._extra_paths = dict(extra_paths or {})
        self._address = address
        self._verbs = ResourceVerbs(tools, self.policy, reviews, kubelets)
        self._namespace_deletion = NamespaceDeletion(
            tools, self._served.values(), self._verbs.deleter, self._verbs.updater
        )
        self._event_expiry = EventExpiry(tools, self._verbs.deleter)

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        try:
            answer: ServerAnswer = await self._answer(request, user)
        except Refusal as refusal:
            answer = refusal.answer()
        except StoreClosed:
            answer = unavailable("the API server is shutting down").answer()
        except WriteFailed as error:
            self._log.error("a write failed", path=request.path, error=error)
            answer = internal_error(f"the change could not be made durable: {error.reason}").answer()
        except Exception as error:  # noqa: BLE001 - one request must not end the server
            self._log.error("a request failed", method=request.method, path=request.path, error=error)
            answer = internal_error("the request failed; the server's log says why").answer()
        return _prettily(request, answer) if isinstance(answer, HttpAnswer) else answer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """While it runs, ending namespaces are emptied, old events go, and what must be there from the beginning is."""
        try:
            await make_first_objects(self._tools.store, self._tools.schemas, self._verbs.creator)
            async with TaskGroup() as group:
                loops = [
                    group.start(self._namespace_deletion.run(), name="namespace deletion"),
                    group.start(self._event_expiry.run(), name="event expiry"),
                ]
                yield self
                for loop in loops:
                    loop.cancel()
        finally:
            self.policy.close()

    async def _answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        if len(request.body) > LARGEST_BODY:
            raise body_too_large()
        path = read_path(request.path)
        if isinstance(path, PlainPath):
            return await self._plain(request, path.path, user)
        verb = verb_of(request.method, path, watch=asks_to_watch(request.query))
        self._authorize(path, verb or request.method.lower(), request, user)
        if path.group not in {group for group, _ in self._groups}:
            return PAGE_NOT_FOUND
        if (path.group, path.version) not in self._groups:
            raise no_such_resource()
        return await self._verbs.carry_out(resource_request(self._served, request, path, verb), user)

    def _authorize(self, path: ResourcePath, verb: str, request: HttpRequest, user: User) -> None:
        name = path.name or (_selected_name(request) if verb in ON_COLLECTIONS else "")
        question = ResourceQuestion(verb, path.group, path.resource, path.subresource, path.scope, name)
        decision = self.policy.decide(user, question)
        if isinstance(decision, Denied):
            about = {"name": name, "group": path.group, "kind": path.resource}
            raise denied(decision.message, {key: text for key, text in about.items() if text})

    async def _plain(self, request: HttpRequest, path: str, user: User) -> HttpAnswer:
        decision = self.policy.decide(user, PathQuestion(request.method.lower(), path))
        if isinstance(decision, Denied):
            raise denied(decision.message, {})
        if handler := self._extra_handler(path):
            return await handler(request, user)
        found = discovery_answer(self.kinds, path, request.headers.get("accept", ""), self._address)
        if found is None:
            return PAGE_NOT_FOUND
        if request.method not in {"GET", "HEAD"}:
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


def _prettily(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
    wanted = any(key == "pretty" and value not in {"false", "0"} for key, value in request.query)
    if not wanted or not answer.body or not answer.headers.get("content-type", "").startswith("application/json"):
        return answer
    return HttpAnswer(answer.status, answer.headers, msgspec.json.format(answer.body.strip(), indent=2) + b"\n")
