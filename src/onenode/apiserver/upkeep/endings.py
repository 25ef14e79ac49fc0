"""Follows the objects of a kind that are ending, empties each of what it contains, and releases it.

Level-triggered: it looks at what is in the store, also when it begins, so a server that was killed resumes its work. An
object is known by its uid: somebody may force it away and create another of the same name meanwhile, and nothing that
belongs to the new one is touched. Each deletion asks for the object in the store's turn (`EndingObject.check`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired, StoreClosed, TooSlow
from onenode.apiserver.store.versions import ChangeKind, Key, Page, Stored, fresh
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup

Object = dict[str, Any]

BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=30.0, jitter=0.5)
BACKGROUND: Final = DeletionOptions(propagation="Background")


class NotTheOne(Exception):
    """The object is gone, or there is another of its name."""


@dataclass(frozen=True, slots=True)
class EndingObject:
    """One object that is ending, identified by its uid among all of its name."""

    store: ObjectStore
    key: Key
    uid: str

    @property
    def name(self) -> str:
        return self.key.name

    def stored(self) -> Stored:
        stored = self.store.get(self.key)
        if stored is None or uid_of(stored) != self.uid:
            raise NotTheOne
        return stored

    def check(self) -> None:
        self.stored()

    def check_uid(self, newest: Object) -> None:
        if newest["metadata"]["uid"] != self.uid:
            raise NotTheOne


class Endings:
    """Subclasses say which objects end here, and empty and release one."""

    def __init__(self, store: ObjectStore, runtime: Runtime, resource: str) -> None:
        self._store = store
        self._runtime = runtime
        self._resource = resource
        self._at_work: dict[str, asyncio.Task[None]] = {}
        """By uid."""

    def is_ours_to_end(self, obj: Object) -> bool:
        raise NotImplementedError

    async def empty_and_release(self, ending: EndingObject) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed."""
        async with TaskGroup() as group:
            while await self._follow(group):
                pass

    async def _follow(self, group: TaskGroup) -> bool:
        """Starts the work for each object that ends; True where it must look again from the beginning."""
        store = self._store
        try:
            page = store.list(self._resource)
            with store.watch(self._resource, after=page.revision) as watch:
                self._give_up_all_but({uid_of(stored) for stored in page.items})
                for stored in page.items:
                    self._consider(stored, group)
                async for change in watch:
                    if change.kind is ChangeKind.DELETED:
                        self._give_up(uid_of(change.after))
                    else:
                        self._consider(change.after, group)
        except (TooSlow, RevisionExpired):
            return True
        except StoreClosed:
            pass
        return False

    def _consider(self, stored: Stored, group: TaskGroup) -> None:
        uid = uid_of(stored)
        if uid not in self._at_work and self.is_ours_to_end(fresh(stored)):
            ending = EndingObject(self._store, stored.key, uid)
            self._at_work[uid] = group.start(self._end(ending), name=f"end of {ending.key}")

    def _give_up_all_but(self, uids: set[str]) -> None:
        for uid in self._at_work.keys() - uids:
            self._give_up(uid)

    def _give_up(self, uid: str) -> None:
        """It is gone: nobody waits any more for what is left in it."""
        if task := self._at_work.pop(uid, None):
            task.cancel()

    async def _end(self, ending: EndingObject) -> None:
        failures = 0
        try:
            while True:
                try:
                    return await self.empty_and_release(ending)
                except (StoreClosed, NotTheOne):
                    return None
                except Exception as error:  # noqa: BLE001 - an object must not stay for ever because of one failure
                    failures += 1
                    self._runtime.log.error("cannot finish deletion, retrying", object=str(ending.key), error=error)
                await self._runtime.clock.sleep(BACKOFF.delay(failures, self._runtime.random))
        finally:
            self._at_work.pop(ending.uid, None)


async def any_change(store: ObjectStore, resource: str, seen: Page, namespace: str | None = None) -> None:
    """Wait until something of this kind has changed since it was seen; raise StoreClosed."""
    try:
        with store.watch(resource, namespace, after=seen.revision) as watch:
            if await anext(watch, None) is None:
                raise StoreClosed
    except (TooSlow, RevisionExpired):
        return


def uid_of(stored: Stored) -> str:
    uid: str = fresh(stored)["metadata"]["uid"]
    return uid
