"""Watches: where they begin, what they tell, how they end."""

from __future__ import annotations

import asyncio

import pytest

from onenode.apiserver.store.versions import Limits, SizeLimits
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_servers import TestServer, api_server

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def make(server: TestServer, *names: str, **labels: str) -> str:
    version = ""
    for name in names:
        answer = await server.ask("POST", MAPS, {"metadata": {"name": name, "labels": labels}})
        version = answer.body["metadata"]["resourceVersion"]
    return version


async def label(server: TestServer, name: str, **labels: str | None) -> str:
    answer = await server.ask("PATCH", f"{MAPS}/{name}", {"metadata": {"labels": labels}}, content_type=MERGE)
    return answer.body["metadata"]["resourceVersion"]


def told(event: dict) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_a_watch_goes_on_behind_any_version_that_is_kept():
    async with api_server() as server:
        first = await make(server, "a")
        await make(server, "b")
        await label(server, "a", x="y")
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={first}") as watch:
            assert [told(await watch.next()) for _ in range(2)] == [("ADDED", "b"), ("MODIFIED", "a")]
            await server.ask("DELETE", f"{MAPS}/b")
            gone = await watch.next()
        assert told(gone) == ("DELETED", "b")
        version = gone["object"]["metadata"]["resourceVersion"]
        assert int(version) == server.store.revision
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={version}") as watch:
            await make(server, "c")
            assert told(await watch.next()) == ("ADDED", "c")


async def test_a_selection_is_entered_and_left():
    async with api_server() as server:
        await make(server, "a", team="x")
        async with server.watch(f"{MAPS}?watch=true&labelSelector=team=x") as watch:
            assert told(await watch.next()) == ("ADDED", "a")
            left = await label(server, "a", team="y")
            event = await watch.next()
            assert told(event) == ("DELETED", "a")
            assert event["object"]["metadata"]["labels"] == {"team": "x"}
            assert event["object"]["metadata"]["resourceVersion"] == left
            await label(server, "a", team="x")
            assert told(await watch.next()) == ("ADDED", "a")
            await label(server, "a", other="z")
            assert told(await watch.next()) == ("MODIFIED", "a")
            await make(server, "b", team="y")
            await server.ask("DELETE", f"{MAPS}/b")
            await server.ask("DELETE", f"{MAPS}/a")
            assert told(await watch.next()) == ("DELETED", "a")


async def test_one_object_can_be_watched_by_its_name():
    async with api_server() as server:
        await make(server, "a", "b")
        path = f"{MAPS}?watch=true&fieldSelector=metadata.name=b&resourceVersion=0"
        async with server.watch(path) as watch:
            assert told(await watch.next()) == ("ADDED", "b")
            await label(server, "a", x="y")
            await label(server, "b", x="y")
            assert told(await watch.next()) == ("MODIFIED", "b")


async def test_the_state_ends_with_a_bookmark_that_says_so():
    async with api_server() as server:
        await make(server, "a", "b")
        options = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        async with server.watch(f"{MAPS}?{options}") as watch:
            assert [told(await watch.next()) for _ in range(2)] == [("ADDED", "a"), ("ADDED", "b")]
            assert await watch.next() == {
                "type": "BOOKMARK",
                "object": {
                    "kind": "ConfigMap",
                    "apiVersion": "v1",
                    "metadata": {
                        "resourceVersion": str(server.store.revision),
                        "creationTimestamp": None,
                        "annotations": {"k8s.io/initial-events-end": "true"},
                    },
                },
            }
            await make(server, "c")
            assert told(await watch.next()) == ("ADDED", "c")


async def test_an_empty_state_ends_with_the_bookmark_too():
    async with api_server() as server:
        options = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        async with server.watch(f"{MAPS}?{options}&fieldSelector=metadata.name=no") as watch:
            assert (await watch.next())["type"] == "BOOKMARK"


async def test_a_version_that_is_forgotten_is_told_by_an_event():
    async with api_server(limits=Limits(history=SizeLimits(2, 1 << 20))) as server:
        await make(server, *"abcdef")
        async with server.watch(f"{MAPS}?watch=true&resourceVersion=2") as watch:
            events = await watch.rest()
        assert [event["type"] for event in events] == ["ERROR"]
        status = events[0]["object"]
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
        assert status["message"] == f"too old resource version: 2 ({server.store.oldest})"


STATE_FROM = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&"


