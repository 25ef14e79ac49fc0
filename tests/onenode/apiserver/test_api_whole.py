"""The API server as a whole: get, list, create, replace, delete, watch, in process."""

from __future__ import annotations

import pytest

from orlop.kube.api_errors import AlreadyExists, Conflict, NotFound
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName
from support.api.api_servers import api_server

MAPS = "/api/v1/namespaces/default/configmaps"
NAME = ObjectName("default", "a")


def config_map(name: str = "a", **data: str) -> dict:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def test_an_object_that_was_made_can_be_read_listed_changed_and_deleted():
    async with api_server() as server:
        client = server.client()
        made = await client.create(CONFIG_MAP, config_map(k="1"))
        assert made["metadata"]["uid"]
        assert await client.get(CONFIG_MAP, NAME) == made
        assert (await client.list(CONFIG_MAP)).items == [made]
        changed = await client.replace(CONFIG_MAP, {**made, "data": {"k": "2"}})
        assert changed["data"] == {"k": "2"}
        patched = await client.patch(CONFIG_MAP, NAME, MergePatch({"data": {"l": "3"}}))
        assert patched["data"] == {"k": "2", "l": "3"}
        await client.delete(CONFIG_MAP, NAME)
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAP, NAME)


async def test_what_is_there_cannot_be_made_again_and_what_has_changed_cannot_be_replaced():
    async with api_server() as server:
        client = server.client()
        made = await client.create(CONFIG_MAP, config_map(k="1"))
        with pytest.raises(AlreadyExists):
            await client.create(CONFIG_MAP, config_map(k="2"))
        await client.replace(CONFIG_MAP, {**made, "data": {"k": "2"}})
        with pytest.raises(Conflict, match="the object has been modified"):
            await client.replace(CONFIG_MAP, {**made, "data": {"k": "3"}})


async def test_a_watch_tells_what_is_there_and_then_every_change():
    async with api_server() as server:
        client = server.client()
        await client.create(CONFIG_MAP, config_map(k="1"))
        async with server.watch(f"{MAPS}?watch=true") as watch:
            assert (await watch.next())["type"] == "ADDED"
            await client.patch(CONFIG_MAP, NAME, MergePatch({"data": {"l": "3"}}))
            changed = await watch.next()
            await client.delete(CONFIG_MAP, NAME)
            gone = await watch.next()
        assert [changed["type"], gone["type"]] == ["MODIFIED", "DELETED"]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (changed, gone)]
        assert versions[0] < versions[1]
