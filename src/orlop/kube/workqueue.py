"""Which names are to be worked on, by whom, and when again. It carries names and never objects: state is re-read.

One queue has one or more pools. A name is added to a pool and waits there once, however often it is added. It is worked
on by one worker at a time **across all pools**: while one pool works on it, another that has it too passes it over and
takes the next. So attaching never waits behind detaching, and yet no object is attached and detached at once.

- Where names belong to crowds (volumes to their nodes), whichever has the fewest at work is next, of several one whose
  work did not take long the last time; and no crowd takes all the workers that are left. So a few whose work hangs hold
  up no other, and however many hold up another no longer than until one of them gives up.
- A name added while it is worked on is worked on again afterwards: what the worker read may be older than the reason.
- A name is never lost: a delayed add stays whatever else happens to the name. The earliest of several counts.
- After a failure a name comes back later and later (`retry`), until its pool calls `forget`.
- After `shut_down` nothing more is added. What waits is still handed out, or dropped; what was delayed is dropped.

Delayed names are handed over by `run`, which somebody must keep running. It is for the tasks of one event loop.
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
from orlop.kube.delayed_names import DelayedNames
from orlop.kube.workqueue_metrics import WorkqueueMetrics

Name = TypeVar("Name", bound=Hashable)

SLOW_SECONDS: Final = 2.0
MOST_SLOW: Final = 1_000
"""Crowds that are remembered as slow: more of them are as good as none."""
FIRST_RANK: Final[tuple[float, bool]] = (0.0, False)
"""Nothing at work, and not slow: nobody is before it."""
LAST_RANK: Final[tuple[float, bool]] = (math.inf, True)


@dataclass(frozen=True, slots=True)
class Crowds(Generic[Name]):
    """What names belong to, and how large a part one crowd may have of those workers of a pool that no other has."""

    of: Callable[[Name], Hashable] = lambda _name: None
    workers: int | None = None
    """None: as many as come."""
    share: float = 1.0

    def most(self, others_at_work: int) -> float:
        return math.inf if self.workers is None else max(1, int(self.share * (self.workers - others_at_work)))


@dataclass(eq=False, slots=True)
class _Pool(Generic[Name]):
    """`waiting` and `running` say since when; the order of `waiting` is that of the turns."""

    name: str
    clock: Clock
    waiting: OrderedDict[Name, float] = field(default_factory=OrderedDict)
    running: dict[Name, float] = field(default_factory=dict)
    lines: OrderedDict[Hashable, OrderedDict[Name, None]] = field(default_factory=OrderedDict)
    """Those that wait, by their crowd; the order of the crowds is that of their turns."""
    crowd_of_running: dict[Name, Hashable] = field(default_factory=dict)
    at_work: Counter[Hashable] = field(default_factory=Counter)
    """By crowd: how many are worked on."""
    slow: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    """Crowds whose work took long the last time that some ended."""
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

    def join(self, name: Name, crowd: Hashable, since: float) -> None:
        self.waiting[name] = since
        self.lines.setdefault(crowd, OrderedDict())[name] = None

    def next_of(self, is_free: Callable[[Name], bool], most: Callable[[int], float]) -> tuple[Hashable, Name] | None:
        """The first that may be worked on of the crowd with the fewest at work; of several, of one that is not slow.

        Crowds and names that are passed over are being worked on, or slow: there are not many more than workers.
        """
        best: tuple[Hashable, Name] | None = None
        rank = LAST_RANK
        for crowd, line in self.lines.items():
            at_work = self.at_work[crowd]
            mine = at_work, crowd in self.slow
            if mine < rank and at_work < most(len(self.running) - at_work):
                found = next((name for name in line if is_free(name)), None)
                if found is not None:
                    best, rank = (crowd, found), mine
            if rank == FIRST_RANK:
                break
        return best

    def begin(self, crowd: Hashable, name: Name, now: float) -> float:
        """Since when it waited."""
        line = self.lines[crowd]
        del line[name]
        if line:
            self.lines.move_to_end(crowd)
        else:
            del self.lines[crowd]
        self.running[name], self.crowd_of_running[name] = now, crowd
        self.at_work[crowd] += 1
        return self.waiting.pop(name)

    def end(self, name: Name) -> float:
        """Since when it was worked on."""
        crowd, since = self.crowd_of_running.pop(name), self.running.pop(name)
        self.at_work[crowd] -= 1
        if not self.at_work[crowd]:
            del self.at_work[crowd]
        self._note_how_long(crowd, self.clock.elapsed() - since)
        return since

    def _note_how_long(self, crowd: Hashable, seconds: float) -> None:
        self.slow.pop(crowd, None)
        if seconds >= SLOW_SECONDS:
            self.slow[crowd] = None
            if len(self.slow) > MOST_SLOW:
                self.slow.popitem(last=False)

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
    """The name of a pool is the label `name` of its metrics."""

    def __init__(
        self,
        pools: Sequence[str],
        *,
        clock: Clock,
        random: Random,
        backoff: Backoff,
        metrics: WorkqueueMetrics,
        crowds: Crowds[Name] | None = None,
    ) -> None:
        self._pools: dict[str, _Pool[Name]] = {name: _Pool(name, clock) for name in pools}
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._metrics = metrics
        self._crowds: Crowds[Name] = crowds or Crowds()
        self._worked_on_by: dict[Name, _Pool[Name]] = {}
        self._delayed: DelayedNames[tuple[str, Name]] = DelayedNames()
        self._delays_changed = asyncio.Event()
        self._closed = False
        for name, pool in self._pools.items():
            metrics.watch(name, pool)

    # ---- for those who want something done -----------------------------------------------------------------------

    def add(self, pool: str, name: Name) -> None:
        mine = self._pool(pool)
        if self._closed:
            return
        self._metrics.adds.inc(pool)
        if name in mine.waiting:
            return
        mine.join(name, self._crowds.of(name), self._clock.elapsed())
        if name not in self._worked_on_by:
            mine.wake_one()

    def add_after(self, pool: str, name: Name, seconds: float) -> None:
        if not math.isfinite(seconds):
            raise ValueError(f"{name} cannot be added to {pool} after {seconds} seconds: that time never comes")
        self._pool(pool)
        if self._closed:
            return
        if seconds <= 0:
            self.add(pool, name)
            return
        self._delayed.add((pool, name), self._clock.elapsed() + seconds)
        self._delays_changed.set()

    # ---- for workers ---------------------------------------------------------------------------------------------

    async def take(self, pool: str) -> Name | None:
        """Waits for a name of the pool that nobody works on; None when the queue is shut down and no more will come.

        Whoever got a name must give it back with `done`.
        """
        mine = self._pool(pool)
        while (name := self.take_now(pool)) is None:
            if self._closed and not mine.waiting:
                return None
            await self._wait_for_turn(mine)
        return name

    def take_now(self, pool: str) -> Name | None:
        """As `take`, but None when there is nothing to do right now."""
        mine = self._pool(pool)
        self._hand_over_due()
        found = mine.next_of(lambda name: name not in self._worked_on_by, self._crowds.most)
        if found is None:
            return None
        crowd, name = found
        self._start(mine, crowd, name)
        return name

    def done(self, name: Name) -> None:
        """The work on the name has ended, well or not."""
        if name not in self._worked_on_by:
            raise ValueError(f"nobody works on {name}, so the work on it cannot end")
        worked = self._worked_on_by.pop(name)
        self._metrics.worked.observe(self._clock.elapsed() - worked.end(name), worked.name)
        for pool in self._pools.values():
            # Of the pool itself another of the same crowd may go now.
            if name in pool.waiting or (pool is worked and pool.waiting):
                pool.wake_one()

    def retry(self, pool: str, name: Name) -> float:
        """The work on it failed: it comes back after so many seconds, which grow with each failure in a row."""
        mine = self._pool(pool)
        failures = mine.failures[name] = mine.failures.get(name, 0) + 1
        delay = self._backoff.delay(failures, self._random)
        self._metrics.retries.inc(pool)
        self.add_after(pool, name, delay)
        return delay

    def forget(self, pool: str, name: Name) -> None:
        """The work on it succeeded: the next failure is the first one again."""
        self._pool(pool).failures.pop(name, None)

    def failures(self, pool: str, name: Name) -> int:
        """How often in a row the work failed."""
        return self._pool(pool).failures.get(name, 0)

    # ---- its life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hands over delayed names when they are due, until the queue is shut down."""
        while not self._closed:
            self._hand_over_due()
            self._delays_changed.clear()
            await self._wait_for_delays()

    def shut_down(self, *, drain: bool) -> None:
        """Nothing is added any more. What waits is handed out first if it is to drain, else dropped."""
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
        """How many names wait for a worker; those that are delayed do not."""
        return len(self._pool(pool).waiting)

    def delayed(self) -> int:
        return len(self._delayed)

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is worked on; something may be delayed."""
        return not self._worked_on_by and not any(pool.waiting for pool in self._pools.values())

    # ---- inside --------------------------------------------------------------------------------------------------

    def _pool(self, name: str) -> _Pool[Name]:
        try:
            return self._pools[name]
        except KeyError:
            raise ValueError(f"this queue has no pool {name!r}, only {', '.join(self._pools)}") from None

    def _start(self, pool: _Pool[Name], crowd: Hashable, name: Name) -> None:
        now = self._clock.elapsed()
        self._metrics.waited.observe(now - pool.begin(crowd, name, now), pool.name)
        self._worked_on_by[name] = pool
        if self._closed and not pool.waiting:
            pool.wake_all()  # nothing is left for the others who drain this pool

    def _hand_over_due(self) -> None:
        for pool, name in self._delayed.take_due(self._clock.elapsed()):
            self.add(pool, name)

    async def _wait_for_turn(self, pool: _Pool[Name]) -> None:
        taker = asyncio.get_running_loop().create_future()
        pool.takers.append(taker)
        try:
            await taker
        except BaseException:
            if taker in pool.takers:
                pool.takers.remove(taker)
            elif not taker.cancelled():
                pool.wake_one()  # woken and cancelled at once: somebody else must look
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
