"""Who may do what, and who is asked: RBAC objects in the store, reviews, extra paths."""

from __future__ import annotations

import json

import pytest

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.answers.status_answers import JSON_HEADERS
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import Kind
from support.api.api_servers import TestServer, api_server

MAPS = "/api/v1/namespaces/default/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
ANN = User("ann", ("system:authenticated",))
NOBODY = User("system:anonymous", ("system:unauthenticated",))


async def allow(server: TestServer, user: str, rule: dict, *, namespace: str = "", name: str = "r") -> None:
    where = f"{ROLES}/namespaces/{namespace}" if namespace else ROLES
    role, binding = ("roles", "rolebindings") if namespace else ("clusterroles", "clusterrolebindings")
    kind = "Role" if namespace else "ClusterRole"
    made = await server.ask("POST", f"{where}/{role}", {"metadata": {"name": name}, "rules": [rule]})
    assert made.status == 201, made.body
    body = {
        "metadata": {"name": name},
        "roleRef": {"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [{"kind": "User", "name": user}],
    }
    assert (await server.ask("POST", f"{where}/{binding}", body)).status == 201


def rule(*verbs: str, **more: object) -> dict:
    return {"verbs": list(verbs), "apiGroups": [""], "resources": ["configmaps"], **more}


async def test_what_nobody_granted_is_forbidden_before_anything_else_is_said():
    async with api_server() as server:
        answer = await server.ask("GET", f"{MAPS}/no", user=ANN)
        assert answer.body["message"] == (
            'configmaps "no" is forbidden: User "ann" cannot get resource "configmaps" in API group "" '
            'in the namespace "default"'
        )
        assert answer.body["details"] == {"name": "no", "kind": "configmaps"}
        assert (await server.ask("POST", MAPS, b"{", user=ANN)).status == 403
        assert (await server.ask("GET", "/api/v1/cakes", user=ANN)).status == 403
        path = await server.ask("GET", "/cake", user=ANN)
        assert (path.body["message"], path.body["details"]) == ('forbidden: User "ann" cannot get path "/cake"', {})


async def test_a_rule_holds_as_soon_as_it_is_bound_and_no_longer_than_that():
    async with api_server() as server:
        assert (await server.ask("GET", MAPS, user=ANN)).status == 403
        await allow(server, "ann", rule("list"), namespace="default")
        assert (await server.ask("GET", MAPS, user=ANN)).status == 200
        assert (await server.ask("GET", "/api/v1/configmaps", user=ANN)).status == 403
        assert (await server.ask("GET", f"{MAPS}?watch=1", user=ANN)).status == 403
        await server.ask("DELETE", f"{ROLES}/namespaces/default/rolebindings/r")
        assert (await server.ask("GET", MAPS, user=ANN)).status == 403


async def test_a_rule_for_names_holds_for_lists_that_name_them():
    async with api_server() as server:
        await allow(server, "ann", rule("list", "get", resourceNames=["a"]))
        assert (await server.ask("GET", MAPS, user=ANN)).status == 403
        assert (await server.ask("GET", f"{MAPS}?fieldSelector=metadata.name=a", user=ANN)).status == 200
        assert (await server.ask("GET", f"{MAPS}?fieldSelector=metadata.name=b", user=ANN)).status == 403
        assert (await server.ask("GET", f"{MAPS}/a", user=ANN)).status == 404


async def test_an_object_does_not_grant_its_parts():
    async with api_server() as server:
        pods = "/api/v1/namespaces/default/pods"
        await allow(server, "ann", rule("*", resources=["pods"]))
        answer = await server.ask("PATCH", f"{pods}/p/status", {}, user=ANN)
        assert 'cannot patch resource "pods/status"' in answer.body["message"]


async def test_replacing_what_is_not_there_needs_the_right_to_create():
    async with api_server() as server:
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        wanted = rule("update", apiGroups=["coordination.k8s.io"], resources=["leases"])
        await allow(server, "ann", wanted)
        answer = await server.ask("PUT", f"{leases}/l", {"metadata": {"name": "l"}}, user=ANN)
        assert answer.status == 403
        assert "cannot create resource" in answer.body["message"]


async def test_everybody_who_is_known_may_discover_and_nobody_else():
    async with api_server() as server:
        for path in ("/api", "/apis", "/api/v1", "/apis/storage.k8s.io/v1"):
            assert (await server.ask("GET", path, user=ANN)).status == 200
            assert (await server.ask("GET", path, user=NOBODY)).status == 403


class Echo:
    async def review(self, kind: Kind, body: dict, user: User, namespace: str, name: str) -> dict:
        return {**body, "status": {"kind": str(kind), "user": user.name, "for": f"{namespace}/{name}"}}


async def test_kinds_that_are_only_asked_go_to_whoever_reviews():
    async with api_server(reviews=Echo()) as server:
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await server.ask("POST", path, {}, user=ANN)
        assert answer.status == 201
        assert answer.body["status"] == {
            "kind": "authentication.k8s.io/v1 SelfSubjectReview",
            "user": "ann",
            "for": "/",
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert (await server.ask("POST", path, {"spec": {}}, user=ANN)).status == 422
        assert (await server.ask("GET", path)).status == 405
        token = "/api/v1/namespaces/default/serviceaccounts/s/token"
        answer = await server.ask("POST", token, {"spec": {"audiences": ["a"]}})
        assert answer.body["spec"]["expirationSeconds"] == 3600
        assert answer.body["status"]["kind"] == "authentication.k8s.io/v1 TokenRequest"
        assert answer.body["status"]["for"] == "default/s"


async def test_extra_paths_are_guarded_like_others():
    async def tell(request: HttpRequest, user: User) -> HttpResponse:
        return HttpResponse(200, JSON_HEADERS, json.dumps([request.path, user.name]).encode())

    async with api_server(extra_paths={"/version": tell, "/openapi/v3": tell, "/openapi/v3/": tell}) as server:
        assert (await server.ask("GET", "/version", user=NOBODY)).body == ["/version", "system:anonymous"]
        assert (await server.ask("GET", "/openapi/v3/api/v1", user=ANN)).body == ["/openapi/v3/api/v1", "ann"]
        assert (await server.ask("GET", "/openapi/v3", user=ANN)).status == 200
        assert (await server.ask("GET", "/openapi/v3", user=NOBODY)).status == 403


@pytest.mark.parametrize("changes", [3, 1500])
async def test_the_policy_is_never_stale_however_much_changes(changes: int):
    async with api_server() as server:
        assert (await server.ask("GET", MAPS, user=ANN)).status == 403
        for number in range(changes):
            await server.ask("POST", f"{ROLES}/clusterroles", {"metadata": {"name": f"r{number}"}, "rules": []})
        await allow(server, "ann", rule("list"))
        assert (await server.ask("GET", MAPS, user=ANN)).status == 200
