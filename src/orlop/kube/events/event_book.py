"""The event recorder's memory: what happened, how often, and what must still be written. Pure, and bounded.

A new occurrence is due at once; its repetitions are written together, less and less often the longer they go on. An
occurrence that has not been repeated for a while is forgotten, and is new when it happens again. One object, reason and
action may have a few notes at a time; further ones (a message with a number in it) count as repetitions of the last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.kube.events.event_bodies import Occurrence, Repetitions
from orlop.kube.queue.delayed_names import DelayedNames

MOST_ENTRIES: Final = 1000
MOST_NOTES: Final = 10
FORGOTTEN_AFTER_SECONDS: Final = 360.0
"""The same as client-go's: after this an occurrence counts as new again."""
BETWEEN_WRITES: Final = Backoff(initial=10.0, factor=2.0, cap=300.0, jitter=0.1)


@dataclass(eq=False, slots=True)
class BookEntry:
    """One occurrence with its repetitions. `event` is the name of its Event, which the server may have already."""

    occurrence: Occurrence
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
        self._entries: OrderedDict[Occurrence, BookEntry] = OrderedDict()
        self._settled: OrderedDict[Occurrence, BookEntry] = OrderedDict()
        """The entries of which everything is written, oldest first: the ones that make room for others."""
        self._notes: dict[Occurrence, list[str]] = {}
        self._due: DelayedNames[Occurrence] = DelayedNames()

    def __len__(self) -> int:
        return len(self._entries)

    def waiting(self) -> int:
        return len(self._due)

    def add(self, occurrence: Occurrence, wall: datetime, elapsed: float) -> bool:
        """Count an occurrence. Return False if there is no room: every entry still waits to be written."""
        self._forget_old(elapsed)
        occurrence = self._folded(occurrence)
        entry = self._entries.get(occurrence)
        if entry is not None:
            entry.count, entry.last, entry.changed_at = entry.count + 1, wall, elapsed
            self._entries.move_to_end(occurrence)
            self._settled.pop(occurrence, None)
            self._due.add(occurrence, elapsed + BETWEEN_WRITES.delay(entry.writes, self._random))
            return True
        if len(self._entries) >= self._most and not self._make_room():
            return False
        self._entries[occurrence] = BookEntry(occurrence, wall, wall, 1, elapsed)
        self._notes.setdefault(_without_note(occurrence), []).append(occurrence.note)
        self._due.add(occurrence, elapsed)
        return True

    def take_due(self, elapsed: float) -> Iterator[BookEntry]:
        for occurrence in self._due.take_due(elapsed):
            entry = self._entries.get(occurrence)
            # `hurry` also makes due what is being written at that moment, and a series of one is refused.
            if entry is not None and not entry.is_settled:
                yield entry

    def next_instant(self) -> float | None:
        return self._due.next_instant()

    def written(self, entry: BookEntry, count: int, elapsed: float) -> None:
        """Record that `count` repetitions were written, or were dropped for good."""
        entry.written, entry.failures = count, 0
        entry.writes += 1
        if entry.occurrence not in self._entries:
            return
        if entry.is_settled:
            self._settled[entry.occurrence] = entry
        else:
            self._due.add(entry.occurrence, elapsed + BETWEEN_WRITES.delay(entry.writes, self._random))

    def postpone(self, entry: BookEntry, instant: float) -> None:
        if entry.occurrence in self._entries:
            self._due.add(entry.occurrence, instant)

    def forget(self, entry: BookEntry) -> None:
        if self._entries.pop(entry.occurrence, None) is not None:
            self._settled.pop(entry.occurrence, None)
            base = _without_note(entry.occurrence)
            self._notes[base].remove(entry.occurrence.note)
            if not self._notes[base]:
                del self._notes[base]

    def hurry(self, elapsed: float) -> None:
        """Make every entry that still waits due now."""
        for entry in self._entries.values():
            if not entry.is_settled:
                self._due.add(entry.occurrence, elapsed)

    def _folded(self, occurrence: Occurrence) -> Occurrence:
        notes = self._notes.get(_without_note(occurrence), [])
        if len(notes) < MOST_NOTES or occurrence.note in notes:
            return occurrence
        return replace(occurrence, note=notes[-1])

    def _forget_old(self, elapsed: float) -> None:
        """Forget old entries. The one changed longest ago is first; one that waits to be written ends the scan."""
        while self._entries:
            entry = next(iter(self._entries.values()))
            if not entry.is_settled or elapsed - entry.changed_at < FORGOTTEN_AFTER_SECONDS:
                return
            self.forget(entry)

    def _make_room(self) -> bool:
        # Not a scan of all entries: with a backlog of a thousand events, each new one would look at each of them.
        if not self._settled:
            return False
        self.forget(next(iter(self._settled.values())))
        return True


def _without_note(occurrence: Occurrence) -> Occurrence:
    return replace(occurrence, note="")