@pytest.mark.virtual_time
async def test_a_version_that_does_not_come_before_the_state_is_told_by_an_event_after_three_seconds():
    clock = VirtualClock()
    async with api_server(clock) as server:
        began = clock.elapsed()
        path = f"{MAPS}?watch=true&allowWatchBookmarks=true&{STATE_FROM}resourceVersion=5000"
        async with server.watch(path) as watch:
            events = await watch.rest()
        assert clock.elapsed() - began == pytest.approx(3)
        assert [event["type"] for event in events] == ["ERROR"]
        status = events[0]["object"]
        assert (status["code"], status["reason"]) == (504, "Timeout")
        assert status["message"] == f"Timeout: Too large resource version: 5000, current: {server.store.revision}"
        assert status["details"] == {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        }


@pytest.mark.virtual_time
@pytest.mark.parametrize("state", ["", STATE_FROM], ids=["changes", "state"])
async def test_a_watch_that_ends_before_its_version_has_come_is_empty(state: str):
    clock = VirtualClock()
    async with api_server(clock) as server:
        began = clock.elapsed()
        path = f"{MAPS}?watch=true&timeoutSeconds=2&{state}resourceVersion=5000"
        async with server.watch(path) as watch:
            assert await watch.rest() == []
        assert clock.elapsed() - began == pytest.approx(2)


@pytest.mark.virtual_time
async def test_a_version_that_comes_soon_is_waited_for():
    async with api_server(VirtualClock()) as server:
        version = await make(server, "a")
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={int(version) + 1}") as watch:
            first = asyncio.ensure_future(watch.next())
            await asyncio.sleep(1)
            await make(server, "b")
            await make(server, "c")
            assert told(await first) == ("ADDED", "c")


# Kubernetes takes a watch from no version, or from "0", as if sendInitialEvents=true had been asked for.
ENDS_OF_STATE = {
    "": True,
    "resourceVersion=0": True,
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan": True,
    "sendInitialEvents=false&resourceVersionMatch=NotOlderThan": False,
    "resourceVersion=1": False,
}


@pytest.mark.virtual_time
@pytest.mark.parametrize("asked", ENDS_OF_STATE)
async def test_only_a_watch_that_begins_with_the_state_is_told_where_the_state_ends(asked: str):
    async with api_server(VirtualClock()) as server:
        await make(server, "a")
        path = f"{MAPS}?watch=true&timeoutSeconds=150&allowWatchBookmarks=true&{asked}"
        async with server.watch(path) as watch:
            bookmarks = [event["object"] for event in await watch.rest() if event["type"] == "BOOKMARK"]
        ends = [one for one in bookmarks if "k8s.io/initial-events-end" in one["metadata"].get("annotations", {})]
        assert ends == (bookmarks[:1] if ENDS_OF_STATE[asked] else [])


@pytest.mark.virtual_time
async def test_a_watch_ends_after_its_time_with_a_bookmark_shortly_before():
    clock = VirtualClock()
    async with api_server(clock) as server:
        version = await make(server, "a")
        began = clock.elapsed()
        path = f"{MAPS}?watch=true&timeoutSeconds=150&allowWatchBookmarks=true&resourceVersion={version}"
        async with server.watch(path) as watch:
            times = []
            for _ in range(3):
                event = await watch.next()
                assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", version)
                times.append(round(clock.elapsed() - began))
            assert await watch.rest() == []
        assert times == [60, 120, 148]
        assert clock.elapsed() - began == pytest.approx(150)


@pytest.mark.virtual_time
async def test_a_watch_without_a_time_ends_within_an_hour_and_has_no_bookmarks_unless_asked():
    clock = VirtualClock()
    async with api_server(clock) as server:
        began = clock.elapsed()
        async with server.watch(f"{MAPS}?watch=true") as watch:
            assert await watch.rest() == []
        assert 1800 <= clock.elapsed() - began <= 3600


@pytest.mark.virtual_time
async def test_a_watch_whose_reader_was_busy_when_its_time_came_ends_all_the_same():
    clock = VirtualClock()
    async with api_server(clock) as server:
        version = await make(server, "a")
        path = f"{MAPS}?watch=true&timeoutSeconds=100&allowWatchBookmarks=true&resourceVersion={version}"
        async with server.watch(path) as watch, server.watch(path) as other:
            await make(server, "b")
            assert told(await watch.next()) == ("ADDED", "b")
            assert told(await other.next()) == ("ADDED", "b")
            await clock.sleep(70)
            assert (await other.next())["type"] == "BOOKMARK"
            await clock.sleep(130)
            began = clock.elapsed()
            assert [event["type"] for event in await watch.rest()] == []
            assert [event["type"] for event in await other.rest()] == []
            assert clock.elapsed() == began


