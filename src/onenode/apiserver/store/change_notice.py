"""Whether objects of some resources changed since they were last read: for values that are derived from all of them."""

from __future__ import annotations

from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.watches import Watch


class ChangeNotice:
    """A watch on each resource, of which nothing is read: one that has something to read shows a change."""

    def __init__(self, store: ObjectStore, *resources: str) -> None:
        self._store = store
        self._resources = resources
        self._watches: list[Watch] = []

    def take(self) -> bool:
        """Return whether anything changed since the last call; the first call returns true. Raises StoreClosed."""
        # Every request comes here, so the usual answer takes no more than one look at each watch.
        for watch in self._watches:
            if watch.has_news:
                break
        else:
            if self._watches:
                return False
        self.close()
        self._watches = [self._store.watch(resource, after=self._store.revision) for resource in self._resources]
        return True

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []
