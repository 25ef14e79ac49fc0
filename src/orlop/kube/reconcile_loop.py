"""Works through the names of a queue: a name in, `Done`, `RetryAfter` or `Failed` out.

Level-triggered: what happened to an object never gets here, only its name; the reconciliation reads the state and does
what is next. A failure, returned or raised, is logged once and tried again later; it never ends the loop. Only what is
no `Exception` does: the end of the process, a cancellation from outside.

Order for each name: reconcile → decide when again → log → give the name back to the queue. Stopping lets the work under
way finish, and begins no other.
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
from orlop.kube.errors import ApiError, Conflict, PatchRefused
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.workqueue import Workqueue

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Done:
    """All is as it should be, until something changes."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Nothing is wrong, but time will change something."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"a name cannot come back after {self.seconds} seconds")


@dataclass(frozen=True, slots=True)
class Failed:
    """Expected to happen. What a reconciliation raises is logged with its traceback, unless an API server said it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Raised(Failed):
    pass


Outcome: TypeAlias = Done | RetryAfter | Failed


class StrayCancellation(Exception):
    """Something inside the reconciliation was cancelled, though nobody cancelled the worker."""


@dataclass(frozen=True, slots=True)
class WorkerPool(Generic[Name]):
    """So many workers for one pool of the queue."""

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
        """Returns when it was stopped and the last work has finished."""
        try:
            async with TaskGroup() as tasks:
                tasks.start(self._queue.run(), name="delayed names")
                for pool in self._pools:
                    for number in range(pool.workers):
                        tasks.start(self._work(pool), name=f"{pool.name} worker {number}")
        finally:
            self._queue.shut_down(drain=False)

    def stop(self, *, drain: bool = False) -> None:
        """Begins nothing more, or nothing more than what waits already."""
        self._queue.shut_down(drain=drain)

    async def _work(self, pool: WorkerPool[Name]) -> None:
        while (name := await self._queue.take(pool.name)) is not None:
            try:
                self._settle(pool, name, await self._outcome(pool, name))
            finally:
                self._queue.done(name)
            if _is_being_cancelled():  # also where the reconciliation made something else of its cancellation
                return
            await self._clock.sleep(0)  # a reconciliation that waits for nothing must not keep all others waiting

    async def _outcome(self, pool: WorkerPool[Name], name: Name) -> Outcome:
        try:
            outcome: object = await pool.reconcile(name)
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            # A task that lets this pass would end without a sound, and the pool would have a worker less.
            stray = StrayCancellation("something the reconciliation waited for was cancelled")
            stray.__cause__ = error
            return _Raised(stray)
        except Exception as error:  # noqa: BLE001 - the top of the loop: logged, and tried again
            return _Raised(error)
        if not isinstance(outcome, Done | RetryAfter | Failed):
            return Failed(TypeError(f"a reconciliation gave {outcome!r} instead of Done, RetryAfter or Failed"))
        return outcome

    def _settle(self, pool: WorkerPool[Name], name: Name, outcome: Outcome) -> None:
        match outcome:
            case Done():
                self._queue.forget(pool.name, name)
            case RetryAfter(seconds):
                self._queue.forget(pool.name, name)
                self._queue.add_after(pool.name, name, seconds)
            case Failed():
                self._tell(pool, name, outcome, self._queue.retry(pool.name, name))

    def _tell(self, pool: WorkerPool[Name], name: Name, failed: Failed, delay: float) -> None:
        log = self._log.bind(
            pool=pool.name,
            name=str(name),
            failures=self._queue.failures(pool.name, name),
            again_in_seconds=round(delay, 3),
        )
        match failed.error:
            case Conflict() | PatchRefused() as error:
                log.info("somebody else changed the object meanwhile", error=error)
            case LeadershipLost() as error:
                log.info("left to the next leader", error=error)
            case error if isinstance(failed, _Raised) and not isinstance(error, ApiError):
                log.exception("reconciling failed", error)
            case error:
                log.warning("reconciling failed", error=error)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
