"""Volumes of Kubernetes' own kinds: made before a pod starts, kept up to date, removed after its end.

One worker for each pod that has been asked for or is to be removed. After a start, what pods left that are not there
any more is found by their folders, once all pods are known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onenode.host.payload_files import Origin
from onenode.kubelet.plain_volumes.plain_volume_work import PlainVolumeSeams
from onenode.kubelet.plain_volumes.plain_volumes_worker import PlainVolumesWorker
from onenode.kubelet.plain_volumes.references import ReferenceReader
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.subpaths import SubPathMount, SubPathRefused, SubPaths
from onenode.kubelet.volumes.volume_manager import MOUNT_SECONDS, VolumesNotMounted
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_values import ApiObject, PodUid
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.host_errors import HostError
from orlop.kube.objects import uid


@dataclass(frozen=True, slots=True)
class PlainSources:
    """Where a pod's plain volumes are, by the pod's names for them, and which of them are only for reading."""

    origins: Mapping[str, Origin] = field(default_factory=dict)
    read_only: frozenset[str] = frozenset()


@asynccontextmanager
async def plain_volumes(seams: PlainVolumeSeams, runtime: Runtime) -> AsyncIterator[PlainVolumes]:
    """Volumes are kept while it is entered; leaving it leaves them as they are, for the next life."""
    async with TaskGroup() as tasks:
        volumes = PlainVolumes(seams, runtime, tasks)
        try:
            yield volumes
        finally:
            volumes.stop()


class PlainVolumes:
    def __init__(self, seams: PlainVolumeSeams, runtime: Runtime, tasks: TaskGroup) -> None:
        self._seams = seams
        self._runtime = runtime
        self._tasks = tasks
        self._references = ReferenceReader(seams.volumes.client, seams.allocatable, runtime)
        self._subpaths = SubPaths(seams.volumes)
        self._workers: dict[PodUid, PlainVolumesWorker] = {}
        self._known: frozenset[PodUid] = frozenset()
        self._running: set[asyncio.Task[None]] = set()

    def all_known(self, pods: Collection[PodUid]) -> None:
        """All pods of this node there are: what others left goes."""
        self._known = frozenset(pods)
        self._start(self._remove_orphans(), "volumes: what pods left that are gone")

    async def wait_ready(self, pod: ApiObject) -> PlainSources:
        """Returns when all are there. Raises VolumesNotMounted after 2m3s; failures are recorded as events by then."""
        worker = await self._worker_of(pod)
        try:
            async with self._runtime.clock.timeout(MOUNT_SECONDS):
                await worker.wait_ready()
        except TimeoutError:
            text = texts.not_ready(worker.missing(), (), (), texts.DEADLINE)
            raise VolumesNotMounted(text, timed_out=True) from None
        return PlainSources(worker.origins, worker.read_only())

    def has(self, pod_uid: PodUid, volume: str) -> bool:
        worker = self._workers.get(pod_uid)
        return worker is not None and volume in worker.origins

    async def mount_subpath(self, pod_uid: PodUid, mount: SubPathMount) -> Names:
        """Raises SubPathRefused."""
        worker = self._workers.get(pod_uid)
        origin = worker.origins.get(mount.volume) if worker is not None else None
        if origin is None:
            raise SubPathRefused(f"The volume {mount.volume!r} of the pod is not there: wait for it first.")
        return await self._subpaths.mount(pod_uid, mount, origin)

    def sync(self, pod_uid: PodUid) -> None:
        """Its files are brought up to date."""
        if (worker := self._workers.get(pod_uid)) is not None:
            worker.sync()

    async def let_go(self, pod_uid: PodUid) -> None:
        """Nothing of the pod runs any more; returns when nothing of its plain volumes is left."""
        worker = self._workers.get(pod_uid) or self._begin(pod_uid, None)
        worker.end()
        await worker.gone.wait()

    def stop(self) -> None:
        for task in list(self._running):
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._tasks.start(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _worker_of(self, pod: ApiObject) -> PlainVolumesWorker:
        while (worker := self._workers.get(uid(pod))) is not None and worker.is_ending:
            await worker.gone.wait()
        return worker or self._begin(uid(pod), pod)

    def _begin(self, pod_uid: PodUid, pod: ApiObject | None) -> PlainVolumesWorker:
        worker = self._workers[pod_uid] = PlainVolumesWorker(pod_uid, pod, self._seams, self._references, self._runtime)
        self._start(self._run(pod_uid, worker), f"volumes of pod {pod_uid}")
        return worker

    async def _run(self, pod_uid: PodUid, worker: PlainVolumesWorker) -> None:
        await worker.run()
        del self._workers[pod_uid]
        self._references.forget(pod_uid)

    async def _remove_orphans(self) -> None:
        host = self._seams.volumes.host
        try:
            found = await self._seams.volumes.in_thread(partial(host.names_in, volume_paths.ALL_PODS))
        except HostError as error:
            self._runtime.log.warning("leftover pod folders not readable", why=str(error))
            return
        # Whoever was begun meanwhile has a worker before it has a folder.
        for pod_uid in sorted((found or frozenset()) - self._known - self._workers.keys()):
            self._begin(pod_uid, None)
