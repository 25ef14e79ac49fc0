"""A task group that raises a failure as itself, not in an `ExceptionGroup`.

asyncio's own group wraps even a single failure in an `ExceptionGroup`, so that no `except NotFound` would ever match.
It lets a failure during a cancellation replace the cancellation, so that a loop that retries would never stop. And it
cancels its tasks in an order that changes from run to run. Here exactly one of all errors is raised:

1. an error that ends the process: `KeyboardInterrupt`, `SystemExit`, any other that is no `Exception`;
2. else a cancellation from outside; failures then go to the event loop's exception handler;
3. else the first failure; later failures are in its notes.

Tasks must retry, log or ignore their errors themselves.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    where: str
    error: BaseException


class TaskGroup:
    """Wait at the end of the block for every task started in it; a failure cancels the block and the other tasks."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a set that keeps its order
        self._failures: list[_Failure] = []
        self._why_closed: str | None = "has not begun"
        self._running_block: asyncio.Task[Any] | None = None
        self._cancels_before_block = 0
        self._block_cancelled_by_us = False

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        if self._why_closed is not None:
            coroutine.close()  # Otherwise Python warns later, far from here, that it was never awaited.
            raise RuntimeError(f"task {name!r} cannot be started: its group {self._why_closed}")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    async def __aenter__(self) -> Self:
        self._running_block = asyncio.current_task()
        self._cancels_before_block = self._running_block.cancelling() if self._running_block else 0
        self._why_closed = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancellation = self._end_block(error)
        if error is not None:
            self._cancel_tasks()
        cancellation = await self._wait_for_tasks() or cancellation
        self._why_closed = "is over"
        what_went_wrong = self._what_to_raise(cancellation)
        if what_went_wrong is not None and what_went_wrong is not error:  # The block's own error is raised already.
            _raise_as_itself(what_went_wrong)

    def _end_block(self, error: BaseException | None) -> BaseException | None:
        """Record how the block ended; return the cancellation if somebody else cancelled it."""
        block, self._running_block = self._running_block, None
        cancelled_by_others = True
        if block is not None and self._block_cancelled_by_us:
            cancelled_by_others = block.uncancel() > self._cancels_before_block
        if isinstance(error, asyncio.CancelledError):
            return error if cancelled_by_others else None
        if error is not None:
            self._failures.append(_Failure("the block that started the tasks", error))
        return None

    async def _wait_for_tasks(self) -> BaseException | None:
        cancellation = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                cancellation = error
                self._cancel_tasks()
        return cancellation

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._failures.append(_Failure(f"task {task.get_name()!r}", error))
        self._cancel_tasks()
        if self._running_block is not None and not self._block_cancelled_by_us:
            self._block_cancelled_by_us = self._running_block.cancel()

    def _cancel_tasks(self) -> None:
        if self._why_closed is None:
            self._why_closed = "is ending"
            for task in self._tasks:
                task.cancel()

    def _what_to_raise(self, cancellation: BaseException | None) -> BaseException | None:
        failures = sorted(self._failures, key=lambda failure: isinstance(failure.error, Exception))
        if cancellation is not None and (not failures or isinstance(failures[0].error, Exception)):
            _report_to_the_loop(failures)
            return cancellation
        for other in failures[1:]:
            failures[0].error.add_note(f"{other.where} failed too: {other.error!r}")
        return failures[0].error if failures else None


def _report_to_the_loop(failures: list[_Failure]) -> None:
    for failure in failures:
        message = f"{failure.where} failed while its group was being cancelled"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": failure.error})


def _raise_as_itself(error: BaseException) -> None:
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # Not the cancellation that the failure itself caused.
        del error, context
