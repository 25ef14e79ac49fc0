"""Whether objects of some resources changed since they were last read: for values that are derived from all of them."""

from __future__ import annotations

from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import TooSlow
from onenode.apiserver.store.watches import Watch


class ChangeNotice:
    """A watch on each resource, of which nothing is read: one that has something to read shows a change."""

    def __init__(self, store: ObjectStore, *resources: str) -> None:
        self._store = store
        self._resources = resources
        self._watches: list[Watch] = []
        self._unchanged_at = -1
        """The revision of the store at which nothing had changed: most requests find the same one again."""

    def take(self) -> bool:
        """Return whether anything changed since the last call; the first call returns true. Raises StoreClosed."""
        if self._watches and not self._has_changed():
            return False
        self.close()
        self._watches = [self._store.watch(resource, after=self._store.revision) for resource in self._resources]
        return True

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []

    def _has_changed(self) -> bool:
        revision = self._store.revision
        if revision == self._unchanged_at:
            return False
        try:
            for watch in self._watches:
                if watch.seen_until < revision:
                    return True
        except TooSlow:  # more changed than a watch holds
            return True
        self._unchanged_at = revision
        return False
