"""Notify listeners that an object changed: they get its name, and read the cache themselves.

A listener that raises is logged and stays registered. A listener with a `resync` period is also called for every object
from time to time, so that a missed change is seen in the end.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.objects import ObjectName

Listener: TypeAlias = Callable[[ObjectName], None]
"""Must not block: it adds the name to a queue."""

RESYNC_JITTER: Final = 0.1


@dataclass(eq=False, slots=True)
class _Registered:
    listener: Listener
    resync: float
    due: float = math.inf


class Listeners:
    def __init__(self, *, clock: Clock, random: Random, log: Log) -> None:
        self._clock = clock
        self._random = random
        self._log = log
        self._all: list[_Registered] = []
        self._changed = asyncio.Event()

    def add(self, listener: Listener, resync: float) -> Callable[[], None]:
        """Register a listener, resynced about every `resync` seconds unless that is zero. Return a remove function."""
        registered = _Registered(listener, resync)
        self._schedule(registered)
        self._all.append(registered)
        self._changed.set()
        return lambda: self._remove(registered)

    def notify(self, names: Iterable[ObjectName]) -> None:
        for name in names:
            # A copy: a listener may remove itself, or another, while it is called.
            for registered in tuple(self._all):
                self.notify_one(registered.listener, name)

    def notify_one(self, listener: Listener, name: ObjectName) -> None:
        try:
            listener(name)
        except Exception as error:  # noqa: BLE001 - one listener's bug must not keep changes from the others
            self._log.exception("listener failed", error, name=str(name))

    async def resync(self, names: Callable[[], Iterable[ObjectName]]) -> None:
        """Call each listener whose resync is due with all names, for ever."""
        while True:
            now = self._clock.elapsed()
            for registered in [listener for listener in self._all if listener.due <= now]:
                self._schedule(registered)
                for name in names():
                    self.notify_one(registered.listener, name)
            self._changed.clear()
            await self._wait(min((listener.due for listener in self._all), default=math.inf))

    async def _wait(self, instant: float) -> None:
        if instant == math.inf:
            await self._changed.wait()
            return
        try:
            async with self._clock.timeout(max(0.0, instant - self._clock.elapsed())):
                await self._changed.wait()
        except TimeoutError:
            return

    def _schedule(self, registered: _Registered) -> None:
        if registered.resync > 0:
            period = registered.resync * (1 + RESYNC_JITTER * self._random.random())
            registered.due = self._clock.elapsed() + period

    def _remove(self, registered: _Registered) -> None:
        if registered in self._all:
            self._all.remove(registered)
