"""Undoes what `mount_work` did: a volume leaves a pod, and after its last pod the node.

    pod:  vol_data.json read → subPaths unmounted → NodeUnpublish → target, file and folder removed → forgotten
    node: mounted nowhere else → vol_data.json read → NodeUnstage → staging path, file and folder removed → not mounted

Nothing is removed while something is mounted: a driver that says success and leaves its mount is asked again, later and
later, and the pod does not finish. Any error leaves the state uncertain, and is tried again with a growing delay.
Without its file nothing can be asked of a driver: while there is a target, the pod does not finish before somebody has
looked. Without both there is nothing left to undo.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import csi_request_rules as requests
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps import volume_data
from onenode.kubelet.volumes.steps.block_work import BlockUnmapWork
from onenode.kubelet.volumes.steps.driver_calls import talk_with
from onenode.kubelet.volumes.steps.mount_folders import MountFolders, StillMounted
from onenode.kubelet.volumes.steps.outcome_rules import FailureKind, NotPrepared, StepFailed
from onenode.kubelet.volumes.steps.subpaths import SubPaths
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KubeletDisk, StepDrivers
from onenode.kubelet.volumes.volume_values import ActualMount, Device, UniqueName, VolumeMode
from orlop.csi.proto import rpc
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError

TEAR_DOWN_DOING: Final = "Unmounter.TearDownAt failed to get CSI client"
TEAR_DOWN_ASKING: Final = f"{texts.PLUGIN}Unmounter.TearDownAt failed: "
TEAR_DOWN_CLEANING: Final = f"{texts.PLUGIN}Unmounter.TearDownAt failed to clean mount dir [{{target}}]: {{error}}"
DEVICE_ASKING: Final = f"{texts.PLUGIN}attacher.UnmountDevice failed: "
DEVICE_STAGES_ASKING: Final = f"{texts.PLUGIN}attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set: "
DEVICE_CLEANING: Final = f"{texts.PLUGIN}failed to clean up global mount {{folder}}: {{error}}"
STAGING_PLACE: Final = "/plugins/kubernetes.io/"
UNMOUNT_DEVICE_DOING: Final = "attacher.UnmountDevice failed to create newCsiDriverClient"


class UnmountWork:
    def __init__(self, drivers: StepDrivers, disk: KubeletDisk, actual: ActualState, runtime: Runtime) -> None:
        self._drivers = drivers
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._actual = actual
        self._clock = runtime.clock
        self._folders = MountFolders(disk, runtime.log)
        self._subpaths = SubPaths(disk)
        self._blocks = BlockUnmapWork(drivers, disk, actual, runtime)

    # ---- from a pod ----------------------------------------------------------------------------------------------

    async def unmount(self, volume: UniqueName, mount: ActualMount) -> None:
        if mount.spec.mode is VolumeMode.BLOCK:
            await self._blocks.unmap(volume, mount)
            return
        target = volume_paths.mount_target(mount.pod_uid, mount.spec.name)
        data = volume_data.published_spec(await self._folders.read_data(target[:-1]), VolumeMode.FILESYSTEM)
        if data is None and await self._folders.is_there(target):
            path_of, file = self._host.path_of, volume_paths.data_file(target[:-1])
            why = texts.no_data_file("unmounter", path_of(target), path_of(file))
            raise NotPrepared(texts.NEW_UNMOUNTER, why)
        try:
            await self._clean_subpaths(mount)
            if data is not None:
                await self._unpublish(data.driver, data.handle, target)
            await self._remove(target, texts.TEAR_DOWN, TEAR_DOWN_CLEANING)
        except StepFailed:
            self._actual.mark_uncertain(volume, mount.pod_uid)
            raise
        self._actual.drop_mount(volume, mount.pod_uid)

    async def _clean_subpaths(self, mount: ActualMount) -> None:
        try:
            await self._subpaths.clean(mount.pod_uid, mount.spec.name)
        except HostError as error:
            raise StepFailed(texts.SUBPATHS, str(error), FailureKind.NOT_FINAL) from None

    async def _unpublish(self, driver: str, handle: str, target: Names) -> None:
        async with talk_with(self._drivers, self._clock, driver, texts.TEAR_DOWN, TEAR_DOWN_DOING) as asked:
            request = requests.unpublish_request(handle, self._host.path_of(target))
            await asked.call(rpc.NODE_UNPUBLISH_VOLUME, request, TEAR_DOWN_ASKING)

    # ---- from the node -------------------------------------------------------------------------------------------

    async def unmount_device(self, volume: UniqueName) -> None:
        spec = self._actual.volumes[volume].spec
        if spec.mode is VolumeMode.BLOCK:
            await self._blocks.unmap_from_node(volume)
            return
        target = volume_paths.global_mount(spec.driver, spec.handle)
        try:
            await self._check_references(target)
            if volume_data.staged_spec(await self._folders.read_data(target[:-1])) is not None:
                await self._unstage(spec.driver, spec.handle, target)
            await self._remove(target, texts.UNMOUNT_DEVICE, DEVICE_CLEANING)
        except StepFailed:
            self._actual.set_device(volume, Device.UNCERTAIN)
            raise
        self._actual.set_device(volume, Device.NOT_MOUNTED)

    async def _check_references(self, target: Names) -> None:
        """Refuse to unstage while a pod still has the mount, also if the actual state has lost that mount."""
        host = self._host
        try:
            found = await self._in_thread(partial(host.mounted_elsewhere, target))
        except HostError as error:
            raise StepFailed(texts.MOUNT_REFERENCES, str(error)) from None
        others = [path for path in found if STAGING_PLACE not in path]
        if others:
            raise StepFailed(texts.MOUNT_REFERENCES, texts.mounted_elsewhere(host.path_of(target), others))

    async def _unstage(self, driver: str, handle: str, target: Names) -> None:
        async with talk_with(self._drivers, self._clock, driver, texts.UNMOUNT_DEVICE, UNMOUNT_DEVICE_DOING) as asked:
            if requests.STAGES in await asked.capabilities(DEVICE_STAGES_ASKING):
                request = requests.unstage_request(handle, self._host.path_of(target))
                await asked.call(rpc.NODE_UNSTAGE_VOLUME, request, DEVICE_ASKING)

    async def _remove(self, target: Names, prefix: str, words: str) -> None:
        host = self._host
        try:
            await self._folders.remove(target)
        except (StillMounted, HostError) as error:
            why = words.format(target=host.path_of(target), folder=host.path_of(target[:-1]), error=error)
            raise StepFailed(prefix, why, FailureKind.NOT_FINAL) from None
