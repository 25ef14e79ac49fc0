"""One worker for each pod of this node, from the first sight of it to its end.

Two pods that have one name one after the other are two pods: their uids distinguish them, and the first may still be
ending while the second begins. Nothing is begun before all that was there at the beginning is known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.pods.container_runtime import ContainerRuntime
from onenode.kubelet.pods.pod_seams import PodSettings, PodVolumes
from onenode.kubelet.pods.pod_worker import PodWorker
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import Selection
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName, name_of, uid


@asynccontextmanager
async def pod_manager(
    informers: Informers,
    api: NodeApi,
    containers: ContainerRuntime,
    volumes: PodVolumes,
    settings: PodSettings,
    runtime: Runtime,
) -> AsyncIterator[PodManager]:
    """Pods run while it is entered. Leaving it lets go of their workers, not of their containers."""

    def new_worker(pod: CachedObject) -> PodWorker:
        return PodWorker(pod, api, containers, volumes, settings, runtime)

    on_this_node = Selection(fields=f"spec.nodeName={settings.node_name}")
    async with (
        informers.using(Watched(POD, on_this_node, without_managed_fields)) as pods,
        TaskGroup() as tasks,
    ):
        manager = PodManager(pods, containers, volumes, new_worker, tasks)
        task = tasks.start(manager.run(), name="pods of this node")
        try:
            yield manager
        finally:
            task.cancel()
            manager.stop()


class PodManager:
    def __init__(
        self,
        pods: Informer,
        containers: ContainerRuntime,
        volumes: PodVolumes,
        new_worker: Callable[[CachedObject], PodWorker],
        tasks: TaskGroup,
    ) -> None:
        self._pods = pods
        self._containers = containers
        self._volumes = volumes
        self._new_worker = new_worker
        self._tasks = tasks
        self._workers: dict[str, PodWorker] = {}
        self._names: dict[str, ObjectName] = {}
        self._endings: dict[str, Callable[[], object]] = {}

    async def run(self) -> None:
        await self._pods.wait_synced()
        await self._forget_the_vanished()
        self._volumes.all_known(self._all_pods())
        stop_listening = self._pods.add_listener(self._pod_changed)
        try:
            await asyncio.Event().wait()
        finally:
            stop_listening()

    async def _forget_the_vanished(self) -> None:
        """Pods whose objects went while nobody was here. What they had mounted is the volume manager's to find."""
        there = {uid(pod) for pod in self._all_pods()}
        for pod_uid in sorted(await self._containers.remembered_pods() - there):
            await self._containers.forget_pod(pod_uid)

    def _all_pods(self) -> list[CachedObject]:
        return [pod for name in self._pods.cache.names() if (pod := self._pods.get(name)) is not None]

    def worker(self, pod_uid: str) -> PodWorker | None:
        return self._workers.get(pod_uid)

    def workers(self) -> tuple[PodWorker, ...]:
        return tuple(self._workers.values())

    def named(self, name: ObjectName) -> PodWorker | None:
        """Of several pods that had the name one after the other, the newest."""
        found = [pod_uid for pod_uid, known in self._names.items() if known == name]
        return self._workers[found[-1]] if found else None

    def phases(self) -> Counter[str]:
        """How many pods there are of each."""
        return Counter((pod.get("status") or {}).get("phase") or "Pending" for pod in self._all_pods())

    def stop(self) -> None:
        for cancel in list(self._endings.values()):
            cancel()

    def _pod_changed(self, name: ObjectName) -> None:
        pod = self._pods.get(name)
        now = uid(pod) if pod is not None else ""
        for pod_uid, worker in self._workers.items():
            if self._names[pod_uid] == name:
                worker.changed(pod if pod_uid == now else None)
        if pod is not None and now not in self._workers:
            self._begin(self._new_worker(pod), now, name_of(pod))

    def _begin(self, worker: PodWorker, pod_uid: str, name: ObjectName) -> None:
        self._workers[pod_uid], self._names[pod_uid] = worker, name
        task = self._tasks.start(worker.run(), name=f"pod {name}")
        self._endings[pod_uid] = task.cancel
        task.add_done_callback(lambda _: self._forget(pod_uid))

    def _forget(self, pod_uid: str) -> None:
        """Its object may have come back to the cache a moment too late; a list would tell of it again."""
        del self._workers[pod_uid], self._names[pod_uid], self._endings[pod_uid]
