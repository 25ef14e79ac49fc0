"""A loop that nothing ends but its stop, the process or a cancellation; failures are logged once and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orlop.foundation.structured_log import Level, LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube import api_errors
from orlop.kube.queue.reconcile_loop import Done, Failed, ReconcileLoop, RetryAfter, StrayCancellation, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.testing.kill_points import Killed
from orlop.testing.virtual_clock import VirtualClock
from support.queues import queue_of

pytestmark = pytest.mark.virtual_time


class Bench:
    """A queue, a log, and what was worked on when."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.queue: Workqueue[str] = queue_of("work", "other")
        self.entries: list[LogEntry] = []
        self.turns: list[tuple[str, float]] = []
        self.loop: ReconcileLoop[str] | None = None

    def note(self, name: str) -> None:
        self.turns.append((name, self.clock.elapsed()))

    def build(self, *pools: WorkerPool[str]) -> ReconcileLoop[str]:
        self.loop = ReconcileLoop(self.queue, pools, clock=self.clock, log=collecting_log(self.entries))
        return self.loop

    @asynccontextmanager
    async def running(self, reconcile: Callable[[str], Any], workers: int = 1):
        loop = self.build(WorkerPool("work", workers, reconcile))
        async with TaskGroup() as tasks:
            tasks.start(loop.run(), name="loop")
            yield
            loop.stop()


async def test_a_name_is_reconciled_and_not_again_until_it_is_added_again():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        bench.note(name)
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(100)
        bench.queue.add("work", "a")
        await bench.clock.sleep(100)
    assert bench.turns == [("a", 0), ("a", 100)]
    assert bench.entries == []


async def test_a_name_comes_back_when_it_asked_to():
    bench = Bench()

    async def reconcile(name: str) -> Done | RetryAfter:
        bench.note(name)
        return RetryAfter(30) if len(bench.turns) < 3 else Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(1000)
    assert bench.turns == [("a", 0), ("a", 30), ("a", 60)]
    assert bench.queue.failures("work", "a") == 0


async def test_a_failure_is_logged_once_and_tried_again_later_and_later_until_it_succeeds():
    bench = Bench()

    async def reconcile(name: str) -> Done | Failed:
        bench.note(name)
        if len(bench.turns) == 1:
            return Failed(ValueError("the disk is full"))
        if len(bench.turns) == 2:
            raise RuntimeError("a bug")
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(100)
        assert bench.queue.failures("work", "a") == 0
    assert bench.turns == [("a", 0), ("a", 1), ("a", 3)]
    returned, raised = bench.entries
    assert (returned.level, returned.message) == (Level.WARNING, "reconciliation failed")
    assert str(returned.fields["error"]) == "the disk is full"
    assert "traceback" not in returned.fields
    assert (raised.level, raised.message) == (Level.ERROR, "reconciliation failed")
    assert "RuntimeError: a bug" in str(raised.fields["traceback"])
    for entry, failures, delay in ((returned, 1, 1.0), (raised, 2, 2.0)):
        told = {key: entry.fields[key] for key in ("pool", "name", "failures", "retry_after_seconds")}
        assert told == {"pool": "work", "name": "a", "failures": failures, "retry_after_seconds": delay}


QUIET = [
    (api_errors.Conflict("changed", code=409), Level.INFO, "object changed during reconciliation"),
    (api_errors.PatchRefused("changed", code=422), Level.INFO, "object changed during reconciliation"),
    (api_errors.NotFound("gone", code=404), Level.WARNING, "reconciliation failed"),
    (api_errors.ConnectionBroken("cut"), Level.WARNING, "reconciliation failed"),
]


@pytest.mark.parametrize(("error", "level", "message"), QUIET, ids=[type(error).__name__ for error, _, _ in QUIET])
async def test_what_the_api_server_says_needs_no_traceback(error: Exception, level: Level, message: str):
    bench = Bench()

    async def reconcile(name: str) -> Done:
        bench.note(name)
        if len(bench.turns) == 1:
            raise error
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(100)
    assert [(entry.level, entry.message) for entry in bench.entries] == [(level, message)]
    assert "traceback" not in bench.entries[0].fields
    assert len(bench.turns) == 2


async def test_a_name_that_asks_to_come_back_has_not_failed():
    bench = Bench()
    outcomes = [Failed(ValueError("1")), Failed(ValueError("2")), RetryAfter(5), Failed(ValueError("3")), Done()]

    async def reconcile(name: str) -> Any:
        bench.note(name)
        return outcomes[len(bench.turns) - 1]

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(100)
    assert [instant for _, instant in bench.turns] == [0, 1, 1 + 2, 3 + 5, 8 + 1]


async def test_a_name_that_fails_for_ever_keeps_nobody_from_the_others():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        if name == "bad":
            raise RuntimeError("always")
        bench.note(name)
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "bad")
        for number in range(5):
            bench.queue.add("work", str(number))
            await bench.clock.sleep(1)
    assert bench.turns == [(str(number), number) for number in range(5)]


