"""Runs blocking work of many volumes in few threads, and batches what they all need: one fsync serves every waiter.

A piece of work is a generator. Where it needs a step that would serve others too (flush a shelf to disk, take a
snapshot of the mount tables) it yields that step, and is resumed with the step's result. Equal steps that wait at the
same moment run once; a step that fails, fails for all of them. A step always begins after the work has yielded it,
never before: so it makes durable, or sees, everything that the work did until then.

There is one thread as a rule. Python runs one thread at a time, and switching between them costs more than most system
calls. When no thread has made progress for a while (a disk hangs), another is started; only the work inside the hanging
call waits with it.

Order: new and resumable work runs as far as it can → the step with the most waiters runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from orlop.host.node_host import FolderState, MountSnapshot, Workdir

T = TypeVar("T")
LARGEST_BATCH: Final = 64
"""A step with this many waiters runs before any other work, so that the first waiters need not wait for all others."""


class BatchStep(Hashable, Protocol):
    """Equal steps do the same; one of them runs for all."""

    def run(self) -> Any:
        """Do the work of this step and return its result. May block."""


BatchedWork = Generator[BatchStep, Any, T]


class BatchRunner(Protocol):
    """Runs a piece of work to its end and returns its result."""

    def __call__(self, work: BatchedWork[T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class FlushShelf:
    """Make all folders that were created on a shelf, or moved there, survive power loss: one fsync."""

    workdir: Workdir
    state: FolderState

    def run(self) -> None:
        self.workdir.make_durable(self.state)


@dataclass(frozen=True, slots=True)
class SnapshotMounts:
    """Read the mount tables of all namespaces."""

    workdir: Workdir

    def run(self) -> MountSnapshot:
        return self.workdir.snapshot_mounts()


@dataclass(slots=True)
class StepResult:
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, step: BatchStep) -> StepResult:
        try:
            return cls(step.run())
        except Exception as error:  # noqa: BLE001 - raised in each work that waits for the step
            return cls(error=error)

    def resume(self, work: BatchedWork[T]) -> BatchStep:
        """Return the next step that the work yields. StopIteration holds the work's result."""
        return work.send(self.value) if self.error is None else work.throw(self.error)


def run_alone(work: BatchedWork[T]) -> T:
    """Run every step at once, here: without batches."""
    result = StepResult()
    try:
        while True:
            result = StepResult.of(result.resume(work))
    except StopIteration as end:
        value: T = end.value
        return value


@dataclass(eq=False, slots=True)
class _Piece:
    work: BatchedWork[Any]
    done: asyncio.Future[Any]
    result: StepResult
    """The result of the last step, which the work is resumed with."""


class BatchThreads:
    """Threads that advance many pieces of work and batch their equal steps. Call it from one event loop.

    `watch` must run beside it, or a thread that hangs is never replaced.
    """

    def __init__(self, name: str, *, usual: int, most: int) -> None:
        self._name = name
        self._usual, self._most = usual, most
        self._loop = asyncio.get_running_loop()
        self._has_work = asyncio.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[_Piece] = deque()
        self._waiting: dict[BatchStep, list[_Piece]] = {}
        self._finished: deque[tuple[_Piece, Any, BaseException | None]] = deque()
        self._threads = self._idle = self._progress = 0
        self._is_closing = False

    def __call__(self, work: BatchedWork[T], /) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._is_closing:
                raise RuntimeError("no more work is accepted: the process is ending")
            self._ready.append(_Piece(work, done, StepResult()))
            self._has_work.set()
            if self._idle:
                self._changed.notify()
            elif self._threads < self._usual:
                self._start_thread()
        return done

    async def watch(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Start another thread whenever none has made progress for `seconds` while there is work."""
        while True:
            await self._has_work.wait()
            before = self._progress
            await sleep(seconds)
            with self._lock:
                if not self._ready and not self._waiting:
                    self._has_work.clear()
                elif self._progress == before and not self._idle and self._threads < self._most:
                    self._start_thread()

    def close(self) -> None:
        """Block until all accepted work is done and the threads have ended."""
        with self._lock:
            self._is_closing = True
            self._changed.notify_all()
            while self._threads:
                self._changed.wait()

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    # ---- in the threads ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            if isinstance(task, _Piece):
                self._advance(task)
            else:
                self._run_step(*task)

    def _next_task(self) -> _Piece | tuple[BatchStep, list[_Piece]] | None:
        """Return a piece to resume, or a step with its waiters; None if this thread is not needed any more."""
        with self._lock:
            self._progress += 1
            while True:
                largest = max(self._waiting, key=lambda step: len(self._waiting[step])) if self._waiting else None
                is_full = largest is not None and len(self._waiting[largest]) >= LARGEST_BATCH
                if self._ready and not is_full:
                    return self._ready.popleft()
                if largest is not None:
                    # The waiters leave the table before the step begins: work that yields an equal step from now on may
                    # have changed something too late for this one, and waits for the next.
                    return largest, self._waiting.pop(largest)
                if self._is_closing or self._threads > self._usual:
                    self._threads -= 1
                    self._changed.notify_all()
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _advance(self, piece: _Piece) -> None:
        try:
            step = piece.result.resume(piece.work)
        except StopIteration as end:
            self._finish(piece, end.value, None)
        except BaseException as error:  # noqa: BLE001 - raised where the work is awaited
            self._finish(piece, None, error)
        else:
            with self._lock:
                self._waiting.setdefault(step, []).append(piece)

    def _run_step(self, step: BatchStep, pieces: list[_Piece]) -> None:
        result = StepResult.of(step)
        for piece in pieces:
            piece.result = result
        with self._lock:
            self._ready.extend(pieces)

    def _finish(self, piece: _Piece, value: Any, error: BaseException | None) -> None:
        """Hand over the result. Waking the event loop is expensive: one wake-up serves all results until it runs."""
        with self._lock:
            is_first = not self._finished
            self._finished.append((piece, value, error))
        if is_first:
            with suppress(RuntimeError):  # the loop is closed: nobody awaits it
                self._loop.call_soon_threadsafe(self._resolve_finished)

    # ---- in the event loop -------------------------------------------------------------------------------------------

    def _resolve_finished(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, deque()
        for piece, value, error in finished:
            if piece.done.done():
                continue  # cancelled
            if error is None:
                piece.done.set_result(value)
            else:
                piece.done.set_exception(error)
