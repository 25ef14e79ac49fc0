"""The `Clock` interface, and `SystemClock`, which reads this machine's clock.

Two times are kept apart. `now()` is the wall clock: it is written into records and shown to users, and may jump when it
is set. `elapsed()` only grows, and includes the time the machine was suspended: waits are measured by it.

No other module reads the time or sleeps.
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

# The event loop's timers stop while the machine is suspended. No sleep is longer than this without reading the clock,
# so a sleep that should have ended during a suspension ends at most this much later.
LONGEST_NAP_SECONDS = 30.0


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the wall-clock time, as an aware datetime in UTC."""

    def elapsed(self) -> float:
        """Return seconds since some fixed moment; never goes back, whatever happens to the wall clock."""

    async def sleep(self, seconds: float) -> None:
        """Sleep; let other tasks run at least once even for 0 seconds."""

    async def sleep_until(self, elapsed_instant: float) -> None:
        """Sleep until `elapsed()` has reached the instant, never less."""

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline `seconds` from now."""

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Cancel the block after `seconds` and raise `TimeoutError` instead."""


@dataclass(frozen=True)
class Deadline:
    """An instant of `clock.elapsed()`."""

    clock: Clock
    instant: float

    def remaining(self) -> float:
        return max(0.0, self.instant - self.clock.elapsed())

    def passed(self) -> bool:
        return self.clock.elapsed() >= self.instant


async def wait_until_set(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(seconds):
            await event.wait()


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
        while (left := elapsed_instant - self.elapsed()) > 0:  # noqa: ASYNC110 - no event reports a suspension
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
    """Expire an asyncio timeout when a deadline has passed, checking the clock at least every nap."""

    def __init__(self, deadline: Deadline, scope: asyncio.Timeout) -> None:
        self._deadline = deadline
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._check()

    def _check(self) -> None:
        if self._deadline.passed():
            self._scope.reschedule(self._loop.time())
        else:
            nap = min(self._deadline.remaining(), LONGEST_NAP_SECONDS)
            self._timer = self._loop.call_later(nap, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
