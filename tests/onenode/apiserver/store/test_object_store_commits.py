"""What happens between a write and its commit, shown with a journal that commits when the test says so."""

from __future__ import annotations

import asyncio

import pytest

from onenode.apiserver.store.store_errors import NoSuchObject, ObjectExists, RevisionConflict, StoreClosed, WriteFailed
from onenode.apiserver.store.versions import Limits, SizeLimits
from support.api.object_stores import (
    PODS,
    changed,
    held_store,
    made,
    pod,
    started,
    told,
    tombstone,
    turns,
    unchanged,
    values,
)

# ---- visible only when durable ---------------------------------------------------------------------------------------


async def test_nobody_sees_a_write_before_it_is_durable():
    store, journal = held_store()
    start = store.revision
    with (
        store.watch(PODS, after=start) as watch,
        started(store.create(pod("a"), made(1)), store.reached(start + 1)) as (writer, waiter),
    ):
        await turns()
        assert journal.held == [("CREATED", "a", start + 1)]
        assert store.get(pod("a")) is None
        assert list(store.list(PODS).items) == []
        assert watch.take() == []
        assert store.revision == start
        assert not writer.done()
        assert not waiter.done()

        await journal.succeed()
        assert store.get(pod("a")) == await writer
        assert told(watch.take()) == [("CREATED", "a", start + 1)]
        assert store.revision == start + 1
        assert waiter.done()


async def test_a_writer_is_told_before_those_who_watch_and_sees_his_write():
    store, journal = held_store()
    order: list[str] = []

    async def write() -> None:
        written = await store.create(pod("a"), made(1))
        assert store.get(pod("a")) == written
        order.append("the writer")

    async def look() -> None:
        with store.watch(PODS, after=store.revision) as watch:
            await watch.news()
            order.append("a watch")

    with started(look(), write(), look()):
        await turns()
        await journal.succeed()

        assert order == ["the writer", "a watch", "a watch"]


async def test_writes_that_come_during_a_commit_share_the_next():
    store, journal = held_store()
    with started(store.create(pod("first"), made(1))):
        await turns()
        with started(*(store.create(pod(f"p{n}"), made(n)) for n in range(50))) as writers:
            await turns()
            assert len(journal.batches) == 1
            await journal.succeed()
            assert len(journal.held) == 50
            assert list(values(store.list(PODS).items)) == ["first"]
            await journal.succeed()
            assert all(writer.done() for writer in writers)


async def test_writes_of_one_turn_share_one_commit_and_so_do_those_of_writers_just_told():
    store, journal = held_store()

    async def write_twice(n: int) -> None:
        await store.create(pod(f"p{n}"), made(1))
        await store.update(pod(f"p{n}"), None, changed(2))

    with started(*(write_twice(n) for n in range(10))):
        await journal.succeed()
        await journal.succeed()
        assert [len(batch.changes) for batch in journal.batches] == [10, 10]
        assert set(values(store.list(PODS).items).values()) == {2}


async def test_a_commit_holds_no_more_writes_than_it_may():
    store, journal = held_store(Limits(writes_per_commit=4))
    with started(*(store.create(pod(f"p{n}"), made(n)) for n in range(10))):
        for visible in (4, 8, 10):
            await journal.succeed()
            assert len(store.list(PODS).items) == visible


async def test_a_writer_builds_upon_what_is_not_durable_yet():
    store, journal = held_store()
    start = store.revision
    with started(
        store.create(pod("a"), made(1)),
        store.update(pod("a"), start + 1, changed(2)),
        store.delete(pod("a"), start + 2, tombstone),
        store.create(pod("a"), made(4)),
    ) as writers:
        await journal.succeed()

        assert [(await writer).revision for writer in writers] == [start + n for n in (1, 2, 3, 4)]
        assert values(store.list(PODS).items) == {"a": 4}
        assert values(store.list(PODS, at=start + 2).items) == {"a": 2}


