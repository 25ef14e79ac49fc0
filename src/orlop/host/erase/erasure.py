"""The result of an erasure: how much was removed, what is left and why; and the collector that workers share."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

MOST_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class NotErased:
    """An entry that could not be erased, and why.

    `path` is relative to the erased folder; `.` is the folder itself. Bytes of a name that are no UTF-8 are surrogates.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r} could not be erased: {self.reason}"


@dataclass(frozen=True, slots=True)
class Erasure:
    """The result of one erasure. `left` has the first hundred of the `left_count` entries that were not erased."""

    removed: int
    mounts_detached: int
    left: tuple[NotErased, ...]
    left_count: int
    stopped: bool

    @property
    def is_complete(self) -> bool:
        return not self.stopped and not self.left_count


class ErasureReport:
    """Collects what the workers of one erasure removed and could not remove. Safe for any number of threads."""

    def __init__(self) -> None:
        self.removed = 0
        self.left: list[NotErased] = []
        self.left_count = 0
        self._lock = threading.Lock()

    def count(self, removed: int) -> None:
        with self._lock:
            self.removed += removed

    def note(self, path: str, reason: str) -> None:
        with self._lock:
            self.left_count += 1
            if len(self.left) < MOST_NAMED:
                self.left.append(NotErased(path, reason))
