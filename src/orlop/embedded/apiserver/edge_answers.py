"""Answers that are given before any kind of object is known: a `Status`, a text, a document. Pure.

Errors have Kubernetes' words; empty members of a Status are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from orlop.kube.http_messages import HttpAnswer

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
LARGEST_BODY: Final = 3 << 20


def status_answer(code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> HttpAnswer:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status |= {"message": message, "reason": reason}
    if details is not None:
        status["details"] = dict(details)
    return json_answer({**status, "code": code}, status=code)


def json_answer(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": JSON, **(headers or {})}, msgspec.json.encode(document))


def text_answer(text: str, *, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {"content-type": TEXT, "x-content-type-options": "nosniff"}, text.encode())


UNAUTHORIZED: Final = status_answer(401, "Unauthorized", "Unauthorized")
TOO_LARGE: Final = status_answer(
    413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}", details={}
)
TOO_SLOW: Final = status_answer(
    408, "Timeout", "the request did not arrive in time: send all of it at once", details={}
)
WENT_WRONG: Final = status_answer(
    500, "InternalError", "Internal error occurred: the log of the server says what went wrong", details={}
)
ENCODED: Final = status_answer(
    415, "UnsupportedMediaType", "the body of the request is compressed: send it as it is", details={}
)


def malformed(why: str) -> HttpAnswer:
    return status_answer(400, "BadRequest", f"the request is no HTTP: {why}")


def forbidden(message: str, details: Mapping[str, Any]) -> HttpAnswer:
    return status_answer(403, "Forbidden", message, details)
