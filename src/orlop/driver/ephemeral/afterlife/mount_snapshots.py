"""Snapshots of the mount tables, one for many folders.

A snapshot reads the tables of all mount namespaces, so ten thousand folders that expire at once must not take one each.
Callers pass the generation after which a snapshot is fresh enough: they hold the key of a volume, then read the current
generation. A snapshot begun after that includes every mount that a publish of this volume made. It may be used for
LONGEST_USE_SECONDS: meanwhile only root, by hand, could mount the folder, and no check could be fast enough for that.
"""

from __future__ import annotations

from typing import Final

from orlop.foundation.clock import Clock
from orlop.host.node_host import FolderPlace, Workdir
from orlop.host.threads import Threads

LONGEST_USE_SECONDS: Final = 0.25

Generation = int


class MountSnapshots:
    """Takes snapshots and shares the last one between callers."""

    def __init__(self, workdir: Workdir, threads: Threads, clock: Clock) -> None:
        self._workdir = workdir
        self._threads = threads
        self._clock = clock
        self._begun = 0
        self._last: tuple[Generation, float, frozenset[FolderPlace]] | None = None
        """The last snapshot: its generation, when it began, and the mounted folders."""

    def generation(self) -> Generation:
        """Return the number of the last snapshot that was begun."""
        return self._begun

    async def after(self, generation: Generation) -> frozenset[FolderPlace]:
        """Return the mounted folders in a recent snapshot begun after this generation. HostError when it fails."""
        if self._last is not None:
            number, began_at, mounted = self._last
            if number > generation and self._clock.elapsed() - began_at <= LONGEST_USE_SECONDS:
                return mounted
        return await self._take()

    async def _take(self) -> frozenset[FolderPlace]:
        self._begun += 1
        number, began_at = self._begun, self._clock.elapsed()
        mounted = await self._threads(self._workdir.mounted_folders)
        # Two snapshots may overlap, and the older one end last.
        if self._last is None or number > self._last[0]:
            self._last = number, began_at, mounted
        return mounted
