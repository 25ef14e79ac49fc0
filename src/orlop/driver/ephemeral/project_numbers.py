"""Project numbers (the ids of XFS and ext4 project quotas): which one a new folder gets, and when one is free again.

Other programs number files on the same disk too: container runtimes from 1 upward, kubelet from 1048577 upward. Our
range is far above both. Within it the file system itself shows what is free: a folder counts under its number as long
as it exists, wherever it is. So a number is used only if nothing counts under it, and a restart needs no memory. The
lowest come first, because a file system keeps an entry for every number that ever had a limit.

Order for a new folder: reserve the number → create the folder with it, limits first → end the reservation. After a
folder was erased: nothing counts under its number → lift its limits → the number is free. A process that dies in
between leaves limits on a number that no folder has; the next process finds and lifts them.

Everything blocks, and may be called from several threads.
"""

from __future__ import annotations

import errno
import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.node_host import Workdir

FIRST: Final = 0x6F00_0000
LAST: Final = 0x6FFF_FFFF


class ProjectNumbers:
    def __init__(self, workdir: Workdir, in_records: Callable[[], Iterable[int]]) -> None:
        """`in_records` returns the numbers of all folders in the index."""
        self._workdir = workdir
        self._in_records = in_records
        self._lock = threading.Lock()
        self._taken = set(in_records())
        """All that we know of; the file system is asked before a number is used."""
        self._reserved: set[int] = set()
        self._freed: list[int] = []
        self._next = FIRST
        """All below it are taken or freed."""
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
        left = self._numbers_left_by_others()
        with self._lock:
            self._taken |= left
            self._has_listed = True
            unknown = self._taken - self._reserved - set(self._in_records())
            unused = [number for number in unknown if self._is_free(number)]
            for number in unused:
                self._workdir.lift_limits(number)
                self._taken.discard(number)
                if number < self._next:
                    heapq.heappush(self._freed, number)
            return len(unused)

    def _numbers_left_by_others(self) -> set[int]:
        """Return the numbers in our range that earlier processes used. Listed once: it takes long where many exist."""
        if self._has_listed:
            return set()
        return {usage.project for usage in self._workdir.projects() if FIRST <= usage.project <= LAST}

    def _free_number(self) -> int:
        for number in self._candidates():
            if self._is_free(number):
                return number
            self._taken.add(number)  # another program uses it
        raise HostError(errno.ENOSPC, f"All project numbers from {FIRST} to {LAST} are in use on this file system.")

    def _candidates(self) -> Iterator[int]:
        while self._freed:
            yield heapq.heappop(self._freed)
        while self._next <= LAST:
            self._next += 1
            if self._next - 1 not in self._taken:
                yield self._next - 1

    def _is_free(self, number: int) -> bool:
        return self._workdir.quota_usage(number).is_nothing
