"""Reading one object and lists of them: versions, pages, selectors, tables."""

from __future__ import annotations

import pytest

from onenode.apiserver.store.versions import Limits, SizeLimits
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_servers import TestServer, api_server

MAPS = "/api/v1/namespaces/default/configmaps"
ALL_MAPS = "/api/v1/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def make(server: TestServer, *names: str, namespace: str = "default", **labels: str) -> None:
    for name in names:
        body = {"metadata": {"name": name, "labels": labels}}
        answer = await server.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
        assert answer.status == 201, answer.body


def names(answer) -> list[str]:
    return [item["metadata"]["name"] for item in answer.body["items"]]


async def test_items_of_a_list_do_not_repeat_their_kind():
    async with api_server() as server:
        empty = (await server.ask("GET", MAPS)).body
        assert (empty["kind"], empty["apiVersion"], empty["items"]) == ("ConfigMapList", "v1", [])
        await make(server, "b", "a")
        listed = await server.ask("GET", MAPS)
        assert names(listed) == ["a", "b"]
        assert all(item.keys() == {"metadata"} for item in listed.body["items"])
        assert listed.body["metadata"] == {"resourceVersion": str(server.store.revision)}


async def test_pages_show_the_version_of_the_first_whatever_happens_between_them():
    async with api_server() as server:
        await make(server, *"abcde")
        first = await server.ask("GET", f"{MAPS}?limit=2")
        assert names(first) == ["a", "b"]
        assert first.body["metadata"]["remainingItemCount"] == 3
        await make(server, "bb")
        await server.ask("DELETE", f"{MAPS}/d")
        token = first.body["metadata"]["continue"]
        second = await server.ask("GET", f"{MAPS}?limit=2&continue={token}")
        assert names(second) == ["c", "d"]
        token = second.body["metadata"]["continue"]
        third = await server.ask("GET", f"{MAPS}?limit=2&continue={token}")
        assert names(third) == ["e"]
        assert "continue" not in third.body["metadata"]
        versions = {answer.body["metadata"]["resourceVersion"] for answer in (first, second, third)}
        assert len(versions) == 1


async def test_a_token_whose_version_is_forgotten_is_expired_and_a_fresh_one_goes_on():
    async with api_server() as server:
        await make(server, *"abc")
        token = (await server.ask("GET", f"{MAPS}?limit=1")).body["metadata"]["continue"]
        await make(server, "bb")
        server.store.compact(server.store.revision)
        expired = await server.ask("GET", f"{MAPS}?limit=1&continue={token}")
        assert (expired.status, expired.body["reason"]) == (410, "Expired")
        fresh = expired.body["metadata"]["continue"]
        assert names(await server.ask("GET", f"{MAPS}?continue={fresh}")) == ["b", "bb", "c"]


async def test_pages_of_a_selection_do_not_count_what_remains():
    async with api_server() as server:
        await make(server, "a", "c", "e", team="x")
        await make(server, "b", "d")
        first = await server.ask("GET", f"{MAPS}?limit=2&labelSelector=team=x")
        assert names(first) == ["a", "c"]
        assert "remainingItemCount" not in first.body["metadata"]
        token = first.body["metadata"]["continue"]
        rest = await server.ask("GET", f"{MAPS}?limit=2&labelSelector=team=x&continue={token}")
        assert names(rest) == ["e"]


async def test_all_namespaces_are_listed_together_or_one_alone():
    async with api_server() as server:
        await make(server, "a")
        await make(server, "a", "b", namespace="kube-system")
        assert names(await server.ask("GET", ALL_MAPS)) == ["a", "a", "b"]
        assert names(await server.ask("GET", MAPS)) == ["a"]
        page = await server.ask("GET", f"{ALL_MAPS}?limit=1")
        token = page.body["metadata"]["continue"]
        assert names(await server.ask("GET", f"{ALL_MAPS}?continue={token}")) == ["a", "b"]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("labelSelector=team=x", ["a"]),
        ("labelSelector=team!=x", ["b", "c"]),
        ("labelSelector=team in (x,y)", ["a", "b"]),
        ("labelSelector=!team", ["c"]),
        ("fieldSelector=metadata.name=b", ["b"]),
        ("fieldSelector=metadata.name!=b", ["a", "c"]),
        ("fieldSelector=metadata.namespace=default", ["a", "b", "c"]),
        ("fieldSelector=metadata.name=a&labelSelector=team=y", []),
    ],
)
async def test_selectors(selector: str, found: list[str]):
    async with api_server() as server:
        await make(server, "a", team="x")
        await make(server, "b", team="y")
        await make(server, "c")
        assert names(await server.ask("GET", f"{MAPS}?{selector}")) == found
        assert names(await server.ask("GET", f"{ALL_MAPS}?{selector}")) == found


async def test_a_field_that_cannot_be_selected_by_is_a_bad_request():
    async with api_server() as server:
        answer = await server.ask("GET", f"{MAPS}?fieldSelector=spec.foo=1")
        known = 'only "metadata.name", "metadata.namespace"'
        message = f'"spec.foo" is not a known field selector: {known}'
        assert (answer.status, answer.body["message"]) == (400, message)
        of_pods = await server.ask("GET", "/api/v1/pods?fieldSelector=spec.foo=1")
        assert of_pods.body["message"] == "field label not supported: spec.foo"


async def test_fields_of_a_kind_are_selected_by_their_value_or_what_stands_for_none():
    async with api_server() as server:
        for name, unschedulable in (("n1", True), ("n2", False)):
            await server.ask(
                "POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": {"unschedulable": unschedulable}}
            )
        assert names(await server.ask("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable=false")) == ["n2"]
        assert names(await server.ask("GET", "/api/v1/nodes?fieldSelector=spec.unschedulable=true")) == ["n1"]


