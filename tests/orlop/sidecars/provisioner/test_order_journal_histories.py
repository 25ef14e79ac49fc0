"""Random histories of the journal, compared with a dict: what was recorded and not forgotten is there, always."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as some

from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import MergePatch
from orlop.kube.kinds import LEASE
from orlop.records.provision_journal import JournalEntry
from orlop.sidecars.provisioner.journal_leases import JournalLost
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.api.api_wires import failing, refusal
from support.provisioning.journal_worlds import JournalWorld, OpenJournal, large_entry
from support.random_tests import FEW

numbers = some.integers(0, 5)
operations = some.one_of(
    some.tuples(some.just("record"), some.lists(numbers, min_size=1, max_size=3, unique=True), some.booleans()),
    some.tuples(some.just("forget"), numbers),
    some.sampled_from(
        [
            ("wait",),
            ("reopen",),
            ("take over",),
            ("lost", "PUT"),
            ("lost", "POST"),
            ("lost", "DELETE"),
            ("refused",),
            ("touched",),
        ]
    ),
)


@dataclass
class History:
    """Plays operations on a journal and on a dict beside it."""

    world: JournalWorld
    stack: AsyncExitStack
    ours: OpenJournal | None = None
    known: dict[str, JournalEntry] = field(default_factory=dict)
    uncertain: dict[str, set[JournalEntry | None]] = field(default_factory=dict)
    """Of a write that failed: what the journal may hold for the volume instead."""

    async def reopen(self, *, kill: bool) -> None:
        if kill:
            await self.stack.aclose()
        self.ours = await self.stack.enter_async_context(self.world.opened())
        self.settle(self.ours.entries)

    def settle(self, entries: list[JournalEntry]) -> None:
        """Compare what a process found with what must be there."""
        found = {entry.order.volume_name: entry for entry in entries}
        assert len(found) == len(entries), "an entry stands in two pages"
        for name in {*found, *self.known, *self.uncertain}:
            allowed = {self.known.get(name), *self.uncertain.get(name, ())}
            assert found.get(name) in allowed, f"{name}: {found.get(name)} instead of one of {allowed}"
        self.known, self.uncertain = found, {}

    async def record(self, entries: list[JournalEntry]) -> None:
        assert self.ours is not None
        for entry in entries:
            self.uncertain.setdefault(entry.order.volume_name, set()).add(entry)
        # A batch can be recorded in part: each page is a write of its own.
        records = map(self.ours.journal.record, entries)
        for entry, result in zip(entries, await asyncio.gather(*records, return_exceptions=True), strict=True):
            if result is None:
                self.known[entry.order.volume_name] = entry
                self.uncertain.pop(entry.order.volume_name, None)
            else:
                assert isinstance(result, ApiError)

    def forget(self, name: str) -> None:
        assert self.ours is not None
        if self.ours.journal.entry(name) is not None:
            self.ours.journal.forget(name)
            # Until it is written, the next process may still find it.
            self.uncertain.setdefault(name, set()).update({self.known.pop(name, None), None})

    async def wait(self) -> None:
        assert self.ours is not None
        await self.world.clock.sleep(5)
        stored = await self.world.stored()
        assert all(entry in stored for entry in self.known.values())
        if not self.uncertain:
            assert len(stored) == len(self.known)

    async def play(self, operation: tuple[object, ...]) -> None:
        world = self.world
        match operation:
            case ("record", list(chosen), bool(flag)):
                deadline = 1e9 + self.world.clock.elapsed()
                await self.record(
                    [large_entry(number, 100, deadline=deadline, is_being_deleted=flag) for number in chosen]
                )
            case ("forget", int(number)):
                self.forget(f"pvc-{number}")
            case ("wait",):
                await self.wait()
            case ("reopen",):
                await self.reopen(kill=True)
            case ("take over",):
                await self.take_over()
            case ("lost", str(method)):
                world.wire.before = world.losing_response(method)
            case ("refused",):
                world.wire.before = failing("PUT", "POST", "DELETE", answer=refusal(400, "BadRequest"))
            case ("touched",):
                await self.touch()

    async def touch(self) -> None:
        """Somebody else writes a label to each page."""
        for lease in await self.world.leases():
            version = objects.resource_version(lease)
            patch = MergePatch({"metadata": {"labels": {"touched": version}}})
            # The journal may have deleted a page that became empty since it was listed.
            with suppress(NotFound):
                await self.world.client.patch(LEASE, objects.name_of(lease), patch)

    async def take_over(self) -> None:
        """A second process opens the journal while the first lives; the first can record nothing any more."""
        former = self.ours
        assert former is not None
        self.world.wire.before = failing(times=0)
        await self.reopen(kill=False)
        try:
            await former.record(large_entry(9, 1))
        except JournalLost:
            return
        raise AssertionError("the former owner recorded an order")


@FEW
@given(some.lists(operations, max_size=14))
def test_what_was_recorded_and_not_forgotten_is_always_there(history: list[tuple[object, ...]]):
    async def main(_clock: VirtualClock) -> None:
        async with JournalWorld() as world, AsyncExitStack() as stack:
            played = History(world, stack)
            await played.reopen(kill=False)
            for operation in history:
                await played.play(operation)
            world.wire.before = failing(times=0)
            await played.wait()
            await played.reopen(kill=True)

    run_virtual(main)
