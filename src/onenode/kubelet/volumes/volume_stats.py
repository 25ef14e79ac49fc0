"""How full the volumes of pods are, by their drivers: requested when a client asks for it, at most once a minute.

Each volume has a request of its own, and at most one: a driver that hangs keeps nobody waiting but the first client
that asks for its volume, and that not long. An answer stands until the driver gives another, or fails.
Kubelet asks every minute; here no driver is asked while no client asks.

The condition of a volume has left the interface, but not the drivers: it is read where it was. What came in its place
is asked by a kubelet only where an alpha feature is on, and so not here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from onenode.kubelet.volumes.mount_progress import VolumeInPod
from onenode.kubelet.volumes.steps.driver_calls import DriverTalk
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed
from onenode.kubelet.volumes.volume_seams import Drivers
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup

BYTES: Final = csi_pb2.VolumeUsage.Unit.BYTES
INODES: Final = csi_pb2.VolumeUsage.Unit.INODES
ABILITY: Final = "GET_VOLUME_STATS"
CONDITION_FIELD: Final = 2
"""A message, whose first field says whether the volume is not well, and the second why."""
ABNORMAL_TAG: Final = 0x08


@dataclass(frozen=True, slots=True)
class Amount:
    total: int = 0
    used: int = 0
    available: int = 0


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """`abnormal` is None where the driver says nothing of the volume's condition."""

    bytes: Amount | None
    inodes: Amount | None
    abnormal: bool | None


def usage_of(answer: csi_pb2.NodeGetVolumeStatsResponse) -> VolumeUsage | None:
    """None where the driver returned nothing: kubelet takes that for a failure."""
    amounts = {
        one.unit: Amount(max(0, one.total), max(0, one.used), max(0, one.available))
        for one in answer.usage
        if one.unit in {BYTES, INODES}
    }
    abnormal = _abnormal(answer)
    if not amounts and abnormal is None:
        return None
    return VolumeUsage(amounts.get(BYTES), amounts.get(INODES), abnormal)


def _abnormal(answer: csi_pb2.NodeGetVolumeStatsResponse) -> bool | None:
    """Protobuf leaves out what is false: a condition that begins with anything else is a good one."""
    unknown = UnknownFieldSet(answer)
    for field in (unknown[place] for place in range(len(unknown))):
        if field.field_number == CONDITION_FIELD and isinstance(field.data, bytes):
            return field.data[:1] == bytes([ABNORMAL_TAG]) and field.data[1:2] != b"\0"
    return None


PERIOD_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
FIRST_ANSWER_SECONDS: Final = 2.0
"""How long who asks first waits for what was never known."""


@dataclass(frozen=True, slots=True)
class Measured:
    volume: VolumeInPod
    usage: VolumeUsage
    time: datetime


@asynccontextmanager
async def volume_stats(
    volumes: Callable[[], Sequence[VolumeInPod]], drivers: Drivers, runtime: Runtime
) -> AsyncIterator[VolumeStats]:
    """`volumes` are those that are mounted now. Leaving it ends the questions that are under way."""
    async with TaskGroup() as tasks:
        stats = VolumeStats(volumes, drivers, runtime, tasks)
        try:
            yield stats
        finally:
            stats.stop()


class VolumeStats:
    def __init__(
        self, volumes: Callable[[], Sequence[VolumeInPod]], drivers: Drivers, runtime: Runtime, tasks: TaskGroup
    ) -> None:
        self._volumes = volumes
        self._drivers = drivers
        self._clock = runtime.clock
        self._log = runtime.log
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
        return asked is None or asked + PERIOD_SECONDS <= self._clock.elapsed()

    def _ask(self, volume: VolumeInPod) -> asyncio.Task[None]:
        self._asked[volume] = self._clock.elapsed()
        task = self._tasks.start(self._measure(volume), name=f"statistics of volume {volume.handle}")
        self._under_way[volume] = task
        task.add_done_callback(lambda _: self._under_way.pop(volume, None))
        return task

    async def _first_answers(self, questions: Sequence[asyncio.Task[None]]) -> None:
        if questions:
            with suppress(TimeoutError):
                async with self._clock.timeout(FIRST_ANSWER_SECONDS):
                    await asyncio.wait(questions)

    async def _measure(self, volume: VolumeInPod) -> None:
        try:
            usage = await self._told(volume)
        except (CsiError, StepFailed) as error:
            self._log.debug("volume statistics not available", volume=volume.handle, why=str(error))
            usage = None
        if usage is None:
            self._known.pop(volume, None)
        elif volume in self._asked:  # else it was unmounted meanwhile
            self._known[volume] = Measured(volume, usage, self._clock.now())

    async def _told(self, volume: VolumeInPod) -> VolumeUsage | None:
        client = self._drivers.driver(volume.driver)
        if client is None:
            return None
        talk = DriverTalk(client, "", self._clock.deadline(ANSWER_SECONDS))
        if ABILITY not in await talk.capabilities():
            return None
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume.handle, volume_path=volume.path)
        return usage_of(await talk.call(rpc.NODE_GET_VOLUME_STATS, request))

    def _forget_all_but(self, mounted: frozenset[VolumeInPod]) -> None:
        for volume in [one for one in self._asked if one not in mounted]:
            del self._asked[volume]
            self._known.pop(volume, None)
