"""All objects as they are now, in memory, and the newest changes, within bounds. Pure data: nothing waits or writes.

Objects are found by key and listed in the order of keys. The changes are what a watch can begin from and how a list is
answered at an earlier revision. A change that is dropped leaves garbage: the version it replaced, which nobody can ask
for any more; their revisions are collected for the journal. Who may see what, and when, is decided by the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from onenode.apiserver.store.store_errors import FutureRevision, RevisionExpired
from onenode.apiserver.store.versions import Change, ChangeKind, Key, SizeLimits, Stored

# Sorts behind every name, and in front of the namespace that follows.
BEHIND_NAMESPACE = "\0"


class ObjectTable:
    def __init__(self) -> None:
        self._objects: dict[Key, Stored] = {}
        self._sorted_keys: dict[str, list[Key]] = {}

    def get(self, key: Key) -> Stored | None:
        return self._objects.get(key)

    def put(self, stored: Stored) -> None:
        if stored.key not in self._objects:
            insort(self._sorted_keys.setdefault(stored.key.resource, []), stored.key)
        self._objects[stored.key] = stored

    def remove(self, key: Key) -> None:
        del self._objects[key]
        keys = self._sorted_keys[key.resource]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._sorted_keys[key.resource]

    def select(
        self, resource: str, namespace: str | None, past: Mapping[Key, Stored | None], after: Key | None
    ) -> list[Key]:
        """The sorted keys behind `after`. What `past` holds is as it says, not as it is now."""
        keys = self._range(resource, namespace, after)
        for key, then in past.items():
            if namespace not in {None, key.namespace} or (after is not None and key <= after):
                continue
            now = self._objects.get(key)
            if then is None and now is not None:
                del keys[bisect_left(keys, key)]
            elif then is not None and now is None:
                insort(keys, key)
        return keys

    def objects(self, keys: Sequence[Key], past: Mapping[Key, Stored | None]) -> list[Stored]:
        """The objects of selected keys. What `past` holds is as it says."""
        now = self._objects
        return [past.get(key) or now[key] for key in keys] if past else [now[key] for key in keys]

    def _range(self, resource: str, namespace: str | None, after: Key | None) -> list[Key]:
        keys = self._sorted_keys.get(resource, [])
        start, end = 0, len(keys)
        if namespace is not None:
            start = bisect_left(keys, Key(resource, namespace, ""))
            end = bisect_left(keys, Key(resource, namespace + BEHIND_NAMESPACE, ""))
        if after is not None:
            start = max(start, bisect_right(keys, after))
        return keys[start:end]


# ---- the newest changes ----------------------------------------------------------------------------------------------


# What a change costs beside the bytes of its objects: the Python values around them.
OVERHEAD_BYTES = 400


class WatchHistory:
    """Every change behind `oldest` is here."""

    def __init__(self, bounds: SizeLimits, oldest: int, revision: int) -> None:
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
            raise RevisionExpired(revision, self.oldest)
        if revision > self.revision:
            raise FutureRevision(revision, self.revision)

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
