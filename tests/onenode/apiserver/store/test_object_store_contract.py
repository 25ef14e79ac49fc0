"""What the object store promises to readers and writers, in memory and on disk alike."""

from __future__ import annotations

import asyncio

import pytest

from onenode.apiserver.store.store_errors import (
    FutureRevision,
    NoSuchObject,
    ObjectExists,
    RevisionConflict,
    RevisionExpired,
    StoreClosed,
)
from onenode.apiserver.store.versions import Key, Put, Remove, Stored, Unchanged, WriteDecision
from orlop.testing.virtual_clock import VirtualClock
from support.api.object_stores import (
    PODS,
    VOLUMES,
    OpenStore,
    changed,
    encoded,
    history_of,
    made,
    pod,
    read,
    started,
    told,
    tombstone,
    turns,
    unchanged,
    value_of,
    values,
    volume,
    written_revision,
)

# ---- revisions -------------------------------------------------------------------------------------------------------


async def test_an_empty_store_has_a_revision_that_clients_can_name(open_store: OpenStore):
    async with open_store() as store:
        assert store.revision > 0
        assert store.list(PODS).revision == store.revision
        assert list(store.list(PODS).items) == []


async def test_every_write_has_a_revision_of_its_own_and_its_bytes_hold_it(open_store: OpenStore):
    async with open_store() as store:
        before = store.revision
        created = await store.create(pod("a"), made(1))
        other = await store.create(volume("v"), made(1))
        updated = await store.update(pod("a"), created.revision, changed(2))
        deleted = await store.delete(pod("a"), None, tombstone)

        writes = [created, other, updated, deleted]
        assert [each.revision for each in writes] == [before + 1, before + 2, before + 3, before + 4]
        assert [written_revision(each) for each in writes] == [each.revision for each in writes]
        assert store.revision == deleted.revision


async def test_a_hundred_writers_at_once_get_a_hundred_revisions_in_the_order_they_came(open_store: OpenStore):
    async with open_store() as store:
        first = store.revision + 1
        written = await asyncio.gather(*(store.create(pod(f"p{n:03}"), made(n)) for n in range(100)))

        assert [each.revision for each in written] == list(range(first, first + 100))
        assert [value_of(each) for each in store.list(PODS).items] == list(range(100))


# ---- guarded writes --------------------------------------------------------------------------------------------------


async def test_what_is_created_can_be_read(open_store: OpenStore):
    async with open_store() as store:
        created = await store.create(pod("a"), made("x"))

        assert store.get(pod("a")) == created
        assert store.get(pod("a", "other")) is None
        assert store.get(volume("a")) is None


async def test_a_second_create_is_refused_and_changes_nothing(open_store: OpenStore):
    async with open_store() as store:
        created = await store.create(pod("a"), made("x"))
        with pytest.raises(ObjectExists, match="pods default/a already exists"):
            await store.create(pod("a"), made("y"))

        assert store.get(pod("a")) == created
        assert store.revision == created.revision


@pytest.mark.parametrize("expected", ["newest", "nothing"])
async def test_an_update_sees_the_newest_version_and_replaces_it(open_store: OpenStore, expected: str):
    async with open_store() as store:
        created = await store.create(pod("a"), made(1))

        def add_one(current: Stored, revision: int) -> WriteDecision:
            return Put(encoded(revision, value_of(current) + 1))

        updated = await store.update(pod("a"), created.revision if expected == "newest" else None, add_one)

        assert store.get(pod("a")) == updated
        assert value_of(updated) == 2


async def test_an_update_of_an_older_version_is_a_conflict_that_names_both(open_store: OpenStore):
    async with open_store() as store:
        created = await store.create(pod("a"), made(1))
        updated = await store.update(pod("a"), None, changed(2))
        with pytest.raises(RevisionConflict) as conflict:
            await store.update(pod("a"), created.revision, changed(3))
        with pytest.raises(RevisionConflict):
            await store.delete(pod("a"), created.revision, tombstone)

        assert (conflict.value.expected, conflict.value.newest) == (created.revision, updated.revision)
        assert store.get(pod("a")) == updated


async def test_what_is_not_there_can_be_neither_updated_nor_deleted(open_store: OpenStore):
    async with open_store() as store:
        with pytest.raises(NoSuchObject, match="persistentvolumes v is not found"):
            await store.update(volume("v"), None, changed(1))
        with pytest.raises(NoSuchObject):
            await store.delete(volume("v"), 1, tombstone)
        with pytest.raises(NoSuchObject):
            await store.write(volume("v"), lambda _newest, _revision: Unchanged())
        with pytest.raises(NoSuchObject):
            await store.write(volume("v"), lambda _newest, _revision: Remove(b"{}"))


