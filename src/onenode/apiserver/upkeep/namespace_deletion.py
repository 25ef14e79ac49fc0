"""Empties namespaces that are ending, and lets them go when nothing is left in them.

Order for each namespace: everything in it is deleted → what waits for its finalizers, or for a pod's end, is waited for
→ the finalizer `kubernetes` is taken off, with which the namespace goes unless others hold it. New content is refused
from the moment its end was decided (`namespace_gate`), so nothing comes behind.

Kinds that are kept as another (events.k8s.io's Event) are emptied as that other. Custom resources are among the kinds,
so they are asked for each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onenode.apiserver.schema.creation_rules import NAMESPACE_FINALIZER
from onenode.apiserver.schema.validation_rules import FINALIZE
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Page, fresh
from onenode.apiserver.upkeep.endings import BACKGROUND, EndingObject, Endings, any_change
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.stored_objects import KindInStore
from onenode.apiserver.verbs.updating import Updater, WriteTarget
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import CREATE, NAMESPACE

Object = dict[str, Any]
StoredKinds = Callable[[], Iterable[KindInStore]]
"""Returns the kinds that are stored: custom resources come and go."""


class NamespaceDeletion(Endings):
    def __init__(
        self, store: ObjectStore, runtime: Runtime, kinds: StoredKinds, deleter: Deleter, updater: Updater
    ) -> None:
        super().__init__(store, runtime, NAMESPACE.resource)
        self._deleter = deleter
        self._updater = updater
        self._namespaces = KindInStore(NAMESPACE, NAMESPACE)
        self._stored_kinds = kinds

    def is_ours_to_end(self, obj: Object) -> bool:
        ending = bool(obj["metadata"].get("deletionTimestamp"))
        return ending and NAMESPACE_FINALIZER in obj.get("spec", {}).get("finalizers", [])

    async def empty_and_release(self, ending: EndingObject) -> None:
        # Something may be left of several kinds: after each change all of them are deleted again.
        while remaining := await self._emptied(ending):
            await any_change(self._store, remaining[0].resource, remaining[1], ending.name)
        if self.is_ours_to_end(fresh(ending.stored())):
            place = WriteTarget(self._namespaces, ending.key, FINALIZE)
            await self._updater.change(place, lambda newest: _released(ending, newest), dry_run=False)

    async def _emptied(self, ending: EndingObject) -> tuple[KindInStore, Page] | None:
        """Deletes everything there is, and gives the first kind of which something stays."""
        for kind in self._kinds():
            items = self._content(kind, ending.name).items
            await self._deleter.delete_all(kind, items, BACKGROUND, ending.check)
        ending.check()
        return next(((kind, page) for kind in self._kinds() if (page := self._content(kind, ending.name)).items), None)

    def _kinds(self) -> list[KindInStore]:
        return [kind for kind in self._stored_kinds() if _has_content(kind)]

    def _content(self, kind: KindInStore, name: str) -> Page:
        return self._store.list(kind.resource, name)


def _has_content(kind: KindInStore) -> bool:
    return kind.kind.namespaced and kind.kept_as is kind.kind and kind.kind.verbs != CREATE


def _released(ending: EndingObject, newest: Object) -> Object:
    ending.check_uid(newest)
    spec = newest.get("spec", {})
    others = [each for each in spec.get("finalizers", []) if each != NAMESPACE_FINALIZER]
    return {**newest, "spec": {**spec, "finalizers": others}}
