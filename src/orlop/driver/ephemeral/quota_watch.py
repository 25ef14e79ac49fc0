"""Looks again and again whether tenants have left their quota, and lets numbers go that no folder has any more.

Order of a look: limits of numbers whose folders were erased are lifted → what each volume counts is read →
`quota_rules` says whose files are worth looking at → those folders are looked through, one after the other, spread over
the time until the next look. Also those that were buried since the last one. A volume that left is told once, counted
while it is there, and part of its health.

Must not change a folder. What has no name any more while somebody has it open is in no folder, and not found.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orlop.driver.ephemeral.folder_book import FolderBook
from orlop.driver.ephemeral.folder_work import live_place, retained_place
from orlop.driver.ephemeral.folders import Folders, Threads
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.ephemeral.quota_rules import (
    ALL_EVERY_LOOKS,
    LOOK_SECONDS,
    Counted,
    Counts,
    counts_of,
    suspects,
    why_refused,
)
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.host.errors import HostError
from orlop.host.node_host import FolderPlace, Workdir
from orlop.host.project_strays import StrayCount
from orlop.records.ephemeral_folder import FolderRecord

SPREAD_OVER: Final = 0.8
"""The share of the time between two looks; the rest is for looking itself."""


def why_limits_cannot_be_held(workdir: Workdir, limits: AdminLimits) -> str | None:
    """At the start, of what the flags ask for: otherwise every pod would be refused later. Blocks."""
    given = [("--default-size", limits.default_size), ("--max-size", limits.max_size)]
    flags = [flag for flag, size in given if size]
    reason = workdir.why_no_quota() if flags else None
    return why_refused(flags, reason) if reason is not None else None


@dataclass(frozen=True, slots=True)
class _Limited:
    """A folder with limits, where it is now."""

    place: FolderPlace
    record: FolderRecord


class QuotaWatch:
    def __init__(
        self, folders: Folders, workdir: Workdir, *, threads: Threads, clock: Clock, log: Log, metrics: Metrics
    ) -> None:
        self._book: FolderBook = folders.book
        self._numbers = folders.numbers
        self._workdir = workdir
        self._threads = threads
        self._clock = clock
        self._log = log
        self._before: Counts | None = None
        self._looks = 0
        self._last_began = 0.0
        self._stopped = False
        self._owed: set[str] = set()
        """Suspects that have not been looked through yet."""
        self._escapes: dict[str, StrayCount] = {}
        metrics.gauge_from(
            "orlop_ephemeral_quota_escapes",
            "Volumes with files that were given another project, and so left their quota.",
            lambda: float(len(self._escapes)),
        )

    @property
    def escapes(self) -> Mapping[str, StrayCount]:
        """By volume: what was found when it was looked through last."""
        return self._escapes

    async def run(self) -> None:
        """For ever; at once when it begins."""
        try:
            while True:
                began = self._clock.elapsed()
                try:
                    await self.look()
                except HostError as error:
                    self._log.warning("the quota of volumes could not be looked at", error=error)
                await self._clock.sleep_until(began + LOOK_SECONDS)
        finally:
            self._stopped = True

    async def look(self) -> None:
        if await self._threads(self._workdir.why_no_quota) is not None:
            return
        self._forget_what_is_gone()
        await self._release_numbers()
        began, limited = self._clock.elapsed(), self._limited_folders()
        chosen = await self._suspects(limited) if limited else frozenset()
        self._last_began = began
        await self._look_through(limited, chosen)

    async def _release_numbers(self) -> None:
        try:
            await self._threads(self._numbers.release_unused)
        except HostError as error:
            self._log.warning("limits of erased folders could not be lifted", error=error)

    def _forget_what_is_gone(self) -> None:
        for volume_id in [key for key in self._escapes if self._book.record_of(key) is None]:
            del self._escapes[volume_id]

    def _limited_folders(self) -> dict[str, _Limited]:
        """Live ones, and those that were at the last look: what is buried does not change any more."""
        found = {key: _Limited(live_place(key), record) for key, record in self._book.live.items() if record.project}
        for key, retained in self._book.retained.items():
            is_new = retained.buried_at_elapsed is not None and retained.buried_at_elapsed >= self._last_began
            if retained.record.project and (is_new or key in self._owed):
                found[key] = _Limited(retained_place(retained.burial), retained.record)
        return found

    async def _suspects(self, limited: Mapping[str, _Limited]) -> frozenset[str]:
        now = await self._threads(lambda: self._counts(limited))
        before = self._before if self._looks % ALL_EVERY_LOOKS else None
        self._looks += 1
        self._before = now
        self._owed |= suspects(before, now) | self._escapes.keys()
        self._owed &= limited.keys()
        return frozenset(self._owed)

    def _counts(self, limited: Mapping[str, _Limited]) -> Counts:
        usages = {key: self._workdir.quota_usage(folder.record.project) for key, folder in limited.items()}
        room = self._workdir.room()
        disk = Counted(room.total_bytes - room.free_bytes, room.total_inodes - room.free_inodes)
        return counts_of({key: Counted(usage.bytes, usage.inodes) for key, usage in usages.items()}, disk)

    async def _look_through(self, limited: Mapping[str, _Limited], chosen: frozenset[str]) -> None:
        began, apart = self._clock.elapsed(), LOOK_SECONDS * SPREAD_OVER / max(1, len(chosen))
        for count, volume_id in enumerate(sorted(chosen)):
            await self._clock.sleep_until(began + count * apart)
            await self._look_at(volume_id, limited[volume_id])

    async def _look_at(self, volume_id: str, folder: _Limited) -> None:
        def is_over() -> bool:
            return self._stopped

        try:
            found = await self._threads(lambda: self._workdir.strays(folder.place, folder.record.project, is_over))
        except HostError as error:
            if error.errno not in {errno.ENOENT, errno.ECANCELED}:  # buried or erased meanwhile, or it is the end
                self._log.warning("its quota could not be looked at", volume=volume_id, error=error)
            return
        self._owed.discard(volume_id)
        if found is None:
            self._escapes.pop(volume_id, None)
            return
        if volume_id not in self._escapes:
            self._tell(volume_id, folder.record, found)
        self._escapes[volume_id] = found

    def _tell(self, volume_id: str, record: FolderRecord, found: StrayCount) -> None:
        self._log.warning(
            "a tenant has left its quota: files have another project than their folder",
            volume=volume_id,
            pod=record.owner.pod_name,
            namespace=record.owner.namespace,
            files=found.count,
            bytes=found.bytes,
            such_as=found.first,
        )
