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
        try:
            return any(watch.seen_until < self._store.revision for watch in self._watches)
        except TooSlow:  # more changed than a watch holds
            return True
