"""Paths and methods that lead nowhere, and odd names."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from support.api.api_objects import config_map, role
from support.api.api_under_test import Api

NO_RESOURCE = "the server could not find the requested resource"
NO_METHOD = "the server does not allow this method on the requested resource"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/ghosts",
        "/api/v1/namespaces/default/ghosts",
        "/api/v1/namespaces/default/ghosts/x",
        "/api/v1/namespaces/default/configmaps/x/ghost",
        "/api/v1/namespaces/default/configmaps/x/status/more",
        "/apis/storage.k8s.io/v1/ghosts",
        "/apis/storage.k8s.io/v1/namespaces/default/storageclasses",
        "/api/v1/namespaces/default/nodes",
        "/api/v9/pods",
        "/apis/apps/v9/deployments",
    ],
)
async def test_a_resource_that_is_not_there_is_not_found(api: Api, path: str):
    answer = await api.ask("GET", path)

    answer.is_refused(404, "NotFound", NO_RESOURCE, {})


@pytest.mark.parametrize("path", ["/apis/ghost.example.com/v1/things", "/ghost", "/apis/ghost.example.com"])
async def test_a_group_or_a_path_that_is_not_there_is_no_page(api: Api, path: str):
    answer = await api.ask("GET", path)

    assert (answer.status, answer.text.strip()) == (404, "404 page not found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/namespaces/default/configmaps/x"),
        ("PUT", "/api/v1/namespaces/default/configmaps"),
        ("PATCH", "/api/v1/namespaces/default/configmaps"),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/configmaps"),
        ("POST", "/api/v1/namespaces/default/pods/x/status"),
        ("DELETE", "/api/v1/namespaces/default/pods/x/status"),
        ("GET", "/api/v1/namespaces/default/serviceaccounts/x/token"),
        ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
    ],
    ids=str,
)
async def test_a_method_that_a_path_does_not_know_is_not_allowed(api: Api, method: str, path: str):
    answer = await api.ask(method, path, None if method in {"GET", "DELETE"} else {})

    answer.is_refused(405, "MethodNotAllowed", NO_METHOD, {})


@pytest.mark.parametrize("name", ["%2e%2e", "a%2fb", "..%2f..%2fsecrets", "%00", "a%20b", "UPPER", "x" * 300])
async def test_an_odd_name_is_never_another_objects(api: Api, name: str):
    await api.make(kinds.CONFIG_MAP, config_map("x"))
    answer = await api.ask("GET", f"/api/v1/namespaces/{api.namespace}/configmaps/{name}")

    assert answer.status in {301, 307, 400, 404}, answer.text
    assert b'"data"' not in answer.body


@pytest.mark.parametrize(
    "path", ["/api/v1/namespaces/{}/configmaps/../secrets", "/api//v1/namespaces/{}/secrets", "/../etc/passwd"]
)
async def test_paths_with_dots_or_doubled_slashes_lead_out_of_nothing(api: Api, path: str):
    answer = await api.ask("GET", path.format(api.namespace))

    assert answer.status in {200, 301, 307, 400, 404}, answer.text
    if answer.status == 200:
        assert answer.json["kind"] == "SecretList"


async def test_a_role_may_have_a_name_with_colons(api: Api):
    name = f"system:test:{api.namespace}"
    made = await api.make(kinds.CLUSTER_ROLE, role(name))

    assert made["metadata"]["name"] == name
    assert (await api.read(kinds.CLUSTER_ROLE, name))["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.parametrize("name", [".", "..", "a/b", "a%b"])
async def test_a_role_may_not_have_a_name_that_no_path_could_hold(api: Api, name: str):
    answer = await api.create(kinds.ROLE, role(name))

    answer.is_invalid(("FieldValueInvalid", "metadata.name"))


@pytest.mark.parametrize("name", ["a..b", "-a", "a-", ".a", "ä", "a b", "a\u0000b", "x" * 254])
async def test_odd_names_of_new_objects_are_invalid(api: Api, name: str):
    (await api.create(kinds.CONFIG_MAP, config_map(name))).is_invalid(("FieldValueInvalid", "metadata.name"))


async def test_a_name_may_be_as_long_as_is_allowed(api: Api):
    name = "x" * 253

    assert (await api.make(kinds.CONFIG_MAP, config_map(name)))["metadata"]["name"] == name


async def test_an_object_that_is_not_there_is_named_in_full(api: Api):
    (await api.get(kinds.STORAGE_CLASS, "ghost")).is_refused(
        404,
        "NotFound",
        'storageclasses.storage.k8s.io "ghost" not found',
        {"name": "ghost", "group": "storage.k8s.io", "kind": "storageclasses"},
    )


async def test_unknown_options_are_passed_over(api: Api):
    assert (await api.list(kinds.CONFIG_MAP, fancy="1", pretty="true")).status == 200


@pytest.mark.parametrize("query", [{"timeoutSeconds": "x", "watch": "true"}, {"limit": "x"}], ids=str)
async def test_options_that_are_no_numbers_are_refused(api: Api, query: dict):
    answer = await api.list(kinds.CONFIG_MAP, **query)

    answer.is_refused(400, "BadRequest", 'strconv.ParseInt: parsing "x": invalid syntax')


async def test_objects_and_discovery_have_no_head(api: Api):
    for path in ("/api", "/api/v1", "/apis/apps/v1", f"/api/v1/namespaces/{api.namespace}/pods", "/version"):
        if path != "/version" or api.can.listens:
            assert (await api.ask("HEAD", path)).status == 405, path
    for path in ("/apis", "/apis/apps"):
        assert (await api.ask("HEAD", path)).status == 200, path


async def test_bindings_are_created_in_a_namespace_and_nothing_else(api: Api):
    path = f"/api/v1/namespaces/{api.namespace}/bindings"

    assert (await api.ask("GET", path)).status == 405
    assert (await api.ask("GET", "/api/v1/bindings")).status == 404
    assert (await api.ask("PUT", f"{path}/x", {})).status == 404


async def test_a_head_request_has_no_body(api: Api):
    answer = await api.ask("HEAD", "/livez")

    assert answer.status in {200, 405}
    assert answer.body in {b"", b"ok"} or answer.status == 405