async def test_of_many_updates_of_one_version_exactly_one_succeeds(open_store: OpenStore):
    async with open_store() as store:
        created = await store.create(pod("a"), made("first"))
        attempts = (store.update(pod("a"), created.revision, changed(n)) for n in range(20))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)

        winners = [each for each in outcomes if isinstance(each, Stored)]
        assert len(winners) == 1
        assert sum(isinstance(each, RevisionConflict) for each in outcomes) == 19
        assert store.get(pod("a")) == winners[0]


async def test_updates_that_expect_nothing_build_upon_each_other(open_store: OpenStore):
    async with open_store() as store:
        await store.create(pod("a"), made(0))

        def add_one(current: Stored, revision: int) -> WriteDecision:
            return Put(encoded(revision, value_of(current) + 1))

        await asyncio.gather(*(store.update(pod("a"), None, add_one) for _ in range(100)))

        assert values(store.list(PODS).items) == {"a": 100}


async def test_a_write_that_changes_nothing_keeps_the_revision_and_tells_nobody(open_store: OpenStore):
    async with open_store() as store:
        created = await store.create(pod("a"), made(1))
        with store.watch(PODS, after=created.revision) as watch:
            assert await store.update(pod("a"), None, unchanged) == created
            assert await store.update(pod("a"), created.revision, unchanged) == created
            marker = await store.create(pod("b"), made(1))

            assert marker.revision == created.revision + 1
            assert told(await read(watch, 1)) == [("CREATED", "b", marker.revision)]


async def test_an_update_can_end_as_a_deletion_and_a_write_as_a_creation(open_store: OpenStore):
    async with open_store() as store:
        start = store.revision
        created = await store.write(pod("a"), lambda newest, revision: Put(encoded(revision, newest is None)))
        removed = await store.update(
            pod("a"), created.revision, lambda _now, revision: Remove(encoded(revision, "end"))
        )

        assert store.get(pod("a")) is None
        with store.watch(PODS, after=start) as watch:
            events = watch.take()
        assert told(events) == [("CREATED", "a", created.revision), ("DELETED", "a", removed.revision)]
        assert (events[1].after, events[1].before) == (removed, created)


async def test_what_was_deleted_can_be_created_again(open_store: OpenStore):
    async with open_store() as store:
        await store.create(pod("a"), made("old"))
        await store.delete(pod("a"), None, tombstone)
        await store.create(pod("a"), made("new"))

        assert values(store.list(PODS).items) == {"a": "new"}


async def test_a_writer_that_fails_to_make_its_bytes_fails_alone(open_store: OpenStore):
    async with open_store() as store:
        start = store.revision

        def broken(_revision: int) -> bytes:
            raise LookupError("no such template")

        outcomes = await asyncio.gather(
            store.create(pod("a"), made(1)),
            store.create(pod("b"), broken),
            store.create(pod("c\ud800"), made(1)),
            store.create(pod("d"), made(1)),
            return_exceptions=True,
        )

        assert isinstance(outcomes[1], LookupError)
        assert isinstance(outcomes[2], ValueError)
        assert list(values(store.list(PODS).items)) == ["a", "d"]
        assert store.revision == start + 2


async def test_a_cancelled_writer_leaves_its_write_and_the_others_as_they_were(open_store: OpenStore):
    async with open_store() as store:
        with started(*(store.create(pod(f"p{n}"), made(n)) for n in range(3))) as writers:
            await asyncio.sleep(0)
            writers[1].cancel()
            await asyncio.wait(writers)

            assert writers[1].cancelled()
            assert values(store.list(PODS).items) == {"p0": 0, "p1": 1, "p2": 2}


# ---- lists -----------------------------------------------------------------------------------------------------------


async def test_a_list_is_sorted_by_namespace_and_name(open_store: OpenStore):
    keys = [Key(PODS, *key) for key in [("b", "a"), ("a", "z"), ("a-b", "m"), ("a", "b"), ("b", "aa")]]
    async with open_store() as store:
        for key in keys:
            await store.create(key, made(1))
        await store.create(volume("a"), made(1))

        assert [each.key for each in store.list(PODS).items] == sorted(keys)
        assert [each.key.name for each in store.list(PODS, "a").items] == ["b", "z"]
        assert [each.key.name for each in store.list(VOLUMES).items] == ["a"]
        assert list(store.list(PODS, "").items) == []


async def test_pages_follow_each_other_and_count_what_is_left(open_store: OpenStore):
    async with open_store() as store:
        for n in range(5):
            await store.create(pod(f"p{n}"), made(n))
        await store.create(pod("q", "other"), made(9))

        first = store.list(PODS, "default", limit=2)
        second = store.list(PODS, "default", limit=2, after=first.items[-1].key)
        third = store.list(PODS, "default", limit=2, after=second.items[-1].key)

        assert [[value_of(each) for each in page.items] for page in (first, second, third)] == [[0, 1], [2, 3], [4]]
        assert [page.remaining for page in (first, second, third)] == [3, 1, 0]


