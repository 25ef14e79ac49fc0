"""Looks at the disk for those who only want to know something: each is answered in time, also by a disk that hangs.

A thread that hangs on a disk cannot be called back. So looks have threads of their own, few of them: when all hang, no
more are lost, whoever looks is told what hangs, and those that publish and unpublish have theirs. What has not begun
when its time is over never begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from orlop.csi.error_codes import Unavailable
from orlop.driver.ephemeral.folders import Threads
from orlop.foundation.clock import Clock

T = TypeVar("T")
LONGEST_LOOK_SECONDS: Final = 10.0


class DiskLooks:
    """Threads of which each answers within its time, or is UNAVAILABLE. For what changes nothing."""

    def __init__(self, threads: Threads, clock: Clock, seconds: float = LONGEST_LOOK_SECONDS) -> None:
        self._threads = threads
        self._clock = clock
        self._seconds = seconds

    async def __call__(self, work: Callable[[], T], /) -> T:
        try:
            async with self._clock.timeout(self._seconds):
                return await self._threads(work)
        except TimeoutError:
            raise Unavailable(
                f"The disk of the scratch folders (--workdir) has not answered for {self._seconds:g} seconds: it "
                "hangs, or is very busy. Look at the kernel's log (dmesg) and at what is mounted there, then try again."
            ) from None
