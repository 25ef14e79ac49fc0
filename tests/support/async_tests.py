"""Runs `async def` tests, each on an event loop of its own, and fails those that leave a task or a thread behind.

The loop is uvloop's, as in Orlop's processes; a test marked `virtual_time` gets the virtual one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
import uvloop

from orlop.testing.virtual_clock import VirtualTimeLoop
from support.hangs import report_of

TURNS_FOR_CANCELLED_TASKS = 10
SECONDS_BEFORE_THE_RUNNER_ENDS_IT = 5.0
THREAD_END_SECONDS = 60.0
GRPC_CALL = "_AioCall."
"""In the names of the tasks that grpcio starts for each of its calls; no test can end one."""


async def run_and_look_for_leaked_tasks(test: pytest.Function) -> None:
    arguments = {name: test.funcargs[name] for name in test._fixtureinfo.argnames}
    await within_limit(test, test.obj(**arguments))
    for _ in range(TURNS_FOR_CANCELLED_TASKS):
        await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    if of_grpcio := {task for task in leaked if GRPC_CALL in getattr(task.get_coro(), "__qualname__", "")}:
        # Of a call that was left: grpcio waits for its status by itself, and a busy machine makes that last.
        await asyncio.wait(of_grpcio, timeout=THREAD_END_SECONDS)
        leaked = {task for task in leaked if not task.done()}
    if leaked:
        pytest.fail("the test left these tasks running: " + "; ".join(sorted(map(repr, leaked))), pytrace=False)


async def within_limit(test: pytest.Function, body: Awaitable[None]) -> None:
    seconds = longest(test)
    if seconds is None:
        await body
        return
    reports: list[str] = []
    limit = asyncio.timeout(None)
    loop = asyncio.get_running_loop()

    def expire() -> None:
        # The stacks first: cancelling the test unwinds the one that shows where it hangs.
        reports.append(report_of(test.nodeid, seconds))
        limit.reschedule(loop.time())

    timer = loop.call_later(seconds, expire)
    try:
        async with limit:
            await body
    except TimeoutError:
        if not reports:
            raise
        pytest.fail(reports[0], pytrace=False)
    finally:
        timer.cancel()


def longest(test: pytest.Function) -> float | None:
    """A bit less than pytest-timeout allows, which can only end the whole process; virtual time has no end."""
    if test.get_closest_marker("virtual_time") is not None:
        return None
    if (marker := test.get_closest_marker("timeout")) is not None:
        return float(marker.args[0]) - SECONDS_BEFORE_THE_RUNNER_ENDS_IT
    option = test.config.getoption("timeout", None)
    return float(option or test.config.getini("timeout")) - SECONDS_BEFORE_THE_RUNNER_ENDS_IT


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    virtual = pyfuncitem.get_closest_marker("virtual_time") is not None
    with asyncio.Runner(loop_factory=VirtualTimeLoop if virtual else uvloop.new_event_loop) as runner:
        runner.run(run_and_look_for_leaked_tasks(pyfuncitem))
    return True


GRPC_POLLER = "_poll_wrapper"
"""gRPC keeps one thread for the whole process from its first use on; no test can end it."""


def threads_that_stay(before: set[threading.Thread]) -> list[str]:
    left = [thread for thread in threading.enumerate() if thread not in before and GRPC_POLLER not in thread.name]
    for thread in left:
        thread.join(THREAD_END_SECONDS)
    return [thread.name for thread in left if thread.is_alive()]


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[Any]:
    before = set(threading.enumerate())
    yield
    leaked = threads_that_stay(before)
    if leaked:
        pytest.fail(f"the test left these threads running: {', '.join(leaked)}", pytrace=False)