async def test_later_pages_show_the_state_of_the_first(open_store: OpenStore):
    async with open_store() as store:
        for n in range(6):
            await store.create(pod(f"p{n}"), made(n))
        first = store.list(PODS, limit=2)
        await store.delete(pod("p3"), None, tombstone)
        await store.update(pod("p4"), None, changed("new"))
        await store.update(pod("p4"), None, changed("newer"))
        await store.create(pod("p2a"), made("new"))
        await store.create(pod("p9", "a-namespace"), made("new"))
        await store.create(volume("p5a"), made("another kind"))

        rest = store.list(PODS, at=first.revision, after=first.items[-1].key)

        assert values(rest.items) == {"p2": 2, "p3": 3, "p4": 4, "p5": 5}
        assert rest.revision == first.revision
        assert values(store.list(PODS, "default").items) == {
            "p0": 0,
            "p1": 1,
            "p2": 2,
            "p2a": "new",
            "p4": "newer",
            "p5": 5,
        }


async def test_every_kept_revision_can_be_listed_exactly(open_store: OpenStore):
    async with open_store() as store:
        states = {store.revision: {}}
        for n in range(4):
            await store.create(pod(f"p{n}"), made(n))
            states[store.revision] = values(store.list(PODS).items)
        await store.delete(pod("p1"), None, tombstone)
        states[store.revision] = values(store.list(PODS).items)

        assert {revision: values(store.list(PODS, at=revision).items) for revision in states} == states


async def test_a_revision_of_which_the_history_is_gone_is_expired(open_store: OpenStore):
    async with open_store(history_of(3)) as store:
        revisions = [(await store.create(pod(f"p{n}"), made(n))).revision for n in range(6)]

        assert store.oldest == revisions[2]
        assert len(store.list(PODS, at=revisions[2]).items) == 3
        for ask in (store.list, store.watch):
            with pytest.raises(RevisionExpired) as expired:
                ask(PODS, **{"at" if ask == store.list else "after": revisions[1]})
            assert (expired.value.asked, expired.value.oldest) == (revisions[1], revisions[2])


async def test_a_revision_that_does_not_exist_yet_can_be_neither_listed_nor_watched(open_store: OpenStore):
    async with open_store() as store:
        with pytest.raises(FutureRevision):
            store.list(PODS, at=store.revision + 1)
        with pytest.raises(FutureRevision):
            store.watch(PODS, after=store.revision + 1)


async def test_compaction_forgets_the_past_and_nothing_else(open_store: OpenStore):
    async with open_store() as store:
        first = await store.create(pod("a"), made(1))
        second = await store.update(pod("a"), None, changed(2))
        third = await store.create(pod("b"), made(3))
        store.compact(second.revision)
        store.compact(first.revision)  # what is gone already

        assert store.oldest == second.revision
        assert values(store.list(PODS).items) == {"a": 2, "b": 3}
        assert values(store.list(PODS, at=second.revision).items) == {"a": 2}
        with store.watch(PODS, after=second.revision) as watch:
            assert told(watch.take()) == [("CREATED", "b", third.revision)]
        with pytest.raises(RevisionExpired):
            store.watch(PODS, after=first.revision)
        store.compact(third.revision + 100)
        assert store.oldest == store.revision == third.revision


# ---- waiting for a revision ------------------------------------------------------------------------------------------


async def test_waiting_for_a_revision_ends_when_it_can_be_seen(open_store: OpenStore):
    async with open_store() as store:
        await store.reached(store.revision)
        with started(store.reached(store.revision + 2)) as (waiting,):
            await store.create(pod("a"), made(1))
            await turns()
            assert not waiting.done()
            await store.create(pod("b"), made(1))
            await waiting
            assert store.get(pod("b"))


@pytest.mark.virtual_time
async def test_how_long_to_wait_for_a_revision_is_decided_by_the_callers_clock(open_store: OpenStore):
    clock = VirtualClock()
    async with open_store() as store:
        with pytest.raises(TimeoutError):
            async with clock.timeout(3):
                await store.reached(store.revision + 1)
        assert clock.elapsed() == 3
        await store.create(pod("a"), made(1))


# ---- closing ---------------------------------------------------------------------------------------------------------


async def test_closing_finishes_what_was_begun_and_refuses_what_comes_later(open_store: OpenStore):
    async with open_store() as store:
        watch = store.watch(PODS, after=store.revision)
        with started(store.create(pod("a"), made(1)), store.reached(99)) as (writer, waiter):
            await asyncio.sleep(0)
            await store.close()
            await store.close()

            assert (await writer).key == pod("a")
            assert [change.key async for change in watch] == [pod("a")]
            with pytest.raises(StoreClosed):
                await waiter
        with pytest.raises(StoreClosed):
            await store.create(pod("b"), made(1))
        for late in (lambda: store.watch(PODS, after=store.revision), lambda: store.compact(1)):
            with pytest.raises(StoreClosed):
                late()
        with pytest.raises(StoreClosed):
            await store.reached(1)
