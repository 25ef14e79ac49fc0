"""The queue against a plain model, and against workers that come, go and fail in any order on virtual time."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orlop.foundation.structured_log import silent_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.queue.reconcile_loop import Done, Failed, ReconcileLoop, RetryAfter, WorkerPool
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.hand_clock import HandClock
from support.queues import BACKOFF, queue_of
from support.random_tests import FEWER

POOLS = ("attach", "detach")
NAMES = st.sampled_from("abcd")
A_POOL = st.sampled_from(POOLS)


class Model:
    """The rules of the queue in the simplest words."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: dict[str, list[str]] = {pool: [] for pool in POOLS}
        self.worked_on: dict[str, str] = {}
        self.delayed: dict[tuple[str, str], float] = {}
        self.failures: Counter[tuple[str, str]] = Counter()
        self.closed = False

    def add(self, pool: str, name: str) -> None:
        if not self.closed and name not in self.waiting[pool]:
            self.waiting[pool].append(name)

    def add_after(self, pool: str, name: str, seconds: float) -> None:
        if seconds <= 0:
            self.add(pool, name)
        elif not self.closed:
            due = self.now + seconds
            if self.delayed.get((pool, name), due + 1) > due:
                self.delayed.pop((pool, name), None)  # so that its place is that of its last change
                self.delayed[pool, name] = due

    def take(self, pool: str) -> str | None:
        for key, due in sorted(self.delayed.items(), key=lambda item: item[1]):
            if due <= self.now:
                del self.delayed[key]
                self.add(*key)
        free = [name for name in self.waiting[pool] if name not in self.worked_on]
        if free:
            self.waiting[pool].remove(free[0])
            self.worked_on[free[0]] = pool
        return free[0] if free else None

    def retry(self, pool: str, name: str) -> None:
        self.failures[pool, name] += 1
        self.add_after(pool, name, BACKOFF.delay(self.failures[pool, name], Random(0)))

    def shut_down(self, *, drain: bool) -> None:
        self.closed = True
        self.delayed.clear()
        if not drain:
            self.waiting = {pool: [] for pool in POOLS}


class QueueAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.queue = queue_of(*POOLS, clock=self.clock)
        self.model = Model()

    @rule(pool=A_POOL, name=NAMES)
    def add(self, pool: str, name: str) -> None:
        self.queue.add(pool, name)
        self.model.add(pool, name)

    @rule(pool=A_POOL, name=NAMES, seconds=st.integers(-1, 5))
    def add_after(self, pool: str, name: str, seconds: int) -> None:
        self.queue.add_after(pool, name, seconds)
        self.model.add_after(pool, name, seconds)

    @rule(seconds=st.integers(1, 5))
    def time_passes(self, seconds: int) -> None:
        self.clock.time += seconds
        self.model.now += seconds

    @rule(pool=A_POOL)
    def take(self, pool: str) -> None:
        assert self.queue.take_now(pool) == self.model.take(pool)

    @precondition(lambda self: self.model.worked_on)
    @rule(data=st.data(), failed=st.booleans())
    def end_work(self, data: st.DataObject, failed: bool) -> None:  # noqa: FBT001 - drawn
        name = data.draw(st.sampled_from(sorted(self.model.worked_on)))
        pool = self.model.worked_on[name]
        if failed:
            self.queue.retry(pool, name)
            self.model.retry(pool, name)
        else:
            self.queue.forget(pool, name)
            del self.model.failures[pool, name]
        self.queue.done(name)
        del self.model.worked_on[name]

    @rule(drain=st.booleans(), really=st.sampled_from([False] * 9 + [True]))
    def shut_down(self, drain: bool, really: bool) -> None:  # noqa: FBT001 - drawn
        if really:
            self.queue.shut_down(drain=drain)
            self.model.shut_down(drain=drain)

    @invariant()
    def the_same_is_waiting_delayed_and_counted(self) -> None:
        model, queue = self.model, self.queue
        for pool in POOLS:
            assert queue.depth(pool) == len(model.waiting[pool])
            assert all(queue.failures(pool, name) == model.failures[pool, name] for name in "abcd")
        assert queue.delayed() == len(model.delayed)
        assert queue.is_idle() == (not model.worked_on and not any(model.waiting.values()))


TestQueueAgainstModel = pytest.mark.timeout(600)(QueueAgainstModel.TestCase)  # in a soak
TestQueueAgainstModel.settings = FEWER


# ---- with workers ----------------------------------------------------------------------------------------------------


class World:
    """What must be: each name has a version that adds raise, and a reconciliation catches up with what it read."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.wanted: Counter[tuple[str, str]] = Counter()
        self.reached: Counter[tuple[str, str]] = Counter()
        self.busy: set[str] = set()
        self.queue = queue_of(*POOLS)

    def want(self, pool: str, name: str, seconds: float) -> None:
        self.wanted[pool, name] += 1
        self.queue.add_after(pool, name, seconds)

    def reconcile(self, pool: str) -> Any:
        async def one(name: str) -> Done | RetryAfter | Failed:
            assert name not in self.busy, f"{name} is worked on twice at once"
            self.busy.add(name)
            seen = self.wanted[pool, name]
            await self.clock.sleep(self.random.choice([0, 0, 1, 10]))
            self.busy.discard(name)
            match self.random.randrange(6):
                case 0:
                    return Failed(RuntimeError("bad luck"))
                case 1:
                    raise RuntimeError("worse luck")
                case 2:
                    return RetryAfter(self.random.choice([0, 3]))
                case _:
                    self.reached[pool, name] = seen
                    return Done()

        return one


@FEWER
@given(
    seed=st.integers(0, 2**32),
    wishes=st.lists(st.tuples(st.integers(0, 5), A_POOL, NAMES, st.integers(0, 20)), max_size=30),
    workers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_no_wish_is_lost_and_no_name_is_worked_on_twice_at_once(seed, wishes, workers):
    async def life(clock: VirtualClock) -> None:
        world = World(clock, seed)
        pools = [WorkerPool(pool, count, world.reconcile(pool)) for pool, count in zip(POOLS, workers, strict=True)]
        loop = ReconcileLoop(world.queue, pools, clock=clock, log=silent_log())
        async with TaskGroup() as tasks:
            tasks.start(loop.run(), name="loop")
            for pause, pool, name, delay in wishes:
                await clock.sleep(pause)
                world.want(pool, name, delay)
            while world.queue.delayed() or not world.queue.is_idle():
                await clock.sleep(1)
            loop.stop()
        assert world.reached == world.wanted
        assert not world.busy

    run_virtual(life)
