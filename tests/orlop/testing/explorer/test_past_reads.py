"""Reads that take what any API server has are answered as of an earlier moment; those that do not never are."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from random import Random

import pytest

from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CONFIG_MAP, LEASE
from orlop.kube.objects import ObjectName
from orlop.testing.explorer import Act, ExploredTransport, Life, Stage, explore, replay
from orlop.testing.explorer.search import Scenario
from support.api.api_servers import api_server

NAME = ObjectName("default", "c")
FROM_ANY = (("resourceVersion", "0"),)
Read = Callable[[ExploredTransport, KubeClient], Awaitable[object]]


def reading(read: Read, seen: list[object]) -> Scenario:
    """One that was made with the value a, and then had b and c; somebody sets it to d when all is at rest."""

    async def scenario(stage: Stage) -> None:
        async with api_server(stage.clock) as on:
            client = on.client()

            async def change(value: str) -> None:
                await client.patch(CONFIG_MAP, NAME, MergePatch({"data": {"value": value}}))

            async def reader(life: Life) -> None:
                way = ExploredTransport(life, on.transport())
                seen.append(await read(way, KubeClient(way, clock=stage.clock, random=Random(1), log=silent_log())))

            body = {"metadata": {"name": NAME.name, "namespace": NAME.namespace}, "data": {"value": "a"}}
            await client.create(CONFIG_MAP, body)
            await change("b")
            await change("c")
            stage.run("reader", reader)
            await stage.acts(Act("it changes", lambda: change("d")))

    return scenario


def played(read: Read, history: str) -> object:
    seen: list[object] = []
    replay(reading(read, seen), history)
    assert len(seen) == 1
    return seen[0]


async def one_of_any(_way: ExploredTransport, kube: KubeClient) -> object:
    try:
        return (await kube.get(CONFIG_MAP, NAME, version="0"))["data"]["value"]
    except NotFound:
        return "not there"


async def all_of_any(way: ExploredTransport, _kube: KubeClient) -> object:
    answer = await way.exchange(HttpRequest("GET", CONFIG_MAP.collection_path("default"), FROM_ANY), 10.0)
    found = json.loads(answer.body)["items"]
    return next((one["data"]["value"] for one in found if one["metadata"]["name"] == NAME.name), "not there")


@pytest.mark.parametrize("read", [one_of_any, all_of_any])
@pytest.mark.parametrize(
    ("history", "value"),
    [
        ("", "c"),
        ("1: it is one change behind", "b"),
        ("1: it is two changes behind", "a"),
        ("1: it is three changes behind", "not there"),
        ("1: before it: it changes", "d"),
        ("1: before it: it changes; 2: it is one change behind", "c"),
    ],
)
def test_what_any_server_has_is_as_it_was_so_many_changes_before(read: Read, history: str, value: str) -> None:
    assert played(read, history) == value


async def newest_of_all(_way: ExploredTransport, kube: KubeClient) -> object:
    return (await kube.get(CONFIG_MAP, NAME))["data"]["value"], len((await kube.list(CONFIG_MAP)).items)


async def a_lease_of_any(_way: ExploredTransport, kube: KubeClient) -> object:
    try:
        return await kube.get(LEASE, ObjectName("default", "l"), version="0")
    except NotFound:
        return "not there"


@pytest.mark.parametrize("read", [newest_of_all, a_lease_of_any])
def test_reads_that_all_servers_agree_upon_and_those_of_leases_have_no_other_answer(read: Read) -> None:
    assert explore(reading(read, [])).choices == ()


async def list_then_watch(way: ExploredTransport, kube: KubeClient) -> object:
    answer = await way.exchange(HttpRequest("GET", CONFIG_MAP.collection_path("default"), FROM_ANY), 10.0)
    version = json.loads(answer.body)["metadata"]["resourceVersion"]
    told: list[object] = []
    async with aclosing(kube.watch(CONFIG_MAP, after=version, seconds=5)) as events:
        async for event in events:
            told += [event.object["data"]["value"]] if event.type != "BOOKMARK" else []
    return told


def test_a_watch_from_the_version_of_such_a_list_tells_all_that_came_after_it() -> None:
    assert played(list_then_watch, "") == []
    assert played(list_then_watch, "1: it is two changes behind") == ["b", "c"]
    assert played(list_then_watch, "1: it is three changes behind") == ["a", "b", "c"]
