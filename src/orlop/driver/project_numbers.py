"""The project numbers in use on one file system, for the quotas of folders. Used by scratch folders and volumes."""

from __future__ import annotations

import errno
import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host.drive_volumes import ProjectQuotas
from orlop.host.host_errors import HostError

FIRST_PROJECT: Final = 0x6F00_0000
LAST_PROJECT: Final = 0x6FFF_FFFF


class ProjectNumbers:
    """Choose a project number (the id of an XFS or ext4 project quota) for a new folder; free it after the erasure.

    Other programs use project numbers on the same disk too: container runtimes from 1 upward, kubelet from 1048577
    upward. Our range is far above both. Within it, the file system shows which numbers are free: a folder counts under
    its number as long as it exists, on any shelf. So a number is used only if nothing counts under it, and a restart
    loses nothing. The lowest free number is used first: a file system keeps an entry for each that ever had a limit.

    Order for a new folder: reserve the number → create the folder with it, limits first → end the reservation. After
    a folder was erased: check that nothing counts under its number → lift its limits → free the number. A process that
    dies in between leaves limits on an unused number; the next process finds and lifts them.

    Every method blocks, and may be called from several threads. `in_records` returns the numbers of all folders in the
    index.
    """

    def __init__(self, quotas: ProjectQuotas, in_records: Callable[[], Iterable[int]]) -> None:
        self._quotas = quotas
        self._in_records = in_records
        self._lock = threading.Lock()
        self._taken = set(in_records())
        """All numbers that are known to be in use. The file system is checked too before a number is used."""
        self._reserved: set[int] = set()
        self._freed: list[int] = []
        self._next = FIRST_PROJECT
        """All lower numbers of the range are taken or freed."""
        self._has_listed = False

    @contextmanager
    def reserved(self) -> Iterator[int]:
        """Reserve a free number while a folder is created with it; afterwards the folder itself keeps it."""
        with self._lock:
            number = self._free_number()
            self._taken.add(number)
            self._reserved.add(number)
        try:
            yield number
        finally:
            with self._lock:
                self._reserved.discard(number)

    def release_unused(self) -> int:
        """Lift the limits of numbers whose folder was erased; return how many are free again."""
        leftovers = self._leftover_numbers()
        with self._lock:
            self._taken |= leftovers
            self._has_listed = True
            unknown = self._taken - self._reserved - set(self._in_records())
            unused = [number for number in unknown if self._is_free(number)]
            # Limits first: a freed number may be used at once, and must not have the limits of another folder.
            for number in unused:
                self._quotas.lift_limits(number)
                self._taken.discard(number)
                if number < self._next:
                    heapq.heappush(self._freed, number)
            return len(unused)

    def _leftover_numbers(self) -> set[int]:
        """Return the numbers in our range that earlier processes used. Listed once: listing many takes long."""
        if self._has_listed:
            return set()
        return {usage.project for usage in self._quotas.projects() if FIRST_PROJECT <= usage.project <= LAST_PROJECT}

    def _free_number(self) -> int:
        for number in self._candidates():
            if self._is_free(number):
                return number
            self._taken.add(number)  # another program uses it
        raise HostError(
            errno.ENOSPC, f"All project numbers from {FIRST_PROJECT} to {LAST_PROJECT} are in use on this file system."
        )

    def _candidates(self) -> Iterator[int]:
        while self._freed:
            yield heapq.heappop(self._freed)
        while self._next <= LAST_PROJECT:
            self._next += 1
            if self._next - 1 not in self._taken:
                yield self._next - 1

    def _is_free(self, number: int) -> bool:
        return self._quotas.quota_usage(number).is_nothing
