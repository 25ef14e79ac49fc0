"""Creates the claims of pods' generic ephemeral volumes. The garbage collector deletes them with their pod.

Level-triggered: a pod that appears, and a claim that is gone, put the pod on the queue. The cache of claims may be
behind: a claim that exists already is read from the API server, and the rules decide again on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from onenode.controllers.storage_protection import PODS_BY_CLAIM, claim_keys
from orlop.binding import pod_claim_rules as rules
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import AlreadyExists, ApiError, NotFound
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import Object, ObjectName, name_of
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "ephemeral_volume"
WORKERS: Final = 2
BACKOFF: Final = Backoff(initial=0.005, factor=2.0, cap=60.0, jitter=0.5)


class ClaimNotThePods(Exception):
    """A claim has the name, and the pod does not control it."""


@asynccontextmanager
async def ephemeral_claims(
    client: KubeClient, informers: Informers, runtime: Runtime, events: EventRecorder, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Create claims while it is entered. The caller keeps `events` running."""
    async with (
        informers.using(Watched(POD, transform=without_managed_fields)) as pods,
        informers.using(Watched(PERSISTENT_VOLUME_CLAIM, transform=without_managed_fields)) as claims,
        TaskGroup() as tasks,
    ):
        controller = EphemeralClaims(client, pods, claims, runtime, events, queue_metrics)
        task = tasks.start(controller.run(), name="ephemeral claims")
        try:
            yield
        finally:
            task.cancel()


class EphemeralClaims:
    def __init__(
        self,
        client: KubeClient,
        pods: Informer,
        claims: Informer,
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._client = client
        self._pods = pods
        self._claims = claims
        self._events = events
        self._queue: Workqueue[ObjectName] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._reconcile)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)
        pods.add_index(PODS_BY_CLAIM, claim_keys)

    async def run(self) -> None:
        listening = (self._pods.add_listener(self._pod_changed), self._claims.add_listener(self._claim_changed))
        try:
            await self._pods.wait_synced()
            await self._claims.wait_synced()
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    def _pod_changed(self, name: ObjectName) -> None:
        pod = self._pods.get(name)
        if pod is not None and rules.has_ephemeral_claims(pod):
            self._queue.add(QUEUE, name)

    def _claim_changed(self, name: ObjectName) -> None:
        for pod in self._pods.cache.by_index(PODS_BY_CLAIM, str(name)):
            self._pod_changed(name_of(pod))

    async def _reconcile(self, name: ObjectName) -> Outcome:
        read: dict[ObjectName, Object] = {}

        def find(claim: ObjectName) -> CachedObject | None:
            return read.get(claim) or self._claims.get(claim)

        while (pod := self._pods.get(name)) is not None:
            match rules.next_ephemeral_step(pod, find):
                case rules.NothingMissing():
                    break
                case rules.NameTaken(reason):
                    self._events.warning(pod, rules.FAILED_BINDING, reason)
                    return Failed(ClaimNotThePods(reason))
                case rules.CreateClaim(volume, claim):
                    made = await self._create(pod, volume, claim)
                    read[name_of(made)] = made
        return Done()

    async def _create(self, pod: CachedObject, volume: str, claim: Object) -> Object:
        try:
            return await self._client.create(PERSISTENT_VOLUME_CLAIM, claim)
        except AlreadyExists:
            return await self._client.get(PERSISTENT_VOLUME_CLAIM, name_of(claim))
        except NotFound:
            raise  # the namespace is gone, and soon the pod
        except ApiError as error:
            self._events.warning(
                pod, rules.FAILED_BINDING, f"ephemeral volume {volume}: create PVC {name_of(claim)}: {error.message}"
            )
            raise
