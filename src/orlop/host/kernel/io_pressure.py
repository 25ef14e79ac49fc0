"""Slow down background work while processes of this machine wait for its disks, by the kernel's PSI.

PSI is the kernel's pressure stall information. `pause_seconds` is how long a background worker should pause now. It is
zero if the kernel has no PSI (not built in, or switched off), so that work is never delayed without a measurement.
Under pressure the work continues slowly and never stops: erasing may be what relieves the disk.

The measure is the share of time since the last sample in which any task waited for I/O, our own tasks included.
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
SAMPLE_EVERY_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.05
MICROSECONDS: Final = 1e6
LONGEST_TEXT: Final = 512


class IoPressure:
    """Samples the I/O pressure of this machine. Safe for any number of threads."""

    def __init__(self, clock: Clock, file: Path = IO_PRESSURE_FILE) -> None:
        self._clock = clock
        self._file = _open_if_present(file)
        self._lock = threading.Lock()
        self._sampled_at = clock.elapsed()
        self._stalled = self._read_stalled()
        self._high = False

    @property
    def is_known(self) -> bool:
        return self._stalled is not None

    def pause_seconds(self) -> float:
        """Return how long a background worker should pause before its next steps; 0 without pressure."""
        with self._lock:
            if self._stalled is not None and self._clock.elapsed() - self._sampled_at >= SAMPLE_EVERY_SECONDS:
                self._sample(self._stalled)
            return PAUSE_SECONDS if self._high else 0.0

    def close(self) -> None:
        """Close the kernel's file; from now on the pressure is unknown. Closing twice is harmless."""
        with self._lock:
            file, self._file, self._stalled, self._high = self._file, None, None, False
        if file is not None:
            os.close(file)

    def _sample(self, stalled_before: float) -> None:
        now = self._clock.elapsed()
        self._stalled = self._read_stalled()
        waited = 0.0 if self._stalled is None else self._stalled - stalled_before
        self._high = waited >= HIGH_SHARE * (now - self._sampled_at)
        self._sampled_at = now

    def _read_stalled(self) -> float | None:
        """Return the seconds, since the machine started, in which some task waited for I/O; None if unknown."""
        if self._file is None:
            return None
        try:
            return stalled_seconds(os.pread(self._file, LONGEST_TEXT, 0).decode("ascii", "replace"))
        except OSError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def stalled_seconds(text: str) -> float | None:
    """Parse `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`; return the total, which is in µs, or None."""
    for line in text.splitlines():
        if line.startswith("some "):
            total = line.rpartition("total=")[2]
            return int(total) / MICROSECONDS if total.isdecimal() else None
    return None


def _open_if_present(file: Path) -> int | None:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
