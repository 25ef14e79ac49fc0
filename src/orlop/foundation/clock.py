"""Time as Orlop sees it: the `Clock` everything is given, and `SystemClock`, which reads this machine's.

Two times are kept apart. `now()` is the wall's: it is written into records and shown to people, and may jump when
somebody sets it. `elapsed()` only ever grows and counts the time a machine was suspended: waiting is measured by it.

Nobody else reads the time or sleeps; nothing here decides what to do when time is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# The event loop's timers stand still while the machine is suspended. Nobody sleeps longer than this without looking
# at the clock, so that a sleep that ended during the suspension is over at most so much later.
LONGEST_NAP_SECONDS = 30.0


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall's time, in UTC and aware of it."""

    def elapsed(self) -> float:
        """Seconds since some fixed moment; never goes back, whatever happens to the wall clock."""

    async def sleep(self, seconds: float) -> None:
        """Lets others run at least once, also when there is nothing to wait for."""

    async def sleep_until(self, elapsed_instant: float) -> None:
        """Returns when `elapsed()` has reached the instant, and never before."""

    def deadline(self, seconds: float) -> Deadline:
        """The moment so many seconds from now."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Cancels what is inside after so many seconds and raises `TimeoutError` in its place."""


@dataclass(frozen=True)
class Deadline:
    """A moment of `clock.elapsed()`."""

    clock: Clock
    instant: float

    def remaining(self) -> float:
        return max(0.0, self.instant - self.clock.elapsed())

    def passed(self) -> bool:
        return self.clock.elapsed() >= self.instant


class SystemClock:
    """The clock of this machine, for any event loop."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.elapsed() + seconds)

    async def sleep_until(self, elapsed_instant: float) -> None:
        await asyncio.sleep(0)
        while (left := elapsed_instant - self.elapsed()) > 0:  # noqa: ASYNC110 - no event tells of a suspension
            await asyncio.sleep(min(left, LONGEST_NAP_SECONDS))

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(self, self.elapsed() + seconds)

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as scope:
            watch = _DeadlineWatch(self.deadline(seconds), scope)
            try:
                yield
            finally:
                watch.stop()


class _DeadlineWatch:
    """Ends an asyncio timeout when a deadline has passed, looking at the clock at least every nap."""

    def __init__(self, deadline: Deadline, scope: asyncio.Timeout) -> None:
        self._deadline = deadline
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def _look(self) -> None:
        if self._deadline.passed():
            self._scope.reschedule(self._loop.time())
        else:
            nap = min(self._deadline.remaining(), LONGEST_NAP_SECONDS)
            self._timer = self._loop.call_later(nap, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
