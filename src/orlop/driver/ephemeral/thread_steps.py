"""A generator whose steps run in threads, one after the other, while others are served.

What it opened it closes itself, in its `finally` blocks: when it ends, or when nobody wants more of it. A step that is
under way then is not interrupted, since a thread cannot be; the thread closes the generator after it.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Generic, TypeVar

from orlop.driver.ephemeral.folders import Threads

T = TypeVar("T")


class ThreadSteps(Generic[T]):
    """`owned` is closed after the generator, also after one that was never begun."""

    def __init__(self, steps: Generator[T], threads: Threads, owned: ExitStack | None = None) -> None:
        self._steps = steps
        self._threads = threads
        self._owned = owned or ExitStack()
        self._one_at_a_time = threading.Lock()
        self._is_closing = False

    async def next(self) -> T | None:
        """None at its end."""
        return await self._threads(self._advance)

    def close(self) -> None:
        self._is_closing = True
        self._close_unless_under_way()

    def _advance(self) -> T | None:
        with self._one_at_a_time:
            result = None if self._is_closing else next(self._steps, None)
        if self._is_closing:
            self._close_unless_under_way()
        return result

    def _close_unless_under_way(self) -> None:
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._steps.close()
                self._owned.close()
            finally:
                self._one_at_a_time.release()
