"""Whether this machine's processes wait for its disks: the kernel's pressure stall information, made a brake.

`pause_seconds` is what a worker that can wait should wait now. It is zero without PSI (not
built in, or switched off), so that work is never held up for want of knowledge. It never stops anybody: under pressure
the work goes on, slowly, because erasing may be what relieves the disk.

The figure is the share of time since the last look in which some task waited for I/O; ours are among them.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from orlop.foundation.clock import Clock

IO_PRESSURE_FILE: Final = Path("/proc/pressure/io")
HIGH_SHARE: Final = 0.10
LOOK_EVERY_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.05
MICROSECONDS: Final = 1e6
LONGEST_ANSWER: Final = 512


class IoPressure:
    """For any number of threads."""

    def __init__(self, clock: Clock, file: Path = IO_PRESSURE_FILE) -> None:
        self._clock = clock
        self._file = _open_if_told(file)
        self._lock = threading.Lock()
        self._looked_at = clock.elapsed()
        self._stalled = self._read_stalled()
        self._high = False

    @property
    def is_known(self) -> bool:
        return self._stalled is not None

    def pause_seconds(self) -> float:
        with self._lock:
            if self._stalled is not None and self._clock.elapsed() - self._looked_at >= LOOK_EVERY_SECONDS:
                self._look(self._stalled)
            return PAUSE_SECONDS if self._high else 0.0

    def close(self) -> None:
        """From now on nothing is known. Closing twice is harmless."""
        with self._lock:
            file, self._file, self._stalled, self._high = self._file, None, None, False
        if file is not None:
            os.close(file)

    def _look(self, stalled_before: float) -> None:
        now = self._clock.elapsed()
        self._stalled = self._read_stalled()
        waited = 0.0 if self._stalled is None else self._stalled - stalled_before
        self._high = waited >= HIGH_SHARE * (now - self._looked_at)
        self._looked_at = now

    def _read_stalled(self) -> float | None:
        """Seconds, since the machine started, in which some task waited for I/O."""
        if self._file is None:
            return None
        try:
            return stalled_seconds(os.pread(self._file, LONGEST_ANSWER, 0).decode("ascii", "replace"))
        except OSError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def stalled_seconds(answer: str) -> float | None:
    """From `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, which is in microseconds; None when it is not there."""
    for line in answer.splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / MICROSECONDS if total.isdecimal() else None
    return None


def _open_if_told(file: Path) -> int | None:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
