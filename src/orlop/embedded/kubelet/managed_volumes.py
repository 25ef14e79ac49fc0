"""The volume manager as pods see it: the seam of `pods/pod_volumes`, kept by `volumes/volume_manager`.

A pod's volumes are asked for anew from time to time while it runs, as kubelet does at each sync of a pod: drivers that
ask for it publish them once more, with fresh tokens. Nothing is mounted or decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from orlop.embedded.kubelet.pods.container_rules import DeviceSource, Names, SubPathWish, VolumeSources
from orlop.embedded.kubelet.pods.pod_life_rules import FINAL_PHASES
from orlop.embedded.kubelet.pods.pod_volumes import SubPathNotReady, VolumesNotReady
from orlop.embedded.kubelet.volumes.subpaths import SubPathMount, SubPathRefused
from orlop.embedded.kubelet.volumes.volume_manager import VolumeManager
from orlop.embedded.kubelet.volumes.volume_manager import VolumesNotReady as NotMounted
from orlop.foundation.clock import Clock
from orlop.kube.objects import is_being_deleted, uid

SYNC_SECONDS: Final = 60.0
SYNC_JITTER: Final = 0.5
LOOK_SECONDS: Final = 10.0
"""How exactly the time of a sync is kept: one look for all pods."""

Pod = Mapping[str, Any]


class ManagedVolumes:
    def __init__(self, manager: VolumeManager, clock: Clock, random: Random) -> None:
        self._manager = manager
        self._clock = clock
        self._random = random
        self._syncs: dict[str, tuple[float, Pod]] = {}

    def all_known(self, pods: Iterable[Pod]) -> None:
        """Nothing runs yet, so those that are finished or on their way out want no volumes any more."""
        for pod in pods:
            if not is_being_deleted(pod) and (pod.get("status") or {}).get("phase") not in FINAL_PHASES:
                self._manager.want(pod)
        self._manager.all_pods_known()

    async def ready(self, pod: Pod) -> VolumeSources:
        try:
            found = await self._manager.wait_mounted(pod)
        except NotMounted as error:
            raise VolumesNotReady(str(error), told=False) from None  # the manager has told what is to be told
        self._note_next_sync(pod)
        mounted = found.mounted.items()
        return VolumeSources(
            {name: volume.names for name, volume in mounted if not volume.is_device},
            devices={name: DeviceSource(one.names, one.read_only) for name, one in mounted if one.is_device},
        )

    async def sub_path(self, pod: Pod, container: str, wish: SubPathWish) -> Names:
        try:
            return await self._manager.mount_subpath(pod, SubPathMount(wish.volume, container, wish.index, wish.path))
        except SubPathRefused as error:
            raise SubPathNotReady(str(error)) from None

    async def let_go(self, pod: Pod) -> None:
        self._syncs.pop(uid(pod), None)
        await self._manager.wait_unmounted(uid(pod))

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            now = self._clock.elapsed()
            for instant, pod in list(self._syncs.values()):
                if instant <= now:
                    self._manager.want(pod)
                    self._note_next_sync(pod)

    def _note_next_sync(self, pod: Pod) -> None:
        seconds = SYNC_SECONDS * (1 + SYNC_JITTER * self._random.random())
        self._syncs[uid(pod)] = (self._clock.elapsed() + seconds, pod)
