"""Purge the folders in the trash: schedule them, two at a time, and retry those that cannot be erased yet.

Order for one folder: check that nothing has it mounted → erase it → forget it. A folder that is mounted, or cannot be
erased, is retried later, with growing delays, and does not delay the others. `find_unknown` adds folders that an
earlier process left in the trash, or that were moved there without `add`. `host/erase` unlinks the files. This module
must not decide which folders are moved to the trash.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from orlop.driver.ephemeral.afterlife.mount_snapshots import Generation, MountSnapshots
from orlop.driver.ephemeral.afterlife.retention_rules import Reason
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.host.erase.erase_folder import REST_PREFIX
from orlop.host.node_host import FolderPlace, FolderState, Workdir
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import burial_of

PURGES_AT_ONCE: Final = 2
MOST_PURGES_AT_ONCE: Final = 6
"""The limit while purges are too slow to relieve the disk. Each purge occupies a thread."""
RETRY: Final = Backoff(initial=5.0, factor=2.0, cap=600.0, jitter=0.2)
SECONDS_BETWEEN_WARNINGS: Final = 30.0

Purge = Callable[[str], object]
"""Erase the folder of this name in the trash; succeeds if there is none. Blocks. HostError: a part of it is left."""


class RateLimitedWarnings:
    """Logs at most one warning in 30 seconds. The others are logged at debug level, and the next warning counts them.

    A failing disk can cause a thousand errors a minute.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._last_at: float | None = None
        self._suppressed = 0

    def warn(self, message: str, /, **fields: object) -> None:
        now = self._clock.elapsed()
        if self._last_at is not None and now - self._last_at < SECONDS_BETWEEN_WARNINGS:
            self._suppressed += 1
            self._log.debug(message, **fields)
            return
        suppressed = {"suppressed_since": self._suppressed} if self._suppressed else {}
        self._log.warning(message, **fields, **suppressed)
        self._last_at, self._suppressed = now, 0


@dataclass(slots=True)
class _InTrash:
    reason: Reason | None
    """None for a folder that was never used, had no lifespan, or was left by another process."""
    generation: Generation
    failures: int = 0


