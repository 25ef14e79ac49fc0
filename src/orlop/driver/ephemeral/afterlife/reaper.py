"""Erase expired folders: make one decision at a time, and measure the disk again before the next one.

Order for one folder: hold its key → check that nothing has it mounted → move it to the trash, durably, which frees its
name → remove it from the index → `trash_purge` erases it, if still nothing has it mounted.

A folder beyond its own lifespan is erased even if the disk has room: several at a time, with one snapshot of the
mounts. A folder that is erased because of pressure is erased alone, and while no purge runs, so that the space a purge
frees is measured before the next decision. If purges free nothing for STALLED_SECONDS, the next folder is erased too.
A folder that cannot be erased (it is mounted, or its purge failed) is retried with growing delays, and does not delay
the others. If the disk cannot be read, the error is logged and the disk is read again later. The reaper must not decide
by itself: `retention_rules` does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife.mount_snapshots import MountSnapshots
from orlop.driver.ephemeral.afterlife.retention_rules import (
    NO_PRESSURE,
    DiskSpace,
    Erase,
    Moment,
    Reason,
    Wait,
    next_measurement,
    pressure_factor,
    wall_clock_jump,
)
from orlop.driver.ephemeral.afterlife.trash_purge import (
    MOST_PURGES_AT_ONCE,
    RETRY,
    Purge,
    RateLimitedWarnings,
    TrashPurge,
)
from orlop.driver.ephemeral.folder_index import FolderIndex, retained_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.backoff import Backoff
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.host.kernel.disk_usage import DiskRoom
from orlop.host.node_host import FolderPlace, NodeHost
from orlop.host.threads import Threads

MOST_AT_ONCE: Final = 32
"""Folders whose keys are held for one snapshot of the mounts."""
BLIND: Final = Backoff(initial=1.0, factor=2.0, cap=60.0, jitter=0.2)
JUMP_WORTH_LOGGING_SECONDS: Final = 5.0
STALLED_SECONDS: Final = 10.0
"""How long purges may run without freeing space before another folder is erased because of pressure."""
SHORTLY_AFTER: Final = 0.001
"""A folder is erased strictly after its lifespan, so the next check is this much later."""


@dataclass(frozen=True, slots=True)
class ReaperSettings:
    prune_interval: float
    headroom: Fraction


@dataclass(slots=True)
class _Trouble:
    """How often erasing a volume's folder failed, and why it failed last."""

    failures: int
    why: str


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The pressure factor at an instant (elapsed time)."""

    factor: Fraction
    at: float


class Reaper:
    """Erases retained folders while `run` runs."""

    def __init__(
        self,
        folders: Folders,
        host: NodeHost,
        purge: Purge,
        settings: ReaperSettings,
        runtime: Runtime,
        *,
        threads: Threads,
    ) -> None:
        self._folders = folders
        self._book = folders.book
        self._queue = folders.book.queue
        self._workdir = host.workdir
        self._settings = settings
        self._threads = threads
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        self._warnings = RateLimitedWarnings(runtime.log, runtime.clock)
        self._mounts = MountSnapshots(host.workdir, threads, runtime.clock)
        self._trash = TrashPurge(
            host.workdir,
            purge,
            self._mounts,
            runtime,
            threads=threads,
            readers=folders.book.readers,
            on_idle=folders.wake_reaper.set,  # space was freed: decide again
        )
        self._trash_seen_at: float | None = None
        self._troubles: dict[str, _Trouble] = {}
        self._last: Moment | None = None
        self._relief_since: _Measurement | None = None
        """The pressure that the running purges have to reduce; None while none runs because of pressure."""
        self.factor = NO_PRESSURE
        self.room: DiskRoom | None = None
        """The disk at the last measurement."""
        self.why_stuck: str | None = None
        """Why nothing can be erased now; None if folders can be erased."""
        self._failed = runtime.metrics.counter("orlop_ephemeral_erase_failures_total", "Attempts to erase that failed.")
        self._blind = runtime.metrics.counter(
            "orlop_ephemeral_disk_failures_total", "Failures to read the disk, the trash or the mounts."
        )
        runtime.metrics.gauge_from(
            "orlop_ephemeral_pressure_factor", "What lifespans are multiplied by.", lambda: float(self.factor)
        )

    async def run(self) -> None:
        """Erase folders until cancelled. Errors of the disk do not end it."""
        async with TaskGroup() as tasks:
            for number in range(MOST_PURGES_AT_ONCE):
                tasks.start(self._trash.work(), name=f"purge {number + 1}")
            failures = 0
            while True:
                # Clear before the step: a change during the step may come too late for its decision, and must wake us.
                self._folders.wake_reaper.clear()
                try:
                    seconds = await self.step()
                except OSError as error:
                    failures += 1
                    self._note_stuck(error)
                    # Not `_wait`: a burial must not make us read a failing disk more often.
                    await self._clock.sleep(BLIND.delay(failures, self._random))
                else:
                    failures = 0
                    self.why_stuck = None
                    await self._wait(seconds)

    async def step(self) -> float:
        """Take at most one action; return the seconds until the next check."""
        now = self._now()
        self._log_jump(now)
        self._forget_troubles()
        await self._list_trash_if_due(now)
        self.factor = await self._measured_factor()
        # Overdue folders first: they are erased anyway, and the space they free may end the pressure.
        if overdue := self._overdue(now):
            await self._erase(overdue)
            return 0.0
        match self._queue.next_step(now.elapsed, await self._effective_factor(now)):
            case Erase() as erase:
                # The purge of this folder now has STALLED_SECONDS to free space.
                self._relief_since = _Measurement(self.factor, now.elapsed)
                self._queue.set_aside(erase.name)
                await self._erase([erase])
                return 0.0
            case Wait(seconds):
                return self._next_check(seconds)

    def _next_check(self, seconds: float | None) -> float:
        interval = next_measurement(len(self._book.retained), self.factor, self._settings.prune_interval)
        waits = [self._settings.prune_interval if interval is None else interval]
        if seconds is not None:
            waits.append(seconds + SHORTLY_AFTER)
        return min(waits)

    def _overdue(self, now: Moment) -> list[Erase]:
        """Choose folders beyond their own lifespan. Each is set aside, so that the next choice is made without it."""
        overdue: list[Erase] = []
        while len(overdue) < MOST_AT_ONCE:
            step = self._queue.next_step(now.elapsed, NO_PRESSURE)
            if not isinstance(step, Erase):
                break
            self._queue.set_aside(step.name)
            overdue.append(step)
        return overdue

    async def _list_trash_if_due(self, now: Moment) -> None:
        """List the trash once in every prune interval, not at every step: it may be very long."""
        self._hand_over_trash()
        if self._trash_seen_at is None or now.elapsed - self._trash_seen_at >= self._settings.prune_interval:
            await self._trash.find_unknown()
            self._trash_seen_at = now.elapsed

    async def _effective_factor(self, now: Moment) -> Fraction:
        """Return the factor for the next decision: no pressure while running purges are still freeing space."""
        if self.factor != NO_PRESSURE and not self._trash.busy:
            # A folder may be in the trash without `add`. Purging it frees space without erasing a retained folder.
            await self._trash.find_unknown()
        if self.factor == NO_PRESSURE or not self._trash.busy:
            self._relief_since = None
            return self.factor
        since = self._relief_since
        if since is None or (now.elapsed - since.at >= STALLED_SECONDS and self.factor > since.factor):
            self._relief_since = since = _Measurement(self.factor, now.elapsed)
        if now.elapsed - since.at < STALLED_SECONDS:
            return NO_PRESSURE
        # Purges are too slow. Another folder helps only if it is purged at once, not queued behind the slow ones.
        if self._trash.make_room():
            return self.factor
        self._relief_since = _Measurement(self.factor, now.elapsed)
        return NO_PRESSURE

    def _hand_over_trash(self) -> None:
        while self._folders.trashed:
            self._trash.add(self._folders.trashed.pop())

    async def _measured_factor(self) -> Fraction:
        self.room = room = await self._threads(self._workdir.room)
        space = DiskSpace(room.total_bytes, room.free_bytes, room.total_inodes, room.free_inodes)
        return pressure_factor(space, self._settings.headroom)

    async def _wait(self, seconds: float) -> None:
        """Wait `seconds`, or until a folder is due sooner."""
        end = self._clock.elapsed() + seconds
        while (remaining := end - self._clock.elapsed()) > 0:
            try:
                async with self._clock.timeout(remaining):
                    await self._folders.wake_reaper.wait()
            except TimeoutError:
                return
            self._folders.wake_reaper.clear()
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
        """Move folders that were set aside to the trash. HostError: the mounts could not be read; nothing was moved."""
        with ExitStack() as keys:
            unread = [erase for erase in chosen if not self._postponed_for_readers(erase.name)]
            locked = [erase for erase in unread if self._locked(erase.name, keys)]
            # Hold the keys before the snapshot begins. Otherwise a volume could be published while the snapshot is
            # taken, and be mounted without being in it; or be buried again, and be erased with a lifespan that has
            # only just begun.
            generation = self._mounts.generation()
            try:
                mounted = await self._mounts.after(generation)
            except OSError:
                for erase in locked:
                    self._queue.reinstate(erase.name)
                raise
            for erase in locked:
                name = await self._moved_to_trash(erase.name, mounted)
                if name is not None:
                    self._log.info("erasing folder", volume=erase.name, reason=erase.reason.value)
                    self._trash.add(name, erase.reason, generation)

    def _locked(self, volume_id: str, keys: ExitStack) -> bool:
        """Try to hold the volume's key; if another call holds it, retry the folder later and return False."""
        # Never wait for a key: one publish on a hanging disk would stop all erasing.
        try:
            keys.enter_context(self._folders.keys.try_hold(volume_id, why="erasing"))
        except KeyHeld as error:
            self._retry_later(volume_id, error)
            return False
        return True

    def _postponed_for_readers(self, volume_id: str) -> bool:
        """Postpone a folder that is being read; return whether it was. This is not counted as a failure."""
        if volume_id not in self._book.readers:
            return False
        self._queue.postpone(volume_id, self._clock.elapsed() + RETRY.initial)
        return True

    async def _moved_to_trash(self, volume_id: str, mounted: frozenset[FolderPlace]) -> str | None:
        """Move a folder to the trash and return its name there; None if it is not retained, or is retried later."""
        try:
            return await self._discard(volume_id, mounted)
        except (CsiError, OSError) as error:
            self._retry_later(volume_id, error)
            return None

    async def _discard(self, volume_id: str, mounted: frozenset[FolderPlace]) -> str | None:
        """Move a folder to the trash and return its name there; None if it is not retained. Raises if it must stay."""
        await self._folders.resolve_doubt(volume_id)
        retained = self._book.retained.get(volume_id)
        if retained is None:
            return None
        place = retained_place(retained.burial)
        # Check again under the key: a reader may have opened the folder since it was chosen.
        if volume_id in self._book.readers:
            raise HostError(
                errno.EBUSY, f"The folder {place} is being read; it is erased when all readers have closed it."
            )
        if place in mounted:
            raise HostError(errno.EBUSY, f"The folder {place} is still mounted; it is erased when it is unmounted.")
        name = retained.burial.folder_name
        with self._trash.incoming(name):
            await self._folders.discard(retained.burial)
        return name

    async def erase_on_request(self, volume_id: str) -> None:
        """Move one folder to the trash, in the order of `run`; raise if that fails. It is purged afterwards."""
        with self._folders.keys.try_hold(volume_id, why="erasing"):
            generation = self._mounts.generation()  # after the key, as in `_erase`
            name = await self._discard(volume_id, await self._mounts.after(generation))
            if name is None:
                raise HostError(errno.ENOENT, f"The volume {volume_id} is no longer retained.")
            self._log.info("erasing folder", volume=volume_id, reason=Reason.ASKED.value)
            self._trash.add(name, Reason.ASKED, generation)
        self._folders.wake_reaper.set()

    # ---- trouble -----------------------------------------------------------------------------------------------------

    @property
    def in_trash(self) -> int:
        """Return the number of known folders in the trash."""
        return len(self._trash)

    def trouble_with(self, volume_id: str) -> str | None:
        """Return why erasing an expired folder failed last; None if no attempt failed."""
        return self._troubles[volume_id].why if volume_id in self._troubles else None

    def _retry_later(self, volume_id: str, why: Exception) -> None:
        failures = self._troubles[volume_id].failures + 1 if volume_id in self._troubles else 1
        self._troubles[volume_id] = _Trouble(failures, str(why))
        self._queue.postpone(volume_id, self._clock.elapsed() + RETRY.delay(failures, self._random))
        self._failed.inc()
        self._warnings.warn("folder not erased yet", volume=volume_id, error=why)

    def _forget_troubles(self) -> None:
        for volume_id in self._troubles.keys() - self._book.retained.keys():
            del self._troubles[volume_id]

    def _note_stuck(self, error: OSError) -> None:
        self.why_stuck = f"nothing is erased: {error}"
        self._blind.inc()
        self._warnings.warn("disk unreadable; nothing is erased", error=error)

    def _now(self) -> Moment:
        return Moment(self._clock.now().timestamp(), self._clock.elapsed())

    def _log_jump(self, now: Moment) -> None:
        jump = wall_clock_jump(self._last, now) if self._last is not None else 0.0
        if abs(jump) >= JUMP_WORTH_LOGGING_SECONDS:
            self._log.warning("wall clock jumped; nothing is erased early", seconds=round(jump, 3))
        self._last = now


