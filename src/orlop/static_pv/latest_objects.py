"""A cache of one kind that contains our own last writes.

A controller that writes an object, and decides again before the watch has returned the write, would decide on the state
before it. `LatestObjects` returns the object of our own last response until the cache is at least as new, and no object
that our own write has ended. `OwnWrites` also keeps our own writes from waking us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.objects import Object, ObjectName
from orlop.kube.queue.own_writes import Observation, OwnWrites

Fingerprint = TypeVar("Fingerprint", bound=Hashable)


class LatestObjects(Generic[Fingerprint]):
    """`fingerprint` returns everything of a cached object that decisions depend on."""

    def __init__(self, informer: Informer, fingerprint: Callable[[CachedObject], Fingerprint]) -> None:
        self.informer = informer
        self._fingerprint = fingerprint
        self._own = OwnWrites(fingerprint)
        self._written: dict[ObjectName, CachedObject] = {}
        """Objects of our own responses that are newer than the cache."""

    def get(self, name: ObjectName) -> CachedObject | None:
        self._drop_old(name)
        # Our own write comes first: the cache may still have the former object of this name, which we have deleted.
        if (written := self._written.get(name)) is not None:
            return written
        cached = self.informer.get(name)
        return None if cached is not None and self._own.is_gone(name, cached) else cached

    def candidates(self, index: str, key: str) -> Iterator[CachedObject]:
        """Yield the objects with this key in an index of the cache, and all that we have created a moment ago."""
        names = {objects.name_of(obj): None for obj in self.informer.cache.by_index(index, key)}
        names.update(dict.fromkeys(name for name in self._written if name not in self.informer.cache))
        for name in names:
            if (obj := self.get(name)) is not None:
                yield obj

    def observe(self, name: ObjectName) -> Observation[Fingerprint]:
        """Return what is new in the cache. Call it for each change, and after `working`."""
        cached = self.informer.get(name)
        observation = self._own.observe(name, cached, self.informer.version)
        if cached is not None and (observation.is_news or self._is_the_same(name, cached)):
            # Also where nothing differs: otherwise the facts of our own response would stay beside those of the cache.
            self._own.remember(name, cached)
        self._drop_old(name)
        return observation

    def _is_the_same(self, name: ObjectName, cached: CachedObject) -> bool:
        known = self._own.get(name)
        return known is not None and known.uid == objects.uid(cached) and known.fingerprint == self._fingerprint(cached)

    @contextmanager
    def working(self, name: ObjectName) -> Iterator[None]:
        """Write an object inside: a change that arrives before the response is not reported as news."""
        with self._own.working(name):
            yield

    def remember(self, obj: Object) -> None:
        """Remember an object as our write, or a read, returned it."""
        name, slim = objects.name_of(obj), self.informer.watched.transform(obj)
        self._own.remember(name, slim)
        self._written[name] = slim

    def remember_gone(self, name: ObjectName, uid: str) -> None:
        """Remember that our write has ended this object. The cache may still have it."""
        self._written.pop(name, None)
        if uid:
            self._own.remember_gone(name, uid)

    def _drop_old(self, name: ObjectName) -> None:
        written, version = self._written.get(name), self.informer.version
        if written is None or not version:
            return
        # From this version on, what the cache does not have does not exist.
        if objects.version_order(version) >= objects.version_order(objects.resource_version(written)):
            del self._written[name]