class TrashPurge:
    """Purges folders while `work` runs, in MOST_PURGES_AT_ONCE tasks.

    `readers` are the volumes whose folder is being read. Such a folder can be in the trash if the volume was published
    again meanwhile and then unpublished with lifespan 0; it is purged when its readers have closed it. `on_idle` is
    called whenever the last running purge has ended.
    """

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        workdir: Workdir,
        purge: Purge,
        mounts: MountSnapshots,
        runtime: Runtime,
        *,
        threads: Threads,
        readers: Container[str],
        on_idle: Callable[[], object],
    ) -> None:
        self._workdir = workdir
        self._purge = purge
        self._mounts = mounts
        self._readers = readers
        self._on_idle = on_idle
        self._threads = threads
        self._clock = runtime.clock
        self._random = runtime.random
        self._warnings = RateLimitedWarnings(runtime.log, runtime.clock)
        self._known: dict[str, _InTrash] = {}
        self._ready: deque[str] = deque()
        self._under_way: set[str] = set()
        self._at_once = PURGES_AT_ONCE
        self._blind_for = 0
        """How often in a row the mount table could not be read."""
        self._retries: list[tuple[float, str]] = []
        """A heap of instants (elapsed time) at which a folder is retried."""
        self._gone_meanwhile: set[str] = set()
        self._incoming: set[str] = set()
        self._changed = asyncio.Event()
        self._erased = runtime.metrics.counter(
            "orlop_ephemeral_erased_total", "Folders erased, by the reason.", ("reason",)
        )
        self._failed = runtime.metrics.counter("orlop_ephemeral_erase_failures_total", "Attempts to erase that failed.")

    def __len__(self) -> int:
        """Return the number of known folders in the trash, with those that wait for a retry."""
        return len(self._known)

    @property
    def busy(self) -> bool:
        """Whether purges that will free space are under way or about to begin; a folder waiting for a retry is not."""
        return bool(self._ready or self._under_way)

    def add(self, name: str, reason: Reason | None = None, generation: Generation | None = None) -> None:
        """Purge a folder as soon as possible. Its mounts are checked in a snapshot begun after `generation`, or now."""
        if name in self._known:
            self._known[name].reason = self._known[name].reason or reason
            return
        self._known[name] = _InTrash(reason, self._mounts.generation() if generation is None else generation)
        self._ready.append(name)
        self._changed.set()

    @contextmanager
    def incoming(self, name: str) -> Iterator[None]:
        """Leave a folder that is being moved to the trash to its mover, who then calls `add` without waiting."""
        # The move is visible before its mover is: `find_unknown` could add the folder, and it could be purged, before
        # the mover adds it once more. It would then count as erased twice, the first time without its reason.
        self._incoming.add(name)
        try:
            yield
        finally:
            self._incoming.discard(name)

    def make_room(self) -> bool:
        """Allow one more purge at a time if all are busy; return whether the next folder added is purged at once.

        The higher limit holds until no purge runs. A folder with millions of files can take an hour, and must not delay
        small folders, which would free space at once.
        """
        waiting_or_running = len(self._ready) + len(self._under_way)
        if waiting_or_running >= self._at_once and self._at_once < MOST_PURGES_AT_ONCE:
            self._at_once += 1
            self._changed.set()
        return waiting_or_running < self._at_once

    async def find_unknown(self) -> None:
        """Add every folder in the trash that is not known yet. Raises HostError if the trash cannot be listed."""
        # A folder purged while the listing runs may still be listed. Added again, it would count as erased twice.
        self._gone_meanwhile = set()
        names = await self._threads(self._workdir.names_in_trash)
        for name in sorted(names - self._known.keys() - self._gone_meanwhile - self._incoming):
            self.add(name)

    async def work(self) -> None:
        """Purge one folder after the other, until cancelled."""
        while True:
            name = await self._next()
            try:
                mounted = await self._mounts.after(self._known[name].generation)
            except OSError as error:
                await self._back_off(name, error)
            else:
                self._blind_for = 0
                await self._attempt(name, mounted)

    async def _next(self) -> str:
        while True:
            self._make_retries_ready()
            if self._ready and len(self._under_way) < self._at_once:
                name = self._ready.popleft()
                self._under_way.add(name)
                return name
            self._changed.clear()
            await self._until_changed()

    def _make_retries_ready(self) -> None:
        while self._retries and self._retries[0][0] <= self._clock.elapsed():
            _, name = heapq.heappop(self._retries)
            # A new generation: the folder may have been mounted or unmounted since the last attempt.
            self._known[name].generation = self._mounts.generation()
            self._ready.append(name)

    async def _until_changed(self) -> None:
        if not self._retries:
            await self._changed.wait()
            return
        try:
            async with self._clock.timeout(max(0.0, self._retries[0][0] - self._clock.elapsed())):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _attempt(self, name: str, mounted: frozenset[FolderPlace]) -> None:
        try:
            if not mounted.isdisjoint(_places(name)):
                self._retry_later(name, "it is still mounted")
                return
            if self._is_read(name):
                self._retry_later(name, "it is being read")
                return
            await self._threads(lambda: self._purge(name))
            self._forget(name)
        except OSError as error:
            self._retry_later(name, str(error))
        finally:
            self._under_way.discard(name)
            self._changed.set()  # another worker may wait for this slot
            if not self.busy:
                self._at_once = PURGES_AT_ONCE
                self._on_idle()

    def _is_read(self, name: str) -> bool:
        burial = burial_of(name)
        return burial is not None and burial.volume_id in self._readers

    def _forget(self, name: str) -> None:
        reason = self._known.pop(name).reason
        self._gone_meanwhile.add(name)
        self._erased.inc(reason.value if reason is not None else "trash")

    def _retry_later(self, name: str, why: str) -> None:
        entry = self._known[name]
        entry.failures += 1
        heapq.heappush(self._retries, (self._clock.elapsed() + RETRY.delay(entry.failures, self._random), name))
        self._failed.inc()
        self._warnings.warn("folder not erased yet", folder=f"trash/{name}", error=why)

    async def _back_off(self, name: str, error: OSError) -> None:
        """Wait, then queue the folder first. An unreadable mount table does not count as a failure of this folder."""
        self._blind_for += 1
        self._warnings.warn("mount table unreadable; nothing is purged", error=error)
        # The folder keeps its slot meanwhile, so that the other workers do not all try in its place.
        await self._clock.sleep(RETRY.delay(self._blind_for, self._random))
        self._under_way.discard(name)
        self._ready.appendleft(name)
        self._changed.set()


def _places(name: str) -> tuple[FolderPlace, ...]:
    """Return both places of a folder in the trash: erasing a very deep folder moves its lower part beside it."""
    return FolderPlace(FolderState.TRASH, name), FolderPlace(FolderState.TRASH, REST_PREFIX + name)
