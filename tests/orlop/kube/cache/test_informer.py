"""The informer against a model of a server: what it holds, whom it tells, and how it gets over all kinds of trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from orlop.foundation.structured_log import LogEntry, collecting_log, silent_log
from orlop.kube.api_errors import CacheBehind, NotConnected
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import Selection
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName
from orlop.testing.virtual_clock import VirtualClock
from support.api.kube_model import BROKEN, ModelServer, status

pytestmark = pytest.mark.virtual_time

PV = PERSISTENT_VOLUME
A = ObjectName(None, "a")


def make(server: ModelServer, watched: Watched = Watched(PV), log: Any = None) -> Informer:  # noqa: B008 - frozen
    return Informer(server.client(), watched, clock=VirtualClock(), random=Random(1), log=log or silent_log())


@asynccontextmanager
async def running(informer: Informer) -> AsyncIterator[list[ObjectName]]:
    """Gives the names told so far."""
    told: list[ObjectName] = []
    informer.add_listener(told.append)
    task = asyncio.create_task(informer.run())
    try:
        await informer.wait_synced()
        yield told
    finally:
        task.cancel()
        await asyncio.wait([task])


async def pass_time(seconds: float) -> None:
    await VirtualClock().sleep(seconds)


def held(informer: Informer) -> dict[str, str]:
    return {str(name): informer.cache.get(name)["metadata"]["resourceVersion"] for name in informer.cache.names()}  # type: ignore[index]


def there(server: ModelServer) -> dict[str, str]:
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in server.of(PV)}


async def test_what_is_there_and_what_comes_later_is_held_and_told_by_name():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    async with running(informer) as told:
        assert told == [A]
        server.put(PV, "b")
        server.remove(PV, "a")
        await pass_time(0.1)

        assert held(informer) == there(server)
        assert told == [A, ObjectName(None, "b"), A]


async def test_a_listener_finds_in_the_cache_what_it_is_told_of():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    seen: list[dict[str, str]] = []
    informer.add_listener(lambda _name: seen.append(held(informer)))
    async with running(informer):
        states = [there(server)]
        server.put(PV, "a", spec={"changed": True})
        states.append(there(server))
        await pass_time(0.1)
        server.remove(PV, "a")
        await pass_time(0.1)
    assert seen == [*states, {}]


async def test_a_listener_that_comes_late_is_told_of_all_there_is():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    async with running(informer):
        late: list[ObjectName] = []
        remove = informer.add_listener(late.append)
        assert late == [A]
        remove()
        server.put(PV, "a")
        await pass_time(0.1)
        assert late == [A]


async def test_a_listener_that_fails_keeps_the_news_from_nobody():
    server, entries = ModelServer(), list[LogEntry]()
    informer = make(server, log=collecting_log(entries))
    informer.add_listener(lambda _: 1 / 0)
    async with running(informer) as told:
        server.put(PV, "a")
        await pass_time(0.1)
        assert told == [A]
    assert [entry.message for entry in entries] == ["listener failed"]


async def test_a_watch_that_ends_without_an_error_goes_on_where_it_was():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        server.put(PV, "a")
        for number in range(20):
            await pass_time(2)
            server.end_watches()
            server.put(PV, f"while-nobody-watched-{number}")
        await pass_time(60)
        assert held(informer) == there(server)
    assert server.lists() == 1


async def test_a_bookmark_moves_the_place_where_the_watch_goes_on():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        server.put(PERSISTENT_VOLUME_CLAIM, "other", "ns")
        server.send_bookmarks()
        await pass_time(5)
        server.compact()
        server.end_watches()
        await pass_time(60)
        server.put(PV, "a")
        await pass_time(1)
        assert held(informer) == there(server)
    assert server.lists() == 1


@pytest.mark.parametrize("how", ["done", BROKEN], ids=["ended", "broken"])
async def test_a_forgotten_version_is_listed_anew_and_what_vanished_meanwhile_is_told(how: Any):
    server = ModelServer()
    server.put(PV, "a")
    server.put(PV, "b")
    informer = make(server)
    async with running(informer) as told:
        await pass_time(5)
        told.clear()
        watching, server.watches = server.watches, set()
        server.remove(PV, "a")
        server.put(PV, "c")
        server.compact()
        for watch in watching:
            watch.finish(how)
        await pass_time(60)
        assert held(informer) == there(server)
    assert set(told) == {A, ObjectName(None, "c")}
    assert server.lists() == 2


async def test_a_410_as_an_answer_is_listed_anew_too():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        await pass_time(5)
        server.faults.append(status(410, "Expired"))
        server.end_watches()
        await pass_time(30)
        server.put(PV, "a")
        await pass_time(1)
        assert held(informer) == there(server)
    assert server.lists() == 2


async def test_a_server_that_is_away_is_asked_less_and_less_often_and_found_again():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        server.refuse = lambda _: NotConnected("refused")
        server.end_watches(BROKEN)
        before = len(server.asked)
        await pass_time(3600)
        assert len(server.asked) - before < 1000
        assert "refused" in (informer.problem or "")
        server.refuse = lambda _: None
        server.put(PV, "a")
        await pass_time(120)
        assert held(informer) == there(server)
        assert informer.problem is None


async def test_a_list_that_fails_is_repeated_less_and_less_often():
    server = ModelServer()

    def refuse(_: Any) -> Any:
        assert len(server.asked) < 50, "the list is repeated without a pause"
        return status(403, "Forbidden")

    server.refuse = refuse
    informer = make(server)
    task = asyncio.create_task(informer.run())
    await pass_time(60)
    assert not task.done()
    in_the_first_minute = len(server.asked)
    await pass_time(540)
    assert not task.done()
    assert 2 < in_the_first_minute < 10
    assert 10 < len(server.asked) < 30
    task.cancel()
    await asyncio.wait([task])


async def test_a_server_that_wants_to_be_left_alone_is():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        await pass_time(5)
        server.faults.append(status(429, "TooManyRequests", retry_after="50"))
        server.end_watches()
        await pass_time(1)
        before = len(server.asked)
        await pass_time(40)
        assert len(server.asked) == before


async def test_a_watch_that_is_forbidden_is_logged_once_and_tried_on():
    server, entries = ModelServer(), list[LogEntry]()
    informer = make(server, log=collecting_log(entries))
    server.refuse = lambda asked: status(403, "Forbidden") if "watch=true" in asked.target else None
    async with running(informer):
        await pass_time(600)
        assert informer.synced
        server.put(PV, "a")
        server.refuse = lambda _: None
        await pass_time(120)
        assert held(informer) == there(server)
    assert [entry.message for entry in entries] == [
        "watch failed; cache is not being updated",
        "cache is being updated again",
    ]


async def test_credentials_are_renewed_when_a_watch_was_refused_for_them():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        server.faults.append(status(401, "Unauthorized"))
        server.end_watches()
        await pass_time(30)
    assert server.renewed == 1


async def test_a_watch_of_a_server_in_this_process_may_last_for_minutes():
    server = ModelServer()
    async with running(make(server)):
        await pass_time(1)
    (watch,) = [dict(asked.query) for asked in server.asked if "watch=true" in asked.target]
    assert 300 <= int(watch["timeoutSeconds"]) <= 600


async def test_a_connection_that_died_without_a_word_is_given_up():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        dead, server.watches = server.watches, set()
        server.put(PV, "a")
        await pass_time(3600)
        assert held(informer) == there(server)
    assert all(not watch.end for watch in dead)


async def test_only_what_is_selected_is_held_and_what_is_no_longer_is_told():
    server = ModelServer()
    server.put(PV, "a", metadata={"labels": {"mine": "yes"}})
    server.put(PV, "b")
    informer = make(server, Watched(PV, Selection(labels="mine=yes")))
    async with running(informer) as told:
        server.put(PV, "a", metadata={"labels": {}})
        await pass_time(0.1)
        assert held(informer) == {}
    assert told == [A, A]


async def test_what_nobody_reads_is_dropped_before_it_is_kept():
    server = ModelServer()
    server.put(PV, "a", metadata={"managedFields": [1]})
    informer = make(server, Watched(PV, transform=without_managed_fields))
    async with running(informer):
        server.put(PV, "b", metadata={"managedFields": [1]})
        await pass_time(0.1)
        assert ["managedFields" in obj["metadata"] for obj in informer.cache] == [False, False]


async def test_an_object_that_cannot_be_transformed_is_kept_as_it_came():
    server, entries = ModelServer(), list[LogEntry]()
    server.put(PV, "a")
    informer = make(server, Watched(PV, transform=lambda obj: obj["nonsense"]), collecting_log(entries))
    async with running(informer):
        assert held(informer) == there(server)
    assert len(entries) == 1


async def test_everything_is_told_again_from_time_to_time_to_whom_wants_it():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    again: list[ObjectName] = []
    informer.add_listener(again.append, resync=60)
    async with running(informer) as told:
        await pass_time(60 * 11)
        assert told == [A]
        assert 1 + 9 <= len(again) <= 1 + 11


async def test_a_listener_that_comes_while_nobody_wants_a_resync_gets_its_own():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    async with running(informer):
        await pass_time(5)
        again: list[ObjectName] = []
        informer.add_listener(again.append, resync=60)
        await pass_time(60 * 5)
        assert len(again) >= 1 + 4


async def test_a_listener_that_leaves_when_it_is_told_keeps_the_news_from_nobody():
    server = ModelServer()
    informer = make(server)
    first: list[ObjectName] = []

    def leave(name: ObjectName) -> None:
        first.append(name)
        remove()

    remove = informer.add_listener(leave)
    async with running(informer) as told:
        server.put(PV, "a")
        await pass_time(0.1)
        assert (first, told) == ([A], [A])


# ---- nobody acts on a view older than his own write ------------------------------------------------------------------


async def test_a_writer_waits_until_his_write_has_come():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        held_back, server.watches = server.watches, set()
        version = server.put(PV, "a")["metadata"]["resourceVersion"]
        waiting = asyncio.create_task(informer.reached(version))
        await pass_time(1)
        assert not waiting.done()
        for watch in held_back:
            server._send(watch, server.history[-1])
        await waiting
        assert held(informer) == there(server)
    assert server.lists() == 1


async def test_a_version_seen_already_is_not_waited_for():
    server = ModelServer()
    version = server.put(PV, "a")["metadata"]["resourceVersion"]
    informer = make(server)
    async with running(informer):
        before = VirtualClock().elapsed()
        await informer.reached(version)
        assert VirtualClock().elapsed() == before


async def test_a_write_that_a_selector_keeps_from_us_is_waited_for_a_moment_and_then_listed():
    server = ModelServer()
    server.put(PV, "a", metadata={"labels": {"mine": "yes"}})
    informer = make(server, Watched(PV, Selection(labels="mine=yes")))
    async with running(informer):
        version = server.put(PV, "not-mine")["metadata"]["resourceVersion"]
        await asyncio.gather(*(informer.reached(version) for _ in range(5)))
        assert VirtualClock().elapsed() < 3
        await pass_time(5)
    assert server.lists() == 2


async def test_a_counter_that_was_set_back_keeps_nobody_waiting():
    """As after the restoration of an old backup: no version will ever be as large again."""
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        await informer.reached("99999999")
        assert VirtualClock().elapsed() < 3


async def test_a_counter_that_was_set_back_is_followed_from_where_it_is():
    server = ModelServer()
    server.put(PV, "a")
    informer = make(server)
    async with running(informer):
        server.version = server.oldest = 3
        server.objects.clear()
        server.history.clear()
        await informer.reached("99999999")
        assert informer.version == "3"
        server.put(PV, "b")
        await pass_time(0.1)
        assert held(informer) == there(server) == {"b": "4"}


async def test_a_list_begun_before_the_write_is_not_taken_for_one_that_saw_it():
    server = ModelServer()
    server.delay = 5
    informer = make(server)
    task = asyncio.create_task(informer.run())
    await pass_time(4.9)
    waiting = asyncio.create_task(informer.reached("99999999"))
    await informer.wait_synced()
    await pass_time(0)
    assert not waiting.done()
    await waiting
    assert server.lists() == 2
    task.cancel()
    await asyncio.wait([task])


async def test_a_list_wanted_while_one_is_under_way_follows_it():
    """It began before the write, so it may not have seen it."""
    server = ModelServer()
    server.delay = 5
    informer = make(server)
    task = asyncio.create_task(informer.run())
    await pass_time(1)
    await informer.reached("99999999")
    assert VirtualClock().elapsed() == 10
    assert server.lists() == 2
    task.cancel()
    await asyncio.wait([task])


async def test_a_list_wanted_between_two_watches_comes_before_the_next():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        await pass_time(3)
        waiting = asyncio.create_task(informer.reached("99999999"))
        await pass_time(1.9)
        server.end_watches(BROKEN)
        await pass_time(0.05)
        watches = sum("watch=true" in asked.target for asked in server.asked)
        await waiting
        assert VirtualClock().elapsed() < 3 + 5
        assert sum("watch=true" in asked.target for asked in server.asked) == watches


async def test_a_waiter_is_woken_by_the_event_itself():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        waiting = asyncio.create_task(informer.reached(str(server.version + 1)))
        await pass_time(1)
        server.put(PV, "a")
        await waiting
        assert VirtualClock().elapsed() == 1


async def test_nothing_counts_as_gone_before_the_first_list():
    server = ModelServer()
    uid = server.put(PV, "a")["metadata"]["uid"]
    server.delay = 1
    informer = make(server)
    task = asyncio.create_task(informer.run())
    waiting = asyncio.create_task(informer.gone(A, uid))
    await pass_time(0.5)
    assert not waiting.done()
    await informer.wait_synced()
    await pass_time(0)
    assert not waiting.done()
    await pass_time(1.1)
    server.remove(PV, "a")
    await waiting
    task.cancel()
    await asyncio.wait([task])


async def test_a_server_that_is_away_keeps_nobody_waiting_for_ever():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        server.refuse = lambda _: NotConnected("refused")
        server.end_watches(BROKEN)
        with pytest.raises(CacheBehind, match="persistentvolumes has not seen 99999999 within 30 seconds: refused"):
            await informer.reached("99999999", within=30)


async def test_a_deletion_is_waited_for_by_uid():
    server = ModelServer()
    uid = server.put(PV, "a")["metadata"]["uid"]
    informer = make(server)
    async with running(informer):
        server.remove(PV, "a")
        server.put(PV, "a")
        await informer.gone(A, uid)
        assert informer.get(A) is None or informer.get(A)["metadata"]["uid"] != uid  # type: ignore[index]


async def test_a_deletion_is_not_waited_for_where_another_object_has_the_name_already():
    server = ModelServer()
    uid = server.put(PV, "a")["metadata"]["uid"]
    informer = make(server)
    async with running(informer):
        server.remove(PV, "a")
        server.put(PV, "a")
        await pass_time(0.1)
        before = VirtualClock().elapsed()
        await informer.gone(A, uid)
        assert VirtualClock().elapsed() == before


async def test_waiting_can_be_given_up():
    server = ModelServer()
    informer = make(server)
    async with running(informer):
        waiting = asyncio.create_task(informer.reached("99999999"))
        await pass_time(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
        server.put(PV, "a")
        await pass_time(0.1)
        assert held(informer) == there(server)


# ---- sharing ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def sharing(server: ModelServer) -> AsyncIterator[Informers]:
    async with Informers(server.client(), clock=VirtualClock(), random=Random(1), log=silent_log()) as informers:
        yield informers


async def test_all_who_watch_the_same_share_one_watch_and_the_last_one_ends_it():
    server = ModelServer()
    async with sharing(server) as informers:
        async with informers.using(Watched(PV)) as one, informers.using(Watched(PV)) as other:
            assert one is other
            await one.wait_synced()
            await pass_time(0.1)
            assert (len(server.watches), server.lists()) == (1, 1)
        await pass_time(0.1)
        assert (len(server.watches), len(informers)) == (0, 0)
        async with informers.using(Watched(PV)) as again:
            await again.wait_synced()
        assert server.lists() == 2


async def test_who_leaves_first_leaves_the_watch_to_the_others():
    server = ModelServer()
    async with sharing(server) as informers, AsyncExitStack() as first:
        await first.enter_async_context(informers.using(Watched(PV)))
        async with informers.using(Watched(PV)) as informer:
            await informer.wait_synced()
            await first.aclose()
            server.put(PV, "a")
            await pass_time(0.1)
            assert held(informer) == there(server)


async def test_whoever_leaves_last_leaves_no_watch_behind():
    server = ModelServer()
    async with sharing(server) as informers:
        async with informers.using(Watched(PV)) as informer:
            await informer.wait_synced()
            await pass_time(0.1)
            assert server.watches
        assert not server.watches


async def test_another_selection_is_another_watch():
    server = ModelServer()
    async with (
        sharing(server) as informers,
        informers.using(Watched(PV)) as one,
        informers.using(Watched(PV, Selection(labels="a=b"))) as other,
    ):
        assert one is not other


async def test_two_who_would_keep_different_parts_must_agree():
    server = ModelServer()
    async with sharing(server) as informers, informers.using(Watched(PV)):
        with pytest.raises(ValueError, match="agree on one transform"):
            async with informers.using(Watched(PV, transform=without_managed_fields)):
                pytest.fail("this must not be")


async def test_leaving_while_some_are_in_use_ends_them():
    server = ModelServer()
    async with sharing(server) as informers:
        using = informers.using(Watched(PV))
        await using.__aenter__()
        await pass_time(0.1)
    assert not server.watches
