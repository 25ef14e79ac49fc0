"""Whether something can be made in a namespace: it must be there, and must not be ending.

A namespace is closed in the same turn in which its end is decided, before the decision is durable or seen by anybody:
whatever is made later would survive the deletion of its contents. Writes are published in the order of their decisions,
so whoever sees that a namespace is ending sees everything that was ever made in it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from onenode.apiserver.answers.status_answers import namespace_is_ending, not_found
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DecodedObjects, Key
from orlop.kube.kinds import NAMESPACE, Kind

T = TypeVar("T")

NEVER_DELETED: Final = frozenset({"default", "kube-system", "kube-public"})
BUILT_IN_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


class NamespaceGate:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._decoded = DecodedObjects()
        self._under_way: Counter[str] = Counter()
        self._closed: set[str] = set()

    def refuse_new_content(self, kind: Kind, namespace: str, name: str) -> None:
        stored = self._store.get(Key(NAMESPACE.resource, "", namespace))
        if stored is None:
            raise not_found(NAMESPACE, namespace)
        ending = namespace in self._closed or self._decoded.of(stored)["metadata"].get("deletionTimestamp")
        if ending:
            raise namespace_is_ending(kind, name, namespace)

    async def closing(self, namespace: str, write: Coroutine[Any, Any, T]) -> T:
        """Carries out a write that may end the namespace; closed until it is settled, whoever still waits for it."""
        self._under_way[namespace] += 1
        task = asyncio.ensure_future(write)
        task.add_done_callback(lambda _task: self._settled(namespace))
        return await asyncio.shield(task)

    def close(self, namespace: str) -> None:
        """Called in the turn of the decision, inside a write given to `closing`."""
        self._closed.add(namespace)

    def _settled(self, namespace: str) -> None:
        self._under_way[namespace] -= 1
        if not self._under_way[namespace]:
            del self._under_way[namespace]
            self._closed.discard(namespace)
