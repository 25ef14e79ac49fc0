"""A work queue of names: which names to reconcile, in which order, and when to retry them.

It carries names and never objects: the reconciler reads the state itself. A queue has one or more pools of workers. A
name is added to a pool and waits there once, however often it is added. Only one worker at a time has a name, **across
all pools**: while one pool works on it, another pool that also has it skips it and takes the next. So attaching never
waits behind detaching, and yet no object is attached and detached at the same time. (client-go's workqueue has one pool
and no groups; the rules below are otherwise the same.)

- Names may belong to groups (volumes to their node), between which workers are shared fairly: the group with the fewest
  workers is next; of several such groups, one whose last work was not slow. No group gets all free workers. So a node
  whose calls hang does not delay the others.
- A name added while a worker has it is worked on again afterwards: the worker may have read it before the change.
- A name is never lost: a delayed add stays, whatever else happens to the name. The earliest of several delays counts.
- After a failure `retry` adds a name again, after a delay that grows until its pool calls `forget`.
- After `shut_down` nothing more is added. Waiting names are still handed out, or dropped; delayed names are dropped.

Delayed names are added by `run`, which must be kept running. All methods are for the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, TypeVar

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.kube.queue.delayed_names import DelayedNames
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

Name = TypeVar("Name", bound=Hashable)

SLOW_SECONDS: Final = 2.0
MOST_SLOW: Final = 1_000
"""How many groups are remembered as slow: with more of them, the distinction no longer helps."""
FIRST_RANK: Final[tuple[float, bool]] = (0.0, False)
"""The rank of a group that has no worker and is not slow: no other group has a better one."""
LAST_RANK: Final[tuple[float, bool]] = (math.inf, True)


@dataclass(frozen=True, slots=True)
class FairShare(Generic[Name]):
    """Fair sharing of workers between groups of names.

    `of` returns the group of a name. A group may have at most `share` of the `workers` that no other group has.
    """

    of: Callable[[Name], Hashable] = lambda _name: None
    workers: int | None = None
    """The workers of a pool; None means no limit."""
    share: float = 1.0

    def most(self, others_at_work: int) -> float:
        """Return how many workers one group may have while other groups have `others_at_work`."""
        return math.inf if self.workers is None else max(1, int(self.share * (self.workers - others_at_work)))


@dataclass(eq=False, slots=True)
class _Pool(Generic[Name]):
    """The names of one pool, with the times since when they wait or run; `waiting` is in order of arrival."""

    name: str
    clock: Clock
    waiting: OrderedDict[Name, float] = field(default_factory=OrderedDict)
    running: dict[Name, float] = field(default_factory=dict)
    lines: OrderedDict[Hashable, OrderedDict[Name, None]] = field(default_factory=OrderedDict)
    """The waiting names by group; the group that was served longest ago is first."""
    group_of_running: dict[Name, Hashable] = field(default_factory=dict)
    at_work: Counter[Hashable] = field(default_factory=Counter)
    """The number of workers of each group."""
    slow: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    """Groups whose last finished work took SLOW_SECONDS or more."""
    takers: deque[asyncio.Future[None]] = field(default_factory=deque)
    failures: dict[Name, int] = field(default_factory=dict)

    def depth(self) -> float:
        return len(self.waiting)

    def oldest_seconds(self) -> float:
        return self.clock.elapsed() - next(iter(self.waiting.values())) if self.waiting else 0.0

    def unfinished_seconds(self) -> float:
        now = self.clock.elapsed()
        return sum(now - since for since in self.running.values())

    def longest_running_seconds(self) -> float:
        return self.clock.elapsed() - min(self.running.values()) if self.running else 0.0

    def join(self, name: Name, group: Hashable, since: float) -> None:
        self.waiting[name] = since
        self.lines.setdefault(group, OrderedDict())[name] = None

    def next_name(self, is_free: Callable[[Name], bool], most: Callable[[int], float]) -> tuple[Hashable, Name] | None:
        """Return the next group and name: from the group with the fewest workers, preferably one that is not slow.

        Return None if there is none. The scan skips only groups and names that have a worker or are slow, so it takes
        few more steps than there are workers.
        """
        best: tuple[Hashable, Name] | None = None
        rank = LAST_RANK
        for group, line in self.lines.items():
            at_work = self.at_work[group]
            own_rank = at_work, group in self.slow
            if own_rank < rank and at_work < most(len(self.running) - at_work):
                free = next((name for name in line if is_free(name)), None)
                if free is not None:
                    best, rank = (group, free), own_rank
            if rank == FIRST_RANK:
                break
        return best

    def begin(self, group: Hashable, name: Name, now: float) -> float:
        """Move a name from waiting to running; return since when it waited."""
        line = self.lines[group]
        del line[name]
        if line:
            # Move the group behind the others: otherwise, with one worker and short work, it would always be next.
            self.lines.move_to_end(group)
        else:
            del self.lines[group]
        self.running[name], self.group_of_running[name] = now, group
        self.at_work[group] += 1
        return self.waiting.pop(name)

    def end(self, name: Name) -> float:
        """Remove a name from running; return since when it ran."""
        group, since = self.group_of_running.pop(name), self.running.pop(name)
        self.at_work[group] -= 1
        if not self.at_work[group]:
            del self.at_work[group]
        self.slow.pop(group, None)
        if self.clock.elapsed() - since >= SLOW_SECONDS:
            self.slow[group] = None
            if len(self.slow) > MOST_SLOW:
                self.slow.popitem(last=False)
        return since

    def drop_all(self) -> None:
        self.waiting.clear()
        self.lines.clear()

    def wake_one(self) -> None:
        while self.takers:
            taker = self.takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    def wake_all(self) -> None:
        while self.takers:
            self.wake_one()


class Workqueue(Generic[Name]):
    """A queue with the given pools; a pool's name is the label `name` of its metrics."""

    def __init__(
        self,
        pools: Sequence[str],
        *,
        clock: Clock,
        random: Random,
        backoff: Backoff,
        metrics: WorkqueueMetrics,
        fair_share: FairShare[Name] | None = None,
    ) -> None:
        self._pools: dict[str, _Pool[Name]] = {name: _Pool(name, clock) for name in pools}
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._metrics = metrics
        self._fair_share: FairShare[Name] = fair_share or FairShare()
        self._worked_on_by: dict[Name, _Pool[Name]] = {}
        self._delayed: DelayedNames[tuple[str, Name]] = DelayedNames()
        self._delays_changed = asyncio.Event()
        self._closed = False
        for name, pool in self._pools.items():
            metrics.watch(name, pool)

    # ---- adding names --------------------------------------------------------------------------------------------

    def add(self, pool: str, name: Name) -> None:
        mine = self._pool(pool)
        if self._closed:
            return
        self._metrics.adds.inc(pool)
        if name in mine.waiting:
            return
        # Add it even while a worker has the name: that worker may have read the state before the change.
        mine.join(name, self._fair_share.of(name), self._clock.elapsed())
        # While a worker has the name, no other may take it, so waking one now would be useless. `done` wakes one.
        if name not in self._worked_on_by:
            mine.wake_one()

    def add_after(self, pool: str, name: Name, seconds: float) -> None:
        if not math.isfinite(seconds):
            raise ValueError(f"{name} cannot be added to {pool} after {seconds} seconds: the delay must be finite")
        self._pool(pool)
        if self._closed:
            return
        if seconds <= 0:
            self.add(pool, name)
            return
        self._delayed.add((pool, name), self._clock.elapsed() + seconds)
        # `run` may be waiting for a later instant: wake it, to wait for this one.
        self._delays_changed.set()

    # ---- for workers ---------------------------------------------------------------------------------------------

    async def take(self, pool: str) -> Name | None:
        """Wait for a name of the pool that no worker has. Return None once the queue is shut down and empty.

        The worker must call `done` with the name.
        """
        mine = self._pool(pool)
        while (name := self.take_now(pool)) is None:
            if self._closed and not mine.waiting:
                return None
            await self._wait_for_wake_up(mine)
        return name

    def take_now(self, pool: str) -> Name | None:
        """Take a name as `take` does, but return None if there is no name now."""
        mine = self._pool(pool)
        # `run` adds due names too, but may run only after this: take them now, so that none is late.
        self._add_due()
        chosen = mine.next_name(lambda name: name not in self._worked_on_by, self._fair_share.most)
        if chosen is None:
            return None
        group, name = chosen
        self._start(mine, group, name)
        return name

    def done(self, name: Name) -> None:
        """End the work on a name, whether it succeeded or not."""
        if name not in self._worked_on_by:
            raise ValueError(f"no worker has {name}, so its work cannot end")
        worked = self._worked_on_by.pop(name)
        self._metrics.worked.observe(self._clock.elapsed() - worked.end(name), worked.name)
        for pool in self._pools.values():
            # A pool in which this name waits may take it now. In the worker's own pool, a name of the same group may be
            # taken, because the group has one worker less.
            if name in pool.waiting or (pool is worked and pool.waiting):
                pool.wake_one()

    def retry(self, pool: str, name: Name) -> float:
        """Add the name again after a failure; return the delay, which grows with each failure in a row."""
        mine = self._pool(pool)
        failures = mine.failures[name] = mine.failures.get(name, 0) + 1
        delay = self._backoff.delay(failures, self._random)
        self._metrics.retries.inc(pool)
        self.add_after(pool, name, delay)
        return delay

    def forget(self, pool: str, name: Name) -> None:
        """Reset the count of failures after a success."""
        self._pool(pool).failures.pop(name, None)

    def failures(self, pool: str, name: Name) -> int:
        """Return how often in a row the work failed."""
        return self._pool(pool).failures.get(name, 0)

    # ---- running and stopping ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Add delayed names when they are due, until the queue is shut down."""
        while not self._closed:
            self._add_due()
            # There is no await between this and the wait below, so no add in between can be missed.
            self._delays_changed.clear()
            await self._wait_for_delays()

    def shut_down(self, *, drain: bool) -> None:
        """Refuse further adds. With `drain`, waiting names are still handed out; without, they are dropped."""
        self._closed = True
        self._delayed.clear()
        self._delays_changed.set()
        for pool in self._pools.values():
            if not drain:
                pool.drop_all()
            pool.wake_all()

    @property
    def is_shut_down(self) -> bool:
        return self._closed

    def depth(self, pool: str) -> int:
        """Return how many names wait for a worker, without delayed ones."""
        return len(self._pool(pool).waiting)

    def delayed(self) -> int:
        return len(self._delayed)

    def is_idle(self) -> bool:
        """Return whether no name waits or is worked on; some may be delayed."""
        return not self._worked_on_by and not any(pool.waiting for pool in self._pools.values())

    # ---- inside --------------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> _Pool[Name]:
        try:
            return self._pools[name]
        except KeyError:
            raise ValueError(f"this queue has no pool {name!r}; its pools are: {', '.join(self._pools)}") from None

    def _start(self, pool: _Pool[Name], group: Hashable, name: Name) -> None:
        now = self._clock.elapsed()
        self._metrics.waited.observe(now - pool.begin(group, name, now), pool.name)
        self._worked_on_by[name] = pool
        if self._closed and not pool.waiting:
            # This was the last name: wake the pool's other workers, which would wait for ever, so that they end.
            pool.wake_all()

    def _add_due(self) -> None:
        for pool, name in self._delayed.take_due(self._clock.elapsed()):
            self.add(pool, name)

    async def _wait_for_wake_up(self, pool: _Pool[Name]) -> None:
        taker = asyncio.get_running_loop().create_future()
        pool.takers.append(taker)
        try:
            await taker
        except BaseException:
            if taker in pool.takers:
                pool.takers.remove(taker)
            elif not taker.cancelled():
                # This worker was woken and then cancelled before it ran: wake another one, or the name would wait until
                # the next add.
                pool.wake_one()
            raise

    async def _wait_for_delays(self) -> None:
        instant = self._delayed.next_instant()
        if instant is None:
            await self._delays_changed.wait()
            return
        try:
            async with self._clock.timeout(max(0.0, instant - self._clock.elapsed())):
                await self._delays_changed.wait()
        except TimeoutError:
            return
