"""What every namespace has."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest

from onenode.apiserver.store.journal import Batch, JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DEFAULT_LIMITS
from onenode.apiserver.upkeep.namespace_furnishing import NamespaceFurnishing
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_servers import TestServer, api_server, api_server_on
from support.waiting import eventually

CA_PATH = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt"
MERGE = "application/merge-patch+json"


def furnishing(on: TestServer, ca: str = "the CA") -> NamespaceFurnishing:
    return NamespaceFurnishing(on.server, on.store, ca, clock=on.clock, random=Random(1), log=on.log)


def ca_map(on: TestServer, namespace: str = "default") -> dict[str, object]:
    stored = on.store.get(("configmaps", namespace, "kube-root-ca.crt"))
    return json.loads(stored.json) if stored else {}


async def names(on: TestServer, plural: str, namespace: str) -> list[str]:
    answer = await on.ask("GET", f"/api/v1/namespaces/{namespace}/{plural}")
    return [item["metadata"]["name"] for item in answer.body["items"]]


async def test_namespaces_that_are_there_are_furnished_before_anybody_asks():
    async with api_server() as on, furnishing(on).running():
        assert await names(on, "serviceaccounts", "default") == ["default"]
        assert await names(on, "configmaps", "kube-system") == [
            "extension-apiserver-authentication",
            "kube-root-ca.crt",
        ]


async def test_a_new_namespace_is_furnished():
    async with api_server() as on, furnishing(on).running():
        await on.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "new"}})
        await eventually(lambda: on.store.list("configmaps", "new").items)

        assert await names(on, "serviceaccounts", "new") == ["default"]
        made = await on.ask("GET", "/api/v1/namespaces/new/configmaps/kube-root-ca.crt")
        assert made.body["data"] == {"ca.crt": "the CA"}


async def test_only_the_system_namespace_has_the_ca_for_clients_of_other_servers():
    async with api_server() as on, furnishing(on).running():
        assert await names(on, "configmaps", "default") == ["kube-root-ca.crt"]
        made = await on.ask("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")

    assert made.body["data"]["client-ca-file"] == "the CA"
    assert made.body["data"]["requestheader-client-ca-file"] == "the CA"
    assert made.body["data"]["requestheader-username-headers"] == '["X-Remote-User"]'


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
        assert on.told.entries == []


async def test_a_ca_that_was_made_anew_takes_the_place_of_the_old_one():
    async with api_server() as on:
        async with furnishing(on, "the old CA").running():
            pass
        async with furnishing(on, "the new CA").running():
            made = [ca_map(on, namespace) for namespace in ("default", "kube-system")]

    assert [one["data"] for one in made] == [{"ca.crt": "the new CA"}, {"ca.crt": "the new CA"}]


EDITS = [
    {"data": {"ca.crt": "another"}},
    {"data": {"more": "x"}},
    {"data": None},
    {"metadata": {"annotations": None}},
]


@pytest.mark.parametrize("edit", EDITS)
async def test_edits_of_the_ca_are_undone(edit: dict[str, object]):
    async with api_server() as on, furnishing(on).running():
        before = ca_map(on)
        edited = await on.ask("PATCH", CA_PATH, edit, content_type=MERGE)
        assert (edited.body.get("data"), edited.body["metadata"].get("annotations")) != (
            before["data"],
            before["metadata"]["annotations"],
        )

        await eventually(
            lambda: ca_map(on)["metadata"]["resourceVersion"] != edited.body["metadata"]["resourceVersion"]
        )

        assert ca_map(on)["data"] == {"ca.crt": "the CA"}
        assert ca_map(on)["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert ca_map(on)["metadata"]["uid"] == before["metadata"]["uid"]


async def test_what_people_add_to_the_ca_that_is_no_data_stays():
    added = {"labels": {"mine": "yes"}, "annotations": {"mine": "too", "kubernetes.io/description": "our own words"}}
    async with api_server() as on:
        async with furnishing(on, "the old CA").running():
            await on.ask("PATCH", CA_PATH, {"metadata": added}, content_type=MERGE)
        async with furnishing(on, "the new CA").running():
            found = ca_map(on)

    assert found["data"] == {"ca.crt": "the new CA"}
    assert found["metadata"]["labels"] == added["labels"]
    assert found["metadata"]["annotations"] == added["annotations"]


async def test_what_is_right_is_not_written_again():
    async with api_server() as on:
        async with furnishing(on).running():
            before = on.store.revision
        async with furnishing(on).running():
            assert on.store.revision == before


class FullDisk(NoJournal):
    full = False

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        if not self.full:
            return super().commit(batch)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(OSError("no space left"))
        return failed


@pytest.mark.virtual_time
@pytest.mark.parametrize("seconds", [0.1, 10, 3000])
async def test_what_could_not_be_written_is_written_when_it_can_be(seconds: float):
    disk, clock = FullDisk(), VirtualClock()
    store = ObjectStore(disk, JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store, clock) as on:
        disk.full = True
        async with furnishing(on).running():
            await asyncio.sleep(seconds)
            assert ca_map(on) == {}
            disk.full = False
            await asyncio.sleep(90)
            for namespace in ("default", "kube-system", "kube-public", "kube-node-lease"):
                assert await names(on, "serviceaccounts", namespace) == ["default"]
                assert "kube-root-ca.crt" in await names(on, "configmaps", namespace)
            assert "extension-apiserver-authentication" in await names(on, "configmaps", "kube-system")
            settled = len(on.told.entries)
            await asyncio.sleep(3600)
            assert len(on.told.entries) == settled
        # Namespaces, what each has, what one of them has besides, and the two who tell of a failed write.
        rounds = settled / ((4 * 2 + 1) * 2)
        assert rounds < 12 + seconds / 60
    await store.close()


@pytest.mark.virtual_time
async def test_a_retry_is_no_reason_not_to_stop():
    disk, clock = FullDisk(), VirtualClock()
    store = ObjectStore(disk, JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store, clock) as on:
        disk.full = True
        began = clock.elapsed()
        async with furnishing(on).running():
            pass
        assert clock.elapsed() == began
    await store.close()
