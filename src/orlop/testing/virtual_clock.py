"""Virtual time: an event loop on which a sleep of twelve hours takes no time, and the clock that goes with it.

While anything can run, time stands still. When every task waits, time jumps to the next timer. When there is no timer
either, nothing can ever happen again: the loop raises `NothingCanHappen`, which names the tasks that wait, instead of
hanging. The same program therefore takes the same steps at the same virtual times, every time.

Work outside the loop cannot be simulated, only waited for:
- A job in an executor (`asyncio.to_thread`) takes no virtual time: time stands still until its result is here.
  Jobs that run side by side may end in any order; that order is the only one not repeated.
- A thread that will call in by `call_soon_threadsafe` cannot be seen: announce it with `outside_work()`.
- While a file descriptor is watched, its other end lives in real time, and so does the loop: timers take as long as on
  any other loop. Use transports within the process where time is to jump.

This module must not be used in a running process: nothing here knows what time it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import selectors
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from orlop.foundation.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from concurrent.futures import Executor
    from types import CodeType, FrameType

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = datetime(2026, 1, 1, tzinfo=UTC)
# The loop itself watches the pipe by which other threads wake it.
OWN_FILE_DESCRIPTORS = 1
# The kernel takes no wait of more than 24 days.
LONGEST_REAL_WAIT_SECONDS = 3600.0

Events = list[tuple[selectors.SelectorKey, int]]


class NothingCanHappen(RuntimeError):
    """No task can run, no timer is set, and no outside work is announced."""

    def __init__(self, tasks: set[asyncio.Task[Any]]) -> None:
        lines = sorted(describe_waiting(task) for task in tasks) or ["(there is no task)"]
        super().__init__("every task waits for something that can never happen:\n  " + "\n  ".join(lines))


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    # Two names of asyncio's own, the same from Python 3.11 on. The heap's first timer is a live one whenever the loop
    # asks the selector to wait; timers up to one resolution ahead of the time are run.
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self) -> None:
        self._now = 0.0
        self._outside_workers = 0
        super().__init__(_IdleSelector(self._wait_for_something))
        self._advance_to(0.0)

    def time(self) -> float:
        return self._now

    @contextlib.contextmanager
    def outside_work(self) -> Iterator[None]:
        """Announce that a thread will call in: until the block is left, time stands still and the loop waits."""
        self._outside_workers += 1
        try:
            yield
        finally:
            self._outside_workers -= 1

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        job = super().run_in_executor(executor, func, *args)
        self._outside_workers += 1
        job.add_done_callback(self._end_outside_work)
        return job

    async def shutdown_default_executor(self, *patience: float | None) -> None:
        # A thread of its own joins the workers and calls in; later Pythons pass how long they are ready to wait.
        shut_down: Callable[..., Coroutine[Any, Any, None]] = super().shutdown_default_executor
        with self.outside_work():
            await shut_down(*patience)

    def _end_outside_work(self, _: asyncio.Future[Any]) -> None:
        self._outside_workers -= 1

    def _wait_for_something(self, selector: _IdleSelector) -> Events:
        if self._outside_workers:
            return selector.wait(None)
        if len(selector.get_map()) > OWN_FILE_DESCRIPTORS:
            return self._wait_in_real_time(selector)
        if self._next_timer() == math.inf:
            raise NothingCanHappen(asyncio.all_tasks(self))
        self._advance_to(self._next_timer())
        return []

    def _wait_in_real_time(self, selector: _IdleSelector) -> Events:
        longest = min(self._next_timer() - self._now, LONGEST_REAL_WAIT_SECONDS)
        began = time.monotonic()
        events = selector.wait(longest)
        waited = min(time.monotonic() - began, longest) if events else longest
        self._advance_to(self._now + waited)
        return events

    def _next_timer(self) -> float:
        return self._scheduled[0].when() if self._scheduled else math.inf

    def _advance_to(self, instant: float) -> None:
        self._now = instant
        # Exactly the timers that are due: asyncio's fixed resolution would run some before their time, and after half
        # a year it is less than the distance of two floats and would run none at all.
        self._clock_resolution = math.ulp(instant)


class _IdleSelector(selectors.PollSelector):
    """A selector that asks its loop how to wait when no task can run."""

    def __init__(self, when_idle: Callable[[_IdleSelector], Events]) -> None:
        super().__init__()
        self._when_idle = when_idle

    def select(self, timeout: float | None = None) -> Events:
        events = super().select(0)
        may_wait = timeout is None or timeout > 0
        return self._when_idle(self) if may_wait and not events else events

    def wait(self, seconds: float | None) -> Events:
        return super().select(seconds)


class VirtualClock:
    """The clock of the running `VirtualTimeLoop`; `jump_wall` moves only the wall clock."""

    def __init__(self, start: datetime = START) -> None:
        self._wall_at_zero = start

    def now(self) -> datetime:
        return self._wall_at_zero + timedelta(seconds=self.elapsed())

    def elapsed(self) -> float:
        return running_virtual_loop().time()

    def jump_wall(self, seconds: float) -> None:
        self._wall_at_zero += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.elapsed() + seconds)

    async def sleep_until(self, elapsed_instant: float) -> None:
        # Not `asyncio.sleep`: an instant less the time plus the time again may be just short of the instant.
        reached = asyncio.Event()
        timer = running_virtual_loop().call_at(elapsed_instant, reached.set)
        try:
            await reached.wait()
        finally:
            timer.cancel()

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(self, self.elapsed() + seconds)

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        running_virtual_loop()
        async with asyncio.timeout(seconds):
            yield


def run_virtual(main: Callable[[VirtualClock], Awaitable[T]]) -> T:
    """Run a coroutine on a new virtual loop, which starts at `START` and zero seconds."""

    async def run() -> T:
        return await main(VirtualClock())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def running_virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise TypeError(f"a virtual clock needs a VirtualTimeLoop to run on, not {type(loop).__name__}")
    return loop


def describe_waiting(task: asyncio.Task[Any]) -> str:
    places = [f"{code.co_qualname} ({code.co_filename}:{line})" for code, line in waiting_places(task.get_coro())]
    return f"{task.get_name()}: " + (" → ".join(places) or "has not begun")


def waiting_places(awaited: Any) -> Iterator[tuple[CodeType, int]]:
    """Yield the positions at which a coroutine is suspended, from the outermost call to the innermost."""
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame.f_code, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
