"""Keep the retained folders in the order in which they expire, so that a decision is cheap for any number of them.

A folder's age is the time since its burial. So of the folders of one namespace with the same lifespan, the one buried
first always expires first, under any pressure. Only those first ones are passed to `next_step` of the rules, with the
weights of all: the decision is the same as if the rules had seen every folder. Must not decide by itself.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from orlop.driver.ephemeral.afterlife.retention_rules import RetainedFolder, Step, Weight, next_step


# `gc=False`: there may be ten thousand, none can be part of a reference cycle, and the garbage collector skips them.
class Queued(msgspec.Struct, frozen=True, gc=False):
    """A retained folder in the queue. `buried_at` is in elapsed time; it may be before the start of the process."""

    name: str
    namespace: str
    buried_at: float
    lifespan: float
    bytes_used: int | None = None

    def at(self, now: float) -> RetainedFolder:
        age = max(0.0, now - self.buried_at)
        return RetainedFolder(self.name, self.namespace, age, self.lifespan, self.bytes_used)


@dataclass(slots=True)
class _Group:
    """Folders of one namespace and one lifespan; `order` may still hold entries of folders that were removed."""

    buried_at: dict[str, float] = field(default_factory=dict)
    order: list[tuple[float, str]] = field(default_factory=list)

    def add(self, queued: Queued) -> None:
        self.buried_at[queued.name] = queued.buried_at
        heapq.heappush(self.order, (queued.buried_at, queued.name))

    def remove(self, name: str) -> None:
        del self.buried_at[name]
        if len(self.order) > 2 * len(self.buried_at) + 16:
            self.order = sorted((instant, each) for each, instant in self.buried_at.items())

    def first(self) -> str:
        while self.buried_at.get(self.order[0][1]) != self.order[0][0]:
            heapq.heappop(self.order)
        return self.order[0][1]


class AfterlifeQueue:
    """The retained folders, grouped by namespace and lifespan. A folder set aside takes part in no decision."""

    def __init__(self) -> None:
        self._queued: dict[str, Queued] = {}
        self._aside: dict[str, Queued] = {}
        self._groups: dict[tuple[str, float], _Group] = {}
        self._weights: dict[str, Weight] = {}
        self._postponed: list[tuple[float, str]] = []
        """A heap of when a folder set aside is eligible again. Entries of folders that are not aside have no effect."""

    def __len__(self) -> int:
        """Return the number of folders that are not set aside."""
        return len(self._queued)

    def put(self, queued: Queued) -> None:
        """Add an entry, replacing any of the same name, even one set aside."""
        self.remove(queued.name)
        self._queued[queued.name] = queued
        self._groups.setdefault((queued.namespace, queued.lifespan), _Group()).add(queued)
        self._weigh(queued, 1)

    def remove(self, name: str) -> None:
        self._aside.pop(name, None)
        queued = self._queued.pop(name, None)
        if queued is None:
            return
        key = queued.namespace, queued.lifespan
        self._groups[key].remove(name)
        if not self._groups[key].buried_at:
            del self._groups[key]
        self._weigh(queued, -1)

    def measured(self, name: str, bytes_used: int) -> None:
        """Record the measured size of a folder."""
        if name in self._aside:
            self._aside[name] = replace(self._aside[name], bytes_used=bytes_used)
        elif name in self._queued:
            self.put(replace(self._queued[name], bytes_used=bytes_used))

    def set_aside(self, name: str) -> None:
        """Exclude a folder, and what it weighs, from decisions until `postpone` or `reinstate`."""
        queued = self._queued.get(name)
        if queued is not None:
            self.remove(name)
            self._aside[name] = queued

    def postpone(self, name: str, until: float) -> None:
        """Set a folder aside until the instant `until` (elapsed time)."""
        self.set_aside(name)
        heapq.heappush(self._postponed, (until, name))

    def reinstate(self, name: str) -> None:
        """End `set_aside` or `postpone` for a folder."""
        queued = self._aside.get(name)
        if queued is not None:
            self.put(queued)

    def next_step(self, now: float, factor: Fraction) -> Step:
        while self._postponed and self._postponed[0][0] <= now:
            self.reinstate(heapq.heappop(self._postponed)[1])
        firsts = [self._queued[group.first()].at(now) for group in self._groups.values()]
        return next_step(firsts, factor, self._weights)

    def _weigh(self, queued: Queued, sign: int) -> None:
        size, count = self._weights.get(queued.namespace, (0, 0))
        if count + sign:
            self._weights[queued.namespace] = size + sign * (queued.bytes_used or 0), count + sign
        else:
            del self._weights[queued.namespace]
