"""What every request passes before it is about objects: who asks, and as whom.

The unix socket means admin, unless a client says who it is. Nobody is let in but to the open paths. Asking as somebody
else needs the right to it, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from onenode.apiserver.access.authentication import Authenticator
from onenode.apiserver.access.rbac_rules import (
    ADMIN,
    Decision,
    Denied,
    NobodyNamed,
    Question,
    User,
    asked_for,
    questions,
    user_of,
)
from onenode.apiserver.answers.status_answers import bad_request
from onenode.apiserver.edge.edge_answers import UNAUTHORIZED, forbidden
from onenode.apiserver.edge.http_upgrade import ServerAnswer
from onenode.apiserver.edge.server_paths import ServerPaths
from orlop.kube.http.http_messages import HttpRequest, HttpResponse


class Objects(Protocol):
    """The API server proper."""

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer: ...


class FrontDoor:
    """`decide` is asked whether one may be somebody else."""

    def __init__(
        self,
        objects: Objects,
        authenticator: Authenticator,
        paths: ServerPaths,
        decide: Callable[[User, Question], Decision],
    ) -> None:
        self._objects = objects
        self._authenticator = authenticator
        self._paths = paths
        self._decide = decide

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        return await self._objects.answer(request, user)

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpResponse:
        open_to_all = self._paths.open_answer(head)
        if open_to_all is not None:
            return open_to_all
        user = self._user(head.headers, local=local)
        return UNAUTHORIZED if user is None else self._as_asked(user, head.headers)

    def _user(self, headers: Mapping[str, str], *, local: bool) -> User | None:
        if local and "authorization" not in headers:
            return ADMIN
        return self._authenticator.user_of(headers)

    def _as_asked(self, user: User, headers: Mapping[str, str]) -> User | HttpResponse:
        try:
            asked = asked_for(headers)
        except NobodyNamed as error:
            return bad_request(str(error)).answer()
        if asked is None:
            return user
        for question in questions(asked):
            decision = self._decide(user, question)
            if isinstance(decision, Denied):
                return forbidden(decision, question)
        return user_of(asked)