async def test_a_watch_from_a_version_to_come_begins_when_it_is_there():
    async with api_server() as server:
        await make(server, "a")
        future = server.store.revision + 2
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={future}") as watch:
            waiting = asyncio.ensure_future(watch.next())
            await make(server, "b", "c", "d")
            assert told(await waiting) == ("ADDED", "d")


async def test_tables_name_their_columns_once():
    async with api_server() as server:
        version = await make(server, "a")
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={version}", accept=TABLE) as watch:
            await make(server, "b", "c")
            first, second = await watch.next(), await watch.next()
        assert [event["type"] for event in (first, second)] == ["ADDED", "ADDED"]
        assert first["object"]["kind"] == "Table"
        assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
        assert not second["object"]["columnDefinitions"]
        assert [row["cells"][0] for row in second["object"]["rows"]] == ["c"]


async def test_a_reader_that_stops_reading_is_cut_off_and_others_are_unharmed():
    async with api_server(limits=Limits(unread=SizeLimits(10, 1 << 20))) as server:
        version = await make(server, "a")
        path = f"{MAPS}?watch=true&resourceVersion={version}"
        async with server.watch(path) as slow, server.watch(path) as quick:
            await make(server, "b")
            assert told(await slow.next()) == ("ADDED", "b")
            assert told(await quick.next()) == ("ADDED", "b")
            for number in range(30):
                await make(server, f"n{number}")
                assert told(await quick.next()) == ("ADDED", f"n{number}")
            assert len(await slow.rest()) < 30
            await make(server, "z")
            assert told(await quick.next()) == ("ADDED", "z")


async def test_watches_end_when_the_store_is_closed():
    async with api_server() as server:
        async with server.watch(f"{MAPS}?watch=true") as watch:
            waiting = asyncio.ensure_future(watch.rest())
            await asyncio.sleep(0)
            await server.store.close()
            assert await waiting == []
        assert (await server.ask("POST", MAPS, {"metadata": {"name": "a"}})).status == 503


async def test_each_change_is_encoded_once_for_all_who_watch_it_in_one_form():
    async with api_server() as server:
        streams = [await server.raw("GET", f"{MAPS}?watch=true&resourceVersion={server.store.revision}") for _ in "abc"]
        reading = [asyncio.ensure_future(anext(stream.pieces)) for stream in streams]
        await asyncio.sleep(0)
        await make(server, "a")
        lines = await asyncio.gather(*reading)
        assert lines[0] is lines[1] is lines[2]
        for stream in streams:
            await stream.pieces.aclose()


async def test_wrong_options_are_an_answer_and_no_stream():
    async with api_server() as server:
        for path, code in (
            (f"{MAPS}?watch=true&resourceVersion=x", 400),
            (f"{MAPS}?watch=true&fieldSelector=spec.no=1", 400),
            (f"{MAPS}?watch=true&sendInitialEvents=true", 422),
        ):
            assert (await server.ask("GET", path)).status == code


async def test_replaying_a_watch_gives_the_list():
    async with api_server() as server:
        version = await make(server, "a", "b")
        state = {"a": {"team": None}, "b": {}}
        async with server.watch(f"{MAPS}?watch=true&resourceVersion={version}&labelSelector=team=x") as watch:
            await label(server, "a", team="x")
            await make(server, "c", team="x")
            await label(server, "c", team="y")
            await label(server, "b", team="x")
            await server.ask("DELETE", f"{MAPS}/a")
            state = {}
            for _ in range(5):
                event = await watch.next()
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    del state[name]
                else:
                    state[name] = event["object"]
        listed = (await server.ask("GET", f"{MAPS}?labelSelector=team=x")).body["items"]
        assert [item["metadata"] for item in listed] == [state[name]["metadata"] for name in sorted(state)]


@pytest.mark.virtual_time
async def test_a_bookmark_never_stands_for_a_change_that_its_reader_has_not_seen_yet():
    clock = VirtualClock()
    async with api_server(clock) as server:
        version = await make(server, "a")
        path = f"{MAPS}?watch=true&timeoutSeconds=600&allowWatchBookmarks=true&resourceVersion={version}"
        async with server.watch(path) as watch:
            await make(server, "b")
            assert told(await watch.next()) == ("ADDED", "b")
            await clock.sleep(61)  # a bookmark is due, and its reader is still busy
            unseen = await make(server, "c")
            bookmark, change = await watch.next(), await watch.next()
        assert (bookmark["type"], told(change)) == ("BOOKMARK", ("ADDED", "c"))
        assert int(bookmark["object"]["metadata"]["resourceVersion"]) < int(unseen)