@pytest.mark.parametrize("wrong", [None, "done", Done])
async def test_a_reconciliation_that_gives_no_outcome_has_failed(wrong: Any):
    bench = Bench()

    async def reconcile(name: str) -> Any:
        bench.note(name)
        return wrong if len(bench.turns) == 1 else Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(10)
    assert "instead of Done, RetryAfter or Failed" in str(bench.entries[0].fields["error"])
    assert len(bench.turns) == 2


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
async def test_a_time_that_never_comes_is_a_failure_and_not_the_end(seconds: float):
    bench = Bench()

    async def reconcile(name: str) -> Done | RetryAfter:
        bench.note(name)
        return RetryAfter(seconds) if len(bench.turns) == 1 else Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(10)
    assert "cannot be retried after" in str(bench.entries[0].fields["error"])
    assert len(bench.turns) == 2


# ---- pools -----------------------------------------------------------------------------------------------------------


async def test_a_pool_has_as_many_workers_as_it_was_given():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        await bench.clock.sleep(10)
        bench.note(name)
        return Done()

    async with bench.running(reconcile, workers=3):
        for name in "abcdefg":
            bench.queue.add("work", name)
        await bench.clock.sleep(100)
    assert [when for _, when in bench.turns] == [10, 10, 10, 20, 20, 20, 30]


async def test_the_work_of_one_pool_never_waits_behind_that_of_another():
    bench = Bench()

    async def slow(name: str) -> Done:
        await bench.clock.sleep(1000)
        return Done()

    async def quick(name: str) -> Done:
        bench.note(name)
        return Done()

    loop = bench.build(WorkerPool("work", 2, quick), WorkerPool("other", 2, slow))
    async with TaskGroup() as tasks:
        tasks.start(loop.run(), name="loop")
        for number in range(50):
            bench.queue.add("other", f"slow {number}")
        await bench.clock.sleep(5)
        bench.queue.add("work", "quick")
        bench.queue.add("work", "slow 0")
        await bench.clock.sleep(5)
        assert bench.turns == [("quick", 5)]
        await bench.clock.sleep(1000)
        assert bench.turns == [("quick", 5), ("slow 0", 1000)]
        loop.stop()


def test_a_pool_without_workers_is_refused():
    with pytest.raises(ValueError, match="needs at least one worker"):
        WorkerPool("work", 0, lambda _: None)  # type: ignore[arg-type,return-value]


async def test_a_loop_with_much_to_do_and_nothing_to_wait_for_lets_others_run():
    bench = Bench()
    seen_by_others = 0

    async def reconcile(name: str) -> Done:
        bench.note(name)
        return Done()

    async with bench.running(reconcile):
        for number in range(100):
            bench.queue.add("work", str(number))
        while len(bench.turns) < 100:
            seen_by_others += 1
            await bench.clock.sleep(0)
    assert seen_by_others > 50


# ---- the end ---------------------------------------------------------------------------------------------------------


async def test_stopping_finishes_what_runs_and_begins_nothing_else():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        await bench.clock.sleep(10)
        bench.note(name)
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        bench.queue.add("work", "b")
        await bench.clock.sleep(5)
    assert bench.turns == [("a", 10)]
    assert bench.clock.elapsed() == 10


async def test_stopping_can_finish_all_that_waits_first():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        await bench.clock.sleep(10)
        bench.note(name)
        return Done()

    loop = bench.build(WorkerPool("work", 1, reconcile))
    for name in "abc":
        bench.queue.add("work", name)
    loop.stop(drain=True)
    await loop.run()
    assert [name for name, _ in bench.turns] == ["a", "b", "c"]


async def test_what_ends_the_process_ends_the_loop_and_is_not_taken_for_a_failure():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        if name == "b":
            raise Killed
        await bench.clock.sleep(1000)
        return Done()

    loop = bench.build(WorkerPool("work", 2, reconcile))
    bench.queue.add("work", "a")
    bench.queue.add("work", "b")
    with pytest.raises(Killed):
        await loop.run()
    assert bench.entries == []
    assert bench.queue.is_shut_down
    assert bench.clock.elapsed() == 0


async def test_a_cancellation_from_outside_ends_the_loop_at_once():
    bench = Bench()
    ended: list[str] = []

    async def reconcile(name: str) -> Done:
        try:
            await bench.clock.sleep(1000)
        finally:
            ended.append(name)
        return Done()

    running = asyncio.create_task(bench.build(WorkerPool("work", 2, reconcile)).run())
    bench.queue.add("work", "a")
    await bench.clock.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["a"]
    assert bench.queue.is_idle()


async def test_a_reconciliation_that_swallows_its_cancellation_does_not_keep_the_loop_alive():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        try:
            await bench.clock.sleep(1000)
        except asyncio.CancelledError:
            bench.note("swallowed")
        return Done()

    running = asyncio.create_task(bench.build(WorkerPool("work", 1, reconcile)).run())
    bench.queue.add("work", "a")
    await bench.clock.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.turns == [("swallowed", 1)]


async def test_something_cancelled_inside_a_reconciliation_costs_no_worker():
    bench = Bench()

    async def reconcile(name: str) -> Done:
        bench.note(name)
        if len(bench.turns) == 1:
            inner = asyncio.create_task(bench.clock.sleep(10))
            inner.cancel()
            await inner
        return Done()

    async with bench.running(reconcile):
        bench.queue.add("work", "a")
        await bench.clock.sleep(10)
        bench.queue.add("work", "b")
        await bench.clock.sleep(10)
    assert bench.turns == [("a", 0), ("a", 1), ("b", 10)]
    assert isinstance(bench.entries[0].fields["error"], StrayCancellation)
