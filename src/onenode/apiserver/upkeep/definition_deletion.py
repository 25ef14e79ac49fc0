"""Deletes the objects of CustomResourceDefinitions that are ending, lets the definitions go, and passes on their names.

Order for each definition: its status names the deletion → its objects are deleted → those with finalizers are waited
for → the finalizer that the deletion added is taken off, with which the definition goes. No object is created from the
moment its end was decided (`namespace_gate.DefinitionGate`), so nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from onenode.apiserver.answers.status_answers import Refusal
from onenode.apiserver.custom_resources.definition_status_rules import CLEANUP, emptied, emptying, waits_for_names
from onenode.apiserver.schema.validation_rules import STATUS
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import StoreClosed, WriteFailed
from onenode.apiserver.store.versions import Page, fresh
from onenode.apiserver.upkeep.endings import BACKGROUND, BACKOFF, EndingObject, Endings, any_change
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.stored_objects import KindInStore
from onenode.apiserver.verbs.updating import Updater, WriteTarget
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION
from orlop.kube.objects import time_text

Object = dict[str, Any]


class DefinitionDeletion(Endings):
    """`kinds` returns the kinds that are stored, those of definitions that are ending among them."""

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        kinds: Callable[[], Iterable[KindInStore]],
        deleter: Deleter,
        updater: Updater,
    ) -> None:
        super().__init__(store, runtime, CUSTOM_RESOURCE_DEFINITION.resource)
        self._kinds = kinds
        self._deleter = deleter
        self._updater = updater
        self._definitions = KindInStore(CUSTOM_RESOURCE_DEFINITION, CUSTOM_RESOURCE_DEFINITION)

    def is_ours_to_end(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        return bool(metadata.get("deletionTimestamp")) and CLEANUP in metadata.get("finalizers", [])

    async def empty_and_release(self, ending: EndingObject) -> None:
        await self._write(ending, emptying)
        # A definition's name is the name of its resource, which a built-in kind may have: its objects are not the
        # definition's.
        for kind in [kind for kind in self._kinds() if kind.is_custom and kind.resource == ending.name]:
            await self._delete_objects(ending, kind)
        await self._write(ending, emptied)

    async def _write(self, ending: EndingObject, change: Callable[[Object, str], Object]) -> None:
        """Write the status, which of definitions takes changes of metadata too."""

        def make(newest: Object) -> Object:
            ending.check_uid(newest)
            return change(newest, time_text(self._runtime.clock.now()))

        await self._updater.change(WriteTarget(self._definitions, ending.key, STATUS), make, dry_run=False)

    async def _delete_objects(self, ending: EndingObject, kind: KindInStore) -> None:
        while items := self._store.list(kind.resource).items:
            ending.check()
            await self._deleter.delete_all(kind, items, BACKGROUND, ending.check)
            page = self._store.list(kind.resource)
            if page.items:
                await any_change(self._store, kind.resource, page)


class FreedNames:
    """Accepts the names that definitions wait for.

    Names become free when another definition gives them up, or is gone, which may be long after its deletion: it may
    have more finalizers. So every change of a definition is a reason to compare, and so is the start of the server.
    """

    def __init__(self, store: ObjectStore, runtime: Runtime, updater: Updater) -> None:
        self._store = store
        self._runtime = runtime
        self._updater = updater
        self._definitions = KindInStore(CUSTOM_RESOURCE_DEFINITION, CUSTOM_RESOURCE_DEFINITION)

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed."""
        failures = 0
        with suppress(StoreClosed):
            while True:
                page = self._store.list(CUSTOM_RESOURCE_DEFINITION.resource)
                try:
                    await self._accept(page)
                except WriteFailed as error:
                    failures += 1
                    self._runtime.log.error("cannot accept names of definitions, retrying", error=error)
                    await self._runtime.clock.sleep(BACKOFF.delay(failures, self._runtime.random))
                else:
                    failures = 0
                    await any_change(self._store, CUSTOM_RESOURCE_DEFINITION.resource, page)

    async def _accept(self, page: Page) -> None:
        """Every write compares the names with those of others, also one that changes nothing else."""
        for stored in page.items:
            if not waits_for_names(fresh(stored)):
                continue
            place = WriteTarget(self._definitions, stored.key)
            with suppress(Refusal):  # another request deleted it
                await self._updater.change(place, lambda newest: newest, dry_run=False)
