"""Error responses of an API server that the explorer makes up, and how histories show responses. Pure."""

from __future__ import annotations

import json
from http.client import responses
from typing import Any

from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpResponse


def refusal(code: int, reason: str) -> HttpResponse:
    body = json.dumps(status(code, reason, reason)).encode()
    return HttpResponse(code, {"content-type": "application/json"}, body)


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    about = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**about, "reason": reason, "code": code, "message": message}


def shown(ending: HttpResponse | Exception) -> str:
    """Return `409 Conflict` and the like; `lost` if no whole response came; "" for a plain success."""
    if isinstance(ending, Exception):
        return "lost" if isinstance(ending, ConnectionBroken) else type(ending).__name__
    return f"{ending.status} {_reason(ending)}".strip() if ending.is_error else ""


def _reason(answer: HttpResponse) -> str:
    """Return the reason in the Status, which says more than the code; a proxy's error page has none."""
    try:
        return str(json.loads(answer.body)["reason"])
    except (ValueError, TypeError, KeyError):
        return responses.get(answer.status, "")
