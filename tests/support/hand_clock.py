"""A clock that is set by hand, for code that speaks over real sockets, whose time cannot be virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orlop.foundation.clock import SystemClock
from support.waiting import eventually_answered

TURNS = 5
"""Turns of the event loop in which what was woken acts."""


class HandClock(SystemClock):
    """No time passes unless the test lets it pass, however long the machine takes for something."""

    def __init__(self) -> None:
        self.time = 0.0
        self._passed = asyncio.Event()

    def elapsed(self) -> float:
        return self.time

    async def sleep_until(self, elapsed_instant: float) -> None:
        await asyncio.sleep(0)
        while self.time < elapsed_instant:
            await self._passed.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and let those act who slept until now."""
        self.time += seconds
        self._passed.set()
        self._passed = asyncio.Event()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def advance_until(self, condition: Callable[[], object], step: float) -> None:
        """Let time pass until something has come true that also needs sockets to move."""

        async def is_so() -> bool:
            await self.advance(step)
            return bool(condition())

        await eventually_answered(is_so)
