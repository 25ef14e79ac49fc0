"""What the object store promises to those who watch, in memory and on disk alike."""

from __future__ import annotations

import asyncio

import pytest

from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import TooSlow
from onenode.apiserver.store.versions import Limits, SizeLimits
from support.api.object_stores import (
    PODS,
    OpenStore,
    changed,
    history_of,
    made,
    pod,
    read,
    started,
    told,
    tombstone,
    turns,
    unread_of,
    value_of,
    volume,
)


async def fill(store: ObjectStore, count: int, prefix: str = "p") -> None:
    await asyncio.gather(*(store.create(pod(f"{prefix}{n:03}"), made(n)) for n in range(count)))


async def test_a_watch_gets_what_was_kept_and_then_what_comes_each_once_and_in_order(open_store: OpenStore):
    async with open_store() as store:
        await store.create(pod("before"), made(0))
        start = store.revision
        await store.create(pod("a"), made(1))
        with store.watch(PODS, after=start) as watch:
            await store.update(pod("a"), None, changed(2))
            await store.create(volume("v"), made("another kind"))
            await store.delete(pod("a"), None, tombstone)

            events = await read(watch, 3)

        assert told(events) == [("CREATED", "a", start + 1), ("UPDATED", "a", start + 2), ("DELETED", "a", start + 4)]
        assert [event.before and value_of(event.before) for event in events] == [None, 1, 2]
        assert [value_of(event.after) for event in events] == [1, 2, 2]


async def test_a_watch_of_one_namespace_sees_no_other(open_store: OpenStore):
    async with open_store() as store:
        await store.create(pod("kept", "other"), made(1))
        await store.create(pod("kept"), made(1))
        with store.watch(PODS, "default", after=store.oldest) as watch:
            await store.create(pod("new", "other"), made(1))
            await store.create(pod("new"), made(1))

            assert [change.key for change in watch.take()] == [pod("kept"), pod("new")]


async def test_a_list_and_the_changes_behind_it_make_the_next_list(open_store: OpenStore):
    async with open_store() as store:
        await fill(store, 5)
        page = store.list(PODS)
        state = {each.key: each for each in page.items}
        with store.watch(PODS, after=page.revision) as watch:
            await asyncio.gather(
                store.update(pod("p001"), None, changed("new")),
                store.delete(pod("p002"), None, tombstone),
                store.create(pod("q"), made("new")),
                store.update(pod("q"), None, changed("newer")),
            )
            for change in watch.take():
                result = change.result()
                state.pop(change.key, None)
                if result is not None:
                    state[change.key] = result

        assert sorted(state.values(), key=lambda each: each.key) == list(store.list(PODS).items)


async def test_all_watches_share_one_event(open_store: OpenStore):
    async with open_store() as store:
        watches = [store.watch(PODS, after=store.revision) for _ in range(100)]
        await store.create(pod("a"), made(1))

        assert len({id(change) for watch in watches for change in watch.take()}) == 1


async def test_a_watch_waits_for_what_comes(open_store: OpenStore):
    async with open_store() as store:
        with store.watch(PODS, after=store.revision) as watch, started(anext(watch)) as (reader,):
            await turns()
            await store.create(volume("v"), made("another kind"))
            await turns()
            assert not reader.done()
            await store.create(pod("a"), made(1))
            assert (await reader).key == pod("a")


async def test_a_reader_that_is_cancelled_misses_nothing_the_next_time(open_store: OpenStore):
    async with open_store() as store:
        with store.watch(PODS, after=store.revision) as watch:
            for n in range(5):
                with started(anext(watch)) as (reader,):
                    await turns(2)
                    writing = asyncio.ensure_future(store.create(pod(f"p{n}"), made(n)))
                    await turns(n)
                    reader.cancel()
                    await asyncio.wait([reader])
                    await writing
                    got = [await reader] if not reader.cancelled() else await read(watch, 1)
                    assert [change.key for change in got] == [pod(f"p{n}")]


async def test_a_watch_has_one_reader(open_store: OpenStore):
    async with open_store() as store:
        with store.watch(PODS, after=store.revision) as watch, started(anext(watch)):
            await turns()
            with pytest.raises(RuntimeError, match="two tasks"):
                await anext(watch)


# ---- those who do not read -------------------------------------------------------------------------------------------


async def test_a_watch_nobody_reads_is_cut_and_the_others_are_unharmed(open_store: OpenStore):
    async with open_store(unread_of(10)) as store:
        start = store.revision
        slow, quick = (store.watch(PODS, after=start) for _ in range(2))
        seen = []
        for n in range(20):
            await store.create(pod(f"p{n:02}"), made(n))
            seen += quick.take()

        assert [change.key.name for change in seen] == [f"p{n:02}" for n in range(20)]
        with pytest.raises(TooSlow, match="11 changes unread") as cut:
            await anext(slow)
        assert cut.value.unread == 11
        with pytest.raises(TooSlow):
            _ = slow.seen_until
        assert slow.take() == []
        assert len(store._watches) == 1


async def test_a_reader_that_waits_is_told_that_it_was_cut(open_store: OpenStore):
    async with open_store(unread_of(0)) as store:
        watch = store.watch(PODS, after=store.revision)
        await store.create(pod("a"), made(1))
        await store.create(pod("b"), made(1))
        with pytest.raises(TooSlow):
            [change async for change in watch]


