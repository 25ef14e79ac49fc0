"""Empties namespaces that are ending, and lets them go when nothing is left in them.

Level-triggered: it looks at what is in the store, also when it begins, so a server that was killed goes on where it
was. Order for each namespace: everything in it is deleted → what waits for its finalizers, or for a pod's end, is
waited for → the finalizer `kubernetes` is taken off, with which the namespace goes unless others hold it. New content
is refused from the moment its end was decided (`namespace_gate`), so nothing comes behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from orlop.embedded.apiserver.birth_rules import NAMESPACE_FINALIZER
from orlop.embedded.apiserver.deleting import Deleter
from orlop.embedded.apiserver.object_store.decoded_objects import fresh
from orlop.embedded.apiserver.object_store.errors import Expired, StoreClosed, TooSlow
from orlop.embedded.apiserver.object_store.versions import ChangeKind, Page, Stored
from orlop.embedded.apiserver.request_options import DeletionOptions
from orlop.embedded.apiserver.server_tools import ServerTools
from orlop.embedded.apiserver.stored_objects import KindInStore
from orlop.embedded.apiserver.updating import Place, Updater
from orlop.embedded.apiserver.validation_rules import FINALIZE
from orlop.foundation.backoff import Backoff
from orlop.foundation.task_group import TaskGroup
from orlop.kube.kinds import CREATE, NAMESPACE

Object = dict[str, Any]

BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=30.0, jitter=0.5)
BACKGROUND: Final = DeletionOptions(propagation="Background")


class NamespaceDeletion:
    def __init__(self, tools: ServerTools, kinds: Iterable[KindInStore], deleter: Deleter, updater: Updater) -> None:
        self._tools = tools
        self._deleter = deleter
        self._updater = updater
        self._namespaces = KindInStore(NAMESPACE, NAMESPACE)
        self._kinds = [kind for kind in kinds if _has_content(kind)]
        self._at_work: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed."""
        async with TaskGroup() as group:
            while await self._follow(group):
                pass

    async def _follow(self, group: TaskGroup) -> bool:
        """Starts the work for each namespace that ends; True where it must look again from the beginning."""
        store = self._tools.store
        try:
            page = store.list(NAMESPACE.resource)
            with store.watch(NAMESPACE.resource, after=page.revision) as watch:
                for stored in page.items:
                    self._consider(stored, group)
                async for change in watch:
                    if change.kind is not ChangeKind.DELETED:
                        self._consider(change.after, group)
        except (TooSlow, Expired):
            return True
        except StoreClosed:
            pass
        return False

    def _consider(self, stored: Stored, group: TaskGroup) -> None:
        name = stored.key.name
        if name not in self._at_work and _is_ours_to_end(fresh(stored)):
            self._at_work.add(name)
            group.start(self._end(name), name=f"end of namespace {name}")

    async def _end(self, name: str) -> None:
        failures = 0
        try:
            while True:
                try:
                    return await self._empty_and_release(name)
                except StoreClosed:
                    return None
                except Exception as error:  # noqa: BLE001 - a namespace must not stay for ever because of one failure
                    failures += 1
                    self._tools.log.error("a namespace cannot be ended yet", namespace=name, error=error)
                await self._tools.clock.sleep(BACKOFF.delay(failures, self._tools.random))
        finally:
            self._at_work.discard(name)

    async def _empty_and_release(self, name: str) -> None:
        while remaining := await self._emptied(name):
            await self._any_change(*remaining, name)
        key = self._namespaces.key("", name)
        stored = self._tools.store.get(key)
        if stored is not None and _is_ours_to_end(fresh(stored)):
            place = Place(self._namespaces, key, FINALIZE)
            await self._updater.change(place, _released, dry_run=False)

    async def _emptied(self, name: str) -> tuple[KindInStore, Page] | None:
        """Deletes everything there is, and gives the first kind of which something stays."""
        for kind in self._kinds:
            await self._deleter.delete_all(kind, self._content(kind, name).items, BACKGROUND)
        return next(((kind, page) for kind in self._kinds if (page := self._content(kind, name)).items), None)

    def _content(self, kind: KindInStore, name: str) -> Page:
        return self._tools.store.list(kind.resource, name)

    async def _any_change(self, kind: KindInStore, seen: Page, name: str) -> None:
        """Waits until something of this kind has changed there since it was seen."""
        try:
            with self._tools.store.watch(kind.resource, name, after=seen.revision) as watch:
                if await anext(watch, None) is None:
                    raise StoreClosed
        except (TooSlow, Expired):
            return


def _has_content(kind: KindInStore) -> bool:
    return kind.kind.namespaced and kind.kept_as is kind.kind and kind.kind.verbs != CREATE


def _is_ours_to_end(namespace: Object) -> bool:
    ending = bool(namespace["metadata"].get("deletionTimestamp"))
    return ending and NAMESPACE_FINALIZER in namespace.get("spec", {}).get("finalizers", [])


def _released(namespace: Object) -> Object:
    spec = namespace.get("spec", {})
    others = [one for one in spec.get("finalizers", []) if one != NAMESPACE_FINALIZER]
    return {**namespace, "spec": {**spec, "finalizers": others}}
