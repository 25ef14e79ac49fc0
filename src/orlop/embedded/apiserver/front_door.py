"""What every request passes before it is about objects: who asks, and as whom.

The unix socket means admin, unless a client says who it is. Nobody is let in but to the open paths. Asking as somebody
else needs the right to it, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from orlop.embedded.apiserver.access_rules import ADMIN, Decision, Denied, Question, User
from orlop.embedded.apiserver.authentication import Authenticator
from orlop.embedded.apiserver.edge_answers import UNAUTHORIZED, forbidden
from orlop.embedded.apiserver.http_upgrade import ServerAnswer
from orlop.embedded.apiserver.impersonation_rules import NobodyNamed, asked_for, questions, user_of
from orlop.embedded.apiserver.server_paths import ServerPaths
from orlop.embedded.apiserver.status_answers import bad_request
from orlop.kube.http_messages import HttpAnswer, HttpRequest


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
        self.answer = objects.answer
        self._authenticator = authenticator
        self._paths = paths
        self._decide = decide

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpAnswer:
        open_to_all = self._paths.open_answer(head)
        if open_to_all is not None:
            return open_to_all
        user = self._user(head.headers, local=local)
        return UNAUTHORIZED if user is None else self._as_asked(user, head.headers)

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
        for question in questions(asked):
            decision = self._decide(user, question)
            if isinstance(decision, Denied):
                return forbidden(decision, question)
        return user_of(asked)
