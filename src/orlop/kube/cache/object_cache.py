"""The cached objects of one kind, by name and by indexes of their content. Pure.

All readers share the objects: nobody may change one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from orlop.kube.objects import ObjectName, name_of, resource_version

CachedObject: TypeAlias = Mapping[str, Any]
Keys: TypeAlias = Callable[[CachedObject], Iterable[str]]
"""Return the keys under which an index finds an object: none, one or several."""


class _Index:
    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._names: dict[str, dict[ObjectName, None]] = {}
        self._keys_of: dict[ObjectName, tuple[str, ...]] = {}

    def put(self, name: ObjectName, obj: CachedObject) -> None:
        new = tuple(dict.fromkeys(self.keys(obj)))
        if new == self._keys_of.get(name, ()):
            return
        self.remove(name)
        for key in new:
            self._names.setdefault(key, {})[name] = None
        if new:
            self._keys_of[name] = new

    def remove(self, name: ObjectName) -> None:
        for key in self._keys_of.pop(name, ()):
            names = self._names[key]
            del names[name]
            if not names:
                del self._names[key]

    def names(self, key: str) -> Iterable[ObjectName]:
        return self._names.get(key, ())


class ObjectCache:
    def __init__(self) -> None:
        self._objects: dict[ObjectName, CachedObject] = {}
        self._indexes: dict[str, _Index] = {}

    # ---- reading -------------------------------------------------------------------------------------------------

    def get(self, name: ObjectName) -> CachedObject | None:
        return self._objects.get(name)

    def __contains__(self, name: ObjectName) -> bool:
        return name in self._objects

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[CachedObject]:
        """Iterate over a copy: changes in the meantime do no harm."""
        return iter(tuple(self._objects.values()))

    def names(self) -> tuple[ObjectName, ...]:
        return tuple(self._objects)

    def by_index(self, index: str, key: str) -> tuple[CachedObject, ...]:
        """Return the objects with this key in an index, which must have been added."""
        if index not in self._indexes:
            raise ValueError(f"there is no index {index!r}; the indexes are: {', '.join(self._indexes) or 'none'}")
        return tuple(self._objects[name] for name in self._indexes[index].names(key))

    # ---- changing ------------------------------------------------------------------------------------------------

    def add_index(self, name: str, keys: Keys) -> None:
        """Add an index, at any time. Adding the same one again does nothing."""
        known = self._indexes.get(name)
        if known is None:
            index = self._indexes[name] = _Index(keys)
            for object_name, obj in self._objects.items():
                index.put(object_name, obj)
        elif known.keys is not keys:
            raise ValueError(f"there is already an index {name!r} with other keys")

    def put(self, name: ObjectName, obj: CachedObject) -> None:
        self._objects[name] = obj
        for index in self._indexes.values():
            index.put(name, obj)

    def remove(self, name: ObjectName) -> None:
        self._objects.pop(name, None)
        for index in self._indexes.values():
            index.remove(name)

    def replace(self, objects: Iterable[CachedObject]) -> list[ObjectName]:
        """Replace all objects; return the names of those that are new, changed or gone."""
        new = {name_of(obj): obj for obj in objects}
        gone = [name for name in self._objects if name not in new]
        changed = [name for name, obj in new.items() if self._differs(name, obj)]
        for name in gone:
            self.remove(name)
        for name in changed:
            self.put(name, new[name])
        return gone + changed

    def _differs(self, name: ObjectName, obj: CachedObject) -> bool:
        known = self._objects.get(name)
        return known is None or not resource_version(obj) or resource_version(known) != resource_version(obj)
