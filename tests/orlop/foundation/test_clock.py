"""What only the real clock has to cope with: a machine that is suspended and a wall clock that is set."""

from __future__ import annotations

import asyncio
import time
from dataclasses import FrozenInstanceError

import pytest

from orlop.foundation.clock import LONGEST_NAP_SECONDS, Deadline, SystemClock

HOUR = 3600.0


class SuspendableClock(SystemClock):
    """Real code, on a loop whose timers know nothing of the time during which the machine was suspended."""

    def __init__(self) -> None:
        self.suspended = 0.0

    def elapsed(self) -> float:
        return asyncio.get_running_loop().time() + self.suspended

    def suspend_after(self, delay: float, seconds: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._suspend, seconds)

    def _suspend(self, seconds: float) -> None:
        self.suspended += seconds


@pytest.mark.virtual_time
async def test_a_sleep_that_ended_while_the_machine_was_suspended_ends_within_one_nap():
    clock = SuspendableClock()
    clock.suspend_after(100, seconds=12 * HOUR)
    await clock.sleep(8 * HOUR)
    assert asyncio.get_running_loop().time() <= 100 + LONGEST_NAP_SECONDS


@pytest.mark.virtual_time
async def test_the_time_suspended_is_taken_off_a_sleep_that_goes_on():
    clock = SuspendableClock()
    clock.suspend_after(100, seconds=HOUR)
    await clock.sleep(3 * HOUR)
    assert asyncio.get_running_loop().time() == 2 * HOUR


@pytest.mark.virtual_time
async def test_a_timeout_that_passed_while_the_machine_was_suspended_fires_within_one_nap():
    clock = SuspendableClock()
    clock.suspend_after(100, seconds=12 * HOUR)
    with pytest.raises(TimeoutError):
        async with clock.timeout(8 * HOUR):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() <= 100 + LONGEST_NAP_SECONDS


@pytest.mark.virtual_time
async def test_a_timeout_that_is_over_leaves_no_timer_behind():
    clock = SuspendableClock()
    async with clock.timeout(8 * HOUR):
        await asyncio.sleep(100)
    assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)


def test_elapsed_time_counts_suspension_and_not_the_wall():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    elapsed = SystemClock().elapsed()
    assert before <= elapsed <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_deadline_cannot_be_moved():
    deadline = Deadline(SystemClock(), 5.0)
    with pytest.raises(FrozenInstanceError):
        deadline.instant = 6.0  # type: ignore[misc]