async def test_a_writer_builds_upon_the_newest_also_when_an_older_one_has_just_become_durable():
    store, journal = held_store()
    start = store.revision
    with started(store.create(pod("a"), made(1))):
        await turns()
        with started(store.update(pod("a"), start + 1, changed(2))):
            await journal.succeed()
            with started(store.update(pod("a"), start + 2, changed(3))) as (third,):
                await journal.succeed()
                await journal.succeed()
                assert store.get(pod("a")) == await third
    assert store._queue._newest == {}


# ---- answers that write nothing --------------------------------------------------------------------------------------

REFUSALS = {
    "already exists": (lambda store: store.create(pod("a"), made(2)), ObjectExists),
    "conflict": (lambda store: store.update(pod("a"), 1, changed(2)), RevisionConflict),
    "its own reason": (lambda store: store.update(pod("a"), None, lambda *_: {}["no"]), KeyError),
}


@pytest.mark.parametrize(("ask", "refusal"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_built_upon_a_write_waits_for_it(ask, refusal: type[Exception]):
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), ask(store)) as (_, refused):
        await turns()
        assert not refused.done()
        await journal.succeed()
        with pytest.raises(refusal):
            await refused


@pytest.mark.parametrize("ask", [ask for ask, _ in REFUSALS.values()], ids=REFUSALS)
async def test_a_refusal_built_upon_a_failed_write_fails_with_it(ask):
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), ask(store)) as tasks:
        await journal.fail()
        for task in tasks:
            with pytest.raises(WriteFailed, match="pods default/a could not be made durable: no space left"):
                await task


async def test_an_unchanged_object_is_acknowledged_only_when_it_is_durable():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.update(pod("a"), None, unchanged)) as (writer, idle):
        await turns()
        assert not idle.done()
        await journal.succeed()
        assert await idle == await writer
        assert len(journal.batches) == 1


async def test_that_something_is_gone_is_told_only_when_its_deletion_is_durable():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1))):
        await journal.succeed()
    with started(store.delete(pod("a"), None, tombstone), store.update(pod("a"), None, changed(2))) as (_, late):
        await turns()
        assert not late.done()
        await journal.succeed()
        with pytest.raises(NoSuchObject):
            await late


# ---- commits that fail -----------------------------------------------------------------------------------------------


async def test_a_failed_commit_changes_nothing_and_later_writes_succeed():
    store, journal = held_store()
    with started(store.create(pod("kept"), made(1))):
        await journal.succeed()
    before = store.list(PODS)
    with store.watch(PODS, after=store.revision) as watch:
        with started(
            store.create(pod("a"), made(1)),
            store.update(pod("kept"), None, changed(2)),
            store.delete(pod("kept"), None, tombstone),
        ) as writers:
            await journal.fail()
            for writer in writers:
                with pytest.raises(WriteFailed):
                    await writer
        assert store.list(PODS) == before
        assert watch.take() == []
        with started(store.create(pod("a"), made(2)), store.update(pod("kept"), None, changed(3))) as writers:
            await journal.succeed()
            assert [(await writer).revision for writer in writers] == [before.revision + 4, before.revision + 5]
        assert values(store.list(PODS).items) == {"a": 2, "kept": 3}
        assert len(watch.take()) == 2


async def test_what_was_built_upon_a_failed_write_fails_and_the_rest_of_the_queue_goes_on():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1))) as (first,):
        await turns()
        with started(
            store.update(pod("a"), None, changed(2)),
            store.create(pod("b"), made(1)),
            store.update(pod("a"), None, changed(3)),
            store.update(pod("b"), None, changed(2)),
        ) as (second, other, third, upon_other):
            await journal.fail("broken")
            for writer in (first, second, third):
                with pytest.raises(WriteFailed, match="broken"):
                    await writer
            await journal.succeed()
            assert (await other).revision < (await upon_other).revision
        assert values(store.list(PODS).items) == {"b": 2}


