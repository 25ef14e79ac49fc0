"""Names that are due at a later instant: each once, at the earliest instant it was added for. Pure.

A heap, so that adding stays cheap with a hundred thousand names. Instants are arguments; nothing here reads a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

# An entry that an earlier one replaced stays in the heap until its instant; beyond this share the heap is rebuilt.
MOST_STALE_SHARE: Final = 2
FEW: Final = 64


class DelayedNames(Generic[Name]):
    """Names due at the same instant come in the order they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Name]] = []
        self._due_at: dict[Name, float] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._due_at)

    def __contains__(self, name: Name) -> bool:
        return name in self._due_at

    def add(self, name: Name, instant: float) -> None:
        known = self._due_at.get(name)
        if known is not None and known <= instant:
            return
        self._due_at[name] = instant
        heapq.heappush(self._heap, (instant, next(self._numbers), name))
        if len(self._heap) > MOST_STALE_SHARE * len(self._due_at) + FEW:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)

    def next_instant(self) -> float | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> Iterator[Name]:
        while (instant := self.next_instant()) is not None and instant <= now:
            name = heapq.heappop(self._heap)[2]
            del self._due_at[name]
            yield name

    def clear(self) -> None:
        self._heap.clear()
        self._due_at.clear()

    def _drop_stale(self) -> None:
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)

    def _is_current(self, entry: tuple[float, int, Name]) -> bool:
        return self._due_at.get(entry[2]) == entry[0]
