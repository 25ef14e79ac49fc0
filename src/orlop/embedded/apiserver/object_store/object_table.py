"""All objects as they are now, in memory: found by key, and listed in the order of the keys.

Pure data: who may see what, and when, is decided by the store.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence

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
    ) -> Sequence[Key]:
        """The sorted keys behind `after`. What `past` holds is as it says, not as it is now."""
        keys = self._range(self._sorted_keys.get(resource, []), resource, namespace, after)
        if past:
            kept = {key for key in keys if key not in past}
            kept.update(key for key, stored in past.items() if stored is not None)
            keys = self._range(sorted(kept), resource, namespace, after)
        return keys

    @staticmethod
    def _range(keys: list[Key], resource: str, namespace: str | None, after: Key | None) -> list[Key]:
        start, end = 0, len(keys)
        if namespace is not None:
            start = bisect_left(keys, Key(resource, namespace, ""))
            end = bisect_left(keys, Key(resource, namespace + BEHIND_NAMESPACE, ""))
        if after is not None:
            start = max(start, bisect_right(keys, after))
        return keys[start:end]