async def test_versions_that_lists_are_asked_for():
    async with api_server() as server:
        await make(server, "a")
        then = server.store.revision
        await make(server, "b")
        now = server.store.revision
        exact = await server.ask("GET", f"{MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")
        assert (names(exact), exact.body["metadata"]["resourceVersion"]) == (["a"], str(then))
        with_limit = await server.ask("GET", f"{MAPS}?resourceVersion={then}&limit=5")
        assert names(with_limit) == ["a"]
        later = await server.ask("GET", f"{MAPS}?resourceVersion={then}")
        assert (names(later), later.body["metadata"]["resourceVersion"]) == (["a", "b"], str(now))
        any_version = await server.ask("GET", f"{MAPS}?resourceVersion=0&limit=1")
        assert names(any_version) == ["a", "b"]


@pytest.mark.virtual_time
async def test_a_version_that_is_not_there_yet_is_waited_for_three_seconds():
    clock = VirtualClock()
    async with api_server(clock) as server:
        began = clock.elapsed()
        answer = await server.ask("GET", f"{MAPS}?resourceVersion=999")
        assert clock.elapsed() - began == pytest.approx(3)
        assert (answer.status, answer.body["reason"]) == (504, "Timeout")
        assert answer.body["message"] == f"Timeout: Too large resource version: 999, current: {server.store.revision}"
        assert answer.body["details"] == {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }
        assert answer.headers["retry-after"] == "1"


async def test_a_list_at_a_version_that_is_forgotten_is_expired():
    async with api_server(limits=Limits(history=SizeLimits(1, 1 << 20))) as server:
        await make(server, "a", "b", "c")
        answer = await server.ask("GET", f"{MAPS}?resourceVersion=2&resourceVersionMatch=Exact")
        assert (answer.status, answer.body["reason"]) == (410, "Expired")
        assert answer.body["message"] == "The resourceVersion for the provided list is too old."


async def test_tables_have_the_columns_of_their_kind_and_rows_with_metadata():
    async with api_server() as server:
        await make(server, "a", "b")
        table = (await server.ask("GET", f"{MAPS}?limit=1", accept=TABLE)).body
        assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert [row["cells"][0] for row in table["rows"]] == ["a"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        assert table["metadata"]["remainingItemCount"] == 1
        one = (await server.ask("GET", f"{MAPS}/a?includeObject=Object", accept=TABLE)).body
        assert one["rows"][0]["object"]["kind"] == "ConfigMap"
        assert one["metadata"]["resourceVersion"]
        none = (await server.ask("GET", f"{MAPS}/a?includeObject=None", accept=TABLE)).body
        assert none["rows"][0].keys() == {"cells", "object"}


async def test_metadata_alone_can_be_asked_for():
    async with api_server() as server:
        await make(server, "a", team="x")
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        listed = (await server.ask("GET", MAPS, accept=accept)).body
        assert listed["kind"] == "PartialObjectMetadataList"
        assert listed["items"][0]["kind"] == "PartialObjectMetadata"
        assert listed["items"][0]["metadata"]["labels"] == {"team": "x"}


async def test_what_is_not_there_and_what_cannot_be():
    async with api_server() as server:
        missing = await server.ask("GET", "/apis/storage.k8s.io/v1/storageclasses/x")
        assert missing.body == {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": 'storageclasses.storage.k8s.io "x" not found',
            "reason": "NotFound",
            "details": {"name": "x", "group": "storage.k8s.io", "kind": "storageclasses"},
            "code": 404,
        }
        for path in ("/api/v1/cakes", f"{MAPS}/a/status", "/api/v1/namespaces/default/nodes", "/apis/apps/v2/cakes"):
            answer = await server.ask("GET", path)
            assert answer.body["message"] == "the server could not find the requested resource"
            assert answer.body["details"] == {}
        for path in ("/apis/cakes.example/v1/cakes", "/cake", "/api/v2", "/api/v1//pods"):
            answer = await server.ask("GET", path)
            assert (answer.status, answer.body) == (404, "404 page not found\n")
        for method, path in (("POST", f"{MAPS}/a"), ("PATCH", MAPS), ("POST", ALL_MAPS), ("TRACE", MAPS)):
            answer = await server.ask(method, path)
            assert (answer.status, answer.body["reason"], answer.body["details"]) == (405, "MethodNotAllowed", {})
        for name, why in (("..", "may not be '..'"), ("%25", "may not contain '%'")):
            answer = await server.ask("GET", f"{MAPS}/{name}")
            assert answer.status == 400
            assert why in answer.body["message"]


async def test_what_is_accepted_decides_whether_there_is_an_answer():
    async with api_server() as server:
        answer = await server.ask("GET", MAPS, accept="text/html")
        assert (answer.status, answer.body["reason"]) == (406, "NotAcceptable")


async def test_discovery_plain_and_aggregated():
    async with api_server() as server:
        groups = (await server.ask("GET", "/apis")).body["groups"]
        assert "storage.k8s.io" in [group["name"] for group in groups]
        resources = (await server.ask("GET", "/api/v1")).body["resources"]
        assert "pods/status" in [resource["name"] for resource in resources]
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        answer = await server.ask("GET", "/apis", accept=accept)
        assert answer.headers["content-type"] == accept.partition(",")[0]
        assert answer.body["kind"] == "APIGroupDiscoveryList"
        assert (await server.ask("GET", "/api")).body["versions"] == ["v1"]
