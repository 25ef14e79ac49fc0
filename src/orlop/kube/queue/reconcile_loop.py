"""Reconcile the names of a queue: a name in; `Done`, `RetryAfter` or `Failed` out.

Level-triggered: only the name of an object gets here, not what happened to it; the reconciler reads the state and takes
the next step. A failure, returned or raised, is logged once and retried later; it never ends the loop. Only a
`BaseException` that is no `Exception` does: the end of the process, or a cancellation from outside.

Order for each name: reconcile → schedule the next time → log → end the work on the name (`done`). Stopping lets work in
progress finish and starts no other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, Conflict, PatchRefused
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.queue.workqueue import Workqueue

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to do until the object changes."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Nothing is wrong, but the name must be reconciled again after some time."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"a name cannot be retried after {self.seconds} seconds")


@dataclass(frozen=True, slots=True)
class Failed:
    """An expected failure. An exception that the reconciler raises is logged with its traceback, unless an ApiError."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Raised(Failed):
    pass


Outcome: TypeAlias = Done | RetryAfter | Failed


class StrayCancellation(Exception):
    """Something the reconciler waited for was cancelled, though nobody cancelled the worker."""


@dataclass(frozen=True, slots=True)
class WorkerPool(Generic[Name]):
    """The workers of one pool of the queue, and their reconciler."""

    name: str
    workers: int
    reconcile: Callable[[Name], Awaitable[Outcome]]

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"the pool {self.name} needs at least one worker, not {self.workers}")


class ReconcileLoop(Generic[Name]):
    def __init__(self, queue: Workqueue[Name], pools: Sequence[WorkerPool[Name]], *, clock: Clock, log: Log) -> None:
        self._queue = queue
        self._pools = tuple(pools)
        self._clock = clock
        self._log = log

    async def run(self) -> None:
        """Run until `stop`; return when the last work has finished."""
        try:
            async with TaskGroup() as tasks:
                tasks.start(self._queue.run(), name="delayed names")
                for pool in self._pools:
                    for number in range(pool.workers):
                        tasks.start(self._work(pool), name=f"{pool.name} worker {number}")
        finally:
            self._queue.shut_down(drain=False)

    def stop(self, *, drain: bool = False) -> None:
        """Start no more work; with `drain`, only that which already waits."""
        self._queue.shut_down(drain=drain)

    async def _work(self, pool: WorkerPool[Name]) -> None:
        while (name := await self._queue.take(pool.name)) is not None:
            try:
                self._settle(pool, name, await self._outcome(pool, name))
            finally:
                self._queue.done(name)
            # The reconciler may have swallowed the cancellation, or raised something else instead.
            if _is_being_cancelled():
                return
            # A reconciler that never waits must not keep the other tasks of the event loop waiting.
            await self._clock.sleep(0)

    async def _outcome(self, pool: WorkerPool[Name], name: Name) -> Outcome:
        try:
            outcome: object = await pool.reconcile(name)
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            # Raised, it would end the task as cancelled, without a log line, and the pool would lose a worker.
            stray = StrayCancellation("something the reconciler waited for was cancelled")
            stray.__cause__ = error
            return _Raised(stray)
        except Exception as error:  # noqa: BLE001 - the top of the loop: logged and retried
            return _Raised(error)
        if not isinstance(outcome, Done | RetryAfter | Failed):
            return Failed(TypeError(f"the reconciler returned {outcome!r} instead of Done, RetryAfter or Failed"))
        return outcome

    def _settle(self, pool: WorkerPool[Name], name: Name, outcome: Outcome) -> None:
        match outcome:
            case Done():
                self._queue.forget(pool.name, name)
            case RetryAfter(seconds):
                self._queue.forget(pool.name, name)
                self._queue.add_after(pool.name, name, seconds)
            case Failed():
                self._log_failure(pool, name, outcome, self._queue.retry(pool.name, name))

    def _log_failure(self, pool: WorkerPool[Name], name: Name, failed: Failed, delay: float) -> None:
        log = self._log.bind(
            pool=pool.name,
            name=str(name),
            failures=self._queue.failures(pool.name, name),
            retry_after_seconds=round(delay, 3),
        )
        match failed.error:
            case Conflict() | PatchRefused() as error:
                log.info("object changed during reconciliation", error=error)
            case LeadershipLost() as error:
                log.info("leadership lost; left to the next leader", error=error)
            case error if isinstance(failed, _Raised) and not isinstance(error, ApiError):
                log.exception("reconciliation failed", error)
            case error:
                log.warning("reconciliation failed", error=error)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
