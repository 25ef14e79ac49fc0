"""The kinds whose objects may own or be owned, and an informer for each: built-in kinds and custom resources.

Custom kinds are those that the CustomResourceDefinitions declare. An informer starts when its definition is served and
ends when the definition is gone. All informers keep metadata alone, and none is shared with other controllers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from orlop.foundation.clock import Clock
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.kinds import BUILT_IN, CORE_EVENT, CUSTOM_RESOURCE_DEFINITION, EVENT, Kind
from orlop.kube.objects import Object, ObjectName, is_condition_true

KEPT: Final = ("name", "namespace", "uid", "resourceVersion", "ownerReferences", "finalizers", "deletionTimestamp")
COLLECTED: Final = tuple(
    kind
    for kind in BUILT_IN
    if kind not in {EVENT, CORE_EVENT} and {"delete", "get", "list", "watch"} <= set(kind.verbs)
)
"""Events own nothing and have no owners."""
LAST_DELETIONS_SECONDS: Final = 5.0

ObjectChanged = Callable[[Kind, ObjectName, CachedObject | None], None]


def owners_only(obj: Object) -> Object:
    metadata = obj["metadata"]
    return {"metadata": {field: metadata[field] for field in KEPT if field in metadata}}


def custom_kinds(definition: Mapping[str, Any]) -> list[Kind]:
    """Return a kind for each served version, the one that is followed first; none before they are established."""
    if not is_condition_true(definition, "Established"):
        return []
    spec = definition["spec"]
    served = sorted((each for each in spec["versions"] if each["served"]), key=lambda each: not each["storage"])
    named = (spec["names"]["kind"], spec["names"]["plural"])
    return [Kind(spec["group"], each["name"], *named, namespaced=spec["scope"] == "Namespaced") for each in served]


class CollectedKinds:
    """`changed` is called for every object at the start, and for each change; `ended` when a kind is not followed."""

    def __init__(
        self,
        informers: Informers,
        clock: Clock,
        changed: ObjectChanged,
        ended: Callable[[Kind], None],
        built_in: Iterable[Kind],
    ) -> None:
        self._informers = informers
        self._clock = clock
        self._changed = changed
        self._ended = ended
        self._built_in = tuple(built_in)
        self._following: dict[Kind, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._custom: dict[str, tuple[Kind, ...]] = {}
        """By the name of the definition."""
        self._by_object = {(kind.api_version, kind.kind): kind for kind in self._built_in}

    def all(self) -> tuple[Kind, ...]:
        return (CUSTOM_RESOURCE_DEFINITION, *self._following)

    def named(self, api_version: str, kind: str) -> Kind | None:
        return self._by_object.get((api_version, kind))

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Follow all kinds. When it is entered, the objects of the built-in kinds are known."""
        async with (
            TaskGroup() as tasks,
            self._informers.using(Watched(CUSTOM_RESOURCE_DEFINITION)) as definitions,
        ):
            ready = [self._follow(kind, tasks) for kind in self._built_in if kind != CUSTOM_RESOURCE_DEFINITION]
            stop_listening = definitions.add_listener(lambda name: self._defined(definitions, name, tasks))
            try:
                await asyncio.gather(definitions.wait_synced(), *(each.wait() for each in ready))
                yield
            finally:
                stop_listening()
                for task in (*self._following.values(), *self._ending):
                    task.cancel()

    def _defined(self, definitions: Informer, name: ObjectName, tasks: TaskGroup) -> None:
        definition = definitions.get(name)
        before = self._custom.pop(name.name, ())
        now = self._custom[name.name] = tuple(custom_kinds(definition) if definition is not None else ())
        if not now:
            del self._custom[name.name]
        if now != before:
            self._replace(before, now, tasks)
        self._changed(CUSTOM_RESOURCE_DEFINITION, name, definition)

    def _replace(self, before: tuple[Kind, ...], now: tuple[Kind, ...], tasks: TaskGroup) -> None:
        for kind in before:
            self._by_object.pop((kind.api_version, kind.kind), None)
        for kind in now:
            self._by_object.setdefault((kind.api_version, kind.kind), kind)
        if before[:1] != now[:1]:
            for kind in before[:1]:
                ending = tasks.start(self._unfollow(kind, self._following.pop(kind)), name=f"end of {kind.resource}")
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
            for kind in now[:1]:
                self._follow(kind, tasks)

    def _follow(self, kind: Kind, tasks: TaskGroup) -> asyncio.Event:
        synced = asyncio.Event()
        self._following[kind] = tasks.start(self._pass_on(kind, synced), name=f"owners among {kind.resource}")
        return synced

    async def _unfollow(self, kind: Kind, following: asyncio.Task[None]) -> None:
        """End after a while: the deletions of its last objects may arrive behind that of their definition."""
        try:
            await self._clock.sleep(LAST_DELETIONS_SECONDS)
        finally:
            following.cancel()
        if kind not in self._following:
            self._ended(kind)

    async def _pass_on(self, kind: Kind, synced: asyncio.Event) -> None:
        async with self._informers.using(Watched(kind, transform=owners_only)) as informer:
            stop_listening = informer.add_listener(lambda name: self._changed(kind, name, informer.get(name)))
            try:
                await informer.wait_synced()
                synced.set()
                await asyncio.Event().wait()
            finally:
                stop_listening()
