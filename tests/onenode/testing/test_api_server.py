"""The API server that ships for users' tests."""

from __future__ import annotations

import pytest

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.store.store import memory_store
from onenode.testing.api_server import api_server, api_server_on
from orlop.kube.api_errors import Forbidden
from orlop.kube.kinds import CONFIG_MAP, NAMESPACE
from orlop.kube.objects import ObjectName, uid
from orlop.testing.virtual_clock import VirtualClock

pytestmark = pytest.mark.virtual_time
NAME = ObjectName("default", "one")
ONE = {"metadata": {"namespace": "default", "name": "one"}}


async def test_what_one_client_writes_another_reads_as_of_the_clock_that_was_given():
    clock = VirtualClock()
    async with api_server(clock) as server:
        await server.client().create(CONFIG_MAP, ONE)
        found = await server.client().get(CONFIG_MAP, NAME)

    assert found["metadata"]["creationTimestamp"] == clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_the_namespaces_of_every_cluster_are_there_from_the_beginning():
    async with api_server(VirtualClock()) as server:
        found = await server.client().list(NAMESPACE)

    assert "default" in {namespace["metadata"]["name"] for namespace in found.items}


async def test_a_user_without_rights_is_refused():
    async with api_server(VirtualClock()) as server:
        with pytest.raises(Forbidden):
            await server.client(User("jane")).get(CONFIG_MAP, NAME)


async def test_the_same_seed_gives_the_same_uids_and_another_seed_others():
    async def uid_of(seed: int) -> str:
        async with api_server(VirtualClock(), seed=seed) as server:
            return uid(await server.client().create(CONFIG_MAP, ONE))

    assert await uid_of(1) == await uid_of(1)
    assert await uid_of(1) != await uid_of(2)


async def test_a_store_that_was_given_outlives_its_server():
    clock = VirtualClock()
    async with memory_store() as store:
        async with api_server_on(store, clock) as server:
            await server.client().create(CONFIG_MAP, ONE)
        async with api_server_on(store, clock) as server:
            found = await server.client().get(CONFIG_MAP, NAME)

    assert found["metadata"]["name"] == "one"
