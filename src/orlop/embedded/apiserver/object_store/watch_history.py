"""The newest changes, kept in order and within bounds: what a watch can begin from, and how lists look into the past.

A change that is dropped leaves garbage behind: the version it replaced, which nobody can ask for any more. Their
revisions are collected here, for whoever keeps versions elsewhere.

Pure data: nothing here waits or writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from orlop.embedded.apiserver.object_store.errors import Expired, NotReached
from orlop.embedded.apiserver.object_store.versions import Bounds, Change, ChangeKind, Key, Stored

# What a change costs beside the bytes of its objects: the Python values around them.
OVERHEAD_BYTES = 400


class WatchHistory:
    """Every change behind `oldest` is here."""

    def __init__(self, bounds: Bounds, oldest: int, revision: int) -> None:
        self.oldest = oldest
        self.revision = revision
        self.garbage: list[int] = []
        self._bounds = bounds
        self._changes: deque[Change] = deque()
        self._bytes = 0

    def append(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._changes.append(change)
            self._bytes += _cost(change)
            self.revision = change.revision
        while not self._bounds.hold(len(self._changes), self._bytes):
            self._drop_oldest()

    def drop_until(self, revision: int) -> None:
        """Drops the changes up to this revision; it is the oldest to go on from afterwards."""
        while self._changes and self._changes[0].revision <= revision:
            self._drop_oldest()
        self.oldest = max(self.oldest, min(revision, self.revision))

    def after(self, revision: int) -> list[Change]:
        """What changed since, in order."""
        self._refuse_unkept(revision)
        newer = list(takewhile(lambda change: change.revision > revision, reversed(self._changes)))
        newer.reverse()
        return newer

    def past(self, resource: str, revision: int) -> dict[Key, Stored | None]:
        """The objects of a kind that have changed since, as they were then; None for those that were not there."""
        newest_first = reversed(self.after(revision))
        return {change.key: change.before for change in newest_first if change.key.resource == resource}

    def _refuse_unkept(self, revision: int) -> None:
        if revision < self.oldest:
            raise Expired(revision, self.oldest)
        if revision > self.revision:
            raise NotReached(revision, self.revision)

    def _drop_oldest(self) -> None:
        change = self._changes.popleft()
        self._bytes -= _cost(change)
        self.oldest = change.revision
        if change.before is not None:
            self.garbage.append(change.before.revision)
        if change.kind is ChangeKind.DELETED:
            self.garbage.append(change.revision)


def _cost(change: Change) -> int:
    """What is kept for this change alone: the version it made is there anyway, or counted where it was replaced."""
    replaced = len(change.before.json) if change.before else 0
    tombstone = len(change.after.json) if change.kind is ChangeKind.DELETED else 0
    return replaced + tombstone + OVERHEAD_BYTES
