"""Volumes as pods see them: the seam of `pods/pod_seams`, kept by `volumes/volume_manager` and `plain_volumes`.

A pod's volumes are asked for anew from time to time while it runs, as kubelet does at each sync of a pod: drivers that
ask for it publish them once more, with fresh tokens, and files of ConfigMaps, Secrets and tokens are written anew.
Nothing is mounted or decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from onenode.kubelet.plain_volumes.plain_volumes import PlainVolumes
from onenode.kubelet.pods.container_rules import DeviceSource, Names, SubPathWish, VolumeSources
from onenode.kubelet.pods.pod_life_rules import FINAL_PHASES
from onenode.kubelet.pods.pod_seams import SubPathNotReady, VolumesNotReady
from onenode.kubelet.volumes.steps.subpaths import SubPathMount, SubPathRefused
from onenode.kubelet.volumes.volume_manager import VolumeManager, VolumesNotMounted
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.objects import is_being_deleted, uid

SYNC_SECONDS: Final = 60.0
SYNC_JITTER: Final = 0.5
LOOK_SECONDS: Final = 10.0
"""How exactly the time of a sync is kept: one look for all pods."""

Pod = Mapping[str, Any]


class ManagedVolumes:
    def __init__(self, manager: VolumeManager, plain: PlainVolumes, runtime: Runtime) -> None:
        self.manager = manager
        self._plain = plain
        self._clock = runtime.clock
        self._random = runtime.random
        self._syncs: dict[str, tuple[float, Pod]] = {}

    def all_known(self, pods: Iterable[Pod]) -> None:
        """Nothing runs yet, so those that are finished or on their way out want no volumes any more."""
        every = list(pods)
        for pod in every:
            if not is_being_deleted(pod) and (pod.get("status") or {}).get("phase") not in FINAL_PHASES:
                self.manager.want(pod)
        self.manager.all_pods_known()
        self._plain.all_known([uid(pod) for pod in every])

    async def ready(self, pod: Pod) -> VolumeSources:
        try:
            async with TaskGroup() as tasks:
                asking = tasks.start(self._plain.wait_ready(pod), name=f"plain volumes of pod {uid(pod)}")
                found = await self.manager.wait_mounted(pod)
        except VolumesNotMounted as error:
            raise VolumesNotReady(str(error), is_reported=False) from None  # the managers have recorded the events
        self._note_next_sync(pod)
        mounted, plain = found.mounted.items(), asking.result()
        of_drivers = {name: volume.names for name, volume in mounted if not volume.is_device}
        return VolumeSources(
            {**of_drivers, **plain.origins},
            devices={name: DeviceSource(one.names, one.read_only) for name, one in mounted if one.is_device},
            read_only=plain.read_only | {name for name, volume in mounted if volume.read_only},
        )

    async def sub_path(self, pod: Pod, container: str, wish: SubPathWish) -> Names:
        mount = SubPathMount(wish.volume, container, wish.index, wish.path)
        try:
            if self._plain.has(uid(pod), wish.volume):
                return await self._plain.mount_subpath(uid(pod), mount)
            return await self.manager.mount_subpath(pod, mount)
        except SubPathRefused as error:
            raise SubPathNotReady(str(error)) from None

    async def let_go(self, pod: Pod) -> None:
        """What hangs of one kind keeps none of the other."""
        self._syncs.pop(uid(pod), None)
        self.manager.know(pod)
        async with TaskGroup() as tasks:
            tasks.start(self._plain.let_go(uid(pod)), name=f"end of plain volumes of pod {uid(pod)}")
            await self.manager.wait_unmounted(uid(pod))

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            now = self._clock.elapsed()
            for instant, pod in list(self._syncs.values()):
                if instant <= now:
                    self.manager.want(pod)
                    self._plain.sync(uid(pod))
                    self._note_next_sync(pod)

    def _note_next_sync(self, pod: Pod) -> None:
        seconds = SYNC_SECONDS * (1 + SYNC_JITTER * self._random.random())
        self._syncs[uid(pod)] = (self._clock.elapsed() + seconds, pod)
