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
from onenode.host.volume_host import PlainVolumeHost
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.plain_volumes.plain_volume_work import PlainVolumeWork, host_path_limit
from onenode.kubelet.plain_volumes.plain_volumes_worker import PlainVolumesWorker
from onenode.kubelet.plain_volumes.references import ReferenceReader
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.subpaths import SubPathMount, SubPathRefused, SubPaths
from onenode.kubelet.volumes.volume_manager import MOUNT_SECONDS, VolumesNotMounted
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk
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
async def plain_volumes(
    api: NodeApi, disk: KubeletDisk, host: PlainVolumeHost, allocatable: Mapping[str, str], runtime: Runtime
) -> AsyncIterator[PlainVolumes]:
    """Run plain volumes while the context is entered. On exit they stay as they are, for the next process.

    `allocatable` is what the node has for pods, as quantities by resource.
    """
    async with TaskGroup() as tasks:
        volumes = PlainVolumes(api, disk, host, allocatable, runtime, tasks)
        try:
            yield volumes
        finally:
            volumes.stop()


class PlainVolumes:
    def __init__(
        self,
        api: NodeApi,
        disk: KubeletDisk,
        host: PlainVolumeHost,
        allocatable: Mapping[str, str],
        runtime: Runtime,
        tasks: TaskGroup,
    ) -> None:
        self._api = api
        self._disk = disk
        self._host = host
        self._host_paths = host_path_limit()
        self._allocatable = allocatable
        self._runtime = runtime
        self._tasks = tasks
        self._references = ReferenceReader(api.kube, allocatable, runtime)
        self._subpaths = SubPaths(disk)
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
        """Update the files of the pod's volumes."""
        if (worker := self._workers.get(pod_uid)) is not None:
            worker.sync()

    async def let_go(self, pod_uid: PodUid) -> None:
        """Remove the plain volumes of a pod whose containers have ended; return when nothing of them is left."""
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
        work = PlainVolumeWork(
            self._disk, self._host, self._host_paths, self._references, self._allocatable, self._runtime.clock
        )
        worker = self._workers[pod_uid] = PlainVolumesWorker(pod_uid, pod, work, self._api, self._runtime)
        self._start(self._run(pod_uid, worker), f"volumes of pod {pod_uid}")
        return worker

    async def _run(self, pod_uid: PodUid, worker: PlainVolumesWorker) -> None:
        await worker.run()
        del self._workers[pod_uid]
        self._references.forget(pod_uid)

    async def _remove_orphans(self) -> None:
        try:
            pod_uids = await self._disk.in_thread(partial(self._disk.host.names_in, volume_paths.ALL_PODS))
        except HostError as error:
            self._runtime.log.warning("leftover pod folders not readable", why=str(error))
            return
        # A pod that started meanwhile is no orphan: it gets its worker before its folder is made.
        for pod_uid in sorted((pod_uids or frozenset()) - self._known - self._workers.keys()):
            self._begin(pod_uid, None)
