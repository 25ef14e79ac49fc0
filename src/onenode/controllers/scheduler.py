"""A placeholder for kube-scheduler on one machine: gives pods that wait for a node the one there is.

Level-triggered: a pod that changed is looked at, and every pod that waits when a node has changed in what counts.
Order: `scheduling_rules` decide → the pod is bound, or the condition on it says why not → people are told. An event is
told when the reason is a new one; kube-scheduler would repeat it.

Volumes join the decision by the `objections` that are handed in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers import scheduling_rules as rules
from onenode.controllers.scheduling_rules import Bind, Objections, Unschedulable
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import Conflict, NotFound
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import KubeClient, StrategicPatch
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import NODE, POD
from orlop.kube.objects import ObjectName, condition, is_condition_true, labels, name_of, time_text, uid
from orlop.kube.queue.reconcile_loop import Done, Outcome, ReconcileLoop, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

QUEUE: Final = "scheduling"
WORKERS: Final = 4
BACKOFF: Final = Backoff(initial=0.01, factor=2.0, cap=10.0, jitter=0.5)
WAITING: Final = "pods that wait for a node"

Judge = Callable[[Mapping[str, Any]], Awaitable[Objections]]
"""What stands against each node, for one pod."""


async def no_objections(_pod: Mapping[str, Any]) -> Objections:
    return {}


@dataclass(frozen=True, slots=True)
class SchedulerCaches:
    pods: Informer
    nodes: Informer


@asynccontextmanager
async def scheduler(
    client: KubeClient,
    informers: Informers,
    runtime: Runtime,
    events: EventRecorder,
    queue_metrics: WorkqueueMetrics,
    objections: Judge = no_objections,
) -> AsyncIterator[None]:
    """Place pods while it is entered. The caller keeps `events` running."""
    pods, nodes = (Watched(kind, transform=without_managed_fields) for kind in (POD, NODE))
    async with informers.using(pods) as all_pods, informers.using(nodes) as all_nodes, TaskGroup() as tasks:
        placing = Scheduler(client, SchedulerCaches(all_pods, all_nodes), runtime, events, queue_metrics, objections)
        task = tasks.start(placing.run(), name="scheduler")
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
        objections: Judge,
    ) -> None:
        self._client = client
        self._pods = caches.pods
        self._nodes = caches.nodes
        self._clock = runtime.clock
        self._events = events
        self._objections = objections
        self._looked_at: dict[ObjectName, object] = {}
        self._queue: Workqueue[ObjectName] = Workqueue(
            (QUEUE,), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pool = WorkerPool(QUEUE, WORKERS, self._place)
        self._loop = ReconcileLoop(self._queue, (pool,), clock=runtime.clock, log=runtime.log)
        caches.pods.add_index(WAITING, lambda pod: [WAITING] if rules.waits_for_a_node(pod) else [])

    async def run(self) -> None:
        """Until it is cancelled; nothing is begun before everything that was there at the beginning is known."""
        listening = (self._pods.add_listener(self._pod_changed), self._nodes.add_listener(self._node_changed))
        try:
            await self._nodes.wait_synced()
            await self._pods.wait_synced()
            await self._loop.run()
        finally:
            for stop_listening in listening:
                stop_listening()

    def _pod_changed(self, name: ObjectName) -> None:
        pod = self._pods.get(name)
        if pod is not None and rules.waits_for_a_node(pod):
            self._queue.add(QUEUE, name)

    def _node_changed(self, name: ObjectName) -> None:
        """Its heartbeats are no news."""
        node = self._nodes.get(name)
        counts = None if node is None else _what_counts(node)
        if self._looked_at.get(name) == counts:
            return
        self._looked_at[name] = counts
        for pod in self._pods.cache.by_index(WAITING, WAITING):
            self._queue.add(QUEUE, name_of(pod))

    async def _place(self, name: ObjectName) -> Outcome:
        pod = self._pods.get(name)
        if pod is None or not rules.waits_for_a_node(pod):
            return Done()
        nodes = [found for each in self._nodes.cache.names() if (found := self._nodes.get(each)) is not None]
        match rules.decide(pod, nodes, await self._objections(pod)):
            case Bind(node):
                await self._bind(pod, name, node)
            case Unschedulable(message):
                await self._tell_why_not(pod, name, message)
        return Done()

    async def _bind(self, pod: CachedObject, name: ObjectName, node: str) -> None:
        metadata = {"name": name.name, "namespace": name.namespace, "uid": uid(pod)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            await self._client.create_subresource(POD, name, "binding", binding)
        except (Conflict, NotFound):
            return  # it has a node by now, is another pod, or gone: the cache will tell
        self._events.normal(pod, "Scheduled", f"Successfully assigned {name} to {node}", action="Binding")

    async def _tell_why_not(self, pod: CachedObject, name: ObjectName, message: str) -> None:
        wanted = rules.unschedulable_condition(message)
        present = condition(pod, "PodScheduled") or {}
        if all(present.get(key) == value for key, value in wanted.items()):
            return
        self._events.warning(pod, "FailedScheduling", message, action="Scheduling")
        if present.get("status") != "False":
            wanted["lastTransitionTime"] = time_text(self._clock.now())
        changes = {"metadata": {"uid": uid(pod)}, "status": {"conditions": [wanted]}}
        try:
            await self._client.patch(POD, name, StrategicPatch(changes), subresource="status")
        except (Conflict, NotFound):
            return


def _what_counts(node: Mapping[str, Any]) -> object:
    spec = node.get("spec") or {}
    return (
        spec.get("unschedulable"),
        repr(spec.get("taints")),
        dict(labels(node)),
        is_condition_true(node, "Ready"),
    )
