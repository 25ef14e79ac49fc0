"""What every clock promises, asked of the real one on the loop our processes use, and of the virtual one.

The real one naps for milliseconds; nothing is said of how much later it may wake, for that is the machine's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta

import pytest
import uvloop

from orlop.foundation.clock import Clock, SystemClock
from orlop.testing.virtual_clock import run_virtual

Main = Callable[[Clock], Awaitable[None]]
Run = Callable[[Main], None]
NAP = 0.003


def run_in_real_time(main: Main) -> None:
    async def run() -> None:
        await main(SystemClock())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.fixture(params=[run_in_real_time, run_virtual], ids=["system", "virtual"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


def test_the_wall_time_is_aware_and_in_utc(run: Run):
    async def main(clock: Clock) -> None:
        assert clock.now().tzinfo is UTC

    run(main)


def test_a_sleep_is_never_shorter_than_asked_for(run: Run):
    async def main(clock: Clock) -> None:
        began, wall = clock.elapsed(), clock.now()
        await clock.sleep(NAP)
        assert clock.elapsed() >= began + NAP
        assert clock.now() > wall - timedelta(hours=1)

    run(main)


def test_sleeping_until_an_instant_reaches_it(run: Run):
    async def main(clock: Clock) -> None:
        instant = clock.elapsed() + NAP
        await clock.sleep_until(instant)
        assert clock.elapsed() >= instant

    run(main)


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_a_sleep_with_nothing_to_wait_for_still_lets_others_run(run: Run, seconds: float):
    async def main(clock: Clock) -> None:
        other = asyncio.create_task(asyncio.sleep(0, "ran"))
        for _ in range(2):
            await clock.sleep(seconds)
        assert other.done()

    run(main)


def test_a_deadline_counts_down_to_zero_and_no_further(run: Run):
    async def main(clock: Clock) -> None:
        deadline = clock.deadline(NAP)
        assert deadline.remaining() <= NAP
        await clock.sleep_until(deadline.instant)
        assert deadline.passed()
        assert deadline.remaining() == 0
        await clock.sleep(NAP)
        assert deadline.remaining() == 0

    run(main)


def test_a_far_deadline_has_not_passed(run: Run):
    async def main(clock: Clock) -> None:
        deadline = clock.deadline(3600)
        assert not deadline.passed()
        assert deadline.remaining() > 3000

    run(main)


def test_a_deadline_of_no_seconds_has_passed_at_once(run: Run):
    async def main(clock: Clock) -> None:
        assert clock.deadline(0).passed()

    run(main)


def test_a_timeout_ends_what_takes_longer(run: Run):
    async def main(clock: Clock) -> None:
        cleaned_up = []

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned_up.append(True)

        began = clock.elapsed()
        with pytest.raises(TimeoutError):
            async with clock.timeout(NAP):
                await wait_for_ever()
        assert cleaned_up == [True]
        assert clock.elapsed() >= began + NAP

    run(main)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_timeout_of_no_seconds_ends_the_first_wait(run: Run, seconds: float):
    async def main(clock: Clock) -> None:
        with pytest.raises(TimeoutError):
            async with clock.timeout(seconds):
                await asyncio.Event().wait()

    run(main)


def test_a_timeout_leaves_what_is_quick_alone_and_is_forgotten_afterwards(run: Run):
    async def main(clock: Clock) -> None:
        async with clock.timeout(NAP):
            await asyncio.sleep(0)
        await clock.sleep(2 * NAP)

    run(main)


def test_a_timeout_passes_on_what_is_raised_inside(run: Run):
    async def main(clock: Clock) -> None:
        with pytest.raises(LookupError, match="inside"):
            async with clock.timeout(3600):
                raise LookupError("inside")

    run(main)


def test_a_cancellation_from_outside_is_no_timeout(run: Run):
    async def main(clock: Clock) -> None:
        async def wait() -> None:
            async with clock.timeout(3600):
                await asyncio.Event().wait()

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(main)


def test_the_inner_of_two_timeouts_fires_alone(run: Run):
    async def main(clock: Clock) -> None:
        async with clock.timeout(3600):
            with pytest.raises(TimeoutError):
                async with clock.timeout(NAP):
                    await asyncio.Event().wait()
            await asyncio.sleep(0)

    run(main)


def test_a_cancelled_sleep_ends_at_once(run: Run):
    async def main(clock: Clock) -> None:
        nap = asyncio.create_task(clock.sleep(3600))
        await asyncio.sleep(0)
        nap.cancel()
        with pytest.raises(asyncio.CancelledError):
            await nap

    run(main)
