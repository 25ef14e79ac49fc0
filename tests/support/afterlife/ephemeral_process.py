"""A whole process with scratch folders on a model of its machine: started, at work, stopped or killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any, TypeVar

from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import start_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.upkeep.orphan_watch import OrphanWatch
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.node_host import NodeHost
from orlop.host.threads import Threads
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import Killed, KillPoints
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import FakePurge, right_here

T = TypeVar("T")
PRUNE_INTERVAL = 5.0
HEADROOM = Fraction(1, 10)
GRACE = 60.0


class SlowThreads:
    """Work that begins and ends a little later, so that others come in between; the same for the same seed."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        self._clock = clock
        self._random = Random(seed)

    async def __call__(self, work: Callable[[], T], /) -> T:
        await self._pause()
        try:
            return work()
        finally:
            await self._pause()

    async def _pause(self) -> None:
        await self._clock.sleep(self._random.choice((0.0, 0.0, 0.001, 0.004)))


@dataclass
class Ground:
    """What a process is started on, and what stays when it ends."""

    machine: FakeMachine
    clock: VirtualClock = field(default_factory=VirtualClock)
    threads: Threads = right_here
    grace: float = GRACE
    headroom: Fraction = HEADROOM
    host: Callable[[FakeNodeHost], Any] = lambda host: host
    """What the process has in the place of its host."""
    fails: dict[str, int] = field(default_factory=dict)
    """How often a purge fails, by a part of the name."""


class NodeProcess:
    """Starting one may raise HostError, as a real one ends with a reason."""

    def __init__(self, ground: Ground, points: KillPoints | None = None) -> None:
        self.points = points or KillPoints()
        self.log: list[LogEntry] = []
        self.metrics = Metrics("test", of_process=False)
        clock, threads, log = ground.clock, ground.threads, collecting_log(self.log)
        host: NodeHost = ground.host(FakeNodeHost(ground.machine, self.points))
        self.started = Moment(clock.now().timestamp(), clock.elapsed())
        book = start_index(host.workdir, self.started)
        self.folders = Folders(host, book, threads=threads, clock=clock, log=log)
        self.purge = FakePurge(ground.machine, self.points, ground.fails)
        runtime = Runtime(clock=clock, random=Random(1), log=log, metrics=self.metrics)
        settings = ReaperSettings(PRUNE_INTERVAL, ground.headroom)
        self.reaper = Reaper(self.folders, host, self.purge, settings, runtime, threads=threads)
        orphans = OrphanWatch(self.folders, host, grace=ground.grace, threads=threads, clock=clock, log=log)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run()) for each in (self.reaper, orphans)]

    def assert_well(self) -> None:
        """Neither task ends by itself, whatever the machine answers."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and not isinstance(task.exception(), Killed):
                raise AssertionError("the process ended by itself") from task.exception()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise error


@asynccontextmanager
async def running_process(ground: Ground, points: KillPoints | None = None) -> AsyncIterator[NodeProcess]:
    process = NodeProcess(ground, points)
    try:
        yield process
        process.assert_well()
    finally:
        await process.stop()
