"""Who is told when something changed: the name, and nothing else. What happened never gets out: one must look.

A listener that fails is logged and told on; one that wants to be told everything again from time to time (resync) is,
at times of its own, so that what was missed anywhere is seen again.
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
"""Must not wait: it puts the name on a queue."""

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
        """Told everything again about every `resync` seconds, if that is not zero; gives what removes it."""
        registered = _Registered(listener, resync)
        self._schedule(registered)
        self._all.append(registered)
        self._changed.set()
        return lambda: self._remove(registered)

    def tell(self, names: Iterable[ObjectName]) -> None:
        for name in names:
            for registered in tuple(self._all):
                self.tell_one(registered.listener, name)

    def tell_one(self, listener: Listener, name: ObjectName) -> None:
        try:
            listener(name)
        except Exception as error:  # noqa: BLE001 - one listener's mistake must not keep the news from the others
            self._log.exception("a listener failed", error, name=str(name))

    async def resync(self, names: Callable[[], Iterable[ObjectName]]) -> None:
        """For ever: tells whoever is due all names there are."""
        while True:
            now = self._clock.elapsed()
            for registered in [one for one in self._all if one.due <= now]:
                self._schedule(registered)
                for name in names():
                    self.tell_one(registered.listener, name)
            self._changed.clear()
            await self._wait(min((one.due for one in self._all), default=math.inf))

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
