"""Make the responses of an explored API server that fails or lags behind: errors, earlier states, and their names.

Reads of lists and objects with `resourceVersion=0` may have a response of an earlier moment. Such a read accepts the
state of any server, and a server may lag behind: the explorer chooses by how many changes. A read without a version is
a quorum read, and always returns the current state.

Past states are read from the server itself, which keeps them for a while (`resourceVersionMatch=Exact`), version by
version backwards. So a response has the last version at which it was true, and a watch from there returns the rest.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http.client import responses
from typing import Any, Final, TypeAlias

from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.testing.explorer.histories import Option

BEHIND: Final = tuple(
    map(Option, ("it is one change behind", "it is two changes behind", "it is three changes behind"))
)
FURTHEST_VERSIONS: Final = 100
"""How many versions to read at most. Most of them changed objects of other kinds."""
ANY_VERSION: Final = ("resourceVersion", "0")
NOT_FOR_PAST_READS: Final = frozenset({"resourceVersion", "resourceVersionMatch", "limit"})
"""Parameters to leave out. This module sets the first two; with version 0 a server ignores `limit` and returns all."""

SendRequest: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


# ---- errors ----------------------------------------------------------------------------------------------------------


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


# ---- earlier states --------------------------------------------------------------------------------------------------


def may_be_of_the_past(request: HttpRequest, resource: str) -> bool:
    """Return whether a read may be answered from the past: a list or an object with version 0, no subresource."""
    return request.method == "GET" and ANY_VERSION in request.query and resource.count("/") <= 1


async def past_answers(request: HttpRequest, resource: str, send: SendRequest) -> list[HttpResponse]:
    """Return earlier responses, newest first: before the last change, before the one before, and so on."""
    is_one_object = "/" in resource
    listing = _listing_of_one(request) if is_one_object else request
    now = await send(listing)
    if now.is_error:
        return []
    states = [json.loads(now.body)]
    newest = int(states[0]["metadata"]["resourceVersion"])
    for version in range(newest - 1, max(0, newest - FURTHEST_VERSIONS), -1):
        answer = await send(_as_of(listing, version))
        if answer.is_error:  # the server has dropped that version
            break
        state = json.loads(answer.body)
        if state["items"] != states[-1]["items"]:
            states.append(state)
        if len(states) > len(BEHIND):
            break
    return [_item_of(state) if is_one_object else _answer(state) for state in states[1:]]


def _listing_of_one(request: HttpRequest) -> HttpRequest:
    collection, _, name = request.path.rpartition("/")
    return replace(request, path=collection, query=(*request.query, ("fieldSelector", f"metadata.name={name}")))


def _as_of(listing: HttpRequest, version: int) -> HttpRequest:
    parameters = [pair for pair in listing.query if pair[0] not in NOT_FOR_PAST_READS]
    exact = (("resourceVersion", str(version)), ("resourceVersionMatch", "Exact"))
    return replace(listing, query=(*parameters, *exact))


def _item_of(state: dict[str, Any]) -> HttpResponse:
    """Return an item with its kind, which only its list names."""
    if not state["items"]:
        return refusal(404, "NotFound")
    about = {"kind": state["kind"].removesuffix("List"), "apiVersion": state["apiVersion"]}
    return _answer({**about, **state["items"][0]})


def _answer(body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(200, {"content-type": "application/json"}, json.dumps(body).encode())
