"""Runs blocking calls in threads, so that the event loop never waits for a disk.

A thread whose system call hangs on a dead disk cannot be interrupted. So work that pods wait for, upkeep, and reads
have threads of their own: when all threads of one kind hang, the others still serve. `batched_work` runs what pods wait
for; everything else goes through a `Threads` function of this module.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.host.batched_work import BatchRunner, BatchThreads
from orlop.host.host_errors import HostError
from orlop.host.kernel.idle_thread import become_idle

T = TypeVar("T")
USUAL_PUBLISHERS: Final = 1
"""Python runs one thread at a time; more threads would only add switches between them."""
MOST_PUBLISHERS: Final = 16
STUCK_SECONDS: Final = 1.0
"""When no publisher has made progress for this long, another is started."""
KEEPERS: Final = 16
"""Threads for upkeep."""
READERS: Final = 8
"""Threads for calls that only read: statistics, health, `orlop afterlife`."""
LONGEST_READ_SECONDS: Final = 10.0
LONGEST_END_SECONDS: Final = 5.0
SCRATCH_DISK: Final = "The disk of the scratch folders (--workdir)"


class Threads(Protocol):
    """Runs a blocking function and returns its result: in a thread, or in a simulation right here."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


def threads_of(pool: Executor) -> Threads:
    loop = asyncio.get_running_loop()

    async def run(work: Callable[[], T], /) -> T:
        return await loop.run_in_executor(pool, work)

    return run


class OwnThreads:
    """Runs each call in a thread of its own: for disks that may hang, one of which must not delay the others."""

    def __init__(self) -> None:
        self._running: set[threading.Thread] = set()

    async def __call__(self, work: Callable[[], T], /) -> T:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(outcome: Callable[[], T]) -> None:
            self._running.discard(thread)
            if not result.done():  # cancelled
                _resolve(result, outcome)

        def run() -> None:
            outcome = _outcome_of(work)
            with suppress(RuntimeError):  # the loop is closed: nobody awaits it
                loop.call_soon_threadsafe(settle, outcome)

        thread = threading.Thread(target=run, name="may hang", daemon=True)
        self._running.add(thread)
        thread.start()
        return await result

    def close(self) -> None:
        """Block until every thread has ended."""
        for thread in tuple(self._running):
            thread.join()


def idle_threads(threads: Threads) -> Threads:
    """Return a function that runs each call at idle I/O priority. `threads` must run it in a thread of its own."""

    async def run(work: Callable[[], T], /) -> T:
        def idly() -> T:
            become_idle()
            return work()

        return await threads(idly)

    return run


def _outcome_of(work: Callable[[], T]) -> Callable[[], T]:
    """Do the work; return a function that returns its result, or raises its error."""
    try:
        value = work()
    except BaseException as error:  # noqa: BLE001 - raised where the work is awaited
        return partial(_raise, error)
    return lambda: value


def _raise(error: BaseException) -> NoReturn:
    raise error


def _resolve(result: asyncio.Future[T], outcome: Callable[[], T]) -> None:
    try:
        result.set_result(outcome())
    except BaseException as error:  # noqa: BLE001 - as above
        result.set_exception(error)


class TimedThreads:
    """Threads whose callers wait for a limited time. Only for work that changes nothing: it may run on.

    Work that has not begun when its time is over never begins.
    """

    def __init__(
        self, threads: Threads, clock: Clock, seconds: float = LONGEST_READ_SECONDS, *, disk: str = SCRATCH_DISK
    ) -> None:
        """`disk` begins the sentence for a disk that hangs."""
        self._threads = threads
        self._clock = clock
        self._seconds = seconds
        self._disk = disk

    async def __call__(self, work: Callable[[], T], /) -> T:
        try:
            async with self._clock.timeout(self._seconds):
                return await self._threads(work)
        except TimeoutError:
            raise HostError(
                errno.ETIMEDOUT,
                f"{self._disk} has not answered for {self._seconds:g} seconds: it hangs, or is very busy. Check the "
                "kernel's log (dmesg) and what is mounted there, then try again.",
            ) from None


class ThreadedGenerator(Generic[T]):
    """A generator whose steps run in threads, one after the other.

    It closes what it opened in its own `finally` blocks, when it ends or is closed. A step that is running then cannot
    be interrupted; its thread closes the generator afterwards. `owned` is closed after the generator, even one that
    never began.
    """

    def __init__(self, steps: Generator[T], threads: Threads, owned: ExitStack | None = None) -> None:
        self._steps = steps
        self._threads = threads
        self._owned = owned or ExitStack()
        self._running = threading.Lock()
        self._is_closing = False

    async def next(self) -> T | None:
        """Return what the next step yields, None at the end."""
        return await self._threads(self._advance)

    def close(self) -> None:
        self._is_closing = True
        self._close_unless_running()

    def _advance(self) -> T | None:
        with self._running:
            result = None if self._is_closing else next(self._steps, None)
        # `close` may have come while the step was running, and left the generator to us.
        if self._is_closing:
            self._close_unless_running()
        return result

    def _close_unless_running(self) -> None:
        if self._running.acquire(blocking=False):
            try:
                self._steps.close()
                self._owned.close()
            finally:
                self._running.release()


async def end_in_time(clock: Clock, *ends: Callable[[], object]) -> bool:
    """Call each of `ends` in a thread; return whether all returned within 5 s.

    If not, a thread hangs in a system call. Leave it, and everything it may use, as it is: a descriptor that is closed
    would soon be another file's.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        for end in ends:
            end()
        with suppress(RuntimeError):  # the loop is closed: nobody waited so long
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="end of threads", daemon=True).start()
    with suppress(TimeoutError):
        async with clock.timeout(LONGEST_END_SECONDS):
            await ended.wait()
    return ended.is_set()


def end_of(pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Return a function that blocks until the work under way in a pool has ended; work not begun is cancelled."""
    return lambda: pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class NodeThreads:
    """The threads of a node, by kind of work: calls that wait for a hanging disk block no other kind."""

    batched: BatchRunner
    """For NodePublishVolume, NodeUnpublishVolume and burials."""
    upkeep: Threads
    readers: Threads
    """For reading without a time limit, such as a download."""
    timed: Threads
    """The threads of `readers`, for callers that wait a limited time."""
    own: Threads
    """A thread for each call."""


@asynccontextmanager
async def node_threads(
    close_host: Callable[[], object], clock: Clock, log: Log, disk: str = SCRATCH_DISK
) -> AsyncIterator[NodeThreads]:
    """Start the threads of a node; end them with the context. `disk` is what they work on, for errors.

    Order at the end: accept no new work → wait for work under way, for a limited time → close the host, but only if all
    work has ended: a thread that hangs may still use its descriptors.
    """
    publishers = BatchThreads("publishing", usual=USUAL_PUBLISHERS, most=MOST_PUBLISHERS)
    keepers = ThreadPoolExecutor(KEEPERS, thread_name_prefix="folders")
    readers = ThreadPoolExecutor(READERS, thread_name_prefix="readers")
    own = OwnThreads()
    watch = asyncio.get_running_loop().create_task(
        publishers.watch(clock.sleep, STUCK_SECONDS), name="publishers that hang"
    )
    try:
        reading = threads_of(readers)
        yield NodeThreads(publishers, threads_of(keepers), reading, TimedThreads(reading, clock, disk=disk), own)
    finally:
        watch.cancel()
        if await end_in_time(clock, publishers.close, end_of(keepers), end_of(readers), own.close):
            close_host()
        else:
            log.warning("disk does not respond; abandoning threads that wait for it")
