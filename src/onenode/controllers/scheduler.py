"""The scheduler: gives pods that wait for a node one that has room for them and can use their volumes.

Order for a pod: search all nodes (`scheduling.node_search`) → reserve the best one in memory → write the claim on each
chosen PersistentVolume → write the node on each claim to be provisioned → wait until the binder has bound all claims →
bind the pod. A pod without late-binding claims is bound at once. Where no node fits, the condition PodScheduled and an
event say why, once for each reason, and the pod waits for a change that may help (`scheduling.wakeups`).

The decision and the reservation are made without waiting for anything, so pods are decided one after another, whatever
the writes of others take. Writes carry the version that was decided on: a volume that somebody else took is refused.
What was written is never undone, as in Kubernetes: the next search finds the volume reserved, or the claim with its
node, and leads back to it; only the provisioner takes a node off a claim again.

Must not bind claims or provision: it only says which volume or node a claim is to get.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from onenode.controllers import scheduling_rules as rules
from onenode.controllers.scheduling import volume_wait_rules as wait_rules
from onenode.controllers.scheduling.node_search import NodeSearch, SchedulerCaches
from onenode.controllers.scheduling.reservations import Reservation, Reservations
from onenode.controllers.scheduling.wakeups import PLACES, Wakeups, topics_of
from onenode.controllers.scheduling_rules import Unschedulable
from orlop.binding.pod_claim_rules import claims_used
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, Conflict, NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient, StrategicPatch
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import (
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
)
from orlop.kube.objects import ObjectName, condition, time_text, uid
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "scheduling"
WORKERS: Final = 10
BACKOFF: Final = Backoff(initial=1.0, factor=2.0, cap=10.0)
"""kube-scheduler's, after an error. A pod that fits nowhere waits for a change instead."""
LOOK_AGAIN_SECONDS: Final = 1.0
KINDS: Final = (
    POD,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    STORAGE_CLASS,
    CSI_NODE,
    CSI_DRIVER,
    CSI_STORAGE_CAPACITY,
    VOLUME_ATTACHMENT,
)
"""In the order of `SchedulerCaches`."""


