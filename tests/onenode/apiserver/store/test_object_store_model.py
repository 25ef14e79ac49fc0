"""Random histories of the object store against a plain model: writes, failures, lists, watches, restarts."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onenode.apiserver.store.durable_store import DatabaseJournal
from onenode.apiserver.store.journal import JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import FutureRevision, RevisionExpired, TooSlow
from onenode.apiserver.store.versions import Key, Limits, SizeLimits, Stored
from onenode.apiserver.store.watches import Watch
from support.api.object_store_model import FailingJournal, Model, Operation, Outcome
from support.api.object_stores import raw_state

SOAK = bool(os.environ.get("ORLOP_SOAK"))
UNREAD, HISTORY = 6, 12
LIMITS = Limits(history=SizeLimits(HISTORY, 1 << 20), unread=SizeLimits(UNREAD, 1 << 20), writes_per_commit=3)
# Nothing here tests the disk, and thousands of histories need not wait for one.
MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None

RESOURCES = ["pods", "leases"]
NAMESPACES = ["", "a", "a-b"]
resources = st.sampled_from(RESOURCES)
namespaces = st.sampled_from([None, *NAMESPACES])
keys = st.builds(Key, resources, st.sampled_from(NAMESPACES), st.sampled_from(["x", "y"]))
verbs = st.sampled_from(["create", "update", "keep", "delete", "finish", "put"])
asks = st.tuples(verbs, keys, st.sampled_from(["newest", "anything", "stale"]), st.integers(0, 3))
steps_back = st.integers(-1, HISTORY + 3)


@dataclass
class Watching:
    watch: Watch
    resource: str
    namespace: str | None
    after: int
    read: int = 0


@dataclass
class Paging:
    resource: str
    namespace: str | None
    revision: int
    limit: int
    items: list[Stored]
    more: bool


class MemoryHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="o-", dir=MEMORY_DISK))
        self.model = Model()
        self.watching: list[Watching] = []
        self.paging: list[Paging] = []
        self.store, self.journal = self.runner.run(self.open())

    async def open(self) -> tuple[ObjectStore, FailingJournal]:
        journal = FailingJournal(NoJournal())
        return ObjectStore(journal, JournalState(), LIMITS), journal

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    # ---- writing -----------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(asks, min_size=1, max_size=6))
    def write(self, asked: list[tuple[str, Key, str, int]]) -> None:
        self.carry_out([self.operation(*each) for each in asked], fails=False)

    @rule(asked=st.lists(asks, min_size=1, max_size=6))
    def fail_to_write(self, asked: list[tuple[str, Key, str, int]]) -> None:
        self.carry_out([self.operation(*each) for each in asked], fails=True)

    def operation(self, verb: str, key: Key, expected: str, value: int) -> Operation:
        newest = self.model.objects.get(key)
        revision = newest.revision if newest else 1
        return Operation(verb, key, {"newest": revision, "anything": None, "stale": revision - 1}[expected], value)

    def carry_out(self, operations: list[Operation], *, fails: bool) -> None:
        async def at_once() -> list[Any]:
            return await asyncio.gather(*(each.start(self.store) for each in operations), return_exceptions=True)

        self.journal.fails = fails
        outcomes = self.runner.run(at_once())
        self.journal.fails = False
        found: list[Outcome] = [each if isinstance(each, Stored) else type(each) for each in outcomes]
        assert found == self.model.apply(operations, fails=fails)

    @rule(back=steps_back)
    def compact(self, back: int) -> None:
        async def compact() -> None:
            self.store.compact(self.model.revision - back)
            await self.store._queue.idle()

        self.runner.run(compact())
        assert self.store.oldest >= min(self.model.revision - back, self.model.revision)

    # ---- watching ----------------------------------------------------------------------------------------------------

    @rule(resource=resources, namespace=namespaces, back=steps_back)
    def begin_to_watch(self, resource: str, namespace: str | None, back: int) -> None:
        after = self.model.revision - back
        if refusal := self.refusal(after):
            with pytest.raises(refusal):
                self.store.watch(resource, namespace, after=after)
        else:
            watch = self.store.watch(resource, namespace, after=after)
            self.watching.append(Watching(watch, resource, namespace, after))

    def refusal(self, revision: int) -> type[Exception] | None:
        if revision > self.model.revision:
            return FutureRevision
        return RevisionExpired if revision < self.store.oldest else None

    @precondition(lambda self: self.watching)
    @rule(number=st.integers(0, 99), most=st.integers(1, 10))
    def read_some(self, number: int, most: int) -> None:
        watching = self.watching[number % len(self.watching)]
        expected = self.model.changes(watching.resource, watching.namespace, watching.after)[watching.read :]
        try:
            got = self.runner.run(self.read(watching.watch, min(most, len(expected))))
            assert got == expected[:most]
            watching.read += len(got)
            behind = expected[most].revision - 1 if len(expected) > most else self.model.revision
            assert watching.watch.seen_until == behind
        except TooSlow:
            assert len(expected) > UNREAD
            self.watching.remove(watching)

    async def read(self, watch: Watch, count: int) -> list[Any]:
        return [await anext(watch) for _ in range(count)]

    def read_all_to_the_end(self) -> None:
        """A store that ends leaves those who watch what they have not read yet."""
        for watching in self.watching:
            expected = self.model.changes(watching.resource, watching.namespace, watching.after)[watching.read :]
            assert watching.watch.take() in (expected, [])  # nothing, if it was cut

        self.watching.clear()

    # ---- listing -----------------------------------------------------------------------------------------------------

    @rule(resource=resources, namespace=namespaces, limit=st.integers(1, 3))
    def begin_to_list_pages(self, resource: str, namespace: str | None, limit: int) -> None:
        page = self.store.list(resource, namespace, limit=limit)
        self.paging.append(Paging(resource, namespace, page.revision, limit, list(page.items), more=page.remaining > 0))

    @precondition(lambda self: self.paging)
    @rule(number=st.integers(0, 99))
    def list_next_page(self, number: int) -> None:
        paging = self.paging[number % len(self.paging)]
        expected = self.model.listed(paging.resource, paging.namespace, paging.revision)
        if not paging.more or paging.revision < self.store.oldest:
            assert paging.items == (expected if not paging.more else expected[: len(paging.items)])
            self.paging.remove(paging)
            return
        after, at = paging.items[-1].key, paging.revision
        page = self.store.list(paging.resource, paging.namespace, after=after, limit=paging.limit, at=at)
        paging.items += page.items
        paging.more = page.remaining > 0
        assert page.remaining == len(expected) - len(paging.items)

    @rule(resource=resources, namespace=namespaces, back=steps_back)
    def list_the_past(self, resource: str, namespace: str | None, back: int) -> None:
        at = self.model.revision - back
        if refusal := self.refusal(at):
            with pytest.raises(refusal):
                self.store.list(resource, namespace, at=at)
        else:
            assert list(self.store.list(resource, namespace, at=at).items) == self.model.listed(resource, namespace, at)

    # ---- always ------------------------------------------------------------------------------------------------------

    @invariant()
    def the_present_is_the_models(self) -> None:
        assert self.store.revision == self.model.revision
        for resource in RESOURCES:
            page = self.store.list(resource)
            assert (page.revision, list(page.items)) == (
                self.model.revision,
                self.model.listed(resource, None, self.model.revision),
            )

    @invariant()
    def the_oldest_list_and_all_changes_behind_it_make_the_present(self) -> None:
        state = {
            each.key: each for resource in RESOURCES for each in self.store.list(resource, at=self.store.oldest).items
        }
        kept = 0
        for resource in RESOURCES:
            with self.store.watch(resource, after=self.store.oldest) as watch:
                for change in watch.take():
                    kept += 1
                    assert state.pop(change.key, None) == change.before
                    if (result := change.result()) is not None:
                        state[change.key] = result
        assert state == self.model.objects
        assert kept <= HISTORY


class DurableHistories(MemoryHistories):
    """The same on disk, with restarts and crashes between."""

    async def open(self) -> tuple[ObjectStore, FailingJournal]:
        journal = DatabaseJournal(self.folder)
        kept = await journal.open()
        failing = FailingJournal(journal)
        return ObjectStore(failing, kept, LIMITS), failing

    @rule()
    def restart(self) -> None:
        oldest = self.store.oldest
        self.runner.run(self.store.close())
        self.read_all_to_the_end()
        self.model.restart()
        self.store, self.journal = self.runner.run(self.open())
        assert self.store.oldest <= oldest

    @rule()
    def crash(self) -> None:
        """What is in the files now is what a killed process leaves."""
        files = raw_state(self.folder)
        self.runner.run(self.store.close())
        self.read_all_to_the_end()
        for path in self.folder.iterdir():
            path.unlink()
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        self.model.restart()
        self.store, self.journal = self.runner.run(self.open())


def histories(in_test: int, in_soak: int) -> settings:
    return settings(
        max_examples=in_soak if SOAK else in_test,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


LONG_ENOUGH = pytest.mark.timeout(7200 if SOAK else 60)


@LONG_ENOUGH
class TestRandomHistoriesInMemoryAgreeWithThePlainModel(MemoryHistories.TestCase):
    settings = histories(in_test=60, in_soak=8_000)


@LONG_ENOUGH
class TestRandomHistoriesOnDiskAgreeWithThePlainModel(DurableHistories.TestCase):
    settings = histories(in_test=25, in_soak=2_000)
