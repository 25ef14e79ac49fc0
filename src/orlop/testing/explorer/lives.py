"""A process of a scenario, and each of its lives.

A life ends when the chooser kills it: its tasks are cancelled, and the seams refuse effects of its `finally` blocks
(`Killed`). The next life begins a little later, with no memory of it.

Or it loses its lease during an effect. Then `guard` raises, the next life begins at once, and the old one is cancelled
a moment later, as a leader is that finds its lease lost. An effect that it starts meanwhile breaks the scenario: a
leader must call `guard` before each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from orlop.testing.kill_points import Killed

if TYPE_CHECKING:
    from orlop.testing.explorer.stage import Stage

RESTART_SECONDS: Final = 1.0
CANCELLED_AFTER_SECONDS: Final = 2.0


class LeaseLost(Exception):
    """The lease is lost: this life may start no further effect."""


class EffectWithoutLease(AssertionError):
    """A life whose lease is lost started an effect: it did not call `guard`."""


class EndedByItself(AssertionError):
    """A process ended with an error, and was not killed."""


class Life:
    def __init__(self, process: Process, number: int) -> None:
        self.stage = process.stage
        self.name = f"{process.name} {number}"
        self.dead = False
        self.effects = 0
        self.over = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._has_lease = True

    def guard(self) -> None:
        """Raise `LeaseLost` once the lease is lost. A process that must be the only one calls it before each effect."""
        if not self._has_lease:
            raise LeaseLost(f"{self.name} has lost its lease: it may start no further effect")

    def begin(self, what: str) -> None:
        """Note that an effect begins."""
        self.refuse_the_dead()
        self.effects += 1
        self.must_lead(what)

    def must_lead(self, what: str) -> None:
        if not self._has_lease:
            error = EffectWithoutLease(f"{self.name} has lost its lease and started an effect: {what}")
            self.stage.broken(error)
            raise error

    def refuse_the_dead(self) -> None:
        if self.dead:
            raise Killed(f"{self.name} is dead")

    def die(self) -> None:
        self.dead = True
        self.over.set()
        if self.task is not None:
            self.task.cancel()

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def lose_lease(self) -> None:
        self._has_lease = False
        self.over.set()


class Process:
    """A process, with its lives one after the other; `current` is the newest."""

    def __init__(self, stage: Stage, name: str, start: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
        self.stage = stage
        self.name = name
        self.current = Life(self, 1)
        self._start = start
        self._clock = stage.clock
        loop = asyncio.get_running_loop()
        self.tasks: list[asyncio.Task[Any]] = [loop.create_task(self._live_on(), name=f"the lives of {name}")]

    async def _live_on(self) -> None:
        number = 1
        while await self._live():
            await self._clock.sleep(RESTART_SECONDS if self.current.dead else 0.0)
            number += 1
            self.current = Life(self, number)

    async def _live(self) -> bool:
        """Run one life; return whether another follows."""
        life, loop = self.current, asyncio.get_running_loop()
        life.task = loop.create_task(self._start(life), name=life.name)
        self.tasks.append(life.task)
        over = loop.create_task(life.over.wait())
        self.tasks.append(over)
        await asyncio.wait({life.task, over}, return_when=asyncio.FIRST_COMPLETED)
        if not life.over.is_set():
            over.cancel()
            self._ended_by_itself(life.task)
            return False
        if life.dead:
            await self.stage.until_ended([life.task])
        else:
            self.stage.later(CANCELLED_AFTER_SECONDS, life.end)
        return True

    def _ended_by_itself(self, task: asyncio.Task[None]) -> None:
        """Check how a life ended. It may return if it has nothing left to do; anything else is a finding."""
        error = asyncio.CancelledError("cancelled by itself") if task.cancelled() else task.exception()
        if error is not None:
            ended = EndedByItself(f"{self.name} ended by itself: {type(error).__name__}: {error}")
            ended.__cause__ = error
            self.stage.broken(ended)