async def test_unread_bytes_are_bounded_too(open_store: OpenStore):
    async with open_store(unread_of(1000, 5_000)) as store:
        watch = store.watch(PODS, after=store.revision)
        for n in range(3):
            await store.create(pod(f"p{n}"), made("x" * 4000))
        with pytest.raises(TooSlow, match="2 changes"):
            await anext(watch)


async def test_who_has_read_everything_is_not_cut_by_one_large_commit(open_store: OpenStore):
    async with open_store(unread_of(10, 1000)) as store:
        with store.watch(PODS, after=store.revision) as watch:
            for prefix in "abc":
                await fill(store, 50, prefix)
                seen = [change.key.name async for change in watch_until(watch, f"{prefix}049")]
                assert len(seen) == 50


async def watch_until(watch, name: str):
    async for change in watch:
        yield change
        if change.key.name == name:
            return


async def test_what_was_kept_when_a_watch_began_does_not_count_as_unread(open_store: OpenStore):
    async with open_store(unread_of(5, 1000)) as store:
        start = store.revision
        await fill(store, 50)
        with store.watch(PODS, after=start) as watch:
            await store.create(pod("q1"), made(1))
            await read(watch, 20)
            await store.create(pod("q2"), made(1))

            assert len(watch.take()) == 32


async def test_a_watch_that_never_ends_to_catch_up_is_cut_all_the_same(open_store: OpenStore):
    async with open_store(unread_of(5)) as store:
        await fill(store, 50)
        watch = store.watch(PODS, after=store.oldest)
        for n in range(10):
            await store.create(pod(f"q{n}"), made(1))
        with pytest.raises(TooSlow):
            await anext(watch)


# ---- progress --------------------------------------------------------------------------------------------------------


async def test_a_watch_knows_how_far_its_reader_is(open_store: OpenStore):
    async with open_store() as store:
        start = store.revision
        with store.watch(PODS, after=start) as watch:
            assert watch.seen_until == start
            await store.create(volume("v"), made("another kind moves it on as well"))
            assert watch.seen_until == start + 1
            await store.create(pod("a"), made(1))
            await store.create(pod("b"), made(1))
            assert watch.seen_until == start + 1
            await anext(watch)
            assert watch.seen_until == start + 2
            await anext(watch)
            assert watch.seen_until == store.revision


async def test_a_watch_that_was_closed_claims_to_have_seen_nothing_more(open_store: OpenStore):
    async with open_store() as store:
        watch = store.watch(PODS, after=store.revision)
        watch.close()
        closed_at = store.revision
        await store.create(pod("a"), made(1))
        watch.close()

        assert watch.seen_until == closed_at
        assert [change async for change in watch] == []
        assert len(store._watches) == 0


async def test_going_on_from_where_a_reader_is_repeats_and_misses_nothing(open_store: OpenStore):
    async with open_store() as store:
        start = store.revision
        with store.watch(PODS, after=start) as watch:
            await fill(store, 10)
            first = await read(watch, 4)
            with store.watch(PODS, after=watch.seen_until) as second:
                rest = second.take()

        assert [change.revision for change in first + rest] == list(range(start + 1, start + 11))


# ---- bounds of the history -------------------------------------------------------------------------------------------


async def test_the_history_is_bounded_by_count(open_store: OpenStore):
    async with open_store(history_of(10)) as store:
        await fill(store, 30)

        with store.watch(PODS, after=store.oldest) as watch:
            assert len(watch.take()) == 10
        assert len(store.list(PODS).items) == 30


async def test_the_history_is_bounded_by_the_bytes_it_alone_keeps(open_store: OpenStore):
    async with open_store(history_of(1000, 20_000)) as store:
        await store.create(pod("a"), made(""))
        for n in range(30):
            await store.update(pod("a"), None, changed(f"{n}" * 1000))

        with store.watch(PODS, after=store.oldest) as watch:
            events = watch.take()
        kept = sum(len(event.before.json) for event in events if event.before)
        assert 10_000 < kept <= 20_000
        assert events[-1].after == store.get(pod("a"))


async def test_objects_that_are_there_anyway_cost_the_history_little(open_store: OpenStore):
    async with open_store(history_of(1000, 20_000)) as store:
        start = store.revision
        await asyncio.gather(*(store.create(pod(f"p{n}"), made("x" * 10_000)) for n in range(20)))

        assert store.oldest == start


async def test_a_watch_keeps_what_the_history_has_dropped_meanwhile(open_store: OpenStore):
    async with open_store(history_of(2)) as store:
        with store.watch(PODS, after=store.revision) as watch:
            await fill(store, 10)
            store.compact(store.revision)

            assert len(watch.take()) == 10


async def test_news_come_all_at_once_and_a_nudge_brings_none(open_store: OpenStore):
    async with open_store() as store:
        with store.watch(PODS, after=store.revision) as watch:
            waiting = asyncio.ensure_future(watch.news())
            await asyncio.sleep(0)
            watch.nudge()
            assert await waiting == []
            for name in "abc":
                await store.create(pod(name), made(1))
            assert [change.key.name for change in await watch.news() or []] == ["a", "b", "c"]
            watch.close()
            assert await watch.news() is None


async def test_whoever_was_too_slow_for_news_is_told(open_store: OpenStore):
    async with open_store(Limits(unread=SizeLimits(1, 1 << 20))) as store:
        with store.watch(PODS, after=store.revision) as watch:
            for name in "abcd":
                await store.create(pod(name), made(1))
            with pytest.raises(TooSlow):
                await watch.news()
