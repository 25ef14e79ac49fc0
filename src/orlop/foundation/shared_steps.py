"""Work in threads that stops where others stop too: a step that many need is taken once, for all of them.

A piece of work is a generator that yields steps. It goes on with the answer of the step, which was taken after the work
asked for it, and never before: what one has just done is seen by a look, and made durable by a synchronisation, that
began afterwards. Equal steps that are waited for at the same moment are one; a step that fails, fails for all of them.

Few threads do all of it, as Python runs only one at a time and every change between them costs more than most system
calls. A thread holds on to one thing alone: the piece of work it is at, or the step it takes. When for a while no
thread has come forward (a disk hangs), another is started, and only what the others hold waits with them.

Order: what has arrived and what was answered goes on, as far as it can → the step that most wait for is taken.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
MOST_TOGETHER: Final = 64
"""A step is taken when so many wait for it, whatever else could go on: those who came first are not to wait for all."""


class Step(Hashable, Protocol):
    """Steps that are equal do the same, and one of them will do."""

    def take(self) -> Any:
        """Blocks."""


Work = Generator[Step, Any, T]


class Together(Protocol):
    """Where pieces of work are done, together with others or alone."""

    def __call__(self, work: Work[T], /) -> Awaitable[T]: ...


@dataclass(slots=True)
class Answer:
    """What a step gave, for the work that waits for it."""

    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, step: Step) -> Answer:
        try:
            return cls(step.take())
        except Exception as error:  # noqa: BLE001 - handed on to all who asked for the step
            return cls(error=error)

    def give_to(self, work: Work[T]) -> Step:
        """The next step that the work asks for; StopIteration holds its result."""
        return work.send(self.value) if self.error is None else work.throw(self.error)


def work_alone(work: Work[T]) -> T:
    """Every step is taken when it is asked for, here and now."""
    answer = Answer()
    try:
        while True:
            answer = Answer.of(answer.give_to(work))
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass(eq=False, slots=True)
class _Piece:
    work: Work[Any]
    told: asyncio.Future[Any]
    answer: Answer


class WorkThreads:
    """To be used from one event loop; `watch` is to run beside it, or a thread that hangs is never replaced."""

    def __init__(self, name: str, *, usual: int, most: int) -> None:
        self._name = name
        self._usual, self._most = usual, most
        self._loop = asyncio.get_running_loop()
        self._given = asyncio.Event()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[_Piece] = deque()
        self._waiting: dict[Step, list[_Piece]] = {}
        self._finished: deque[tuple[_Piece, Any, BaseException | None]] = deque()
        self._threads = self._idle = self._progress = 0
        self._is_closing = False

    def __call__(self, work: Work[T], /) -> asyncio.Future[T]:
        told: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._is_closing:
                raise RuntimeError("no more work is taken: the process is ending")
            self._ready.append(_Piece(work, told, Answer()))
            self._given.set()
            if self._idle:
                self._changed.notify()
            elif self._threads < self._usual:
                self._start_thread()
        return told

    async def watch(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Starts another thread whenever none has come forward for so long, and there is something to do."""
        while True:
            await self._given.wait()
            before = self._progress
            await sleep(seconds)
            with self._lock:
                if not self._ready and not self._waiting:
                    self._given.clear()
                elif self._progress == before and not self._idle and self._threads < self._most:
                    self._start_thread()

    def close(self) -> None:
        """Blocks until all work that was given is done, and the threads have ended."""
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
                self._take(*task)

    def _next_task(self) -> _Piece | tuple[Step, list[_Piece]] | None:
        """None: this thread is not needed any more."""
        with self._lock:
            self._progress += 1
            while True:
                wanted = max(self._waiting, key=lambda step: len(self._waiting[step])) if self._waiting else None
                is_full = wanted is not None and len(self._waiting[wanted]) >= MOST_TOGETHER
                if self._ready and not is_full:
                    return self._ready.popleft()
                if wanted is not None:
                    return wanted, self._waiting.pop(wanted)
                if self._is_closing or self._threads > self._usual:
                    self._threads -= 1
                    self._changed.notify_all()
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _advance(self, piece: _Piece) -> None:
        try:
            step = piece.answer.give_to(piece.work)
        except StopIteration as end:
            self._tell(piece, end.value, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the one who waits
            self._tell(piece, None, error)
        else:
            with self._lock:
                self._waiting.setdefault(step, []).append(piece)

    def _take(self, step: Step, pieces: list[_Piece]) -> None:
        answer = Answer.of(step)
        for piece in pieces:
            piece.answer = answer
        with self._lock:
            self._ready.extend(pieces)

    def _tell(self, piece: _Piece, result: Any, error: BaseException | None) -> None:
        """Those who wait are told many at a time: waking the event loop is dear."""
        with self._lock:
            is_first = not self._finished
            self._finished.append((piece, result, error))
        if is_first:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._tell_all)

    # ---- in the event loop -------------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, deque()
        for piece, result, error in finished:
            if piece.told.done():
                continue  # whoever waited has left
            if error is None:
                piece.told.set_result(result)
            else:
                piece.told.set_exception(error)
