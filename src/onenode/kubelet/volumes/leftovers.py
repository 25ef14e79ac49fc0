"""Folders that nobody knows any more: of pods that are gone, and of stagings that died half way. Removed when empty.

By rmdir alone, from the inside out, and never where something is mounted. A `vol_data.json` goes only where no volume
could be rebuilt from it and its target is gone: one that can be read belongs to a volume that is still to be unmounted.
A leftover that cannot be removed stays, is reported, and is tried again.

A sweep must not run while folders are being made: the caller delays mounts meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.reconstruction import block_names, staging_folders
from onenode.kubelet.volumes.steps import block_folders
from onenode.kubelet.volumes.steps.mount_folders import remove_mount
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk
from onenode.kubelet.volumes.volume_values import PodUid, VolumeMode, VolumeSpec
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError

SWEEP_SECONDS: Final = 2.0
LONGEST_SWEEP_SECONDS: Final = 60.0


class Leftovers:
    """`due_at` is the instant of the next sweep; None: there is nothing to look for. The first is due at once."""

    def __init__(self, disk: KubeletDisk, runtime: Runtime, changed: Callable[[], None]) -> None:
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._runtime = runtime
        self._changed = changed
        self._delay = SWEEP_SECONDS
        self._pods_at_start: frozenset[PodUid] = frozenset()
        self.due_at: float | None = 0.0
        self.is_sweeping = False

    async def note_start(self) -> None:
        """Before anything is made: pods' folders that an earlier life has left."""
        names = await self._in_thread(partial(self._host.names_in, volume_paths.ALL_PODS))
        self._pods_at_start = names or frozenset()

    def look_soon(self) -> None:
        """A pod goes: something of it may be left when it has gone."""
        self._delay = SWEEP_SECONDS
        if self.due_at is None:
            self.due_at = self._runtime.clock.elapsed() + SWEEP_SECONDS

    def begin(self, pods: Collection[PodUid], volumes: Iterable[VolumeSpec]) -> Coroutine[Any, Any, None]:
        """To be run: removes all that is left of others than these."""
        self.due_at, self.is_sweeping = None, True
        specs = tuple(volumes)
        staged = {volume_paths.staging_folder(spec.driver, spec.handle) for spec in specs}
        return self._sweep(pods, staged, {spec.name for spec in specs if spec.mode is VolumeMode.BLOCK})

    async def _sweep(self, pods: Collection[PodUid], staged: Collection[Names], blocks: Collection[str]) -> None:
        sweep = Sweep(self._host, self._pods_at_start)
        try:
            await self._in_thread(partial(sweep.all_but, pods, staged, blocks))
        except HostError as error:
            sweep.left.append(str(error))
        finally:
            self.is_sweeping = False
            self._changed()
        self._tell(sweep)

    async def sweep_pod(self, pod_uid: PodUid) -> None:
        """Of a pod that has nothing mounted any more."""
        sweep = Sweep(self._host, self._pods_at_start)
        await self._in_thread(partial(sweep.pod, pod_uid))
        self._tell(sweep)

    async def is_something_mounted(self, pod_uid: PodUid) -> bool:
        return await self._in_thread(partial(_has_mounts, self._host, pod_uid))

    def _tell(self, sweep: Sweep) -> None:
        if sweep.left:
            self._runtime.log.warning("volume folders left behind", count=len(sweep.left), first=sweep.left[0])
            self.due_at = self._runtime.clock.elapsed() + self._delay
            self._delay = min(LONGEST_SWEEP_SECONDS, self._delay * 2)
            self._changed()


def _has_mounts(host: VolumeHost, pod_uid: PodUid) -> bool:
    """What cannot be looked at is taken for mounted."""
    folder = volume_paths.pod_csi_volumes(pod_uid)
    try:
        return any(host.is_mounted((*folder, name, volume_paths.MOUNT)) for name in host.names_in(folder) or ())
    except HostError:
        return True


@dataclass(slots=True)
class Sweep:
    """Blocks. `left` are sentences about what stays."""

    host: VolumeHost
    old_pods: Collection[PodUid]
    """Whose folders are removed though there is nothing of a volume in them; others may just be in the making."""
    left: list[str] = field(default_factory=list)

    def all_but(self, pods: Collection[PodUid], staged: Collection[Names], blocks: Collection[str]) -> None:
        self.pods(pods)
        self.staging(staged)
        self.block_volumes(blocks)

    def pods(self, known: Collection[str]) -> None:
        """Of all pods but those."""
        for pod_uid in sorted(self.host.names_in(volume_paths.ALL_PODS) or ()):
            if pod_uid not in known:
                self.pod(pod_uid)

    def pod(self, pod_uid: str) -> None:
        """Its volumes' folders; the pod's own only where nothing else is in it."""
        folder = volume_paths.pod_csi_volumes(pod_uid)
        for name in sorted(self.host.names_in(folder) or ()):
            self._mount((*folder, name, volume_paths.MOUNT))
        self._remove_if_empty(folder)
        had_devices = self._links(pod_uid)
        if self._remove_if_empty(volume_paths.pod_volumes(pod_uid)) or had_devices or pod_uid in self.old_pods:
            self._remove_if_empty(volume_paths.pod_folder(pod_uid))

    def staging(self, known: Collection[Names]) -> None:
        """Of all staging folders but those."""
        for _driver, folder in list(staging_folders(self.host)):
            if folder not in known:
                self._mount((*folder, volume_paths.GLOBAL_MOUNT))

    def block_volumes(self, known: Collection[str]) -> None:
        """Of all raw block volumes but those."""
        names = set(block_names(self.host))
        for folder in (volume_paths.BLOCK_STAGING, volume_paths.BLOCK_PUBLISH):
            names |= self.host.names_in((*volume_paths.BLOCK_ROOT, folder)) or frozenset()
        for name in sorted(names.difference(map(volume_paths.escaped, known))):
            self._block_volume(name)

    def _block_volume(self, name: str) -> None:
        try:
            block_folders.remove_volume(self.host, name)
        except HostError as error:
            self.left.append(str(error))

    def _links(self, pod_uid: str) -> bool:
        """Of devices; a link is nothing by itself. Whether a folder of them went."""
        folder = volume_paths.pod_csi_devices(pod_uid)
        for name in sorted(self.host.names_in(folder) or ()):
            try:
                self.host.remove_link((*folder, name))
            except HostError as error:
                self.left.append(str(error))
        self._remove_if_empty(folder)
        return self._remove_if_empty(volume_paths.pod_devices(pod_uid))

    def _mount(self, target: Names) -> None:
        try:
            if self.host.is_mounted(target):
                self.left.append(
                    f"{self.host.path_of(target)} is mounted, and nothing says by which driver: unmount it"
                )
                return
            remove_mount(self.host, target)
        except HostError as error:
            self.left.append(str(error))

    def _remove_if_empty(self, folder: Names) -> bool:
        try:
            return self.host.names_in(folder) == frozenset() and self.host.remove_folder(folder)
        except HostError as error:
            self.left.append(str(error))
            return False
