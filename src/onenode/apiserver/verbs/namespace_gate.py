"""Whether something can be made in a namespace, or of a custom kind: it must be there, and must not be ending.

A namespace, like the definition of a kind, is closed in the same turn in which its end is decided, before the decision
is durable or seen by anybody: whatever is made later would survive the deletion of its contents. Writes are published
in the order of their decisions, so a reader that sees that a namespace is ending sees everything that was ever made in
it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from onenode.apiserver.answers.status_answers import forbidden, namespace_is_ending, not_found
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DecodedObjects, Key, Stored
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, Kind

T = TypeVar("T")

NEVER_DELETED: Final = frozenset({"default", "kube-system", "kube-public"})
BUILT_IN_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


class ClosingGate:
    """The objects of one kind, by name, whose content is refused."""

    def __init__(self, store: ObjectStore, resource: str) -> None:
        self._store = store
        self._resource = resource
        self._decoded = DecodedObjects()
        self._under_way: Counter[str] = Counter()
        self._closed: set[str] = set()

    def stored(self, name: str) -> Stored | None:
        return self._store.get(Key(self._resource, "", name))

    def is_ending(self, stored: Stored) -> bool:
        return stored.key.name in self._closed or "deletionTimestamp" in self._decoded.of(stored)["metadata"]

    async def closing(self, name: str, write: Coroutine[Any, Any, T]) -> T:
        """Carry out a write that may end the object. It is finished, and counted, even if the caller is cancelled."""
        self._under_way[name] += 1
        task = asyncio.ensure_future(write)
        task.add_done_callback(lambda _task: self._settled(name))
        return await asyncio.shield(task)

    def close(self, name: str) -> None:
        """Close the gate of an object. Call it inside a write passed to `closing`, with no await since the decision."""
        self._closed.add(name)

    def _settled(self, name: str) -> None:
        self._under_way[name] -= 1
        if not self._under_way[name]:
            del self._under_way[name]
            self._closed.discard(name)


class NamespaceGate(ClosingGate):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, NAMESPACE.resource)
        self.definitions = DefinitionGate(store)

    def of(self, kind: Kind) -> ClosingGate | None:
        """The gate that the deletion of such an object closes."""
        if kind is NAMESPACE:
            return self
        return self.definitions if kind is CUSTOM_RESOURCE_DEFINITION else None

    def refuse_new_content(self, in_store: KindInStore, namespace: str, name: str) -> None:
        kind = in_store.kind
        if in_store.is_custom:
            self.definitions.refuse_new_objects(kind, name)
        if not kind.namespaced:
            return
        stored = self.stored(namespace)
        if stored is None:
            raise not_found(NAMESPACE, namespace)
        if self.is_ending(stored):
            raise namespace_is_ending(kind, name, namespace)


class DefinitionGate(ClosingGate):
    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, CUSTOM_RESOURCE_DEFINITION.resource)

    def refuse_new_objects(self, kind: Kind, name: str) -> None:
        """A definition's name is the name of its resource. Built-in kinds have none, even where one has their name."""
        stored = self.stored(kind.resource)
        if stored is not None and self.is_ending(stored):
            raise forbidden(kind, name, "create not allowed while custom resource definition is terminating")
