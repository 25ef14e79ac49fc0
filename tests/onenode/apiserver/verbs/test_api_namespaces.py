"""Namespaces: what must be there, and how one ends, also after the server was killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from onenode.apiserver.store.durable_store import durable_store
from support.api.api_servers import TestServer, api_server, api_server_on

NAMESPACES = "/api/v1/namespaces"
MERGE = "application/merge-patch+json"


async def make(server: TestServer, name: str) -> None:
    assert (await server.ask("POST", NAMESPACES, {"metadata": {"name": name}})).status == 201


async def make_map(server: TestServer, namespace: str, name: str, **metadata: object):
    return await server.ask("POST", f"{NAMESPACES}/{namespace}/configmaps", {"metadata": {"name": name, **metadata}})


async def is_gone(server: TestServer, name: str) -> None:
    """Returns when the namespace is gone; it never does if it stays."""
    if (await server.ask("GET", f"{NAMESPACES}/{name}")).status == 404:
        return
    async with server.watch(f"{NAMESPACES}?watch=true&fieldSelector=metadata.name={name}") as watch:
        while (await watch.next())["type"] != "DELETED":
            pass


async def is_dying(server: TestServer, resource: str, name: str) -> None:
    async with server.watch(f"{NAMESPACES}/n/{resource}?watch=true&fieldSelector=metadata.name={name}") as watch:
        while "deletionTimestamp" not in (await watch.next())["object"]["metadata"]:
            pass


async def test_four_namespaces_are_there_from_the_beginning():
    async with api_server() as server:
        listed = (await server.ask("GET", NAMESPACES)).body["items"]
        names = [item["metadata"]["name"] for item in listed]
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
        for name in ("default", "kube-system", "kube-public"):
            answer = await server.ask("DELETE", f"{NAMESPACES}/{name}")
            assert answer.status == 403
            assert answer.body["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


async def test_nothing_is_made_in_a_namespace_that_is_not_there():
    async with api_server() as server:
        answer = await make_map(server, "no", "a")
        assert (answer.status, answer.body["message"]) == (404, 'namespaces "no" not found')
        assert answer.body["details"] == {"name": "no", "kind": "namespaces"}


async def test_a_namespace_goes_with_all_that_is_in_it():
    async with api_server() as server:
        await make(server, "n")
        for number in range(20):
            await make_map(server, "n", f"m{number}")
        await server.ask("POST", f"{NAMESPACES}/n/secrets", {"metadata": {"name": "s"}})
        answer = await server.ask("DELETE", f"{NAMESPACES}/n")
        assert answer.body["status"]["phase"] == "Terminating"
        await is_gone(server, "n")
        for resource in ("configmaps", "secrets"):
            assert (await server.ask("GET", f"/api/v1/{resource}")).body["items"] == []
        await make(server, "n")
        assert (await make_map(server, "n", "m0")).status == 201


async def test_a_namespace_waits_for_what_has_finalizers_and_takes_nothing_new():
    async with api_server() as server:
        await make(server, "n")
        await make_map(server, "n", "held", finalizers=["x/y"])
        await server.ask("DELETE", f"{NAMESPACES}/n")
        refused = await make_map(server, "n", "new")
        assert refused.status == 403
        assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        path = f"{NAMESPACES}/n/configmaps/held"
        await is_dying(server, "configmaps", "held")
        assert (await server.ask("GET", f"{NAMESPACES}/n")).status == 200
        await server.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
        await is_gone(server, "n")


async def test_a_namespace_with_another_finalizer_waits_for_it_to_be_taken_off():
    async with api_server() as server:
        body = {"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes", "x/y"]}}
        await server.ask("POST", NAMESPACES, body)
        await server.ask("DELETE", f"{NAMESPACES}/n")
        async with server.watch(f"{NAMESPACES}?watch=true&fieldSelector=metadata.name=n") as watch:
            while (left := (await watch.next())["object"])["spec"]["finalizers"] != ["x/y"]:
                pass
        answer = await server.ask("PUT", f"{NAMESPACES}/n/finalize", {**left, "spec": {"finalizers": []}})
        assert answer.status == 200
        assert (await server.ask("GET", f"{NAMESPACES}/n")).status == 404


async def test_finalizers_of_a_namespace_are_changed_by_finalize_alone():
    async with api_server() as server:
        await make(server, "n")
        answer = await server.ask("PATCH", f"{NAMESPACES}/n", {"spec": {"finalizers": []}}, content_type=MERGE)
        assert answer.body["spec"]["finalizers"] == ["kubernetes"]


async def test_what_is_made_while_a_namespace_ends_goes_too_or_is_refused():
    """Every create is decided before the end, and is seen by whoever empties the namespace, or is refused."""
    async with api_server() as server:
        for round_ in range(10):
            await make(server, "n")
            creates = [make_map(server, "n", f"m{number}") for number in range(20)]
            order = [*creates[:round_], server.ask("DELETE", f"{NAMESPACES}/n"), *creates[round_:]]
            answers = await asyncio.gather(*order)
            assert {answer.status for answer in answers} <= {200, 201, 403, 404}
            await is_gone(server, "n")
            assert (await server.ask("GET", "/api/v1/configmaps")).body["items"] == []


async def test_the_end_of_a_namespace_goes_on_after_a_restart(tmp_path: Path):
    async with durable_store(tmp_path) as store, api_server_on(store) as server:
        await make(server, "n")
        await make_map(server, "n", "held", finalizers=["x/y"])
        await server.ask("DELETE", f"{NAMESPACES}/n")
    async with durable_store(tmp_path) as store, api_server_on(store) as server:
        assert (await make_map(server, "n", "new")).status == 403
        path = f"{NAMESPACES}/n/configmaps/held"
        await is_dying(server, "configmaps", "held")
        await server.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
        await is_gone(server, "n")


# ---- a namespace that was forced away --------------------------------------------------------------------------------


async def force_away(server: TestServer, name: str) -> None:
    namespace = (await server.ask("GET", f"{NAMESPACES}/{name}")).body
    answer = await server.ask("PUT", f"{NAMESPACES}/{name}/finalize", {**namespace, "spec": {"finalizers": []}})
    assert answer.status in {200, 404}


async def living(server: TestServer, namespace: str) -> set[str]:
    listed = (await server.ask("GET", f"{NAMESPACES}/{namespace}/configmaps")).body["items"]
    return {item["metadata"]["name"] for item in listed if "deletionTimestamp" not in item["metadata"]}


async def end_another(server: TestServer) -> None:
    """Whoever ends namespaces has had every turn he needs when this one is gone."""
    await make(server, "another")
    await make_map(server, "another", "a")
    await server.ask("DELETE", f"{NAMESPACES}/another")
    await is_gone(server, "another")


async def test_what_is_in_a_new_namespace_outlives_the_one_of_its_name_that_was_forced_away():
    async with api_server() as server:
        await make(server, "n")
        await make_map(server, "n", "held", finalizers=["x/y"])
        await server.ask("DELETE", f"{NAMESPACES}/n")
        await is_dying(server, "configmaps", "held")
        await force_away(server, "n")
        await make(server, "n")
        for name in "abc":
            assert (await make_map(server, "n", name)).status == 201
            await end_another(server)
        assert await living(server, "n") == {"a", "b", "c"}
        assert (await server.ask("GET", f"{NAMESPACES}/n")).body["status"]["phase"] == "Active"


async def test_a_new_namespace_ends_though_one_of_its_name_was_forced_away():
    async with api_server() as server:
        await make(server, "n")
        await make_map(server, "n", "held", finalizers=["x/y"])
        await server.ask("DELETE", f"{NAMESPACES}/n")
        await is_dying(server, "configmaps", "held")
        await force_away(server, "n")
        await make(server, "n")
        await make_map(server, "n", "a")
        await server.ask("DELETE", f"{NAMESPACES}/n")
        release = {"metadata": {"finalizers": None}}
        await server.ask("PATCH", f"{NAMESPACES}/n/configmaps/held", release, content_type=MERGE)
        await is_gone(server, "n")
        assert (await server.ask("GET", "/api/v1/configmaps")).body["items"] == []
