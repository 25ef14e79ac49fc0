"""Answers of an API server that say no: made here where it was not asked, and how histories show them. Pure."""

from __future__ import annotations

import json
from http.client import responses
from typing import Any

from orlop.kube.errors import ConnectionBroken
from orlop.kube.http_messages import HttpAnswer


def refusal(code: int, reason: str) -> HttpAnswer:
    body = json.dumps(status(code, reason, reason)).encode()
    return HttpAnswer(code, {"content-type": "application/json"}, body)


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    about = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**about, "reason": reason, "code": code, "message": message}


def told(ending: HttpAnswer | Exception) -> str:
    """Such as `409 Conflict`; `lost`, where no whole answer came; nothing for a plain success."""
    if isinstance(ending, Exception):
        return "lost" if isinstance(ending, ConnectionBroken) else type(ending).__name__
    return f"{ending.status} {_reason(ending)}".strip() if ending.is_error else ""


def _reason(answer: HttpAnswer) -> str:
    """The server's own word, which says more than the code; a page of somebody between has none."""
    try:
        return str(json.loads(answer.body)["reason"])
    except (ValueError, TypeError, KeyError):
        return responses.get(answer.status, "")
