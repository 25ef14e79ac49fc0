"""What happened, how often, and what of it must still be told: the memory of the event recorder. Pure, and bounded.

Something new is to be told at once; its repetitions together, the more seldom the longer they go on. What has not been
repeated for a while is forgotten: when it happens again it is something new. One object, reason and action may have a
few notes at a time; more of them (a message with a number in it) count as repetitions of the last one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.kube.delayed_names import DelayedNames
from orlop.kube.event_bodies import Occurrence, Repetitions

MOST_ENTRIES: Final = 1000
MOST_NOTES: Final = 10
FORGOTTEN_AFTER_SECONDS: Final = 360.0
"""client-go's: after this, something is new again."""
BETWEEN_TELLINGS: Final = Backoff(initial=10.0, factor=2.0, cap=300.0, jitter=0.1)


@dataclass(eq=False, slots=True)
class Entry:
    """One thing that happened once or more; `event` is the name of what tells of it, which the server may have."""

    told: Occurrence
    first: datetime
    last: datetime
    count: int
    changed_at: float
    written: int = 0
    event: str = ""
    exists: bool = False
    in_core: bool = False
    writes: int = 0
    failures: int = 0

    @property
    def seen(self) -> Repetitions:
        return Repetitions(self.count, self.first, self.last)

    @property
    def is_settled(self) -> bool:
        return self.written == self.count


class EventBook:
    def __init__(self, random: Random, most_entries: int = MOST_ENTRIES) -> None:
        self._random = random
        self._most = most_entries
        self._entries: OrderedDict[Occurrence, Entry] = OrderedDict()
        self._notes: dict[Occurrence, list[str]] = {}
        self._due: DelayedNames[Occurrence] = DelayedNames()

    def __len__(self) -> int:
        return len(self._entries)

    def waiting(self) -> int:
        return len(self._due)

    def add(self, told: Occurrence, wall: datetime, elapsed: float) -> bool:
        """False when there is no room for it: everything in the book is still to be told."""
        self._forget_old(elapsed)
        told = self._folded(told)
        entry = self._entries.get(told)
        if entry is not None:
            entry.count, entry.last, entry.changed_at = entry.count + 1, wall, elapsed
            self._entries.move_to_end(told)
            self._due.add(told, elapsed + BETWEEN_TELLINGS.delay(entry.writes, self._random))
            return True
        if len(self._entries) >= self._most and not self._make_room():
            return False
        self._entries[told] = Entry(told, wall, wall, 1, elapsed)
        self._notes.setdefault(_without_note(told), []).append(told.note)
        self._due.add(told, elapsed)
        return True

    def take_due(self, elapsed: float) -> Iterator[Entry]:
        for told in self._due.take_due(elapsed):
            if told in self._entries:
                yield self._entries[told]

    def next_instant(self) -> float | None:
        return self._due.next_instant()

    def written(self, entry: Entry, count: int, elapsed: float) -> None:
        """So many of its repetitions have been told, or never will be."""
        entry.written, entry.failures = count, 0
        entry.writes += 1
        if not entry.is_settled and entry.told in self._entries:
            self._due.add(entry.told, elapsed + BETWEEN_TELLINGS.delay(entry.writes, self._random))

    def postpone(self, entry: Entry, instant: float) -> None:
        if entry.told in self._entries:
            self._due.add(entry.told, instant)

    def forget(self, entry: Entry) -> None:
        if self._entries.pop(entry.told, None) is not None:
            base = _without_note(entry.told)
            self._notes[base].remove(entry.told.note)
            if not self._notes[base]:
                del self._notes[base]

    def hurry(self, elapsed: float) -> None:
        """All that waits is due now."""
        for entry in self._entries.values():
            if not entry.is_settled:
                self._due.add(entry.told, elapsed)

    def _folded(self, told: Occurrence) -> Occurrence:
        notes = self._notes.get(_without_note(told), [])
        if len(notes) < MOST_NOTES or told.note in notes:
            return told
        return replace(told, note=notes[-1])

    def _forget_old(self, elapsed: float) -> None:
        """Those changed longest ago come first; what is still to be told stops nothing for long."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            if not entry.is_settled or elapsed - entry.changed_at < FORGOTTEN_AFTER_SECONDS:
                return
            self.forget(entry)

    def _make_room(self) -> bool:
        settled = next((entry for entry in self._entries.values() if entry.is_settled), None)
        if settled is None:
            return False
        self.forget(settled)
        return True


def _without_note(told: Occurrence) -> Occurrence:
    return replace(told, note="")
