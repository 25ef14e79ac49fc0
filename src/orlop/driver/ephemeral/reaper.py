"""Erases what is beyond its time: one decision at a time, each on what the disk is then.

Order for one folder: its key is held → nothing has it mounted → it is moved to the trash, which is durable and frees
its name → the book forgets it → `trash_purge` erases it for good, if still nothing has it mounted.

What is beyond its own lifespan goes whatever the disk says: first, and several at a time for one look at the mounts.
What only pressure asks for goes one by one, and only when nothing is being purged: the room that a purge gives is
measured before more is decided. A folder that cannot be erased (something has it mounted, its purge failed) is tried
again later, each time later, and holds up no other. A disk that cannot be looked at ends nothing: it is told, and
looked at again later. Must not decide by itself: `afterlife_rules` does.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
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
    pressure_factor,
    wall_clock_jump,
)
from orlop.driver.ephemeral.complaints import Complaints
from orlop.driver.ephemeral.folder_work import FolderWork, retained_place
from orlop.driver.ephemeral.folders import Folders
from orlop.driver.ephemeral.mount_look import MountLook
from orlop.driver.ephemeral.trash_purge import LATER, PURGES_AT_ONCE, Purge, ReaperTools, TrashPurge
from orlop.foundation.backoff import Backoff
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.task_group import TaskGroup
from orlop.host.disk_usage import DiskRoom
from orlop.host.errors import HostError
from orlop.host.node_host import FolderPlace, NodeHost

__all__ = ["Purge", "Reaper", "ReaperSettings", "ReaperTools"]

MOST_AT_ONCE: Final = 32
"""Folders whose keys are held for one look at the mounts."""
BLIND: Final = Backoff(initial=1.0, factor=2.0, cap=60.0, jitter=0.2)
JUMP_WORTH_TELLING_SECONDS: Final = 5.0
SHORTLY_AFTER: Final = 0.001
"""A folder goes strictly after its time."""


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    prune_interval: float
    headroom: Fraction


@dataclass(slots=True)
class _Trouble:
    """How often a volume's folder could not be erased, and why not the last time."""

    failures: int
    why: str


