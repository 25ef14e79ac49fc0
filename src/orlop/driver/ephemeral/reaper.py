"""Erases what is beyond its time: one decision at a time, each on what the disk is then.

Order for one folder: its key is held → nothing has it mounted → it is moved to the trash, which is durable and frees
its name → the book forgets it → nothing has it mounted still → it is purged. What a process that died left in the
trash is purged by the next one. Under pressure nothing more is decided before the purge is through and the disk has
been measured again; else two are purged side by side.

A folder that cannot be erased (something has it mounted, a purge failed) is tried again later, each time later, and
holds up no other. Must not decide by itself: `afterlife_rules` does.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife_rules import (
    NO_PRESSURE,
    DiskSpace,
    Erase,
    Moment,
    Reason,
    Wait,
    next_look,
    next_step,
    pressure_factor,
    wall_clock_jump,
)
from orlop.driver.ephemeral.folder_book import Retained
from orlop.driver.ephemeral.folder_work import FolderWork, retained_place
from orlop.driver.ephemeral.folders import Folders, Threads
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.host.errors import HostError
from orlop.host.node_host import FolderPlace, FolderState, NodeHost
from orlop.records.ephemeral_folder import burial_of

PURGES_AT_ONCE: Final = 2
LATER: Final = Backoff(initial=5.0, factor=2.0, cap=600.0, jitter=0.2)
JUMP_WORTH_TELLING_SECONDS: Final = 5.0
SHORTLY_AFTER: Final = 0.001
"""A folder goes strictly after its time."""

Purge = Callable[[str], object]
"""Erases what has this name in the trash, for good; blocks, and raises HostError with what could not be erased."""


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    prune_interval: float
    headroom: Fraction


@dataclass(frozen=True, slots=True)
class ReaperTools:
    threads: Threads
    clock: Clock
    random: Random
    log: Log
    metrics: Metrics


@dataclass(slots=True)
class _Trouble:
    """Why something was not erased, and when it is tried again."""

    failures: int
    again_at: float
    why: str


class Reaper:
    """Nothing is erased unless somebody keeps `run` running."""

    def __init__(
        self, folders: Folders, host: NodeHost, purge: Purge, settings: ReaperSettings, tools: ReaperTools
    ) -> None:
        self._folders = folders
        self._book = folders.book
        self._host = host
        self._work = FolderWork(host)
        self._purge = purge
        self._settings = settings
        self._threads = tools.threads
        self._clock = tools.clock
        self._random = tools.random
        self._log = tools.log
        self._turns = asyncio.Semaphore(PURGES_AT_ONCE)
        self._asked: set[str] = set()
        """What lies in the trash because somebody asked for it."""
        self._purging: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._last: Moment | None = None
        self.factor = NO_PRESSURE
        self._erased = tools.metrics.counter(
            "orlop_ephemeral_erased_total", "Folders erased, by the reason.", ("reason",)
        )
        self._failed = tools.metrics.counter("orlop_ephemeral_erase_failures_total", "Attempts to erase that failed.")
        tools.metrics.gauge_from(
            "orlop_ephemeral_pressure_factor", "What lifespans are multiplied by.", lambda: float(self.factor)
        )

    async def run(self) -> None:
        """For ever."""
        async with TaskGroup() as tasks:
            while True:
                self._folders.buried.clear()
                await self._wait(await self.step(tasks))

    async def step(self, tasks: TaskGroup) -> float | None:
        """Decides and does one thing; how long there is nothing to do then, or None for: until something is buried."""
        now = self._now()
        self._tell_jump(now)
        for name in await self._threads(self._host.workdir.names_in_trash):
            self._begin_purge(name, Reason.ASKED if name in self._asked else None, tasks)
        self.factor = await self._measured_factor()
        folders = self._book.in_afterlife(now, but=(*self._in_trouble(now), *self._book.readers))
        match next_step(folders, self.factor):
            case Erase(volume_id, reason):
                await self._erase(volume_id, reason, tasks)
                return 0.0
            case Wait(seconds):
                looks = next_look(len(self._book.retained), self.factor, self._settings.prune_interval)
                return looks if seconds is None or looks is None else min(looks, seconds + SHORTLY_AFTER)

    async def _measured_factor(self) -> Fraction:
        room = await self._threads(self._host.workdir.room)
        space = DiskSpace(room.total_bytes, room.free_bytes, room.total_inodes, room.free_inodes)
        return pressure_factor(space, self._settings.headroom)

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with self._clock.timeout(seconds if seconds is not None else self._settings.prune_interval):
                await self._folders.buried.wait()
        except TimeoutError:
            return

    async def erase_as_asked(self, volume_id: str) -> None:
        """By the same way as those whose time is over; raises what stands against it. The purge comes afterwards."""
        name = self._book.retained[volume_id].burial.folder_name
        self._asked.add(name)  # before it is in the trash, where the next step may find it at once
        try:
            await self._move_to_trash(volume_id)
        except BaseException:
            self._asked.discard(name)
            raise
        self._log.info("erasing", volume=volume_id, reason=Reason.ASKED.value)
        self._folders.buried.set()

    # ---- one folder --------------------------------------------------------------------------------------------------

    async def _erase(self, volume_id: str, reason: Reason, tasks: TaskGroup) -> None:
        try:
            name = await self._move_to_trash(volume_id)
        except (CsiError, HostError, KeyHeld) as error:
            self._note_trouble(volume_id, str(error))
            return
        self._log.info("erasing", volume=volume_id, reason=reason.value)
        purge = self._begin_purge(name, reason, tasks)
        if reason is Reason.PRESSURE:
            await asyncio.wait([purge])

    async def _move_to_trash(self, volume_id: str) -> str:
        with self._folders.keys.try_hold(volume_id, why="erasing"):
            retained: Retained = self._book.retained[volume_id]
            place = retained_place(retained.burial)
            if volume_id in self._book.readers:
                raise HostError(errno.EBUSY, f"The folder {place} is being read; it is left alone until it is not.")
            if place in await self._threads(self._host.workdir.mounted_folders):
                raise HostError(0, f"The folder {place} is mounted somewhere; it is left alone until it is not.")
            await self._threads(lambda: self._work.discard(retained.burial))
            self._book.was_discarded(volume_id)
            self._troubles.pop(volume_id, None)
            return retained.burial.folder_name

    def _begin_purge(self, name: str, reason: Reason | None, tasks: TaskGroup) -> asyncio.Task[None]:
        """What lies in the trash for another reason was never used, has no afterlife, or another process left it."""
        if name not in self._purging:
            self._purging[name] = tasks.start(self._purge_until_gone(name, reason), name=f"purge {name}")
        return self._purging[name]

    async def _purge_until_gone(self, name: str, reason: Reason | None) -> None:
        failures = 0
        while not await self._purged(name):
            failures += 1
            await self._clock.sleep(LATER.delay(failures, self._random))
        del self._purging[name]
        self._asked.discard(name)
        self._erased.inc(reason.value if reason is not None else "trash")

    async def _purged(self, name: str) -> bool:
        place, burial = FolderPlace(FolderState.TRASH, name), burial_of(name)
        if burial is not None and burial.volume_id in self._book.readers:
            return False  # it was published again while it was read, and had no second afterlife
        try:
            if place in await self._threads(self._host.workdir.mounted_folders):
                self._log.warning("not erased yet: something has it mounted", folder=str(place))
                return False
            async with self._turns:
                await self._threads(lambda: self._purge(name))
        except HostError as error:
            self._failed.inc()
            self._log.warning("not erased yet", folder=str(place), error=error)
            return False
        return True

    # ---- trouble -----------------------------------------------------------------------------------------------------

    def trouble_with(self, volume_id: str) -> str | None:
        """Why a folder whose time is over is still there."""
        return self._troubles[volume_id].why if volume_id in self._troubles else None

    def _in_trouble(self, now: Moment) -> list[str]:
        return [volume_id for volume_id, trouble in self._troubles.items() if trouble.again_at > now.elapsed]

    def _note_trouble(self, volume_id: str, why: str) -> None:
        failures = self._troubles[volume_id].failures + 1 if volume_id in self._troubles else 1
        again_at = self._clock.elapsed() + LATER.delay(failures, self._random)
        self._troubles[volume_id] = _Trouble(failures, again_at, why)
        self._failed.inc()
        self._log.warning("not erased yet", volume=volume_id, error=why)

    def _now(self) -> Moment:
        return Moment(self._clock.now().timestamp(), self._clock.elapsed())

    def _tell_jump(self, now: Moment) -> None:
        jump = wall_clock_jump(self._last, now) if self._last is not None else 0.0
        if abs(jump) >= JUMP_WORTH_TELLING_SECONDS:
            self._log.warning("the wall clock jumped; nothing is erased early for it", seconds=round(jump, 3))
        self._last = now