def register_folder_metrics(book: FolderIndex, reaper: Reaper, runtime: Runtime) -> None:
    """Add the gauges of scratch folders. None of them reads the disk: a dead disk must not stop metrics."""

    def overdue() -> float:
        now = Moment(runtime.clock.now().timestamp(), runtime.clock.elapsed())
        factor = float(reaper.factor)
        beyond = (book.age(each, now) - each.burial.lifespan_seconds * factor for each in book.retained.values())
        return max(0.0, max(beyond, default=0.0))

    def of_disk(value: Callable[[DiskRoom], int]) -> float:
        return float(value(reaper.room)) if reaper.room is not None else float("nan")

    for name, meaning, value in (
        ("folders_live", "Scratch folders of pods that exist.", lambda: float(len(book.live))),
        ("folders_retained", "Scratch folders in their afterlife.", lambda: float(len(book.retained))),
        ("folders_trash", "Scratch folders that are being erased.", lambda: float(reaper.in_trash)),
        (
            "retained_bytes",
            "Bytes of the retained folders whose size was measured.",
            lambda: float(sum(each.bytes_used or 0 for each in book.retained.values())),
        ),
        ("oldest_overdue_seconds", "How long the folder furthest beyond its lifespan is beyond it.", overdue),
        ("free_bytes", "Bytes of the disk that are free for users.", lambda: of_disk(lambda room: room.free_bytes)),
        ("free_inodes", "Inodes of the disk that are free for users.", lambda: of_disk(lambda room: room.free_inodes)),
    ):
        runtime.metrics.gauge_from(f"orlop_ephemeral_{name}", meaning, value)
