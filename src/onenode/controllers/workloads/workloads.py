"""Runs the controllers of workloads on shared informers: StatefulSets, and here Deployments and ReplicaSets.

A Deployment has a ReplicaSet for each template, and scales the old ones down while it scales the new one up; a
ReplicaSet has as many pods as desired, of one template.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final

from onenode.controllers.workloads import deployment_rules, replica_set_rules
from onenode.controllers.workloads.ownership_rules import guarded, is_controlled
from onenode.controllers.workloads.pod_count_rules import replicas
from onenode.controllers.workloads.rollout_rules import ScaleReplicaSet
from onenode.controllers.workloads.stateful_sets import StatefulSets
from onenode.controllers.workloads.workload_controller import Reader, WorkloadController, WorkloadParts
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import AlreadyExists, ApiError, NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import recording
from orlop.kube.kinds import DEPLOYMENT, POD, REPLICA_SET, Kind
from orlop.kube.objects import name, name_of, namespace
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

Object = Mapping[str, Any]


class Deployments(WorkloadController):
    kind: ClassVar[Kind] = DEPLOYMENT
    children: ClassVar[tuple[Kind, ...]] = (REPLICA_SET,)

    async def decide(self, owner: Object, reader: Reader, failure: ApiError | None) -> deployment_rules.Step:
        replica_sets = await reader.list(REPLICA_SET, namespace(owner))
        return deployment_rules.next_step(owner, replica_sets, self.clock.now(), has_failed=failure is not None)

    async def act(self, owner: Object, step: deployment_rules.Step) -> None:
        match step:
            case deployment_rules.CreateReplicaSet(replica_set):
                await self._create(owner, replica_set)
            case ScaleReplicaSet(replica_set, count):
                await self.patch(REPLICA_SET, replica_set, guarded(replica_set, spec={"replicas": count}))
                self._scaled(owner, name(replica_set), replicas(replica_set), count)
            case deployment_rules.PatchReplicaSet(replica_set, patch):
                await self.patch(REPLICA_SET, replica_set, patch)
            case deployment_rules.DeleteReplicaSet(replica_set):
                await self.delete(REPLICA_SET, replica_set)
            case deployment_rules.Annotate(patch):
                await self.patch(DEPLOYMENT, owner, patch)

    async def _create(self, owner: Object, replica_set: Object) -> None:
        try:
            await self.client.create(REPLICA_SET, replica_set)
        except AlreadyExists:
            existing = await self.client.get(REPLICA_SET, name_of(replica_set))
            if not (is_controlled(owner, existing) and deployment_rules.has_template_of(owner, existing)):
                await self.count_collision(owner)
            return
        except ApiError as error:
            text = f'Failed to create new replica set "{name(replica_set)}": {error.message}'
            self.events.warning(owner, "ReplicaSetCreateError", text)
            raise
        if replicas(replica_set):
            self._scaled(owner, name(replica_set), 0, replicas(replica_set))

    def _scaled(self, owner: Object, replica_set: str, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        self.events.normal(
            owner, "ScalingReplicaSet", f"Scaled {direction} replica set {replica_set} from {before} to {after}"
        )


class ReplicaSets(WorkloadController):
    kind: ClassVar[Kind] = REPLICA_SET
    children: ClassVar[tuple[Kind, ...]] = (POD,)

    async def decide(self, owner: Object, reader: Reader, failure: ApiError | None) -> replica_set_rules.Step:
        pods = await reader.list(POD, namespace(owner))
        shown = None if failure is None else replica_set_rules.CreationFailure("FailedCreate", failure.message)
        return replica_set_rules.next_step(owner, pods, self.clock.now(), shown)

    async def act(self, owner: Object, step: replica_set_rules.Step) -> None:
        match step:
            case replica_set_rules.CreatePods(count, pod):
                for batch in _batches(count):
                    await self._create(owner, pod, batch)
            case replica_set_rules.DeletePods(pods):
                await asyncio.gather(*(self._delete(owner, pod) for pod in pods))

    async def _create(self, owner: Object, pod: Object, count: int) -> None:
        made = await asyncio.gather(*(self.client.create(POD, pod) for _ in range(count)), return_exceptions=True)
        for each in made:
            if not isinstance(each, BaseException):
                self.events.normal(owner, "SuccessfulCreate", f"Created pod: {name(each)}")
        if (failure := next((each for each in made if isinstance(each, BaseException)), None)) is not None:
            # In a deleted namespace no event can be written.
            if isinstance(failure, ApiError) and not isinstance(failure, NotFound):
                self.events.warning(owner, "FailedCreate", f"Error creating: {failure.message}")
            raise failure

    async def _delete(self, owner: Object, pod: Object) -> None:
        await self.delete(POD, pod)
        self.events.normal(owner, "SuccessfulDelete", f"Deleted pod: {name(pod)}")


def _batches(count: int) -> Iterator[int]:
    """Yield 1, 2, 4, …: if every pod is refused, only few are tried."""
    size = 1
    while count > 0:
        yield min(size, count)
        count, size = count - size, size * 2


CONTROLLERS: Final[tuple[tuple[str, type[WorkloadController]], ...]] = (
    ("deployment-controller", Deployments),
    ("replicaset-controller", ReplicaSets),
    ("statefulset-controller", StatefulSets),
)
"""With the names under which they report events, as in Kubernetes."""


@asynccontextmanager
async def workloads(
    client: KubeClient, informers: Informers, runtime: Runtime, queue_metrics: WorkqueueMetrics
) -> AsyncIterator[None]:
    """Run Deployments, ReplicaSets and StatefulSets while it is entered."""
    kinds = dict.fromkeys(kind for _, each in CONTROLLERS for kind in (each.kind, *each.children))
    async with AsyncExitStack() as stack:
        caches = {
            kind: await stack.enter_async_context(informers.using(Watched(kind, transform=without_managed_fields)))
            for kind in kinds
        }
        reporting = [
            await stack.enter_async_context(recording(client, Reporter(each, "", in_core=True), runtime))
            for each, _ in CONTROLLERS
        ]
        tasks = await stack.enter_async_context(TaskGroup())
        running = [
            tasks.start(make(WorkloadParts(client, caches, events, runtime, queue_metrics)).run(), name=each)
            for (each, make), events in zip(CONTROLLERS, reporting, strict=True)
        ]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
