"""What drivers say of the volumes they have mounted for pods: asked when somebody wants to know, once a minute at most.

Each volume has a question of its own, and at most one: a driver that hangs keeps nobody waiting but the first who asks
for its volume, and that not long. What a driver said stands until it says something else, or fails to.

Kubelet asks every minute; here nobody is asked while nobody wants to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.embedded.kubelet.volumes.driver_talk import DriverTalk
from orlop.embedded.kubelet.volumes.pod_volumes import VolumeInPod
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_stats_rules import ABILITY, VolumeUsage, usage_of
from orlop.embedded.kubelet.volumes.volume_tools import Drivers
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup

PERIOD_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
FIRST_ANSWER_SECONDS: Final = 2.0
"""How long who asks first waits for what was never known."""


@dataclass(frozen=True, slots=True)
class StatsTools:
    drivers: Drivers
    clock: Clock
    log: Log


@dataclass(frozen=True, slots=True)
class Measured:
    volume: VolumeInPod
    usage: VolumeUsage
    time: datetime


@asynccontextmanager
async def volume_stats(volumes: Callable[[], Sequence[VolumeInPod]], tools: StatsTools) -> AsyncIterator[VolumeStats]:
    """`volumes` are those that are mounted now. Leaving it ends the questions that are under way."""
    async with TaskGroup() as tasks:
        stats = VolumeStats(volumes, tools, tasks)
        try:
            yield stats
        finally:
            stats.stop()


class VolumeStats:
    def __init__(self, volumes: Callable[[], Sequence[VolumeInPod]], tools: StatsTools, tasks: TaskGroup) -> None:
        self._volumes = volumes
        self._tools = tools
        self._tasks = tasks
        self._known: dict[VolumeInPod, Measured] = {}
        self._asked: dict[VolumeInPod, float] = {}
        self._under_way: dict[VolumeInPod, asyncio.Task[None]] = {}

    async def current(self) -> Mapping[VolumeInPod, Measured]:
        mounted = self._volumes()
        self._forget_all_but(frozenset(mounted))
        asked = {volume: self._ask(volume) for volume in mounted if self._is_due(volume)}
        await self._first_answers([task for volume, task in asked.items() if volume not in self._known])
        return {volume: self._known[volume] for volume in mounted if volume in self._known}

    def stop(self) -> None:
        for task in tuple(self._under_way.values()):
            task.cancel()

    def _is_due(self, volume: VolumeInPod) -> bool:
        if volume in self._under_way:
            return False
        asked = self._asked.get(volume)
        return asked is None or asked + PERIOD_SECONDS <= self._tools.clock.elapsed()

    def _ask(self, volume: VolumeInPod) -> asyncio.Task[None]:
        self._asked[volume] = self._tools.clock.elapsed()
        task = self._tasks.start(self._measure(volume), name=f"statistics of volume {volume.handle}")
        self._under_way[volume] = task
        task.add_done_callback(lambda _: self._under_way.pop(volume, None))
        return task

    async def _first_answers(self, questions: Sequence[asyncio.Task[None]]) -> None:
        if questions:
            with suppress(TimeoutError):
                async with self._tools.clock.timeout(FIRST_ANSWER_SECONDS):
                    await asyncio.wait(questions)

    async def _measure(self, volume: VolumeInPod) -> None:
        try:
            usage = await self._told(volume)
        except (CsiError, StepFailed) as error:
            self._tools.log.debug("a driver tells nothing of a volume", volume=volume.handle, why=str(error))
            usage = None
        if usage is None:
            self._known.pop(volume, None)
        elif volume in self._asked:  # else it was unmounted meanwhile
            self._known[volume] = Measured(volume, usage, self._tools.clock.now())

    async def _told(self, volume: VolumeInPod) -> VolumeUsage | None:
        client = self._tools.drivers.driver(volume.driver)
        if client is None:
            return None
        talk = DriverTalk(client, "", self._tools.clock.deadline(ANSWER_SECONDS))
        if ABILITY not in await talk.abilities():
            return None
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume.handle, volume_path=volume.path)
        return usage_of(await talk.call(rpc.NODE_GET_VOLUME_STATS, request))

    def _forget_all_but(self, mounted: frozenset[VolumeInPod]) -> None:
        for volume in [one for one in self._asked if one not in mounted]:
            del self._asked[volume]
            self._known.pop(volume, None)
