"""Wakes a watch at its times, so that a stream can wait for changes alone, without a time limit around every wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from orlop.embedded.apiserver.object_store.watches import Watch
from orlop.foundation.clock import Clock


class Alarm:
    """`rung` are the times that have come; whoever has seen to them takes them out."""

    def __init__(self, clock: Clock, watch: Watch, times: Iterable[float]) -> None:
        self.rung: list[float] = []
        self._clock = clock
        self._watch = watch
        self._times = times
        self._task: asyncio.Task[None] | None = None

    async def _ring(self) -> None:
        for instant in self._times:
            await self._clock.sleep_until(instant)
            self.rung.append(instant)
            self._watch.nudge()

    def __enter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._ring(), name="alarm of a watch")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
