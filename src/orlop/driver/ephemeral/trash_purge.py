"""Erases for good what lies in the trash, two at a time.

Order for one name: nothing has it mounted → it is purged → it is forgotten. One that is mounted, or cannot be purged,
is tried again later, each time later, and holds up no other. What a process that died left there, and what came there
without a word, is found by `look`. Must not decide what goes to the trash.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.driver.ephemeral.afterlife_rules import Reason
from orlop.driver.ephemeral.complaints import Complaints
from orlop.driver.ephemeral.folders import Threads
from orlop.driver.ephemeral.mount_look import MountLook, Ticket
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.host.folder_erase import REST_PREFIX
from orlop.host.node_host import FolderPlace, FolderState, Workdir
from orlop.records.ephemeral_folder import burial_of

PURGES_AT_ONCE: Final = 2
LATER: Final = Backoff(initial=5.0, factor=2.0, cap=600.0, jitter=0.2)

Purge = Callable[[str], object]
"""Erases what has this name in the trash, for good; what is gone is erased. Blocks; HostError with what is left."""


@dataclass(frozen=True, slots=True)
class ReaperTools:
    threads: Threads
    clock: Clock
    random: Random
    log: Log
    metrics: Metrics


@dataclass(slots=True)
class _InTrash:
    reason: Reason | None
    """None: it was never used, has no afterlife, or another process left it."""
    ticket: Ticket
    failures: int = 0


class TrashPurge:
    """Nothing is purged unless somebody keeps `work` running, PURGES_AT_ONCE times.

    `readers` are the volumes that somebody reads: one that was published again meanwhile and has no second afterlife
    is left until they are through. `settled` is set whenever nothing is being purged any more.
    """

    def __init__(
        self,
        workdir: Workdir,
        purge: Purge,
        look: MountLook,
        tools: ReaperTools,
        *,
        readers: Container[str],
        settled: asyncio.Event,
    ) -> None:
        self._workdir = workdir
        self._purge = purge
        self._mounts = look
        self._readers = readers
        self._threads = tools.threads
        self._clock = tools.clock
        self._random = tools.random
        self._complaints = Complaints(tools.log, tools.clock)
        self._known: dict[str, _InTrash] = {}
        self._ready: deque[str] = deque()
        self._under_way: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._gone_meanwhile: set[str] = set()
        self._changed = asyncio.Event()
        self._settled = settled
        self._erased = tools.metrics.counter(
            "orlop_ephemeral_erased_total", "Folders erased, by the reason.", ("reason",)
        )
        self._failed = tools.metrics.counter("orlop_ephemeral_erase_failures_total", "Attempts to erase that failed.")

    def __len__(self) -> int:
        """Of those that it knows; also those that cannot be purged now."""
        return len(self._known)

    @property
    def busy(self) -> bool:
        """Whether room on the disk is still to come from what is being purged; not from what failed."""
        return bool(self._ready or self._under_way)

    def add(self, name: str, reason: Reason | None = None, ticket: Ticket | None = None) -> None:
        """A look at the mounts after the ticket is enough; None: after now."""
        if name in self._known:  # a look was faster than whoever put it there
            self._known[name].reason = self._known[name].reason or reason
            return
        self._known[name] = _InTrash(reason, self._mounts.ticket() if ticket is None else ticket)
        self._ready.append(name)
        self._changed.set()

    async def look(self) -> None:
        """Adds whatever lies in the trash. HostError when it cannot be listed."""
        self._gone_meanwhile = set()
        names = await self._threads(self._workdir.names_in_trash)
        for name in sorted(names - self._known.keys() - self._gone_meanwhile):
            self.add(name)

    async def work(self) -> None:
        """For ever."""
        blind_for = 0
        while True:
            name = await self._next()
            try:
                mounted = await self._mounts.after(self._known[name].ticket)
            except OSError as error:
                blind_for += 1
                self._unsee(name, error)
                await self._clock.sleep(LATER.delay(blind_for, self._random))
            else:
                blind_for = 0
                await self._attempt(name, mounted)

    async def _next(self) -> str:
        while True:
            self._take_back()
            if self._ready:
                name = self._ready.popleft()
                self._under_way.add(name)
                return name
            self._changed.clear()
            await self._until_changed()

    def _take_back(self) -> None:
        while self._later and self._later[0][0] <= self._clock.elapsed():
            _, name = heapq.heappop(self._later)
            self._known[name].ticket = self._mounts.ticket()
            self._ready.append(name)

    async def _until_changed(self) -> None:
        if not self._later:
            await self._changed.wait()
            return
        try:
            async with self._clock.timeout(max(0.0, self._later[0][0] - self._clock.elapsed())):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _attempt(self, name: str, mounted: frozenset[FolderPlace]) -> None:
        try:
            if not mounted.isdisjoint(_places(name)):
                self._put_off(name, "something has it mounted")
                return
            if self._is_read(name):
                self._put_off(name, "somebody reads it")
                return
            await self._threads(lambda: self._purge(name))
            self._forget(name)
        except OSError as error:
            self._put_off(name, str(error))
        finally:
            self._under_way.discard(name)
            if not self.busy:
                self._settled.set()

    def _is_read(self, name: str) -> bool:
        burial = burial_of(name)
        return burial is not None and burial.volume_id in self._readers

    def _forget(self, name: str) -> None:
        reason = self._known.pop(name).reason
        self._gone_meanwhile.add(name)
        self._erased.inc(reason.value if reason is not None else "trash")

    def _put_off(self, name: str, why: str) -> None:
        entry = self._known[name]
        entry.failures += 1
        heapq.heappush(self._later, (self._clock.elapsed() + LATER.delay(entry.failures, self._random), name))
        self._failed.inc()
        self._complaints.tell("not erased yet", folder=f"trash/{name}", error=why)

    def _unsee(self, name: str, error: OSError) -> None:
        """Nobody knows what is mounted: that is no fault of this folder."""
        self._under_way.discard(name)
        self._ready.appendleft(name)
        self._complaints.tell("nothing is purged: it cannot be seen what is mounted", error=error)


def _places(name: str) -> tuple[FolderPlace, ...]:
    """Erasing a very deep folder moves its lower part beside it."""
    return FolderPlace(FolderState.TRASH, name), FolderPlace(FolderState.TRASH, REST_PREFIX + name)
