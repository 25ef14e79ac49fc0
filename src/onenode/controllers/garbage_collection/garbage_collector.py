"""The garbage collector: Kubernetes' own, for the kinds of one API server.

Level-triggered: a change puts on the queue the objects that it may concern (`ownership_graph`). What is done is decided
on the object as it is read then, and on owners that are read then unless the graph has seen them (`_standing`), so a
cache that is behind deletes nothing. Every deletion names the uid and the version that it was decided on.

Order of an orphan deletion: all dependents are listed → each loses its reference → the finalizer is removed, with which
the owner goes. Of a foreground deletion: the owner waits → its dependents are deleted → none that blocks it is listed →
the finalizer is removed. Both list at the API server, because a dependent that no cache has seen yet would be deleted
after its owner was orphaned. A process that ends in between repeats the steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from onenode.controllers.garbage_collection import garbage_collection_rules as rules
from onenode.controllers.garbage_collection.collected_kinds import COLLECTED, CollectedKinds
from onenode.controllers.garbage_collection.garbage_collection_rules import OwnerStanding
from onenode.controllers.garbage_collection.ownership_graph import (
    FOREGROUND,
    ORPHAN,
    Member,
    ObjectPlace,
    OwnerReference,
    OwnershipGraph,
    member_of,
    names,
    owners_of,
)
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import Kind
from orlop.kube.objects import Object, ObjectName
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "garbage_collector_attempt_to_delete"
WORKERS: Final = 4
BACKOFF: Final = Backoff(initial=0.005, factor=2.0, cap=60.0, jitter=0.5)
UNKNOWN_KIND_SECONDS: Final = 30.0
"""Kubernetes reads discovery as often. A definition that comes back is noticed at the next try."""
UNSEEN_SECONDS: Final = 1.0
"""When to list again the dependents of an owner that waits for one that no cache has seen."""


@asynccontextmanager
async def garbage_collector(
    client: KubeClient,
    runtime: Runtime,
    events: EventRecorder,
    queue_metrics: WorkqueueMetrics,
    kinds: Iterable[Kind] = COLLECTED,
) -> AsyncIterator[None]:
    """Collect garbage while it is entered. The caller keeps `events` running."""
    async with (
        Informers(client, clock=runtime.clock, random=runtime.random, log=runtime.log) as informers,
        TaskGroup() as tasks,
    ):
        collector = GarbageCollector(client, informers, runtime, events, queue_metrics, kinds)
        task = tasks.start(collector.run(), name="garbage collector")
        try:
            yield
        finally:
            task.cancel()


class GarbageCollector:
    def __init__(
        self,
        client: KubeClient,
        informers: Informers,
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
        kinds: Iterable[Kind],
    ) -> None:
        self._client = client
        self._events = events
        self._graph = OwnershipGraph()
        self._kinds = CollectedKinds(informers, runtime.clock, self._changed, self._graph.forget_kind, kinds)
        self._queue: Workqueue[ObjectPlace] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._examine)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        """Collect until cancelled; nothing is examined before the objects of all built-in kinds are known."""
        async with self._kinds.followed():
            await self._loop.run()

    # ---- what is to be examined ----------------------------------------------------------------------------------

    def _changed(self, kind: Kind, name: ObjectName, obj: CachedObject | None) -> None:
        place = ObjectPlace(kind, name)
        graph = self._graph
        for affected in graph.remove(place) if obj is None else graph.put(member_of(place, obj)):
            self._queue.add(QUEUE, affected)

    # ---- what is done --------------------------------------------------------------------------------------------

    async def _examine(self, place: ObjectPlace) -> Outcome:
        known = self._graph.get(place)
        if known is not None and not self._graph.needs_examination(known):
            return Done()
        try:
            obj = await self._client.get(place.kind, place.name)
        except NotFound:
            return Done()
        if not objects.is_being_deleted(obj):
            return await self._examine_dependent(place, obj)
        if objects.has_finalizer(obj, ORPHAN):
            return await self._orphan_dependents(place, obj)
        if objects.has_finalizer(obj, FOREGROUND):
            return await self._end_foreground(place, obj)
        return Done()

    async def _examine_dependent(self, place: ObjectPlace, obj: Object) -> Outcome:
        standings = {owner: await self._standing(owner, place, obj) for owner in owners_of(obj)}
        match rules.next_step(obj, standings, self._graph.dependents(objects.uid(obj))):
            case rules.DropOwners(patch):
                await self._client.patch(place.kind, place.name, patch)
            case rules.DeleteDependent(propagation, unblock):
                if unblock is not None:
                    obj = await self._client.patch(place.kind, place.name, unblock)
                await self._delete(place, obj, propagation)
            case rules.ExamineLater():
                return RetryAfter(UNKNOWN_KIND_SECONDS)
        return Done()

    async def _delete(self, place: ObjectPlace, obj: Object, propagation: str) -> None:
        version = objects.resource_version(obj)
        with suppress(NotFound):
            await self._client.delete(
                place.kind, place.name, DeleteOptions(objects.uid(obj), version, propagation=propagation)
            )

    # ---- owners --------------------------------------------------------------------------------------------------

    async def _standing(self, owner: OwnerReference, place: ObjectPlace, obj: Object) -> OwnerStanding:
        seen = self._graph.with_uid(owner.uid)
        if seen is not None and names(owner, place, seen.place):
            return OwnerStanding.WAITING if seen.waits_for_dependents else OwnerStanding.SOLID
        standing = await self._unseen_standing(owner, place)
        if seen is not None and standing in {OwnerStanding.ABSENT, OwnerStanding.UNREACHABLE}:
            self._refuse_namespace(owner, seen, place, obj)
        return standing

    async def _unseen_standing(self, owner: OwnerReference, place: ObjectPlace) -> OwnerStanding:
        kind = self._kinds.named(owner.api_version, owner.kind)
        # First: a cluster-scoped object is not deleted for an owner that could have been in any namespace.
        if place.name.namespace is None and (kind is None or kind.namespaced):
            return OwnerStanding.UNKNOWN_KIND if kind is None else OwnerStanding.UNREACHABLE
        if self._graph.is_gone(owner.uid):
            return OwnerStanding.ABSENT
        return OwnerStanding.UNKNOWN_KIND if kind is None else await self._asked_standing(owner, kind, place)

    async def _asked_standing(self, owner: OwnerReference, kind: Kind, place: ObjectPlace) -> OwnerStanding:
        try:
            found = await self._client.get(
                kind, ObjectName(place.name.namespace if kind.namespaced else None, owner.name)
            )
        except NotFound as error:
            # Without a name in it, the error is about the kind: its definition has just been deleted.
            return OwnerStanding.ABSENT if error.details.name == owner.name else OwnerStanding.UNKNOWN_KIND
        if objects.uid(found) != owner.uid:
            return OwnerStanding.ABSENT
        return OwnerStanding.WAITING if member_of(place, found).waits_for_dependents else OwnerStanding.SOLID

    def _refuse_namespace(self, owner: OwnerReference, seen: Member, place: ObjectPlace, obj: Object) -> None:
        if seen.place.name.namespace not in {None, place.name.namespace}:
            about = ObjectReference.to({"apiVersion": place.kind.api_version, "kind": place.kind.kind, **obj})
            self._events.warning(about, rules.WRONG_NAMESPACE, rules.wrong_namespace_note(owner, place))

    # ---- dependents ----------------------------------------------------------------------------------------------

    async def _orphan_dependents(self, place: ObjectPlace, obj: Object) -> Outcome:
        uid = objects.uid(obj)
        for dependent, found in await self._listed_dependents(place, uid):
            with suppress(NotFound):
                await self._client.patch(dependent.kind, dependent.name, rules.without_owners(found, [uid]))
        await self._release(place, obj, ORPHAN)
        return Done()

    async def _end_foreground(self, place: ObjectPlace, obj: Object) -> Outcome:
        uid = objects.uid(obj)
        if any(owner.uid == uid and owner.blocks for each in self._graph.dependents(uid) for owner in each.owners):
            return Done()  # the change of the last of them puts it on the queue again
        if rules.blocking(uid, [found for _, found in await self._listed_dependents(place, uid)]):
            return RetryAfter(UNSEEN_SECONDS)
        await self._release(place, obj, FOREGROUND)
        return Done()

    async def _listed_dependents(self, place: ObjectPlace, uid: str) -> list[tuple[ObjectPlace, Object]]:
        """Ask the API server: an owner with a namespace has its dependents there."""
        namespace = place.name.namespace
        found: list[tuple[ObjectPlace, Object]] = []
        for kind in self._kinds.all():
            if namespace is not None and not kind.namespaced:
                continue
            with suppress(NotFound):  # the kind's definition has just been deleted
                listed = (await self._client.list(kind, Selection(namespace))).items
                owned = [obj for obj in listed if objects.is_owned_by(obj, uid) and objects.uid(obj) != uid]
                found += [(ObjectPlace(kind, objects.name_of(obj)), obj) for obj in owned]
        return found

    async def _release(self, place: ObjectPlace, obj: Object, finalizer: str) -> None:
        patch: Any = rules.release(obj, finalizer)
        with suppress(NotFound):
            if patch is not None:
                await self._client.patch(place.kind, place.name, patch)
