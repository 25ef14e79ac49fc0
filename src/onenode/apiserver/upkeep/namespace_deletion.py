"""Empties namespaces that are ending, and lets them go when nothing is left in them.

Level-triggered: it looks at what is in the store, also when it begins, so a server that was killed goes on where it
was. Order for each namespace: everything in it is deleted → what waits for its finalizers, or for a pod's end, is
waited for → the finalizer `kubernetes` is taken off, with which the namespace goes unless others hold it. New content
is refused from the moment its end was decided (`namespace_gate`), so nothing comes behind.

A namespace is known by its uid. Somebody may force it away and make another of the same name meanwhile: nothing in that
one is touched. Each deletion asks for it in the store's turn; what is in the new one was made after it could be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.schema.creation_rules import NAMESPACE_FINALIZER
from onenode.apiserver.schema.validation_rules import FINALIZE
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired, StoreClosed, TooSlow
from onenode.apiserver.store.versions import ChangeKind, Key, Page, Stored, fresh
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.stored_objects import KindInStore
from onenode.apiserver.verbs.updating import Updater, WriteTarget
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.kinds import CREATE, NAMESPACE

Object = dict[str, Any]
StoredKinds = Callable[[], Iterable[KindInStore]]
"""Returns the kinds that are stored: custom resources come and go."""

BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=30.0, jitter=0.5)
BACKGROUND: Final = DeletionOptions(propagation="Background")


class _NotTheOne(Exception):
    """The namespace is gone, or there is another of its name."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """One namespace that ends, told apart from every other of its name."""

    store: ObjectStore
    key: Key
    uid: str

    @property
    def name(self) -> str:
        return self.key.name

    def namespace(self) -> Stored:
        stored = self.store.get(self.key)
        if stored is None or _uid(stored) != self.uid:
            raise _NotTheOne
        return stored

    def check(self) -> None:
        self.namespace()


class NamespaceDeletion:
    def __init__(
        self, store: ObjectStore, runtime: Runtime, kinds: StoredKinds, deleter: Deleter, updater: Updater
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._deleter = deleter
        self._updater = updater
        self._namespaces = KindInStore(NAMESPACE, NAMESPACE)
        self._stored_kinds = kinds
        self._at_work: dict[str, asyncio.Task[None]] = {}
        """By uid."""

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed."""
        async with TaskGroup() as group:
            while await self._follow(group):
                pass

    async def _follow(self, group: TaskGroup) -> bool:
        """Starts the work for each namespace that ends; True where it must look again from the beginning."""
        store = self._store
        try:
            page = store.list(NAMESPACE.resource)
            with store.watch(NAMESPACE.resource, after=page.revision) as watch:
                self._give_up_all_but({_uid(stored) for stored in page.items})
                for stored in page.items:
                    self._consider(stored, group)
                async for change in watch:
                    if change.kind is ChangeKind.DELETED:
                        self._give_up(_uid(change.after))
                    else:
                        self._consider(change.after, group)
        except (TooSlow, RevisionExpired):
            return True
        except StoreClosed:
            pass
        return False

    def _consider(self, stored: Stored, group: TaskGroup) -> None:
        uid = _uid(stored)
        if uid not in self._at_work and _is_ours_to_end(fresh(stored)):
            ending = _Ending(self._store, stored.key, uid)
            self._at_work[uid] = group.start(self._end(ending), name=f"end of namespace {ending.name}")

    def _give_up_all_but(self, uids: set[str]) -> None:
        for uid in self._at_work.keys() - uids:
            self._give_up(uid)

    def _give_up(self, uid: str) -> None:
        """It is gone: nobody waits any more for what is left in it."""
        if task := self._at_work.pop(uid, None):
            task.cancel()

    async def _end(self, ending: _Ending) -> None:
        failures = 0
        try:
            while True:
                try:
                    return await self._empty_and_release(ending)
                except (StoreClosed, _NotTheOne):
                    return None
                except Exception as error:  # noqa: BLE001 - a namespace must not stay for ever because of one failure
                    failures += 1
                    self._runtime.log.error(
                        "cannot finish namespace deletion, retrying", namespace=ending.name, error=error
                    )
                await self._runtime.clock.sleep(BACKOFF.delay(failures, self._runtime.random))
        finally:
            self._at_work.pop(ending.uid, None)

    async def _empty_and_release(self, ending: _Ending) -> None:
        while remaining := await self._emptied(ending):
            await self._any_change(*remaining, ending.name)
        if _is_ours_to_end(fresh(ending.namespace())):
            place = WriteTarget(self._namespaces, ending.key, FINALIZE)
            await self._updater.change(place, lambda newest: _released(newest, ending.uid), dry_run=False)

    async def _emptied(self, ending: _Ending) -> tuple[KindInStore, Page] | None:
        """Deletes everything there is, and gives the first kind of which something stays."""
        for kind in self._kinds:
            items = self._content(kind, ending.name).items
            await self._deleter.delete_all(kind, items, BACKGROUND, ending.check)
        ending.check()
        return next(((kind, page) for kind in self._kinds if (page := self._content(kind, ending.name)).items), None)

    @property
    def _kinds(self) -> list[KindInStore]:
        return [kind for kind in self._stored_kinds() if _has_content(kind)]

    def _content(self, kind: KindInStore, name: str) -> Page:
        return self._store.list(kind.resource, name)

    async def _any_change(self, kind: KindInStore, seen: Page, name: str) -> None:
        """Waits until something of this kind has changed there since it was seen."""
        try:
            with self._store.watch(kind.resource, name, after=seen.revision) as watch:
                if await anext(watch, None) is None:
                    raise StoreClosed
        except (TooSlow, RevisionExpired):
            return


def _has_content(kind: KindInStore) -> bool:
    return kind.kind.namespaced and kind.kept_as is kind.kind and kind.kind.verbs != CREATE


def _is_ours_to_end(namespace: Object) -> bool:
    ending = bool(namespace["metadata"].get("deletionTimestamp"))
    return ending and NAMESPACE_FINALIZER in namespace.get("spec", {}).get("finalizers", [])


def _uid(stored: Stored) -> str:
    uid: str = fresh(stored)["metadata"]["uid"]
    return uid


def _released(newest: Object, uid: str) -> Object:
    if newest["metadata"]["uid"] != uid:
        raise _NotTheOne
    spec = newest.get("spec", {})
    others = [one for one in spec.get("finalizers", []) if one != NAMESPACE_FINALIZER]
    return {**newest, "spec": {**spec, "finalizers": others}}
