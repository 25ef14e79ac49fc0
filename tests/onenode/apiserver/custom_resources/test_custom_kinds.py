"""Definitions that change while objects are written, and names that become free."""

from __future__ import annotations

import asyncio
from typing import Any

from onenode.apiserver.store.store import memory_store
from onenode.apiserver.store.versions import Key
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION
from support.api.api_servers import TestServer, api_server, api_server_on
from support.api.custom_resources import definition, disk, version

GROUP = "race.example.com"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DISKS = f"/apis/{GROUP}/v1/namespaces/default/disks"
MERGE = "application/merge-patch+json"


def schema(**properties: Any) -> dict[str, Any]:
    spec = {"type": "object", "properties": {"node": {"type": "string"}, **properties}}
    return {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}


def versions(**properties: Any) -> list[dict[str, Any]]:
    return [version(schema=schema(**properties), selectableFields=None)]


async def define(server: TestServer, *given: dict[str, Any], **names: Any) -> str:
    made = definition(GROUP, *given, **names)
    answer = await server.ask("POST", DEFINITIONS, made)
    assert answer.status == 201, answer.body
    return f"{DEFINITIONS}/{made['metadata']['name']}"


async def change(server: TestServer, path: str, spec: Any) -> None:
    answer = await server.ask("PATCH", path, {"spec": spec}, content_type=MERGE)
    assert answer.status == 200, answer.body


async def test_an_object_written_while_the_schema_changes_has_the_new_shape():
    async with api_server() as server:
        path = await define(server, *versions(old={"type": "string"}))
        await server.ask("POST", DISKS, disk("patched", old="x"))

        changed = change(server, path, {"versions": versions(new={"type": "integer", "default": 3})})
        created = server.ask("POST", DISKS, disk("created", old="x"))
        patched = server.ask("PATCH", f"{DISKS}/patched", {"spec": {"node": "n2"}}, content_type=MERGE)
        await asyncio.gather(changed, created, patched)

        specs = {each["metadata"]["name"]: each["spec"] for each in (await server.ask("GET", DISKS)).body["items"]}
        assert specs == {"created": {"node": "n1", "new": 3}, "patched": {"node": "n2", "new": 3}}


async def test_an_object_written_while_the_schema_narrows_is_refused():
    async with api_server() as server:
        path = await define(server, *versions())

        changed = change(server, path, {"versions": versions(node={"type": "string", "maxLength": 3})})
        created = server.ask("POST", DISKS, disk("created", node="much-too-long"))
        _, answer = await asyncio.gather(changed, created)

        assert answer.status == 422, answer.body


async def gone(server: TestServer, name: str) -> None:
    """Return when there is no definition of this name."""
    async with server.watch(f"{DEFINITIONS}?watch=true&fieldSelector=metadata.name={name}") as watch:
        if (await server.ask("GET", f"{DEFINITIONS}/{name}")).status != 404:
            while (await watch.next())["type"] != "DELETED":
                pass


async def accepted(server: TestServer, path: str, names: dict[str, Any]) -> None:
    """Return when the definition has these names; it never does if it does not get them."""
    name = path.rpartition("/")[2]
    async with server.watch(f"{DEFINITIONS}?watch=true&fieldSelector=metadata.name={name}") as watch:
        while True:
            status = (await watch.next())["object"]["status"]
            named = {each["type"]: each["status"] for each in status["conditions"]}["NamesAccepted"]
            if named == "True" and names.items() <= status["acceptedNames"].items():
                return


async def test_names_that_another_definition_gives_up_are_accepted():
    async with api_server() as server:
        first = await define(server, shortNames=["dk"])
        second = await define(server, plural="tapes", kind="Tape", shortNames=["dk"])

        await change(server, first, {"names": {"shortNames": ["dsk"]}})

        await accepted(server, second, {"shortNames": ["dk"]})


async def test_names_of_a_definition_with_a_finalizer_are_accepted_for_another_when_it_is_gone():
    async with api_server() as server:
        first = await define(server)
        await server.ask("PATCH", first, {"metadata": {"finalizers": ["example.com/hold"]}}, content_type=MERGE)
        second = await define(server, plural="tapes", kind="Disk")
        await server.ask("DELETE", first)

        await server.ask("PATCH", first, {"metadata": {"finalizers": None}}, content_type=MERGE)

        await accepted(server, second, {"kind": "Disk"})


async def test_names_that_became_free_just_before_the_server_was_killed_are_accepted_at_its_start():
    async with memory_store() as store:
        async with api_server_on(store) as server:
            first = await define(server)
            second = await define(server, plural="tapes", kind="Disk")
        key = Key(CUSTOM_RESOURCE_DEFINITION.resource, "", first.rpartition("/")[2])
        await store.delete(key, None, lambda stored, _revision: stored.json)

        async with api_server_on(store) as server:
            await accepted(server, second, {"kind": "Disk"})


async def test_an_object_whose_texts_are_searched_too_long_is_refused():
    """Each search compiles the pattern, which takes a millisecond: the server would do nothing else for seconds."""
    async with api_server() as server:
        node = {"type": "string", "pattern": r"^[\pL]{3}$"}
        await define(server, *versions(nodes={"type": "array", "items": node}))

        few = await server.ask("POST", DISKS, disk("few", nodes=["abc"] * 10))
        many = await server.ask("POST", DISKS, disk("many", nodes=["abc"] * 3_000))

        assert few.status == 201, few.body
        assert many.status == 422
        assert "to search all texts for the schema's patterns would take more than a second" in many.body["message"]


async def test_the_end_of_a_definition_with_the_name_of_a_built_in_resource_leaves_its_objects():
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    names = {"kind": "StorageClass", "plural": "storageclasses", "shortNames": None, "categories": None}
    made = definition("storage.k8s.io", version("v1"), version("v9", storage=False), scope="Cluster", **names)
    made["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://example.com/pull/1"}
    async with api_server() as server:
        await server.ask("POST", classes, {"metadata": {"name": "fast"}, "provisioner": "csi.example.com"})
        assert (await server.ask("POST", DEFINITIONS, made)).status == 201
        assert (await server.ask("GET", "/apis/storage.k8s.io/v9/storageclasses")).status == 404

        path = f"{DEFINITIONS}/storageclasses.storage.k8s.io"
        assert (await server.ask("DELETE", path)).status == 200
        later = await server.ask("POST", classes, {"metadata": {"name": "slow"}, "provisioner": "csi.example.com"})
        assert later.status == 201, later.body
        await gone(server, "storageclasses.storage.k8s.io")

        listed = (await server.ask("GET", classes)).body["items"]
        assert [each["metadata"]["name"] for each in listed] == ["fast", "slow"]
