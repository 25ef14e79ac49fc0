"""What only a kubelet can answer: `pods/log`, `pods/exec` and `nodes/proxy`, forwarded to its socket.

Order: access was decided, for commands also the right to create them → the pod or node is looked for → its kubelet is
asked → what it says is passed on as it comes: nothing is held, and who reads slowly slows the kubelet down. The end of
either side ends the other. `nodes/proxy` never upgrades: who may read statistics may not run commands by it.

Must not know what kubelets stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onenode.apiserver.access.access_policy import AccessPolicy
from onenode.apiserver.access.rbac_rules import Denied, ResourceQuestion, User
from onenode.apiserver.answers.status_answers import about, denied, method_not_allowed, no_such_resource
from onenode.apiserver.edge.http_upgrade import HttpUpgrade, ServerAnswer
from onenode.apiserver.requests.request_paths import PROXY, ResourceRequest
from onenode.apiserver.verbs import kubelet_rules as rules
from onenode.apiserver.verbs.kubelet_connection import KubeletAnswer, KubeletUnreachable, ask_kubelet
from onenode.apiserver.verbs.kubelet_rules import KubeletTarget
from onenode.apiserver.verbs.reading import ObjectReader
from orlop.foundation.clock import Clock
from orlop.foundation.http_exchange import RequestHead
from orlop.kube.http.http_messages import HttpResponse, HttpStream
from orlop.kube.kinds import NODE, POD

KubeletSockets = Callable[[str], str | None]
"""The path of the socket of a node's kubelet, by the node's name; None where there is none."""

LOG: Final = "log"
EXEC: Final = "exec"
OF: Final = {(POD.plural, LOG), (POD.plural, EXEC), (NODE.plural, PROXY)}
PLAIN_TEXT: Final = {"content-type": "text/plain"}
SWITCHING, OK, NO_CONTENT = 101, 200, 204


def NO_KUBELETS(_node: str) -> str | None:  # noqa: N802 - a constant that happens to be a function
    return None


class KubeletStreams:
    def __init__(self, reader: ObjectReader, policy: AccessPolicy, sockets: KubeletSockets, clock: Clock) -> None:
        self._reader = reader
        self._policy = policy
        self._sockets = sockets
        self._clock = clock

    def answers(self, request: ResourceRequest) -> bool:
        part = request.subresource
        return part is not None and not request.kind.kind.group and (request.kind.kind.plural, part.name) in OF

    async def answer(self, request: ResourceRequest, user: User) -> ServerAnswer:
        match request.subresource.name if request.subresource else "":
            case "log":
                return await self._log(request)
            case "exec":
                self._may_create(request, user)
                return await self._exec(request)
            case "proxy":
                return await self._proxy(request)
            case _:
                raise no_such_resource()

    async def _log(self, request: ResourceRequest) -> ServerAnswer:
        target = rules.log_target(await self._found(request, request.name), request.http.query)
        if target is None:
            return HttpResponse(NO_CONTENT)
        answer = await self._ask(target)
        if answer.status != OK:
            raise rules.refusal_of(answer.status, await answer.text(), "pods", request.name)
        return HttpStream(OK, PLAIN_TEXT, answer.body(), patient=True)

    async def _exec(self, request: ResourceRequest) -> ServerAnswer:
        target = rules.exec_target(await self._found(request, request.name), request.http.query)
        answer = await self._ask(target, headers=rules.upgrade_headers(request.http.headers))
        if answer.status != SWITCHING:
            raise rules.refusal_of(answer.status, await answer.text(), "pods", request.name, verb=request.verb)
        return HttpUpgrade(answer.head.headers, answer.reader, answer.writer)

    async def _proxy(self, request: ResourceRequest) -> ServerAnswer:
        name = rules.node_name(request.name)
        await self._found(request, name)
        if request.http.method not in {"GET", "HEAD"}:
            raise method_not_allowed()
        answer = await self._ask(rules.proxy_target(name, request.rest, request.http.query), request.http.method)
        kind = answer.head.headers.get("content-type")
        return HttpStream(answer.status, {"content-type": kind} if kind else {}, answer.body(), patient=True)

    async def _found(self, request: ResourceRequest, name: str) -> Mapping[str, Any]:
        stored = await self._reader.get(request.kind, request.kind.key(request.namespace, name))
        return request.kind.object(stored)

    def _may_create(self, request: ResourceRequest, user: User) -> None:
        """Also where a command is asked for by GET, as WebSocket does: it is no less of a command."""
        kind = request.kind.kind
        question = ResourceQuestion("create", kind.group, kind.plural, EXEC, request.namespace, request.name)
        decision = self._policy.decide(user, question)
        if isinstance(decision, Denied):
            raise denied(decision.message, about(kind, request.name))

    async def _ask(
        self, target: KubeletTarget, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> KubeletAnswer:
        socket = self._sockets(target.node)
        if socket is None:
            raise rules.not_reached(target.node, "is not known here")
        head = RequestHead(method, target.target, {"host": "kubelet", **(headers or {})})
        try:
            return await ask_kubelet(socket, head, self._clock)
        except KubeletUnreachable as error:
            raise rules.not_reached(target.node, str(error)) from None
