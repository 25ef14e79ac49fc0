"""The only place in the tests that waits for real time to pass, and only for something another process does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

LOOK_EVERY = 0.01
LIMITS = (0.2, 1.0, 5.0, 25.0)
"""For what has to come to some point and then reach its limit: a longer one is for machines too busy for the former."""
HANGS_AFTER = 120.0
"""Seconds that only something that never happens can take, on any machine, however busy."""


async def eventually(condition: Callable[[], T], within: float = HANGS_AFTER) -> T:
    """Returns the first true value of the condition; fails, naming it, when there was none in so many seconds."""
    end = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > end:
            source = getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"{source} did not become true within {within} seconds; it is {value!r}")
        await asyncio.sleep(LOOK_EVERY)
    return value


async def eventually_answered(
    question: Callable[[], Awaitable[T]], within: float = HANGS_AFTER, every: float = 0.05
) -> T:
    """The same for what has to be asked of somebody else, who may take his time."""
    end = time.monotonic() + within
    while not (value := await question()):
        if time.monotonic() > end:
            source = getattr(question, "__qualname__", repr(question))
            raise AssertionError(f"{source} did not become true within {within} seconds; it is {value!r}")
        await asyncio.sleep(every)
    return value


def eventually_there(condition: Callable[[], bool], within: float = HANGS_AFTER, every: float = LOOK_EVERY) -> None:
    """The same for fixtures, which have no event loop."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"{condition} did not become true within {within} seconds"
        time.sleep(every)
