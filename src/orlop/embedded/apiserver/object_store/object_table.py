"""All objects as they are now, in memory: found by key, and listed in the order of the keys.

Pure data: who may see what, and when, is decided by the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping

from orlop.embedded.apiserver.object_store.versions import Key, Stored

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

    def _range(self, resource: str, namespace: str | None, after: Key | None) -> list[Key]:
        keys = self._sorted_keys.get(resource, [])
        start, end = 0, len(keys)
        if namespace is not None:
            start = bisect_left(keys, Key(resource, namespace, ""))
            end = bisect_left(keys, Key(resource, namespace + BEHIND_NAMESPACE, ""))
        if after is not None:
            start = max(start, bisect_right(keys, after))
        return keys[start:end]
