"""What every request passes before it is about objects."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import ADMIN, Policy, User, decide
from onenode.apiserver.answers.openapi import OpenApi
from onenode.apiserver.answers.status_answers import Refusal
from onenode.apiserver.edge.front_door import FrontDoor
from onenode.apiserver.edge.server_paths import EndpointChecks, ServerPaths, version_document
from onenode.apiserver.schema.schemas import Schemas
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import BUILT_IN
from support.api.api_users import ADMIN_TOKEN, NOW, People, bearer

OPENAPI = OpenApi(Schemas.load(), BUILT_IN, "v1.37.0+orlop")
IMPERSONATORS = Policy(
    cluster_roles=(
        {
            "metadata": {"name": "as-bob"},
            "rules": [{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob"]}],
        },
    ),
    cluster_role_bindings=(
        {
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "as-bob"},
            "subjects": [{"kind": "ServiceAccount", "name": "web", "namespace": "default"}],
        },
    ),
)


class Behind:
    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        return HttpResponse(200, {}, f"{request.path} for {user.name}".encode())


def server_paths(why_not_ready: str | None = None) -> ServerPaths:
    version = version_document("v1.37.0+orlop", "linux/amd64")
    checks = EndpointChecks({"ping": lambda: None}, {"store": lambda: why_not_ready})
    return ServerPaths(OPENAPI, version, checks, lambda _accept: (b"metrics", "text/plain"), lambda: NOW)


def door(people: People | None = None, why_not_ready: str | None = None) -> FrontDoor:
    them = people or People(IMPERSONATORS)
    decided = partial(decide, policy=them.policy)
    return FrontDoor(Behind(), them.authenticator, server_paths(why_not_ready), decided)


def get(path: str, headers: dict[str, str] | None = None, **query: str) -> HttpRequest:
    return HttpRequest("GET", path, tuple(query.items()), headers or {})


def refused(request: HttpRequest, at: FrontDoor | None = None) -> dict[str, Any]:
    answer = (at or door()).admit(request, local=False)
    assert isinstance(answer, HttpResponse)
    status: dict[str, Any] = json.loads(answer.body)
    assert status["code"] == answer.status
    return status


async def answered(request: HttpRequest) -> HttpResponse:
    """By what the API server is handed for its extra paths."""
    handlers = server_paths().handlers()
    above = [
        path for path in handlers if path == request.path or (path.endswith("/") and request.path.startswith(path))
    ]
    return await handlers[max(above, key=len)](request, ADMIN)


OPEN = ["/livez", "/readyz", "/healthz", "/version", "/livez/ping", "/readyz/store", "/healthz/"]


@pytest.mark.parametrize("path", OPEN)
def test_health_and_version_are_told_to_anybody(path: str):
    answer = door().admit(get(path), local=False)

    assert isinstance(answer, HttpResponse)
    assert answer.status == 200


def test_the_version_is_kubernetes_with_our_name():
    answer = door().admit(get("/version"), local=False)

    assert isinstance(answer, HttpResponse)
    told = json.loads(answer.body)
    assert (told["major"], told["minor"], told["gitVersion"]) == ("1", "37", "v1.37.0+orlop")
    assert told["platform"] == "linux/amd64"
    assert {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"} <= set(told)


def test_what_is_not_ready_says_why():
    answer = door(why_not_ready="the disk is full").admit(get("/readyz"), local=False)

    assert isinstance(answer, HttpResponse)
    assert answer.status == 500
    assert answer.body == b"[+]ping ok\n[-]store failed: the disk is full\nreadyz check failed\n"


@pytest.mark.parametrize("path", ["/livez", "/healthz"])
def test_what_is_not_ready_lives_all_the_same(path: str):
    answer = door(why_not_ready="the disk is full").admit(get(path), local=False)

    assert isinstance(answer, HttpResponse)
    assert (answer.status, answer.body) == (200, b"ok")


CLOSED = [
    "/",
    "//",
    "///",
    "//livez",
    "/api",
    "/apis",
    "/api/v1/pods",
    "/metrics",
    "/openapi/v3",
    "/livezz",
    "/version/x",
    "/livez/../api",
]


@pytest.mark.parametrize("path", CLOSED)
def test_nothing_else_is_told_to_nobody(path: str):
    if path.startswith("/livez/"):
        answer = door().admit(get(path), local=False)
        assert isinstance(answer, HttpResponse)
        assert answer.status == 404
        return
    assert refused(get(path)) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }


def test_only_reading_is_open():
    assert refused(HttpRequest("POST", "/version"))["code"] == 401


def test_the_local_socket_means_admin_unless_a_client_says_who_it_is():
    assert door().admit(get("/api"), local=True) == ADMIN
    wrong = door().admit(get("/api", bearer("wrong")), local=True)
    assert isinstance(wrong, HttpResponse)
    assert wrong.status == 401


def test_the_admin_may_ask_as_anybody():
    as_bob = {**bearer(ADMIN_TOKEN), "impersonate-user": "bob", "impersonate-group": "devs"}

    assert door().admit(get("/api", as_bob), local=False) == User("bob", ("devs", "system:authenticated"))


async def test_others_may_ask_as_whom_a_rule_names():
    them = People(IMPERSONATORS)
    them.put("serviceaccounts", "default", "web", "u-web")
    headers = bearer(await them.token("default", "web"))
    at = door(them)

    assert at.admit(get("/api", {**headers, "impersonate-user": "bob"}), local=False) == User(
        "bob", ("system:authenticated",)
    )
    status = refused(get("/api", {**headers, "impersonate-user": "eve"}), at)
    who = "system:serviceaccount:default:web"
    assert status["message"] == (
        f'users "eve" is forbidden: User "{who}" cannot impersonate resource "users" '
        'in API group "" at the cluster scope'
    )
    assert (status["code"], status["details"]) == (403, {"name": "eve", "kind": "users"})
    more = {**headers, "impersonate-user": "bob", "impersonate-group": "system:masters"}
    assert refused(get("/api", more), at)["details"] == {"name": "system:masters", "kind": "groups"}


def test_groups_of_nobody_are_a_bad_request():
    assert refused(get("/api", {**bearer(ADMIN_TOKEN), "impersonate-group": "g"}))["code"] == 400


async def test_metrics_are_rendered_and_only_read():
    assert (await answered(get("/metrics"))).body == b"metrics"
    with pytest.raises(Refusal, match="does not allow this method"):
        await answered(HttpRequest("POST", "/metrics"))


async def test_who_is_in_reads_the_open_paths_as_well():
    assert (await answered(get("/livez/ping"))).body == b"ok"
    assert (await answered(get("/version"))).status == 200
    assert (await answered(get("/livez/nothing"))).status == 404


async def test_documents_are_kept_for_ever_by_their_hash_and_not_without():
    index = json.loads((await answered(get("/openapi/v3"))).body)
    path, _, hash_ = index["paths"]["api/v1"]["serverRelativeURL"].partition("?hash=")
    right = await answered(get(path, hash=hash_))
    wrong = await answered(get(path, hash="0"))
    plain = await answered(get(path))
    known = await answered(get(path, {"if-none-match": f'"{hash_}"'}, hash=hash_))

    assert right.status == 200
    assert right.headers["cache-control"] == "public, immutable"
    assert right.headers["expires"] == "Sun, 01 Aug 2027 12:00:00 GMT"
    assert (wrong.status, wrong.headers["location"]) == (301, f"{path}?hash={hash_}")
    assert plain.headers["cache-control"] == "no-cache, private"
    assert (known.status, known.body) == (304, b"")
    assert (await answered(get("/openapi/v3/apis/made.up/v1"))).status == 404


async def test_all_else_goes_to_the_objects():
    answer = await door().answer(get("/api/v1/pods"), ADMIN)
    assert isinstance(answer, HttpResponse)
    assert answer.body == b"/api/v1/pods for admin"