@asynccontextmanager
async def scheduler(
    client: KubeClient, informers: Informers, runtime: Runtime, events: EventRecorder, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Schedule pods while it is entered. The caller keeps `events` running."""
    async with AsyncExitStack() as stack, TaskGroup() as tasks:
        watched = [Watched(kind, transform=without_managed_fields) for kind in KINDS]
        caches = SchedulerCaches(*[await stack.enter_async_context(informers.using(one)) for one in watched])
        task = tasks.start(Scheduler(client, caches, runtime, events, queue_metrics).run(), name="scheduler")
        try:
            yield
        finally:
            task.cancel()


class Scheduler:
    def __init__(
        self,
        client: KubeClient,
        caches: SchedulerCaches,
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._client = client
        self._caches = caches
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        self._events = events
        self._search = NodeSearch(caches)
        self._reservations = Reservations(self._search)
        self._failures: dict[ObjectName, int] = {}
        self._queue: Workqueue[ObjectName] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        self._wakeups = Wakeups(caches, self._search, lambda pod: self._queue.add(QUEUE, pod))
        pool = WorkerPool(QUEUE, WORKERS, self._schedule)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        """Schedule until cancelled; nothing is decided before everything that was there at the start is known."""
        listening = self._wakeups.listen()
        try:
            for informer in self._caches.all():
                await informer.wait_synced()
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    async def _schedule(self, name: ObjectName) -> Outcome:
        pod, reservation = self._caches.pods.get(name), self._reservations.get(name)
        if reservation is not None and not _is_for(reservation, pod):
            self._give_up(reservation)
            reservation = None
        if pod is None or not rules.waits_for_a_node(pod):
            self._forget(name)
            return Done()
        if reservation is not None:
            return await self._proceed(pod, reservation)
        if self._search.pods.is_assumed(name, uid(pod)):
            return Done()  # bound; the cache will show it
        return await self._place(pod, name)

    async def _place(self, pod: CachedObject, name: ObjectName) -> Outcome:
        found = self._search.find(pod)
        if isinstance(found, Unschedulable):
            claims = [claim for use in claims_used(pod) if (claim := self._search.claims.get(use.claim)) is not None]
            # Before the write: what changes meanwhile must wake the pod.
            self._wakeups.wait_for(name, topics_of(pod, claims, found.reasons))
            await self._write_condition(pod, rules.not_scheduled_condition(found.message))
            return Done()
        self._wakeups.leave(name)
        return await self._proceed(pod, self._reservations.make(pod, found))

    # ---- a pod with a reservation --------------------------------------------------------------------------------

    async def _proceed(self, pod: CachedObject, reservation: Reservation) -> Outcome:
        """Take steps until the pod is bound, must wait for others, or failed."""
        while _is_for(reservation, self._caches.pods.get(reservation.pod)):
            now = self._clock.elapsed()
            match wait_rules.next_step(self._reservations.facts(reservation, now)):
                case wait_rules.Wait(seconds):
                    reservation.waits_since = now if reservation.waits_since is None else reservation.waits_since
                    self._wakeups.wait_for(reservation.pod, reservation.topics())
                    return RetryAfter(seconds)
                case wait_rules.BindingFailed(error):
                    return await self._fail(pod, reservation, rules.wait_failure_message(error))
                case wait_rules.AllBound():
                    return await self._bind(pod, reservation)
                case step:
                    if refusal := await self._write(reservation, step):
                        return await self._fail(pod, reservation, rules.write_failure_message(refusal))
        self._give_up(reservation)
        self._forget(reservation.pod)
        return Done()

    async def _write(self, reservation: Reservation, step: wait_rules.WriteReservation) -> str:
        """Write one volume or claim; return why that failed, or ""."""
        try:
            match step:
                case wait_rules.WriteVolume(volume):
                    written = await self._client.replace(PERSISTENT_VOLUME, volume)
                    self._reservations.wrote_volume(reservation, written)
                case wait_rules.WriteClaim(claim):
                    written = await self._client.replace(PERSISTENT_VOLUME_CLAIM, claim)
                    self._reservations.wrote_claim(reservation, written)
        except ApiError as error:
            return error.message
        return ""

    async def _bind(self, pod: CachedObject, reservation: Reservation) -> Outcome:
        name, node = reservation.pod, reservation.node
        metadata = {"name": name.name, "namespace": name.namespace, "uid": reservation.pod_uid}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        # Until the outcome is known the pod keeps its place: it may be bound although we get an error.
        self._wakeups.wait_for(name, reservation.topics())
        try:
            await self._client.create_subresource(POD, name, "binding", binding)
        except (Conflict, NotFound):
            return RetryAfter(LOOK_AGAIN_SECONDS)  # it has a node, is another pod, or gone: the cache will show it
        except ApiError as error:
            self._log.warning("pod could not be bound", pod=str(name), node=node, error=error)
            return RetryAfter(self._next_delay(name))
        self._reservations.keep_pod(reservation)
        self._forget(name)
        self._events.normal(pod, "Scheduled", f"Successfully assigned {name} to {node}", action="Binding")
        return Done()

    async def _fail(self, pod: CachedObject, reservation: Reservation, message: str) -> Outcome:
        # From here on no change wakes the pod, so the delay below is kept.
        self._give_up(reservation)
        delay = self._next_delay(reservation.pod)
        self._log.info("volumes of a pod could not be bound", pod=str(reservation.pod), error=message)
        await self._write_condition(pod, rules.not_scheduled_condition(message, rules.SCHEDULER_ERROR))
        return RetryAfter(delay)

    def _give_up(self, reservation: Reservation) -> None:
        self._wakeups.leave(reservation.pod)
        if self._reservations.give_up(reservation):
            self._wakeups.wake(PLACES)

    def _next_delay(self, name: ObjectName) -> float:
        self._failures[name] = self._failures.get(name, 0) + 1
        return BACKOFF.delay(self._failures[name], self._random)

    def _forget(self, name: ObjectName) -> None:
        self._wakeups.leave(name)
        self._failures.pop(name, None)

    async def _write_condition(self, pod: CachedObject, new: dict[str, str]) -> None:
        """Write why the pod has no node, with an event, unless it says so already."""
        present = condition(pod, "PodScheduled") or {}
        if all(present.get(key) == value for key, value in new.items()):
            return
        self._events.warning(pod, "FailedScheduling", new["message"], action="Scheduling")
        if present.get("status") != "False":
            new["lastTransitionTime"] = time_text(self._clock.now())
        changes = {"metadata": {"uid": uid(pod)}, "status": {"conditions": [new]}}
        name = ObjectName(pod["metadata"].get("namespace"), pod["metadata"]["name"])
        try:
            await self._client.patch(POD, name, StrategicPatch(changes), subresource="status")
        except (Conflict, NotFound):
            return


def _is_for(reservation: Reservation, pod: CachedObject | None) -> bool:
    return pod is not None and uid(pod) == reservation.pod_uid and rules.waits_for_a_node(pod)
