"""What a change in the store means to a client that watches a selection, and the line that is sent.

An object that begins to match a selector is new to him; one that ceases to match is gone for him, as it was before. A
line is encoded once for all who watch in the same form; the last ones are remembered, by their bytes no more than fits.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onenode.apiserver.answers.answer_forms import Form, bookmark_metadata
from onenode.apiserver.answers.status_answers import Refusal
from onenode.apiserver.store.versions import Change, ChangeKind, DecodedObjects, Stored
from onenode.apiserver.verbs.selection import Selection
from onenode.apiserver.verbs.stored_objects import NO_REVISION, KindInStore

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
TYPES: Final = {ChangeKind.CREATED: ADDED, ChangeKind.UPDATED: MODIFIED, ChangeKind.DELETED: DELETED}
MOST_BYTES_REMEMBERED: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: str
    stored: Stored


def event_of(change: Change, selection: Selection, decoded: DecodedObjects) -> WatchEvent | None:
    """None where the change is no concern of the selection."""
    if selection.takes_everything:
        return WatchEvent(TYPES[change.kind], change.after)
    before = change.before is not None and selection.takes(change.before, decoded)
    if change.kind is ChangeKind.DELETED:
        return WatchEvent(DELETED, change.after) if before else None
    after = selection.takes(change.after, decoded)
    if after:
        return WatchEvent(MODIFIED if before else ADDED, change.after)
    if before and change.before is not None:
        return WatchEvent(DELETED, _as_last_seen(selection.kind, change.before, change.revision))
    return None


def _as_last_seen(kind: KindInStore, before: Stored, revision: int) -> Stored:
    """With the version of the change: a client that begins again behind it does not get it once more."""
    return Stored(before.key, NO_REVISION, kind.encoded(kind.object(before), revision))


def line(event_type: str, obj: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (event_type.encode(), obj)


def error_line(refusal: Refusal) -> bytes:
    return line("ERROR", msgspec.json.encode(refusal.status()))


def bookmark_line(kind: KindInStore, form: Form, revision: int, *, initial_end: bool = False) -> bytes:
    return line("BOOKMARK", form.bookmark(kind, bookmark_metadata(revision, initial_end=initial_end)))


class WatchLines:
    """Shared by all watches of a server."""

    def __init__(self, most_bytes: int = MOST_BYTES_REMEMBERED) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lines: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()

    def of(self, kind: KindInStore, form: Form, event: WatchEvent, *, first: bool) -> bytes:
        if not form.name or event.stored.revision == NO_REVISION:
            return line(event.type, form.in_event(kind, event.stored, first=first))
        known = (event.stored.revision, event.type, kind.kind.api_version, form.name)
        if (made := self._lines.get(known)) is None:
            made = line(event.type, form.in_event(kind, event.stored, first=first))
            self._remember(known, made)
        return made

    def _remember(self, known: tuple[Any, ...], made: bytes) -> None:
        self._lines[known] = made
        self._bytes += len(made)
        while self._bytes > self._most_bytes:
            _, oldest = self._lines.popitem(last=False)
            self._bytes -= len(oldest)
