"""The base of the workload controllers: a queue of workloads, which changes of their children fill, and its worker.

Level-triggered. The next step is decided on the caches. Before a write it is decided again on objects read from the API
server: so a stale cache creates nothing twice, and two processes do not overwrite each other's status in turns. After
each step the next one is decided, until the rules wait. A restarted process resumes from the objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Protocol

from onenode.controllers.workloads.ownership_rules import ChangeOwners, Wait, WriteStatus, selects
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError, Conflict, NotFound, PatchRefused
from orlop.kube.cache.informer import Informer
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch, Selection
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName, controller_of, name_of, namespace, uid
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

Object = Mapping[str, Any]

WORKERS: Final = 4
BACKOFF: Final = Backoff(initial=0.005, factor=2.0, cap=60.0, jitter=0.5)
BY_NAMESPACE: Final = "by namespace"


def namespace_key(obj: CachedObject) -> list[str]:
    return [namespace(obj) or ""]


class Reader(Protocol):
    async def get(self, kind: Kind, name: ObjectName) -> Object | None: ...

    async def list(self, kind: Kind, within: str | None) -> Sequence[Object]: ...


class CachedReader:
    def __init__(self, informers: Mapping[Kind, Informer]) -> None:
        self._informers = informers

    async def get(self, kind: Kind, name: ObjectName) -> Object | None:
        return self._informers[kind].get(name)

    async def list(self, kind: Kind, within: str | None) -> Sequence[Object]:
        return self._informers[kind].cache.by_index(BY_NAMESPACE, within or "")


class ServerReader:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get(self, kind: Kind, name: ObjectName) -> Object | None:
        with suppress(NotFound):
            return await self._client.get(kind, name)
        return None

    async def list(self, kind: Kind, within: str | None) -> Sequence[Object]:
        return (await self._client.list(kind, Selection(within))).items


@dataclass(frozen=True, slots=True)
class WorkloadParts:
    """The parts of each controller; `informers` has at least its kind and the kinds of its children."""

    client: KubeClient
    informers: Mapping[Kind, Informer]
    events: EventRecorder
    runtime: Runtime
    queue_metrics: WorkqueueMetrics


class WorkloadController(ABC):
    kind: ClassVar[Kind]
    children: ClassVar[tuple[Kind, ...]]

    def __init__(self, parts: WorkloadParts) -> None:
        self.client, self.events, self.clock = parts.client, parts.events, parts.runtime.clock
        self._informers = {kind: parts.informers[kind] for kind in (self.kind, *self.children)}
        self._cache, self._server = CachedReader(self._informers), ServerReader(parts.client)
        name = self.kind.singular
        self._queue: Workqueue[ObjectName] = Workqueue(
            (name,), clock=self.clock, random=parts.runtime.random, backoff=BACKOFF, metrics=parts.queue_metrics
        )
        pool = WorkerPool(name, WORKERS, self._reconcile)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=self.clock, log=parts.runtime.log)
        self._owners_of: dict[tuple[Kind, ObjectName], tuple[ObjectName, ...]] = {}
        for informer in self._informers.values():
            informer.add_index(BY_NAMESPACE, namespace_key)

    @abstractmethod
    async def decide(self, owner: Object, reader: Reader, failure: ApiError | None) -> Any:
        """Return the next step; after a failure, only how the status changes."""

    @abstractmethod
    async def act(self, owner: Object, step: Any) -> None:
        """Carry out a step that only this kind has."""

    def concerns(self, owner: Object, child: Object) -> bool:
        """Return whether the owner may wait for this child, which has no controller."""
        return selects(owner, child)

    # ---- the queue -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        listening = [self._informers[self.kind].add_listener(self._queue_name)]
        listening += [self._informers[kind].add_listener(partial(self._child_changed, kind)) for kind in self.children]
        try:
            for informer in self._informers.values():
                await informer.wait_synced()
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    def _queue_name(self, name: ObjectName) -> None:
        self._queue.add(self.kind.singular, name)

    def _child_changed(self, kind: Kind, name: ObjectName) -> None:
        """Queue the owners of a child, also its former ones: it may be deleted, or have another owner now."""
        child = self._informers[kind].get(name)
        before = self._owners_of.pop((kind, name), ())
        now = tuple(self._owners(child)) if child is not None else ()
        if now:
            self._owners_of[kind, name] = now
        for owner in dict.fromkeys((*before, *now)):
            self._queue_name(owner)

    def _owners(self, child: CachedObject) -> Iterator[ObjectName]:
        controller = controller_of(child)
        if controller is None:
            for owner in self._informers[self.kind].cache.by_index(BY_NAMESPACE, namespace(child) or ""):
                if self.concerns(owner, child):
                    yield name_of(owner)
        elif (controller.get("apiVersion"), controller.get("kind")) == (self.kind.api_version, self.kind.kind):
            yield ObjectName(namespace(child), str(controller.get("name")))

    # ---- steps ---------------------------------------------------------------------------------------------------

    async def _reconcile(self, name: ObjectName) -> Outcome:
        reader: Reader = self._cache
        while (owner := await reader.get(self.kind, name)) is not None:
            match step := await self.decide(owner, reader, None):
                case Wait(seconds):
                    return _after(seconds)
                case _ if reader is self._cache:
                    reader = self._server
                case WriteStatus(patch, seconds):
                    await self._write_status(name, patch)
                    return _after(seconds)
                case ChangeOwners(child, patch):
                    kind = next(each for each in self.children if each.kind == child["kind"])
                    await self.patch(kind, child, patch)
                case _:
                    await self._carry_out(owner, step)
        return Done()

    async def _carry_out(self, owner: Object, step: Any) -> None:
        try:
            await self.act(owner, step)
        except (Conflict, PatchRefused):
            raise  # decided again at once, on the current objects
        except ApiError as error:
            # People and Deployments wait for a status of the new spec, even if no pod can be created.
            status = await self.decide(owner, self._server, error)
            if isinstance(status, WriteStatus):
                with suppress(ApiError):
                    await self._write_status(name_of(owner), status.patch)
            raise

    async def _write_status(self, name: ObjectName, patch: MergePatch) -> None:
        with suppress(NotFound):
            await self.client.patch(self.kind, name, patch, subresource="status")

    async def patch(self, kind: Kind, obj: Object, patch: MergePatch) -> None:
        with suppress(NotFound):
            await self.client.patch(kind, name_of(obj), patch)

    async def delete(self, kind: Kind, obj: Object) -> None:
        with suppress(NotFound):
            await self.client.delete(kind, name_of(obj), DeleteOptions(uid(obj), propagation="Background"))

    async def count_collision(self, owner: Object) -> None:
        """Count a collision, so that the next object gets another name: an object of another owner has this one."""
        before = int((owner.get("status") or {}).get("collisionCount") or 0)
        metadata = {"uid": uid(owner), "resourceVersion": owner["metadata"]["resourceVersion"]}
        patch = MergePatch({"metadata": metadata, "status": {"collisionCount": before + 1}})
        await self._write_status(name_of(owner), patch)


def _after(seconds: float | None) -> Outcome:
    return Done() if seconds is None else RetryAfter(seconds)
