"""Undoes what `block_map_work` did: a device leaves a pod, and after its last pod the node.

    pod:  vol_data.json read → loop device, link and mount go → NodeUnpublish → what the driver left is looked at
          → dev/<pod> removed → forgotten
    node: mapped for no pod → NodeUnstage, where there is a staging path → folders and file removed → not mounted

A driver that says success and leaves its mount is asked again, later and later, and the pod does not finish. Any error
leaves the state uncertain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from orlop.csi.proto import rpc
from orlop.embedded.kubelet.volumes import block_folders, volume_data, volume_paths
from orlop.embedded.kubelet.volumes import csi_request_rules as requests
from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.actual_state import ActualState
from orlop.embedded.kubelet.volumes.driver_talk import talk_with
from orlop.embedded.kubelet.volumes.mount_folders import MountFolders
from orlop.embedded.kubelet.volumes.outcome_rules import Failure
from orlop.embedded.kubelet.volumes.step_failures import NotPrepared, StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import ActualMount, Device, UniqueName, VolumeMode, VolumeSpec
from orlop.host.errors import HostError

UNMAP_DOING: Final = "blockMapper.UnmapPodDevice failed to get CSI client"
TEAR_DOWN_DOING: Final = "blockMapper.TearDownDevice failed to get CSI client"
UNPUBLISH_ASKING: Final = f"{texts.PLUGIN}blockMapper.unpublishVolumeForBlock failed: "
UNSTAGE_ASKING: Final = f"{texts.PLUGIN}blockMapper.unstageVolumeForBlock failed: "
STAGES_ASKING: Final = (
    f"{texts.PLUGIN}blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: "
)


class BlockUnmapWork:
    def __init__(self, tools: VolumeTools, actual: ActualState) -> None:
        self._tools = tools
        self._actual = actual
        self._folders = MountFolders(tools)

    # ---- from a pod ----------------------------------------------------------------------------------------------

    async def unmap(self, volume: UniqueName, mount: ActualMount) -> None:
        host, name, pod_uid = self._tools.host, mount.spec.name, mount.pod_uid
        data = await self._data(mount)
        try:
            await self._do(partial(block_folders.unmap_device, host, name, pod_uid), texts.UNMAP_BLOCK_VOLUME)
            if data is not None:
                await self._unpublish(data, mount)
            await self._do(partial(block_folders.forget_pod, host, name, pod_uid), texts.UNMAP_POD_DEVICE)
        except StepFailed:
            self._actual.mark_uncertain(volume, pod_uid)
            raise
        self._actual.drop_mount(volume, pod_uid)

    async def _data(self, mount: ActualMount) -> VolumeSpec | None:
        folder = volume_paths.block_data(mount.spec.name)
        found = volume_data.published_spec(await self._folders.read_data(folder), VolumeMode.BLOCK)
        if found is None:
            look = partial(block_folders.is_anything_there, self._tools.host, mount.spec.name, mount.pod_uid)
            if await self._tools.in_thread(look):
                path_of = self._tools.host.path_of
                why = texts.no_data_file("unmapper", path_of(folder), path_of(volume_paths.data_file(folder)))
                raise NotPrepared(texts.NEW_UNMAPPER, why)
        return found

    async def _unpublish(self, data: VolumeSpec, mount: ActualMount) -> None:
        target = self._tools.host.path_of(volume_paths.block_publish(mount.spec.name, mount.pod_uid))
        async with talk_with(self._tools, data.driver, texts.UNMAP_POD_DEVICE, UNMAP_DOING) as asked:
            request = requests.unpublish_request(data.handle, target)
            await asked.call(rpc.NODE_UNPUBLISH_VOLUME, request, UNPUBLISH_ASKING)

    # ---- from the node -------------------------------------------------------------------------------------------

    async def unmap_from_node(self, volume: UniqueName) -> None:
        spec, host = self._actual.volumes[volume].spec, self._tools.host
        await self._check_pods(spec)
        try:
            if await self._folders.is_there(volume_paths.block_staging(spec.name)):
                await self._unstage(spec)
            await self._do(partial(block_folders.remove_volume, host, spec.name), texts.REMOVE_MAP_PATH)
        except StepFailed:
            self._actual.set_device(volume, Device.UNCERTAIN)
            raise
        self._actual.set_device(volume, Device.NOT_MOUNTED)

    async def _check_pods(self, spec: VolumeSpec) -> None:
        """A pod's device that our books have lost must not lose its staging."""
        host = self._tools.host
        try:
            found = await self._tools.in_thread(partial(block_folders.mapped_places, host, spec.name))
        except HostError as error:
            raise StepFailed(texts.BIND_REFERENCES, str(error)) from None
        if found:
            path = host.path_of(volume_paths.block_devices(spec.name))
            raise StepFailed(texts.UNMAP_DEVICE, texts.still_referenced(path, map(host.path_of, found)))

    async def _unstage(self, spec: VolumeSpec) -> None:
        path = self._tools.host.path_of(volume_paths.block_staging(spec.name))
        async with talk_with(self._tools, spec.driver, texts.TEAR_DOWN_DEVICE, TEAR_DOWN_DOING) as asked:
            if requests.STAGES in await asked.abilities(STAGES_ASKING):
                request = requests.unstage_request(spec.handle, path)
                await asked.call(rpc.NODE_UNSTAGE_VOLUME, request, UNSTAGE_ASKING)

    async def _do(self, work: Callable[[], None], prefix: str) -> None:
        try:
            await self._tools.in_thread(work)
        except HostError as error:
            raise StepFailed(prefix, str(error), Failure.NOT_FINAL) from None
