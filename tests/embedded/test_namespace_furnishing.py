"""What every namespace has."""

from __future__ import annotations

from orlop.embedded.apiserver.namespace_furnishing import NamespaceFurnishing
from orlop.foundation.structured_log import silent_log
from support.api_servers import TestServer, api_server
from support.waiting import eventually


def furnishing(on: TestServer) -> NamespaceFurnishing:
    return NamespaceFurnishing(on.server, on.store, "the CA", silent_log())


async def names(on: TestServer, plural: str, namespace: str) -> list[str]:
    answer = await on.ask("GET", f"/api/v1/namespaces/{namespace}/{plural}")
    return [item["metadata"]["name"] for item in answer.body["items"]]


async def test_namespaces_that_are_there_are_furnished_before_anybody_asks():
    async with api_server() as on, furnishing(on).running():
        assert await names(on, "serviceaccounts", "default") == ["default"]
        assert await names(on, "configmaps", "kube-system") == ["kube-root-ca.crt"]


async def test_a_new_namespace_is_furnished():
    async with api_server() as on, furnishing(on).running():
        await on.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "new"}})
        await eventually(lambda: on.store.list("configmaps", "new").items)

        assert await names(on, "serviceaccounts", "new") == ["default"]
        made = await on.ask("GET", "/api/v1/namespaces/new/configmaps/kube-root-ca.crt")
        assert made.body["data"] == {"ca.crt": "the CA"}


async def test_what_is_deleted_comes_back_as_another():
    async with api_server() as on, furnishing(on).running():
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        first = (await on.ask("GET", path)).body["metadata"]["uid"]
        await on.ask("DELETE", path)
        await eventually(lambda: on.store.list("serviceaccounts", "default").items)

        assert (await on.ask("GET", path)).body["metadata"]["uid"] != first


async def test_what_somebody_made_is_left_as_it_is():
    async with api_server() as on:
        account = {"metadata": {"name": "default", "labels": {"mine": "yes"}}}
        await on.ask("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        async with furnishing(on).running():
            found = await on.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")

    assert found.body["metadata"]["labels"] == {"mine": "yes"}


async def test_a_namespace_that_ends_is_not_furnished_again():
    async with api_server() as on, furnishing(on).running():
        await on.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "new"}})
        await eventually(lambda: on.store.list("configmaps", "new").items)
        await on.ask("DELETE", "/api/v1/namespaces/new")
        await eventually(lambda: on.store.get(("namespaces", "", "new")) is None)

        assert on.store.list("serviceaccounts", "new").items == []
        assert on.log.entries == []
