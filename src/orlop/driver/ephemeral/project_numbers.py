"""The numbers that folders with limits are counted by: which one a new folder gets, and when one is free again.

Others number files on the same disk too: container runtimes from 1 upward, kubelet from 1048577 upward. Ours are a
range far above both. Within it the file system says what is free: a folder counts by its number as long as it exists,
wherever it stands, so a number is given only when nothing counts by it, and after a restart nothing has to be known.
The lowest come first, since a file system keeps room for every number that ever had a limit.

Order for a new folder: the number is taken → the folder is made with it, limits first → it is let out of hand. For one
that was erased: nothing counts by it any more → its limits are lifted → it may be given again. A process that dies in
between leaves limits on a number that nobody has; the next process finds them there.

Everything blocks, and may be called from several threads.
"""

from __future__ import annotations

import errno
import heapq
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host.errors import HostError
from orlop.host.node_host import Workdir

FIRST: Final = 0x6F00_0000
LAST: Final = 0x6FFF_FFFF


class ProjectNumbers:
    def __init__(self, workdir: Workdir, in_records: Callable[[], Iterable[int]]) -> None:
        """`in_records` are the numbers of all folders that are known."""
        self._workdir = workdir
        self._in_records = in_records
        self._lock = threading.Lock()
        self._taken = set(in_records())
        """All that we know of; the file system is asked before one is given."""
        self._in_hand: set[int] = set()
        self._freed: list[int] = []
        self._next = FIRST
        """All below it are taken or freed."""
        self._has_looked = False

    @contextmanager
    def in_hand(self) -> Iterator[int]:
        """A number that nothing counts by, kept for a folder that is being made; afterwards the folder keeps it."""
        with self._lock:
            number = self._free_number()
            self._taken.add(number)
            self._in_hand.add(number)
        try:
            yield number
        finally:
            with self._lock:
                self._in_hand.discard(number)

    def release_unused(self) -> int:
        """Lifts the limits of numbers whose folder was erased; how many are free again."""
        left = self._numbers_left_by_others()
        with self._lock:
            self._taken |= left
            self._has_looked = True
            unknown = self._taken - self._in_hand - set(self._in_records())
            unused = [number for number in unknown if self._is_free(number)]
            for number in unused:
                self._workdir.lift_limits(number)
                self._taken.discard(number)
                if number < self._next:
                    heapq.heappush(self._freed, number)
            return len(unused)

    def _numbers_left_by_others(self) -> set[int]:
        """By processes before this one; looked up once, since it takes a moment where numbers are many."""
        if self._has_looked:
            return set()
        return {usage.project for usage in self._workdir.projects() if FIRST <= usage.project <= LAST}

    def _free_number(self) -> int:
        for number in self._candidates():
            if self._is_free(number):
                return number
            self._taken.add(number)  # somebody gave it to files of his own
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