async def test_every_failed_writer_has_an_error_of_its_own_that_names_the_cause():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.create(pod("b"), made(1))) as writers:
        await journal.fail()
        errors = [writer.exception() for writer in writers]
        assert errors[0] is not errors[1]
        assert all(isinstance(error.__cause__, OSError) for error in errors)


async def test_a_journal_that_refuses_at_once_fails_the_writers_and_no_more():
    store, journal = held_store(Limits(writes_per_commit=2))
    commit, journal.commit = journal.commit, lambda _batch: {}["closed"]
    with started(*(store.create(pod(f"p{n}"), made(1)) for n in range(5))) as writers:
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        assert all(isinstance(outcome, WriteFailed) for outcome in outcomes)
    journal.commit = commit
    with started(store.create(pod("p0"), made(1))):
        await journal.succeed()
        assert store.get(pod("p0"))


# ---- writers that stop waiting ---------------------------------------------------------------------------------------


async def test_a_write_goes_on_when_its_writer_stops_waiting():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.create(pod("b"), made(1))) as (cancelled, other):
        await turns()
        cancelled.cancel()
        await turns()
        await journal.succeed()
        assert cancelled.cancelled()
        assert (await other).key == pod("b")
        assert store.get(pod("a")) is not None


async def test_a_write_that_fails_after_its_writer_stopped_waiting_bothers_nobody():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1))) as (cancelled,):
        await turns()
        cancelled.cancel()
        await turns()
        await journal.fail()
    assert store.get(pod("a")) is None
    with started(store.create(pod("a"), made(2))):
        await journal.succeed()
        assert store.get(pod("a"))


async def test_closing_waits_for_the_commit_and_when_cancelled_does_not():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.close()) as (writer, closing):
        await turns()
        assert not closing.done()
        await journal.succeed()
        await closing
        assert (await writer).key == pod("a")
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.close()) as (writer, closing):
        await turns()
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(StoreClosed):
            store.watch(PODS, after=1)
        await journal.succeed()
        assert (await writer).key == pod("a")


# ---- garbage ---------------------------------------------------------------------------------------------------------


async def test_what_the_history_drops_leaves_with_the_next_writes_also_after_a_failed_commit():
    store, journal = held_store(Limits(history=SizeLimits(1, 1 << 20)))
    written = []
    for ask in (store.create(pod("a"), made(1)), *(store.update(pod("a"), None, changed(n)) for n in (2, 3))):
        with started(ask) as (writer,):
            await journal.succeed()
            written.append((await writer).revision)
    assert len(journal.batches) == 3
    with started(store.create(pod("b"), made(1))):
        await journal.fail()
    with started(store.create(pod("b"), made(1))):
        await journal.succeed()
    with started(store.create(pod("c"), made(1))):
        await journal.succeed()

    # A version is garbage when the change that replaced it is dropped, and that happens when the next is published.
    assert [batch.garbage for batch in journal.batches[3:]] == [(written[0],), (written[0],), (written[1],)]
    assert len(journal.batches) == 6


async def test_what_becomes_garbage_during_a_commit_leaves_with_the_next():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.update(pod("a"), None, changed(2))) as writers:
        await journal.succeed()
        replaced = (await writers[0]).revision
    with started(store.create(pod("b"), made(1))):
        await turns()
        store.compact(store.revision)
        await journal.succeed()
        await journal.succeed()

    assert [batch.garbage for batch in journal.batches[1:]] == [(), (replaced,)]


async def test_compaction_is_committed_though_nobody_writes():
    store, journal = held_store()
    with started(store.create(pod("a"), made(1)), store.delete(pod("a"), None, tombstone)) as writers:
        await journal.succeed()
        revisions = [(await writer).revision for writer in writers]
    store.compact(store.revision)
    await turns()

    batch = journal.batches[-1]
    assert (list(batch.changes), sorted(batch.garbage), batch.oldest) == ([], revisions, store.revision)
    await journal.fail()
    assert len(journal.batches) == 2
    store.compact(store.revision)
    await journal.succeed()
    assert sorted(journal.batches[-1].garbage) == revisions
    assert len(journal.batches) == 3
