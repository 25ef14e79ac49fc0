"""Answers of an API server that say no, made here where it was not asked. Pure."""

from __future__ import annotations

import json
from typing import Any

from orlop.kube.http_messages import HttpAnswer


def refusal(code: int, reason: str) -> HttpAnswer:
    body = json.dumps(status(code, reason, reason)).encode()
    return HttpAnswer(code, {"content-type": "application/json"}, body)


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    about = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return {**about, "reason": reason, "code": code, "message": message}
