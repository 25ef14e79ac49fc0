"""Looks which folders are mounted, one look for many folders.

A look reads the tables of all mount namespaces, so ten thousand folders that go at once must not take one each. Who
asks says from when on a look counts for him, by a ticket: the key of a volume is held, then the ticket is drawn, so a
look that began after it has seen all that publishing ever did to that volume. Such a look serves for a moment more:
from then on only somebody who walks into the trash by hand could mount the folder, and no look is as quick as he is.
"""

from __future__ import annotations

from typing import Final

from orlop.driver.ephemeral.folders import Threads
from orlop.foundation.clock import Clock
from orlop.host.node_host import FolderPlace, Workdir

LONGEST_USE_SECONDS: Final = 0.25

Ticket = int


class MountLook:
    def __init__(self, workdir: Workdir, threads: Threads, clock: Clock) -> None:
        self._workdir = workdir
        self._threads = threads
        self._clock = clock
        self._begun = 0
        self._last: tuple[Ticket, float, frozenset[FolderPlace]] | None = None
        """Its number, when it began, and what it saw."""

    def ticket(self) -> Ticket:
        return self._begun

    async def after(self, ticket: Ticket) -> frozenset[FolderPlace]:
        """What a look saw that began after the ticket was drawn, and not long ago. HostError when it fails."""
        if self._last is not None:
            number, began_at, mounted = self._last
            if number > ticket and self._clock.elapsed() - began_at <= LONGEST_USE_SECONDS:
                return mounted
        return await self._look()

    async def _look(self) -> frozenset[FolderPlace]:
        self._begun += 1
        number, began_at = self._begun, self._clock.elapsed()
        mounted = await self._threads(self._workdir.mounted_folders)
        if self._last is None or number > self._last[0]:
            self._last = number, began_at, mounted
        return mounted
