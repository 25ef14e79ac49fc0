"""Map the device of a raw block volume for one pod, and undo it: kubelet's MapVolume and UnmapVolume.

    map:    check the preconditions (mount_preconditions)
            → SetUpDevice: vol_data.json, folder, NodeStage → MapPodDevice: folder, NodePublish
            → the device is mounted for the pod, linked, held by a loop device
            → NodeExpand where the PV has grown → mapped
    unmap:  vol_data.json read → loop device, link and mount go → NodeUnpublish → what the driver left is checked
            → dev/<pod> removed → forgotten
    node:   mapped for no pod → NodeUnstage, where there is a staging path → folders and file removed → not mounted

The file stands before the driver is asked. Kubelet makes the whole staging path, but of a target only the parent: the
target is the driver's. Once it has published, every failure leaves the volume perhaps mapped, to be unmapped.
A driver that says success and leaves nothing, a plain file or a folder is not believed: pods get devices, or nothing.
One that says success of an unpublish and leaves its mount is asked again, later and later, and the pod does not finish.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import block_folders, volume_data
from onenode.kubelet.volumes.steps import csi_request_rules as requests
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.csi_request_rules import StepFacts, facts_of
from onenode.kubelet.volumes.steps.driver_calls import read_secret, talk_with
from onenode.kubelet.volumes.steps.expansion_work import ExpansionWork
from onenode.kubelet.volumes.steps.mount_folders import MountFolders
from onenode.kubelet.volumes.steps.outcome_rules import (
    FailureKind,
    MountChange,
    NotPrepared,
    StepFailed,
    after_failed_publish,
    after_failed_stage,
)
from onenode.kubelet.volumes.volume_seams import KubeletDisk, StepDrivers, reference_to
from onenode.kubelet.volumes.volume_values import (
    ActualMount,
    DesiredMount,
    Device,
    MountState,
    UniqueName,
    VolumeMode,
    VolumeSpec,
)
from orlop.csi.proto import rpc
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError

SET_UP_DOING: Final = "blockMapper.SetUpDevice failed to get CSI client"
MAP_DOING: Final = "blockMapper.MapPodDevice failed to get CSI client"
STAGE_ASKING: Final = f"{texts.PLUGIN}blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: "
NO_STAGE_WORDS: Final = f"{texts.PLUGIN}failed to get NodeStageSecretRef {{name}}: {{error}}"
NO_PUBLISH_WORDS: Final = (
    f"{texts.PLUGIN}blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef {{name}}: {{error}}"
)


class BlockMapWork:
    def __init__(
        self,
        api: NodeApi,
        drivers: StepDrivers,
        disk: KubeletDisk,
        actual: ActualState,
        expansion: ExpansionWork,
        runtime: Runtime,
    ) -> None:
        self._api = api
        self._drivers = drivers
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._actual = actual
        self._expansion = expansion
        self._runtime = runtime
        self._folders = MountFolders(disk, runtime.log)

    async def map(self, mount: DesiredMount, context: dict[str, str]) -> None:
        """Map a volume whose preconditions were checked. `context` is the publish context of its attachment.

        Raise StepFailed with the name of the step, after the actual state notes what may be mapped.
        """
        has_staged = await self._set_up_device(mount, context)
        await self._map_pod_device(mount, context, has_staged=has_staged)

    # ---- staging -------------------------------------------------------------------------------------------------

    async def _set_up_device(self, mount: DesiredMount, context: dict[str, str]) -> bool:
        """Whether the driver has staged it now."""
        if self._actual.device(mount.volume) is Device.MOUNTED:
            return False
        try:
            has_staged = await self._stage(mount, context)
        except StepFailed as error:
            await self._stage_failed(mount, error)
            raise
        self._actual.set_device(mount.volume, Device.MOUNTED)
        return has_staged

    async def _stage(self, mount: DesiredMount, context: dict[str, str]) -> bool:
        """Stage the device. The data file is needed also without staging: it names the driver for the unmap."""
        spec, prefix = mount.spec, texts.SET_UP_DEVICE
        async with talk_with(self._drivers, self._runtime.clock, spec.driver, prefix, SET_UP_DOING) as driver:
            capabilities = await driver.capabilities(STAGE_ASKING)
            stages = requests.STAGES in capabilities
            asked_for = spec.stage_secret if stages else None
            secrets = await read_secret(self._api.kube, asked_for, NO_STAGE_WORDS, prefix)
            await self._write_data(spec)
            if not stages:
                return False
            staging = volume_paths.block_staging(spec.name)
            await self._folders.make(staging, prefix, "blockMapper.stageVolumeForBlock")
            facts = StepFacts(capabilities, publish_context=context, secrets=secrets)
            request = requests.stage_request(mount, facts, self._host.path_of(staging))
            await driver.call(rpc.NODE_STAGE_VOLUME, request)
        return True

    async def _write_data(self, spec: VolumeSpec) -> None:
        folder, prefix = volume_paths.block_data(spec.name), texts.NEW_MAPPER
        await self._folders.make(folder, prefix, "csi.NewBlockVolumeMapper")
        data = volume_data.publish_data(spec, self._api.node_name)
        await self._folders.write_data(folder, data, prefix, "csi.NewBlockVolumeMapper ")

    async def _stage_failed(self, mount: DesiredMount, error: StepFailed) -> None:
        outcome = after_failed_stage(
            self._actual.device(mount.volume),
            error.failure,
            reconstructed=self._actual.is_reconstructed(mount.volume),
            is_mounted=await self._is_mapped_for_anybody(mount),
        )
        self._actual.set_device(mount.volume, outcome.device)
        if outcome.remove_folders:
            await self._try(partial(block_folders.remove_volume, self._host, mount.spec.name))

    async def _is_mapped_for_anybody(self, mount: DesiredMount) -> bool:
        try:
            look = partial(block_folders.mapped_places, self._host, mount.spec.name)
            return bool(await self._in_thread(look))
        except HostError:
            return True

    # ---- publishing ----------------------------------------------------------------------------------------------

    async def _map_pod_device(self, mount: DesiredMount, context: dict[str, str], *, has_staged: bool) -> None:
        try:
            await self._publish(mount, context)
            await self._map_device(mount)
            self._tell_success(mount)
            await self._expansion.at_mount(mount, has_staged=has_staged)
        except StepFailed as error:
            await self._publish_failed(mount, error)
            raise
        self._actual.set_mount(mount.volume, mount.pod.uid, mount.spec, MountState.MOUNTED)

    async def _publish(self, mount: DesiredMount, context: dict[str, str]) -> None:
        spec, prefix, host = mount.spec, texts.MAP_POD_DEVICE, self._host
        async with talk_with(self._drivers, self._runtime.clock, spec.driver, prefix, MAP_DOING) as driver:
            about = facts_of(spec.driver, self._drivers.csi_driver(spec.driver))
            secrets = await read_secret(self._api.kube, spec.publish_secret, NO_PUBLISH_WORDS, prefix)
            facts = StepFacts(await driver.capabilities(), about, context, secrets)
            await self._prepare(mount)
            staging = host.path_of(volume_paths.block_staging(spec.name))
            target = host.path_of(volume_paths.block_publish(spec.name, mount.pod.uid))
            await driver.call(rpc.NODE_PUBLISH_VOLUME, requests.publish_request(mount, facts, staging, target))

    async def _prepare(self, mount: DesiredMount) -> None:
        try:
            await self._in_thread(partial(block_folders.prepare_pod, self._host, mount.spec.name, mount.pod.uid))
        except HostError as error:
            raise StepFailed(texts.MAP_POD_DEVICE, str(error)) from None

    async def _map_device(self, mount: DesiredMount) -> None:
        try:
            await self._in_thread(partial(block_folders.map_device, self._host, mount.spec.name, mount.pod.uid))
        except HostError as error:
            raise self._not_mapped(mount, error) from None

    def _not_mapped(self, mount: DesiredMount, error: HostError) -> StepFailed:
        if error.errno == errno.ENOTBLK:
            why = texts.no_device(mount.spec.driver, str(error))
            return StepFailed(texts.MAP_BLOCK_VOLUME, why, FailureKind.NOT_FINAL)
        if error.errno == errno.ENOENT:
            path = self._host.path_of(volume_paths.block_publish(mount.spec.name, mount.pod.uid))
            return StepFailed(texts.EVAL_LINKS, texts.nothing_to_resolve(path), FailureKind.NOT_FINAL)
        return StepFailed(texts.MAP_BLOCK_VOLUME, str(error), FailureKind.NOT_FINAL)

    async def _publish_failed(self, mount: DesiredMount, error: StepFailed) -> None:
        host, name, pod_uid = self._host, mount.spec.name, mount.pod.uid
        before = self._actual.mount(mount.volume, pod_uid)
        is_mapped = await self._in_thread(partial(block_folders.is_something_mapped, host, name, pod_uid))
        outcome = after_failed_publish(before, error.failure, is_mounted=is_mapped)
        match outcome.change:
            case MountChange.UNCERTAIN:
                self._actual.set_mount(mount.volume, pod_uid, mount.spec, MountState.UNCERTAIN)
            case MountChange.DROP:
                await self._try(partial(host.remove_file, volume_paths.block_device(name, pod_uid)))
                self._actual.drop_mount(mount.volume, pod_uid)
            case MountChange.KEEP:
                pass

    def _tell_success(self, mount: DesiredMount) -> None:
        path_of, about = self._host.path_of, reference_to(mount.pod)
        link = volume_paths.pod_device_link(mount.pod.uid, mount.spec.name)
        for what, folder in (
            ("globalMapPath", volume_paths.block_devices(mount.spec.name)),
            ("volumeMapPath", link[:-1]),
        ):
            note = texts.mapped(mount.spec.name, what, path_of(folder))
            self._api.events.normal(about, texts.SUCCESSFUL_MOUNT, note)

    async def _try(self, work: Callable[[], object]) -> None:
        """Remove something; the next sweep finds what cannot be removed now."""
        try:
            await self._in_thread(work)
        except HostError as error:
            self._runtime.log.warning("raw block volume not removed completely", error=str(error))


UNMAP_DOING: Final = "blockMapper.UnmapPodDevice failed to get CSI client"
TEAR_DOWN_DOING: Final = "blockMapper.TearDownDevice failed to get CSI client"
UNPUBLISH_ASKING: Final = f"{texts.PLUGIN}blockMapper.unpublishVolumeForBlock failed: "
UNSTAGE_ASKING: Final = f"{texts.PLUGIN}blockMapper.unstageVolumeForBlock failed: "
STAGES_ASKING: Final = (
    f"{texts.PLUGIN}blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability: "
)


class BlockUnmapWork:
    def __init__(self, drivers: StepDrivers, disk: KubeletDisk, actual: ActualState, runtime: Runtime) -> None:
        self._drivers = drivers
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._actual = actual
        self._runtime = runtime
        self._folders = MountFolders(disk, runtime.log)

    # ---- from a pod ----------------------------------------------------------------------------------------------

    async def unmap(self, volume: UniqueName, mount: ActualMount) -> None:
        host, name, pod_uid = self._host, mount.spec.name, mount.pod_uid
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
            look = partial(block_folders.is_anything_there, self._host, mount.spec.name, mount.pod_uid)
            if await self._in_thread(look):
                path_of = self._host.path_of
                why = texts.no_data_file("unmapper", path_of(folder), path_of(volume_paths.data_file(folder)))
                raise NotPrepared(texts.NEW_UNMAPPER, why)
        return found

    async def _unpublish(self, data: VolumeSpec, mount: ActualMount) -> None:
        target = self._host.path_of(volume_paths.block_publish(mount.spec.name, mount.pod_uid))
        async with talk_with(
            self._drivers, self._runtime.clock, data.driver, texts.UNMAP_POD_DEVICE, UNMAP_DOING
        ) as asked:
            request = requests.unpublish_request(data.handle, target)
            await asked.call(rpc.NODE_UNPUBLISH_VOLUME, request, UNPUBLISH_ASKING)

    # ---- from the node -------------------------------------------------------------------------------------------

    async def unmap_from_node(self, volume: UniqueName) -> None:
        spec, host = self._actual.volumes[volume].spec, self._host
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
        """Refuse to unstage while a pod still has the device, also if the actual state has lost that mapping."""
        host = self._host
        try:
            found = await self._in_thread(partial(block_folders.mapped_places, host, spec.name))
        except HostError as error:
            raise StepFailed(texts.BIND_REFERENCES, str(error)) from None
        if found:
            path = host.path_of(volume_paths.block_devices(spec.name))
            raise StepFailed(texts.UNMAP_DEVICE, texts.still_referenced(path, map(host.path_of, found)))

    async def _unstage(self, spec: VolumeSpec) -> None:
        path = self._host.path_of(volume_paths.block_staging(spec.name))
        async with talk_with(
            self._drivers, self._runtime.clock, spec.driver, texts.TEAR_DOWN_DEVICE, TEAR_DOWN_DOING
        ) as asked:
            if requests.STAGES in await asked.capabilities(STAGES_ASKING):
                request = requests.unstage_request(spec.handle, path)
                await asked.call(rpc.NODE_UNSTAGE_VOLUME, request, UNSTAGE_ASKING)

    async def _do(self, work: Callable[[], None], prefix: str) -> None:
        try:
            await self._in_thread(work)
        except HostError as error:
            raise StepFailed(prefix, str(error), FailureKind.NOT_FINAL) from None