class Reaper:
    """Nothing is erased unless somebody keeps `run` running."""

    def __init__(
        self, folders: Folders, host: NodeHost, purge: Purge, settings: ReaperSettings, tools: ReaperTools
    ) -> None:
        self._folders = folders
        self._book = folders.book
        self._queue = folders.book.queue
        self._workdir = host.workdir
        self._work = FolderWork(host, folders.numbers)
        self._settings = settings
        self._threads = tools.threads
        self._clock = tools.clock
        self._random = tools.random
        self._log = tools.log
        self._complaints = Complaints(tools.log, tools.clock)
        self._mounts = MountLook(host.workdir, tools.threads, tools.clock)
        self._trash = TrashPurge(
            host.workdir, purge, self._mounts, tools, readers=folders.book.readers, settled=folders.buried
        )
        self._trash_seen_at: float | None = None
        self._troubles: dict[str, _Trouble] = {}
        self._set_aside: list[tuple[float, str]] = []
        """When they are taken back."""
        self._last: Moment | None = None
        self.factor = NO_PRESSURE
        self.room: DiskRoom | None = None
        """The disk as it was seen last."""
        self.why_stuck: str | None = None
        """Why nothing can be erased now; None while it can."""
        self._failed = tools.metrics.counter("orlop_ephemeral_erase_failures_total", "Attempts to erase that failed.")
        self._blind = tools.metrics.counter(
            "orlop_ephemeral_disk_failures_total", "Looks at the disk, the trash or the mounts that failed."
        )
        tools.metrics.gauge_from(
            "orlop_ephemeral_pressure_factor", "What lifespans are multiplied by.", lambda: float(self.factor)
        )

    async def run(self) -> None:
        """For ever, whatever the disk answers."""
        async with TaskGroup() as tasks:
            for number in range(PURGES_AT_ONCE):
                tasks.start(self._trash.work(), name=f"purge {number + 1}")
            failures = 0
            while True:
                self._folders.buried.clear()
                try:
                    seconds = await self.step()
                except OSError as error:
                    failures += 1
                    self._tell_stuck(error)
                    await self._clock.sleep(BLIND.delay(failures, self._random))
                else:
                    failures = 0
                    self.why_stuck = None
                    await self._wait(seconds)

    async def step(self) -> float:
        """Decides and does one thing; how long there is nothing to do then."""
        now = self._now()
        self._tell_jump(now)
        self._take_back(now)
        await self._look_for_trash(now)
        self.factor = await self._measured_factor()
        if overdue := self._overdue(now):
            await self._erase(overdue)
            return 0.0
        match self._queue.next_step(now.elapsed, await self._factor_to_go_by()):
            case Erase() as erase:
                self._queue.set_aside(erase.name)
                await self._erase([erase])
                return 0.0
            case Wait(seconds):
                return self._next_look(seconds)

    def _next_look(self, seconds: float | None) -> float:
        looks = next_look(len(self._book.retained), self.factor, self._settings.prune_interval)
        waits = [self._settings.prune_interval if looks is None else looks]
        if seconds is not None:
            waits.append(seconds + SHORTLY_AFTER)
        return min(waits)

    def _overdue(self, now: Moment) -> list[Erase]:
        """Beyond their own lifespan; each is set aside, so that the next is chosen as if it had gone already."""
        overdue: list[Erase] = []
        while len(overdue) < MOST_AT_ONCE:
            step = self._queue.next_step(now.elapsed, NO_PRESSURE)
            if not isinstance(step, Erase):
                break
            self._queue.set_aside(step.name)
            overdue.append(step)
        return overdue

    async def _look_for_trash(self, now: Moment) -> None:
        """Not at every step, since there may be very much."""
        self._hand_over_trash()
        if self._trash_seen_at is None or now.elapsed - self._trash_seen_at >= self._settings.prune_interval:
            await self._trash.look()
            self._trash_seen_at = now.elapsed

    async def _factor_to_go_by(self) -> Fraction:
        """Pressure takes nothing before all of the trash has been tried, also what came there without a word."""
        if self.factor != NO_PRESSURE and not self._trash.busy:
            await self._trash.look()
        return NO_PRESSURE if self._trash.busy else self.factor

    def _hand_over_trash(self) -> None:
        while self._folders.trashed:
            self._trash.add(self._folders.trashed.pop())

    async def _measured_factor(self) -> Fraction:
        self.room = room = await self._threads(self._workdir.room)
        space = DiskSpace(room.total_bytes, room.free_bytes, room.total_inodes, room.free_inodes)
        return pressure_factor(space, self._settings.headroom)

    async def _wait(self, seconds: float) -> None:
        """Until then, or until something has happened that makes it too long."""
        end = self._clock.elapsed() + seconds
        while (left := end - self._clock.elapsed()) > 0:
            try:
                async with self._clock.timeout(left):
                    await self._folders.buried.wait()
            except TimeoutError:
                return
            self._folders.buried.clear()
            self._hand_over_trash()
            if self.factor != NO_PRESSURE or self._something_due_before(end):
                return

    def _something_due_before(self, end: float) -> bool:
        now = self._clock.elapsed()
        match self._queue.next_step(now, NO_PRESSURE):
            case Wait(seconds):
                return seconds is not None and now + seconds + SHORTLY_AFTER < end
            case Erase():
                return True

    # ---- some folders ------------------------------------------------------------------------------------------------

    async def _erase(self, chosen: Sequence[Erase]) -> None:
        """They have been set aside. HostError: nobody knows what is mounted, and nothing was done."""
        with ExitStack() as keys:
            unread = [erase for erase in chosen if not self._left_to_readers(erase.name)]
            held = [erase for erase in unread if self._holds(erase.name, keys)]
            ticket = self._mounts.ticket()
            try:
                mounted = await self._mounts.after(ticket)
            except OSError:
                for erase in held:
                    self._queue.take_back(erase.name)
                raise
            for erase in held:
                name = await self._moved_to_trash(erase.name, mounted)
                if name is not None:
                    self._log.info("erasing", volume=erase.name, reason=erase.reason.value)
                    self._trash.add(name, erase.reason, ticket)

    def _holds(self, volume_id: str, keys: ExitStack) -> bool:
        try:
            keys.enter_context(self._folders.keys.try_hold(volume_id, why="erasing"))
        except KeyHeld as error:
            self._put_off(volume_id, error)
            return False
        return True

    def _left_to_readers(self, volume_id: str) -> bool:
        """For a while; it is nobody's failure."""
        if volume_id not in self._book.readers:
            return False
        heapq.heappush(self._set_aside, (self._clock.elapsed() + LATER.initial, volume_id))
        return True

    async def _moved_to_trash(self, volume_id: str, mounted: frozenset[FolderPlace]) -> str | None:
        """Its name there; None if it is not to be erased, or not now."""
        try:
            return await self._discard(volume_id, mounted)
        except (CsiError, OSError) as error:
            self._put_off(volume_id, error)
            return None

    async def _discard(self, volume_id: str, mounted: frozenset[FolderPlace]) -> str | None:
        """Its name in the trash; None if it is not retained. Raises what stands against it."""
        await self._folders.make_sure(volume_id)
        retained = self._book.retained.get(volume_id)
        if retained is None:
            return None
        place = retained_place(retained.burial)
        if volume_id in self._book.readers:
            raise HostError(errno.EBUSY, f"The folder {place} is being read; it is left alone until it is not.")
        if place in mounted:
            raise HostError(errno.EBUSY, f"The folder {place} is mounted somewhere; it is left alone until it is not.")
        try:
            await self._threads(lambda: self._work.discard(retained.burial))
        except CsiError:
            self._folders.in_doubt.add(volume_id)
            raise
        self._book.was_discarded(volume_id)
        return retained.burial.folder_name

    async def erase_as_asked(self, volume_id: str) -> None:
        """By the same way as those whose time is over; raises what stands against it. The purge comes afterwards."""
        with self._folders.keys.try_hold(volume_id, why="erasing"):
            ticket = self._mounts.ticket()
            name = await self._discard(volume_id, await self._mounts.after(ticket))
            if name is None:
                raise HostError(errno.ENOENT, f"The volume {volume_id} is not retained any more.")
            self._log.info("erasing", volume=volume_id, reason=Reason.ASKED.value)
            self._trash.add(name, Reason.ASKED, ticket)
        self._folders.buried.set()

    # ---- trouble -----------------------------------------------------------------------------------------------------

    @property
    def in_trash(self) -> int:
        """How many folders are on their way out, as far as is known."""
        return len(self._trash)

    def trouble_with(self, volume_id: str) -> str | None:
        """Why a folder whose time is over is still there."""
        return self._troubles[volume_id].why if volume_id in self._troubles else None

    def _put_off(self, volume_id: str, why: Exception) -> None:
        failures = self._troubles[volume_id].failures + 1 if volume_id in self._troubles else 1
        self._troubles[volume_id] = _Trouble(failures, str(why))
        again_at = self._clock.elapsed() + LATER.delay(failures, self._random)
        heapq.heappush(self._set_aside, (again_at, volume_id))
        self._failed.inc()
        self._complaints.tell("not erased yet", volume=volume_id, error=why)

    def _take_back(self, now: Moment) -> None:
        while self._set_aside and self._set_aside[0][0] <= now.elapsed:
            _, volume_id = heapq.heappop(self._set_aside)
            self._queue.take_back(volume_id)
        for volume_id in self._troubles.keys() - self._book.retained.keys():
            del self._troubles[volume_id]

    def _tell_stuck(self, error: OSError) -> None:
        self.why_stuck = f"nothing is erased: {error}"
        self._blind.inc()
        self._complaints.tell("nothing is erased, as the disk cannot be looked at", error=error)

    def _now(self) -> Moment:
        return Moment(self._clock.now().timestamp(), self._clock.elapsed())

    def _tell_jump(self, now: Moment) -> None:
        jump = wall_clock_jump(self._last, now) if self._last is not None else 0.0
        if abs(jump) >= JUMP_WORTH_TELLING_SECONDS:
            self._log.warning("the wall clock jumped; nothing is erased early for it", seconds=round(jump, 3))
        self._last = now
