"""Threads that end in time, or are left behind with everything they use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.threads import LONGEST_END_SECONDS, end_in_time, end_of, node_threads, threads_of
from orlop.testing.virtual_clock import VirtualClock


async def test_all_ends_are_called_in_order():
    ended: list[str] = []
    assert await end_in_time(SystemClock(), lambda: ended.append("first"), lambda: ended.append("second"))
    assert ended == ["first", "second"]


@pytest.mark.virtual_time
async def test_an_end_that_hangs_is_waited_for_until_its_time_is_over_and_no_later_one_is_called():
    clock, opened, ended = VirtualClock(), threading.Event(), threading.Event()
    assert not await end_in_time(clock, opened.wait, ended.set)
    assert clock.elapsed() == LONGEST_END_SECONDS
    assert not ended.is_set()
    opened.set()


async def test_a_pool_that_ends_finishes_what_has_begun_and_begins_nothing_more():
    pool, begun, go_on, done = ThreadPoolExecutor(1), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        go_on.wait()
        done.append("first")

    pool.submit(first)
    waiting = pool.submit(done.append, "second")
    waiting.add_done_callback(lambda _: go_on.set())  # cancelled by the end: only then the first goes on
    begun.wait()
    assert await end_in_time(SystemClock(), end_of(pool))
    assert done == ["first"]


async def test_a_function_runs_in_a_thread_of_its_pool_and_its_error_is_raised():
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        threads = threads_of(pool)
        assert (await threads(lambda: threading.current_thread().name)).startswith("mine")
        with pytest.raises(ZeroDivisionError):
            await threads(lambda: 1 // 0)


async def test_the_host_is_closed_when_all_threads_of_a_node_have_ended():
    closed: list[str] = []
    log: list[LogEntry] = []
    async with node_threads(lambda: closed.append("host"), SystemClock(), collecting_log(log)) as threads:
        assert await threads.upkeep(lambda: closed) == []
        assert await threads.timed(lambda: 7) == 7
    assert closed == ["host"]
    assert log == []
