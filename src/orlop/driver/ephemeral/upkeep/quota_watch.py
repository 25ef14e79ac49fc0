"""Find volumes whose files escaped their quota, and release project numbers that no folder has any more.

Order of a check: lift the limits of numbers whose folders were erased → read the usage of each volume → `suspects`
chooses which folders to walk → walk through them, one after the other, spread over the time until the next check. That
includes suspects that were buried since the last check. An escape is logged once, counted while it exists, and reported
in the volume's health.

This module must not change a folder. A file that was unlinked while a process has it open is not found.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orlop.driver.ephemeral.folder_index import FolderIndex, live_place, retained_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.publish_request_rules import AdminLimits, why_limits_are_refused
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log
from orlop.host.folders.project_strays import StrayCount
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, Workdir
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import FolderRecord

SPREAD_OVER: Final = 0.8
"""The share of the time between two checks over which walks are spread; the rest is for the walks themselves."""


def why_limits_cannot_be_held(workdir: Workdir, limits: AdminLimits) -> str | None:
    """Return why the limits of the flags cannot be enforced, for the start: else every pod would be refused later.

    None if they can be. Blocks.
    """
    sizes = [("--default-size", limits.default_size), ("--max-size", limits.max_size)]
    flags = [flag for flag, size in sizes if size]
    no_quota = workdir.why_no_quota() if flags else None
    no_images = workdir.why_no_images() if no_quota is not None else None
    return why_limits_are_refused(flags, f"{no_quota} {no_images}") if no_images is not None else None


@dataclass(frozen=True, slots=True)
class _Limited:
    """A folder with limits, where it is now."""

    place: FolderPlace
    record: FolderRecord


class QuotaWatch:
    def __init__(
        self, folders: Folders, workdir: Workdir, *, threads: Threads, clock: Clock, log: Log, metrics: Metrics
    ) -> None:
        self._book: FolderIndex = folders.book
        self._numbers = folders.numbers
        self._workdir = workdir
        self._threads = threads
        self._clock = clock
        self._log = log
        self._before: Counts | None = None
        self._checks = 0
        self._last_began = 0.0
        self._stopped = False
        self._owed: set[str] = set()
        """Suspects whose folder was not walked yet."""
        self._escapes: dict[str, StrayCount] = {}
        metrics.gauge_from(
            "orlop_ephemeral_quota_escapes",
            "Volumes with files that have another project than their folder, and so are outside its quota.",
            lambda: float(len(self._escapes)),
        )

    @property
    def escapes(self) -> Mapping[str, StrayCount]:
        """The strays of each volume with an escape, as of its last walk."""
        return self._escapes

    async def run(self) -> None:
        """Check now, and then periodically until cancelled."""
        try:
            while True:
                began = self._clock.elapsed()
                try:
                    await self.check()
                except HostError as error:
                    self._log.warning("quota not checked", error=error)
                await self._clock.sleep_until(began + CHECK_SECONDS)
        finally:
            self._stopped = True

    async def check(self) -> None:
        if await self._threads(self._workdir.why_no_quota) is not None:
            return
        self._forget_erased_volumes()
        await self._release_numbers()
        began, limited = self._clock.elapsed(), self._limited_folders()
        chosen = await self._suspects(limited) if limited else frozenset()
        # Set it only now: after a failure above, the next check still includes folders buried since the last good one.
        self._last_began = began
        await self._walk_through(limited, chosen)

    async def _release_numbers(self) -> None:
        try:
            await self._threads(self._numbers.release_unused)
        except HostError as error:
            self._log.warning("limits of erased folders not lifted", error=error)

    def _forget_erased_volumes(self) -> None:
        for volume_id in [key for key in self._escapes if self._book.record_of(key) is None]:
            del self._escapes[volume_id]

    def _limited_folders(self) -> dict[str, _Limited]:
        """Return live folders, and folders buried since the last check. Others need no check: they do not change."""
        limited = {key: _Limited(live_place(key), record) for key, record in self._book.live.items() if record.project}
        for key, retained in self._book.retained.items():
            is_new = retained.buried_at_elapsed is not None and retained.buried_at_elapsed >= self._last_began
            if retained.record.project and (is_new or key in self._owed):
                limited[key] = _Limited(retained_place(retained.burial), retained.record)
        return limited

    async def _suspects(self, limited: Mapping[str, _Limited]) -> frozenset[str]:
        now = await self._threads(lambda: self._counts(limited))
        before = self._before if self._checks % ALL_EVERY_CHECKS else None
        self._checks += 1
        self._before = now
        self._owed |= suspects(before, now) | self._escapes.keys()
        self._owed &= limited.keys()
        return frozenset(self._owed)

    def _counts(self, limited: Mapping[str, _Limited]) -> Counts:
        usages = {key: self._workdir.quota_usage(folder.record.project) for key, folder in limited.items()}
        room = self._workdir.room()
        disk = Counted(room.total_bytes - room.free_bytes, room.total_inodes - room.free_inodes)
        return counts_of({key: Counted(usage.bytes, usage.inodes) for key, usage in usages.items()}, disk)

    async def _walk_through(self, limited: Mapping[str, _Limited], chosen: frozenset[str]) -> None:
        began, apart = self._clock.elapsed(), CHECK_SECONDS * SPREAD_OVER / max(1, len(chosen))
        for count, volume_id in enumerate(sorted(chosen)):
            await self._clock.sleep_until(began + count * apart)
            await self._walk(volume_id, limited[volume_id])

    async def _walk(self, volume_id: str, folder: _Limited) -> None:
        def is_over() -> bool:
            return self._stopped

        try:
            strays = await self._threads(lambda: self._workdir.strays(folder.place, folder.record.project, is_over))
        except HostError as error:
            if error.errno not in {errno.ENOENT, errno.ECANCELED}:  # buried or erased meanwhile, or the watch ends
                self._log.warning("quota of a volume not checked", volume=volume_id, error=error)
            return
        self._owed.discard(volume_id)
        if strays is None:
            self._escapes.pop(volume_id, None)
            return
        if volume_id not in self._escapes:
            self._log_escape(volume_id, folder.record, strays)
        self._escapes[volume_id] = strays

    def _log_escape(self, volume_id: str, record: FolderRecord, strays: StrayCount) -> None:
        self._log.warning(
            "files have another project than their folder; quota does not count them",
            volume=volume_id,
            pod=record.owner.pod_name,
            namespace=record.owner.namespace,
            files=strays.count,
            bytes=strays.bytes,
            such_as=strays.first,
        )


CHECK_SECONDS: Final = 25.0
"""A file that escapes right after one check is found by the end of the next: well within a minute."""
ALL_EVERY_CHECKS: Final = 12


@dataclass(frozen=True, slots=True)
class Counted:
    bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """The usage at one check: of each volume with limits, and of the remaining files on the disk."""

    volumes: Mapping[str, Counted]
    rest: Counted


def counts_of(volumes: Mapping[str, Counted], disk: Counted) -> Counts:
    """Return the usage of the volumes and, from the usage of the whole disk, that of all other files."""
    own_bytes = sum(counted.bytes for counted in volumes.values())
    own_inodes = sum(counted.inodes for counted in volumes.values())
    return Counts(volumes, Counted(disk.bytes - own_bytes, disk.inodes - own_inodes))


def suspects(before: Counts | None, now: Counts) -> frozenset[str]:
    """Return the volumes whose folder has to be walked; at the first check, with `before` None, all of them.

    The bytes of a file that escapes are counted elsewhere: under another volume's number, or in the rest of the disk.
    So a volume is a suspect only if something besides its own usage has changed.
    """
    if before is None or before.rest != now.rest:
        return frozenset(now.volumes)
    volumes = before.volumes.keys() | now.volumes.keys()
    changed = {volume_id for volume_id in volumes if before.volumes.get(volume_id) != now.volumes.get(volume_id)}
    return frozenset(volume_id for volume_id in now.volumes if changed - {volume_id})
