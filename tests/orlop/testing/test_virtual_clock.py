"""Virtual time jumps when all wait, stands still for others' work, and fails where a real loop would hang."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.testing.virtual_clock import START, NothingCanHappen, VirtualClock, VirtualTimeLoop, run_virtual

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

YEAR = 365 * 24 * 3600.0


def stuck_tasks(main: Callable[[VirtualClock], Awaitable[object]]) -> str:
    with pytest.raises(NothingCanHappen, match="every task waits for something that can never happen") as caught:
        run_virtual(main)
    return str(caught.value)


@pytest.mark.virtual_time
async def test_twelve_hours_of_sleep_end_at_exactly_twelve_hours():
    clock = VirtualClock()
    await asyncio.sleep(12 * 3600)
    assert clock.elapsed() == 12 * 3600
    assert clock.now() == datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_time_begins_at_the_start_and_zero():
    async def main(clock: VirtualClock) -> tuple[datetime, float]:
        return clock.now(), clock.elapsed()

    assert run_virtual(main) == (START, 0.0)


@pytest.mark.virtual_time
async def test_time_stands_still_while_something_can_run():
    clock = VirtualClock()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert clock.elapsed() == 0


@pytest.mark.virtual_time
async def test_a_jump_of_the_wall_moves_only_what_people_see():
    clock = VirtualClock(datetime(2030, 5, 1, tzinfo=UTC))
    nap = asyncio.create_task(clock.sleep(60))
    await asyncio.sleep(10)
    clock.jump_wall(-3600)
    assert clock.now() == datetime(2030, 4, 30, 23, 0, 10, tzinfo=UTC)
    await nap
    assert clock.elapsed() == 60


@pytest.mark.virtual_time
async def test_asyncio_timeout_ends_what_takes_longer_at_its_virtual_moment():
    clock = VirtualClock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(90):
            await asyncio.sleep(3600)
    assert clock.elapsed() == 90


@pytest.mark.virtual_time
async def test_a_job_in_a_thread_takes_no_virtual_time_however_long_it_runs():
    loop, timer_fired = asyncio.get_running_loop(), asyncio.Event()
    timer = loop.call_later(0.000001, timer_fired.set)

    def job() -> None:
        for _ in range(100):  # after each call the loop is idle again, with a timer it could jump to
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

    await asyncio.to_thread(job)
    assert loop.time() == 0
    assert not timer_fired.is_set()
    timer.cancel()


@pytest.mark.virtual_time
async def test_timers_go_on_after_a_job_in_a_thread():
    clock = VirtualClock()
    await asyncio.gather(asyncio.to_thread(sum, [1, 2]), asyncio.sleep(5))
    assert clock.elapsed() == 5


@pytest.mark.virtual_time
async def test_a_job_nobody_waits_for_any_more_does_not_stop_time():
    clock, job_may_end = VirtualClock(), threading.Event()
    job = asyncio.create_task(asyncio.to_thread(job_may_end.wait))
    await asyncio.sleep(0)
    job.cancel()
    await asyncio.sleep(10)
    job_may_end.set()
    assert clock.elapsed() == 10


@pytest.mark.virtual_time
async def test_an_announced_thread_is_waited_for():
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    assert isinstance(loop, VirtualTimeLoop)
    caller = threading.Thread(target=loop.call_soon_threadsafe, args=(called.set,))
    with loop.outside_work():
        loop.call_soon(caller.start)
        await called.wait()
    caller.join()
    assert loop.time() == 0


def test_a_task_that_can_never_go_on_is_named_with_the_place_where_it_waits():
    async def wait_for_the_bus() -> None:
        await asyncio.Event().wait()

    async def main(_: VirtualClock) -> None:
        await asyncio.create_task(wait_for_the_bus(), name="passenger")

    said = stuck_tasks(main)
    assert "passenger: " in said
    assert "wait_for_the_bus" in said
    assert __file__ in said
    assert "Event.wait" in said


def test_a_timer_that_was_cancelled_or_never_fires_is_nothing_to_wait_for():
    async def main(_: VirtualClock) -> None:
        asyncio.get_running_loop().call_later(10, print).cancel()
        await asyncio.sleep(math.inf)

    assert "asyncio" in stuck_tasks(main)


def test_a_stuck_run_still_cleans_up_its_tasks():
    ended = []

    async def main(_: VirtualClock) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("main")

    stuck_tasks(main)
    assert ended == ["main"]


def test_a_loop_with_no_task_at_all_says_so():
    loop = VirtualTimeLoop()
    with pytest.raises(NothingCanHappen, match="there is no task"):
        loop.run_forever()
    loop.close()


@pytest.mark.virtual_time
async def test_a_stopped_loop_is_not_stuck():
    loop = VirtualTimeLoop()
    loop.call_soon(loop.stop)
    await asyncio.to_thread(loop.run_forever)
    loop.close()
    assert loop.time() == 0


@pytest.mark.virtual_time
async def test_a_watched_file_descriptor_is_waited_for_in_real_time():
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        # Several times: on a busy machine the news may be there before the loop begins to wait for it.
        for _ in range(5):
            receiving = loop.create_task(loop.sock_recv(ours, 10))
            await asyncio.sleep(0)
            threading.Timer(0.02, theirs.send, (b"news",)).start()
            async with asyncio.timeout(3600):
                assert await receiving == b"news"
    assert 0 < VirtualClock().elapsed() < 3600


@pytest.mark.virtual_time
async def test_a_timer_fires_at_its_moment_although_a_file_descriptor_is_watched():
    ours, theirs = socket.socketpair()
    asyncio.get_running_loop().add_reader(ours, print)
    await VirtualClock().sleep_until(0.01)
    assert VirtualClock().elapsed() == 0.01
    asyncio.get_running_loop().remove_reader(ours)
    ours.close()
    theirs.close()


@pytest.mark.virtual_time
async def test_time_goes_on_for_centuries_although_floats_grow_coarse():
    clock = VirtualClock()
    for _ in range(3):
        await asyncio.sleep(300 * YEAR)
        await asyncio.sleep(0.001)
    assert clock.elapsed() >= 900 * YEAR


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_every_sleeper_wakes_at_its_very_instant_in_the_order_of_time(instants: list[float]):
    async def main(clock: VirtualClock) -> list[float]:
        woken: list[float] = []

        async def sleeper(instant: float) -> None:
            await clock.sleep_until(instant)
            assert clock.elapsed() == instant
            woken.append(instant)

        await asyncio.gather(*map(sleeper, instants))
        return woken

    assert run_virtual(main) == sorted(instants)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20))
def test_the_same_program_takes_the_same_steps_at_the_same_times(naps: list[tuple[float, float]]):
    async def main(clock: VirtualClock) -> list[tuple[int, float]]:
        steps: list[tuple[int, float]] = []

        async def walk(number: int, first: float, second: float) -> None:
            for nap in (first, second, first):
                await asyncio.sleep(nap)
                steps.append((number, clock.elapsed()))

        await asyncio.gather(*(walk(number, *pair) for number, pair in enumerate(naps)))
        return steps

    assert run_virtual(main) == run_virtual(main)


async def test_a_virtual_clock_refuses_a_loop_that_lives_in_real_time():
    with pytest.raises(TypeError, match="needs a VirtualTimeLoop to run on, not Loop"):
        VirtualClock().elapsed()


def test_what_main_raises_comes_out_of_run_virtual():
    async def main(_: VirtualClock) -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        run_virtual(main)


@pytest.mark.virtual_time
async def test_the_wall_follows_time_to_the_microsecond():
    clock = VirtualClock()
    await clock.sleep(1.000001)
    assert clock.now() - START == timedelta(seconds=1, microseconds=1)
