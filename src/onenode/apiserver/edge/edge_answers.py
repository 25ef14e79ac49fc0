"""Answers that need no kind of object, for every client, authenticated or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from onenode.apiserver.access.rbac_rules import Denied, PathQuestion, Question
from onenode.apiserver.answers.status_answers import JSON_HEADERS, Refusal, bad_request, body_too_large, denied
from orlop.kube.http.http_messages import HttpResponse

TEXT_HEADERS: Final = {"content-type": "text/plain; charset=utf-8", "x-content-type-options": "nosniff"}

UNAUTHORIZED: Final = Refusal(401, "Unauthorized", "Unauthorized").answer()
TOO_LARGE: Final = body_too_large().answer()
TOO_SLOW: Final = Refusal(408, "Timeout", "the request did not arrive in time: send all of it at once").answer()
ENCODED: Final = Refusal(
    415, "UnsupportedMediaType", "the body of the request is compressed: send it as it is"
).answer()
WENT_WRONG: Final = Refusal(
    500, "InternalError", "Internal error occurred: the log of the server says what went wrong", {}
).answer()


def malformed(why: str) -> HttpResponse:
    return bad_request(f"the request is no HTTP: {why}").answer()


def json_answer(document: Any, *, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(200, {**JSON_HEADERS, **(headers or {})}, msgspec.json.encode(document))


def text_answer(text: str, *, status: int = 200) -> HttpResponse:
    return HttpResponse(status, TEXT_HEADERS, text.encode())


def forbidden(decision: Denied, question: Question) -> HttpResponse:
    """What may not be asked is named; a path has no name beside its own."""
    if isinstance(question, PathQuestion):
        return denied(decision.message, {}).answer()
    about = {"name": question.name, "group": question.group, "kind": question.resource}
    return denied(decision.message, {key: value for key, value in about.items() if value}).answer()
