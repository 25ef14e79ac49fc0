"""A server that is killed after any commit goes on where it was: namespaces end, and nothing outlives its namespace."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest

from onenode.apiserver.store.journal import Batch, JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DEFAULT_LIMITS, ChangeKind, Key, Stored
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION as CRD
from support.api.api_objects import finalized
from support.api.api_servers import TestServer, api_server_on
from support.api.custom_resources import definition, disk

NAMESPACES = "/api/v1/namespaces"
MERGE = "application/merge-patch+json"


@dataclass
class RecordingJournal:
    """Takes its time for every commit, and remembers what a disk would hold after each."""

    turns: int = 3
    states: list[JournalState] = field(default_factory=list)
    objects: dict[Key, Stored] = field(default_factory=dict)

    is_short_of_room = False

    def commit(self, batch: Batch) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        self._later(self.turns, batch, done)
        return done

    def _later(self, turns: int, batch: Batch, done: asyncio.Future[None]) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._later, turns - 1, batch, done)
            return
        for change in batch.changes:
            if change.kind is ChangeKind.DELETED:
                del self.objects[change.key]
            else:
                self.objects[change.key] = change.after
        revision = batch.changes[-1].revision if batch.changes else self.states[-1].revision
        self.states.append(JournalState(revision, revision, dict(self.objects)))
        done.set_result(None)

    async def close(self) -> None:
        pass


async def is_gone(server: TestServer, name: str) -> None:
    if (await server.ask("GET", f"{NAMESPACES}/{name}")).status == 404:
        return
    async with server.watch(f"{NAMESPACES}?watch=true&fieldSelector=metadata.name={name}") as watch:
        while (await watch.next())["type"] != "DELETED":
            pass


async def end_a_namespace(server: TestServer) -> None:
    await server.ask("POST", NAMESPACES, {"metadata": {"name": "n"}})
    for name in ("a", "b", "held"):
        finalizers = ["x/y"] if name == "held" else []
        body = {"metadata": {"name": name, "finalizers": finalizers}}
        await server.ask("POST", f"{NAMESPACES}/n/configmaps", body)
    await server.ask("POST", f"{NAMESPACES}/n/secrets", {"metadata": {"name": "s"}})
    await server.ask("DELETE", f"{NAMESPACES}/n")
    await release(server)
    await is_gone(server, "n")


async def release(server: TestServer) -> None:
    """What holds one object up lets go of it as soon as it is being deleted."""
    path = f"{NAMESPACES}/n/configmaps"
    if (await server.ask("GET", f"{path}/held")).status == 404:
        return
    async with server.watch(f"{path}?watch=true&fieldSelector=metadata.name=held") as watch:
        while "deletionTimestamp" not in (await watch.next())["object"]["metadata"]:
            pass
    await server.ask("PATCH", f"{path}/held", {"metadata": {"finalizers": None}}, content_type=MERGE)


async def test_whenever_the_server_is_killed_the_namespace_ends_in_its_next_life():
    journal = RecordingJournal()
    store = ObjectStore(journal, JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store) as server:
        await end_a_namespace(server)
    await store.close()
    ending = [kept for kept in journal.states if b"deletionTimestamp" in getattr(namespace_in(kept), "json", b"")]
    assert len(ending) >= 3
    for kept in ending:
        store = ObjectStore(NoJournal(), kept, DEFAULT_LIMITS)
        async with api_server_on(store) as server:
            await release(server)
            await is_gone(server, "n")
            left = [key for key in (stored.key for stored in all_objects(store)) if key.namespace == "n"]
            assert left == []
        await store.close()


def namespace_in(kept: JournalState) -> Stored | None:
    return kept.objects.get(Key("namespaces", "", "n"))


def all_objects(store: ObjectStore) -> list[Stored]:
    return [stored for resource in ("configmaps", "secrets") for stored in store.list(resource).items]


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
@pytest.mark.parametrize("before", [0, 1, 5, 20])
async def test_nothing_outlives_its_namespace_however_long_a_commit_takes(turns: int, before: int):
    """Creates that are decided before the end are seen by whoever empties the namespace; all others are refused."""
    store = ObjectStore(RecordingJournal(turns), JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store) as server:
        await server.ask("POST", NAMESPACES, {"metadata": {"name": "n"}})
        asked = []
        for number in range(30):
            if number == before:
                asked.append(asyncio.ensure_future(server.ask("DELETE", f"{NAMESPACES}/n")))
            body = {"metadata": {"name": f"m{number}"}}
            asked.append(asyncio.ensure_future(server.ask("POST", f"{NAMESPACES}/n/configmaps", body)))
            for _ in range(number % 3):
                await asyncio.sleep(0)
        statuses = [answer.status for answer in await asyncio.gather(*asked)]
        assert set(statuses) <= {200, 201, 403, 404}
        await is_gone(server, "n")
        assert all_objects(store) == []
    await store.close()


@pytest.mark.parametrize("turns", [0, 1, 3, 10])
@pytest.mark.parametrize("before", [0, 2, 4, 7, 15, 30])
async def test_nothing_of_a_new_namespace_goes_with_the_old_one_whenever_that_is_forced_away(turns: int, before: int):
    store = ObjectStore(RecordingJournal(turns), JournalState(), DEFAULT_LIMITS)
    maps = f"{NAMESPACES}/n/configmaps"
    async with api_server_on(store) as server:
        old = (await server.ask("POST", NAMESPACES, {"metadata": {"name": "n"}})).body
        await server.ask("POST", maps, {"metadata": {"name": "held", "finalizers": ["x/y"]}})
        await asyncio.gather(*(server.ask("POST", maps, {"metadata": {"name": f"m{n}"}}) for n in range(20)))
        await server.ask("DELETE", f"{NAMESPACES}/n")
        for _ in range(before):
            await asyncio.sleep(0)
        forced = {**old, "metadata": {"name": "n"}, "spec": {"finalizers": []}}
        assert (await server.ask("PUT", f"{NAMESPACES}/n/finalize", forced)).status == 200
        assert (await server.ask("POST", NAMESPACES, {"metadata": {"name": "n"}})).status == 201
        made = [await server.ask("POST", maps, {"metadata": {"name": f"m{n}"}}) for n in range(20)]
        await end_a_namespace_named(server, "other")
        new = {answer.body["metadata"]["uid"] for answer in made if answer.status == 201}
        there = {json.loads(stored.json)["metadata"]["uid"] for stored in all_objects(store)}
        assert new <= there
    await store.close()


async def end_a_namespace_named(server: TestServer, name: str) -> None:
    """Whoever ends namespaces has had every turn he needs when this one is gone."""
    await server.ask("POST", NAMESPACES, {"metadata": {"name": name}})
    await server.ask("POST", f"{NAMESPACES}/{name}/configmaps", {"metadata": {"name": "a"}})
    await server.ask("DELETE", f"{NAMESPACES}/{name}")
    await is_gone(server, name)


async def test_a_namespace_whose_end_could_not_be_written_is_open_again():
    class Failing(RecordingJournal):
        failing = False

        def commit(self, batch: Batch) -> asyncio.Future[None]:
            if not self.failing:
                return super().commit(batch)
            done = asyncio.get_running_loop().create_future()
            done.set_exception(OSError("no space left"))
            return done

    journal = Failing()
    store = ObjectStore(journal, JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store) as server:
        await server.ask("POST", NAMESPACES, {"metadata": {"name": "n"}})
        journal.failing = True
        answer = await server.ask("DELETE", f"{NAMESPACES}/n")
        assert (answer.status, answer.body["reason"]) == (500, "InternalError")
        journal.failing = False
        body = {"metadata": {"name": "a"}}
        assert (await server.ask("POST", f"{NAMESPACES}/n/configmaps", body)).status == 201
    await store.close()


# ---- custom resources ------------------------------------------------------------------------------------------------

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DISKS = "/apis/example.com/v1/namespaces/default/disks"


async def life_of_a_definition(server: TestServer) -> None:
    assert (await server.ask("POST", CRDS, definition("example.com"))).status == 201
    assert (await server.ask("POST", DISKS, finalized(disk("held"), "x/y"))).status == 201
    for name in ("a", "b"):
        assert (await server.ask("POST", DISKS, disk(name))).status == 201
    assert (await server.ask("DELETE", f"{CRDS}/disks.example.com")).status == 200
    await finish_definition(server)


async def finish_definition(server: TestServer) -> None:
    if (await server.ask("GET", f"{DISKS}/held")).status == 200:
        async with server.watch(f"{DISKS}?watch=true&fieldSelector=metadata.name=held") as watch:
            while "deletionTimestamp" not in (await watch.next())["object"]["metadata"]:
                pass
        await server.ask("PATCH", f"{DISKS}/held", {"metadata": {"finalizers": None}}, content_type=MERGE)
    await is_deleted(server)


async def is_deleted(server: TestServer) -> None:
    if (await server.ask("GET", f"{CRDS}/disks.example.com")).status == 404:
        return
    async with server.watch(f"{CRDS}?watch=true&fieldSelector=metadata.name=disks.example.com") as watch:
        while (await watch.next())["type"] != "DELETED":
            pass


async def test_whenever_the_server_is_killed_definitions_and_their_objects_are_there_or_end():
    journal = RecordingJournal()
    store = ObjectStore(journal, JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store) as server:
        await life_of_a_definition(server)
    await store.close()
    defined = [kept for kept in journal.states if Key(CRD.resource, "", "disks.example.com") in kept.objects]
    assert len(defined) >= 6
    for kept in defined:
        store = ObjectStore(NoJournal(), kept, DEFAULT_LIMITS)
        async with api_server_on(store) as server:
            disks = {key.name for key in kept.objects if key.resource == "disks.example.com"}
            ending = b"deletionTimestamp" in kept.objects[Key(CRD.resource, "", "disks.example.com")].json
            if ending:
                await finish_definition(server)
                assert store.list("disks.example.com").items == []
            else:
                assert {each["metadata"]["name"] for each in (await server.ask("GET", DISKS)).body["items"]} == disks
                assert (await server.ask("POST", DISKS, disk("new"))).body["spec"]["tier"] == "cold"
        await store.close()


@pytest.mark.parametrize("turns", [0, 1, 10])
@pytest.mark.parametrize("before", [0, 5, 20])
async def test_no_object_outlives_its_definition_however_long_a_commit_takes(turns: int, before: int):
    store = ObjectStore(RecordingJournal(turns), JournalState(), DEFAULT_LIMITS)
    async with api_server_on(store) as server:
        await server.ask("POST", CRDS, definition("example.com"))
        asked = []
        for number in range(30):
            if number == before:
                asked.append(asyncio.ensure_future(server.ask("DELETE", f"{CRDS}/disks.example.com")))
            asked.append(asyncio.ensure_future(server.ask("POST", DISKS, disk(f"d{number}"))))
            for _ in range(number % 3):
                await asyncio.sleep(0)
        statuses = [answer.status for answer in await asyncio.gather(*asked)]
        assert set(statuses) <= {200, 201, 403, 404}
        await is_deleted(server)
        assert store.list("disks.example.com").items == []
    await store.close()
