"""A lock per key: a task that holds "volume-1" excludes others from it, and nobody from "volume-2".

Waiters get the lock in the order they came. Keys that nobody holds use no memory. It is for tasks of one event loop:
it protects against neither threads nor other processes, and a task that locks the same key twice waits for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable


class KeyHeld(Exception):
    def __init__(self, key: Hashable, holder: str) -> None:
        super().__init__(f"{key!r} is held by {holder}")
        self.key = key
        self.holder = holder


@dataclass(eq=False)
class _Waiter:
    why: str
    turn: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class _Line:
    holder: str
    waiting: deque[_Waiter] | None = None
    """Created when somebody waits: most keys never have a waiter."""


@dataclass(frozen=True)
class _Hold(AbstractAsyncContextManager[None]):
    """Not a generator: a coroutine that is discarded while it waits would leave a suspended generator behind."""

    take: Callable[[], Awaitable[None]]
    give_back: Callable[[], None]

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()


class KeyedLock:
    """Locks by key. `why` describes the holder's work, for the error of others that cannot have the key."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    def hold(self, key: Hashable, why: str) -> AbstractAsyncContextManager[None]:
        """Wait for the key."""
        return _Hold(partial(self._take, key, why), partial(self._pass_on, key))

    def try_hold(self, key: Hashable, why: str) -> AbstractContextManager[None]:
        """Raise `KeyHeld` on entry if the key is held."""
        return _Attempt(self, key, why)

    def _take_now(self, key: Hashable, why: str) -> None:
        if (holder := self.holder(key)) is not None:
            raise KeyHeld(key, holder)
        self._lines[key] = _Line(why)

    def holder(self, key: Hashable) -> str | None:
        line = self._lines.get(key)
        return line.holder if line else None

    async def _take(self, key: Hashable, why: str) -> None:
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(why)
        else:
            await self._wait_in_line(key, line, why)

    async def _wait_in_line(self, key: Hashable, line: _Line, why: str) -> None:
        waiter = _Waiter(why, asyncio.get_running_loop().create_future())
        waiting = line.waiting = deque() if line.waiting is None else line.waiting
        waiting.append(waiter)
        try:
            await waiter.turn
        except BaseException:
            if waiter in waiting:
                waiting.remove(waiter)
            elif not waiter.turn.cancelled():
                # We got the key and were cancelled in the same turn of the loop: nobody else would pass it on.
                self._pass_on(key)
            raise

    def _pass_on(self, key: Hashable) -> None:
        """Hand the key to the next waiter at once, so that nobody can take it before that task runs."""
        line = self._lines[key]
        while line.waiting:
            waiter = line.waiting.popleft()
            if not waiter.turn.cancelled():
                line.holder = waiter.why
                waiter.turn.set_result(None)
                return
        del self._lines[key]


class _Attempt(AbstractContextManager[None]):
    """Not a generator: it is used for every call of a driver, and a class costs half as much."""

    __slots__ = ("_key", "_lock", "_why")

    def __init__(self, lock: KeyedLock, key: Hashable, why: str) -> None:
        self._lock = lock
        self._key = key
        self._why = why

    def __enter__(self) -> None:
        self._lock._take_now(self._key, self._why)  # noqa: SLF001 - a part of the lock

    def __exit__(self, *_: object) -> None:
        self._lock._pass_on(self._key)  # noqa: SLF001 - as above
