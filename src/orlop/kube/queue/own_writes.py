"""Keep a controller from being woken by its own writes, and from acting on a cache that is older than them.

A controller reads objects from a cache that lags behind the API server. It writes an object, and later the watch
delivers that write back. Two mistakes are possible: to reconcile once more because of it, and to reconcile the object
as it was before it. `OwnWrites` remembers, for each object, the newest state that the controller has read or written:
its version, and its fingerprint (everything that the controller's rules read). The cache has news only when it is not
older than that and its fingerprint differs.

Rules for the caller:

- `remember` every object that is put on the queue or taken from it, and every object that a write returned.
- Reconcile inside `working`. Changes that arrive meanwhile are not reported; call `observe` again after `working`.
- When a write has ended an object (the last finalizer is gone), call `remember_gone`: the cache still shows it.
- Before reconciling, check `is_stale`.

Not thread-safe: for the tasks of one event loop. It keeps nothing of objects that are gone from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orlop.kube import objects
from orlop.kube.objects import ObjectName

Fingerprint = TypeVar("Fingerprint", bound=Hashable)
ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LatestState(Generic[Fingerprint]):
    """The newest state of one object that the controller has read or written."""

    uid: str
    version: str
    fingerprint: Fingerprint

    def is_newer_than(self, version: str) -> bool:
        return objects.version_order(version) < objects.version_order(self.version)


@dataclass(frozen=True, slots=True)
class Observation(Generic[Fingerprint]):
    """What a change of the cache means for the controller."""

    ended: LatestState[Fingerprint] | None = None
    """The remembered object, if the cache shows that it is gone or that another object has its name."""
    is_news: bool = False
    """The cached object must be reconciled."""


class OwnWrites(Generic[Fingerprint]):
    def __init__(self, fingerprint: Callable[[ApiObject], Fingerprint]) -> None:
        self._fingerprint = fingerprint
        self._remembered: dict[ObjectName, LatestState[Fingerprint]] = {}
        self._working: set[ObjectName] = set()
        self._gone: dict[ObjectName, str] = {}
        """Uids of objects that our own write has ended, until the cache shows that too."""

    def __len__(self) -> int:
        """Return how many entries are held in memory."""
        return len(self._remembered) + len(self._working) + len(self._gone)

    def get(self, name: ObjectName) -> LatestState[Fingerprint] | None:
        return self._remembered.get(name)

    def remember(self, name: ObjectName, obj: ApiObject) -> None:
        """Remember the object as it was read, or as our write returned it. An older state changes nothing."""
        known = self._remembered.get(name)
        version = objects.resource_version(obj)
        if known is None or not known.is_newer_than(version):
            self._remembered[name] = LatestState(objects.uid(obj), version, self._fingerprint(obj))

    def remember_gone(self, name: ObjectName, uid: str) -> None:
        self._gone[name] = uid

    @contextmanager
    def working(self, name: ObjectName) -> Iterator[None]:
        self._working.add(name)
        try:
            yield
        finally:
            self._working.discard(name)

    def is_stale(self, name: ObjectName, cached: ApiObject) -> bool:
        """Return whether the cached object is older than what the controller has seen or done."""
        known = self._remembered.get(name)
        is_older = known is not None and known.is_newer_than(objects.resource_version(cached))
        return is_older or self.is_gone(name, cached)

    def is_gone(self, name: ObjectName, cached: ApiObject) -> bool:
        """Return whether our own write has ended this very object."""
        return self._gone.get(name) == objects.uid(cached)

    def observe(self, name: ObjectName, cached: ApiObject | None, cache_version: str) -> Observation[Fingerprint]:
        """Return what is new in the cached object. None: a cache of this version has no object of this name."""
        if cached is None or not self.is_gone(name, cached):
            self._gone.pop(name, None)
        known = self._remembered.get(name)
        if known is not None and not self._differs(known, cached, cache_version):
            return Observation()
        ended = known if known is not None and (cached is None or objects.uid(cached) != known.uid) else None
        if ended is not None:
            del self._remembered[name]
        # While a worker has the object, its own writes may arrive here before it could remember them.
        is_news = cached is not None and name not in self._working and not self.is_gone(name, cached)
        return Observation(ended, is_news)

    def _differs(self, known: LatestState[Fingerprint], cached: ApiObject | None, cache_version: str) -> bool:
        if cached is None:
            # The end of a former object of this name may arrive after we have written to its successor.
            return not known.is_newer_than(cache_version)
        is_other = (known.uid, known.fingerprint) != (objects.uid(cached), self._fingerprint(cached))
        return is_other and not known.is_newer_than(objects.resource_version(cached))
