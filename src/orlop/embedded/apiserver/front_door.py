"""What every request passes before it is about objects: who asks, as whom, and the paths that are about the server.

The unix socket means admin, unless a client says who it is. Nobody is let in but to the open paths. Asking as somebody
else needs the right to it, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from orlop.embedded.apiserver.access_rules import Denied, PathQuestion, Policy, User, decide
from orlop.embedded.apiserver.authentication import ADMIN, Authenticator
from orlop.embedded.apiserver.edge_answers import UNAUTHORIZED, forbidden
from orlop.embedded.apiserver.impersonation_rules import NobodyNamed, asked_for, questions, user_of
from orlop.embedded.apiserver.server_paths import METRICS, ServerPaths
from orlop.embedded.apiserver.status_answers import bad_request
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream


class Objects(Protocol):
    """The API server proper."""

    async def answer(self, request: HttpRequest, user: User) -> HttpAnswer | HttpStream: ...


class FrontDoor:
    def __init__(
        self, objects: Objects, authenticator: Authenticator, paths: ServerPaths, policy: Callable[[], Policy]
    ) -> None:
        self._objects = objects
        self._authenticator = authenticator
        self._paths = paths
        self._policy = policy

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpAnswer:
        open_to_all = self._paths.open_answer(head)
        if open_to_all is not None:
            return open_to_all
        user = self._user(head.headers, local=local)
        return UNAUTHORIZED if user is None else self._as_asked(user, head.headers)

    async def answer(self, request: HttpRequest, user: User) -> HttpAnswer | HttpStream:
        if request.path == METRICS:
            question = PathQuestion(request.method.lower(), request.path)
            decision = decide(user, question, self._policy())
            if isinstance(decision, Denied):
                return forbidden(decision, question)
        return self._paths.answer(request) or await self._objects.answer(request, user)

    def _user(self, headers: Mapping[str, str], *, local: bool) -> User | None:
        if local and "authorization" not in headers:
            return ADMIN
        return self._authenticator.user_of(headers)

    def _as_asked(self, user: User, headers: Mapping[str, str]) -> User | HttpAnswer:
        try:
            asked = asked_for(headers)
        except NobodyNamed as error:
            return bad_request(str(error)).answer()
        if asked is None:
            return user
        policy = self._policy()
        for question in questions(asked):
            decision = decide(user, question, policy)
            if isinstance(decision, Denied):
                return forbidden(decision, question)
        return user_of(asked)
