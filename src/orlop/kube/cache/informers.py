"""Share one informer for each kind and selection within a process: one watch, one copy of the objects.

An informer starts with its first user and stops with its last. Enter `Informers` before the first use, and leave it
after the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Informer, Watched, WatchLimits
from orlop.kube.client import KubeClient, Selection
from orlop.kube.kinds import Kind


@dataclass(eq=False, slots=True)
class _Shared:
    informer: Informer
    task: asyncio.Task[None]
    users: int = 0


class Informers:
    def __init__(
        self, client: KubeClient, *, clock: Clock, random: Random, log: Log, limits: WatchLimits | None = None
    ) -> None:
        self._client = client
        self._limits = limits
        self._clock = clock
        self._random = random
        self._log = log
        self._tasks = TaskGroup()
        self._shared: dict[tuple[Kind, Selection], _Shared] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for shared in self._shared.values():
            shared.task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def __len__(self) -> int:
        """Return the number of running informers."""
        return len(self._shared)

    @asynccontextmanager
    async def using(self, watched: Watched) -> AsyncIterator[Informer]:
        """Yield the informer of this kind and selection, started if necessary; it may not be synced yet."""
        key = watched.kind, watched.selection
        shared = self._shared.get(key) or self._begin(key, watched)
        if shared.informer.watched.transform is not watched.transform:
            raise ValueError(f"{watched} are watched already with another transform: agree on one transform")
        shared.users += 1
        try:
            yield shared.informer
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[key]
                shared.task.cancel()
                # Until its watch is closed: the next user of the same kind must not find the old one still running.
                await asyncio.wait([shared.task])

    def _begin(self, key: tuple[Kind, Selection], watched: Watched) -> _Shared:
        informer = Informer(
            self._client, watched, clock=self._clock, random=self._random, log=self._log, limits=self._limits
        )
        task = self._tasks.start(informer.run(), name=f"informer of {watched}")
        shared = self._shared[key] = _Shared(informer, task)
        return shared
