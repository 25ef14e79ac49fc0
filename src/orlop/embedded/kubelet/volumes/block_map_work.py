"""Gives one pod the device of a raw block volume: the steps of kubelet's MapVolume, in their order.

    node affinity → one pod alone (ReadWriteOncePod) → attachment → SetUpDevice: vol_data.json, folder, NodeStage
    → MapPodDevice: folder, NodePublish → the device is mounted for the pod, linked, held by a loop device
    → NodeExpand where the PV has grown → mapped

The file stands before the driver is asked. Kubelet makes the whole staging path, but of a target only the parent: the
target is the driver's. Once it has published, every failure leaves the volume perhaps mapped, to be unmapped.
A driver that says success and leaves nothing, a plain file or a folder is not believed: pods get devices, or nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from orlop.csi.proto import rpc
from orlop.embedded.kubelet.volumes import block_folders, volume_data, volume_paths
from orlop.embedded.kubelet.volumes import csi_request_rules as requests
from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.actual_state import ActualState
from orlop.embedded.kubelet.volumes.attachments import Attachments
from orlop.embedded.kubelet.volumes.csi_driver_facts import driver_facts
from orlop.embedded.kubelet.volumes.csi_request_rules import StepFacts
from orlop.embedded.kubelet.volumes.driver_talk import read_secret, talk_with
from orlop.embedded.kubelet.volumes.expansion_work import ExpansionWork
from orlop.embedded.kubelet.volumes.mount_checks import MountChecks
from orlop.embedded.kubelet.volumes.mount_folders import MountFolders
from orlop.embedded.kubelet.volumes.outcome_rules import Failure, MountChange, after_failed_publish, after_failed_stage
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools, reference_to
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount, Device, MountState, VolumeSpec
from orlop.host.errors import HostError

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
        tools: VolumeTools,
        actual: ActualState,
        attachments: Attachments,
        checks: MountChecks,
        expansion: ExpansionWork,
    ) -> None:
        self._tools = tools
        self._actual = actual
        self._attachments = attachments
        self._checks = checks
        self._expansion = expansion
        self._folders = MountFolders(tools)

    async def map(self, mount: DesiredMount) -> None:
        """StepFailed tells which step failed; the actual state says then what is known."""
        await self._checks.node(mount, texts.MAP_NODE_AFFINITY)
        self._checks.one_pod(mount, texts.SET_UP_DEVICE)
        context = await self._attachments.publish_context(mount, texts.MAP_WAIT_FOR_ATTACH)
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
        """The file also for a driver that does not stage: it says whom to ask when the volume goes."""
        spec, prefix = mount.spec, texts.SET_UP_DEVICE
        async with talk_with(self._tools, spec.driver, prefix, SET_UP_DOING) as driver:
            abilities = await driver.abilities(STAGE_ASKING)
            stages = requests.STAGES in abilities
            asked_for = spec.stage_secret if stages else None
            secrets = await read_secret(self._tools.client, asked_for, NO_STAGE_WORDS, prefix)
            await self._write_data(spec)
            if not stages:
                return False
            staging = volume_paths.block_staging(spec.name)
            await self._folders.make(staging, prefix, "blockMapper.stageVolumeForBlock")
            facts = StepFacts(abilities, publish_context=context, secrets=secrets)
            request = requests.stage_request(mount, facts, self._tools.host.path_of(staging))
            await driver.call(rpc.NODE_STAGE_VOLUME, request)
        return True

    async def _write_data(self, spec: VolumeSpec) -> None:
        folder, prefix = volume_paths.block_data(spec.name), texts.NEW_MAPPER
        await self._folders.make(folder, prefix, "csi.NewBlockVolumeMapper")
        data = volume_data.publish_data(spec, self._tools.node)
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
            await self._try(partial(block_folders.remove_volume, self._tools.host, mount.spec.name))

    async def _is_mapped_for_anybody(self, mount: DesiredMount) -> bool:
        try:
            look = partial(block_folders.mapped_places, self._tools.host, mount.spec.name)
            return bool(await self._tools.in_thread(look))
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
        spec, prefix, host = mount.spec, texts.MAP_POD_DEVICE, self._tools.host
        async with talk_with(self._tools, spec.driver, prefix, MAP_DOING) as driver:
            about = driver_facts(self._tools.csi_driver(spec.driver))
            secrets = await read_secret(self._tools.client, spec.publish_secret, NO_PUBLISH_WORDS, prefix)
            facts = StepFacts(await driver.abilities(), about, context, secrets)
            await self._prepare(mount)
            staging = host.path_of(volume_paths.block_staging(spec.name))
            target = host.path_of(volume_paths.block_publish(spec.name, mount.pod.uid))
            await driver.call(rpc.NODE_PUBLISH_VOLUME, requests.publish_request(mount, facts, staging, target))

    async def _prepare(self, mount: DesiredMount) -> None:
        try:
            await self._tools.in_thread(
                partial(block_folders.prepare_pod, self._tools.host, mount.spec.name, mount.pod.uid)
            )
        except HostError as error:
            raise StepFailed(texts.MAP_POD_DEVICE, str(error)) from None

    async def _map_device(self, mount: DesiredMount) -> None:
        try:
            await self._tools.in_thread(
                partial(block_folders.map_device, self._tools.host, mount.spec.name, mount.pod.uid)
            )
        except HostError as error:
            raise self._not_mapped(mount, error) from None

    def _not_mapped(self, mount: DesiredMount, error: HostError) -> StepFailed:
        if error.errno == errno.ENOTBLK:
            why = texts.no_device(mount.spec.driver, str(error))
            return StepFailed(texts.MAP_BLOCK_VOLUME, why, Failure.NOT_FINAL)
        if error.errno == errno.ENOENT:
            path = self._tools.host.path_of(volume_paths.block_publish(mount.spec.name, mount.pod.uid))
            return StepFailed(texts.EVAL_LINKS, texts.nothing_to_resolve(path), Failure.NOT_FINAL)
        return StepFailed(texts.MAP_BLOCK_VOLUME, str(error), Failure.NOT_FINAL)

    async def _publish_failed(self, mount: DesiredMount, error: StepFailed) -> None:
        host, name, pod_uid = self._tools.host, mount.spec.name, mount.pod.uid
        before = self._actual.mount(mount.volume, pod_uid)
        is_mapped = await self._tools.in_thread(partial(block_folders.is_something_mapped, host, name, pod_uid))
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
        path_of, about = self._tools.host.path_of, reference_to(mount.pod)
        link = volume_paths.pod_device_link(mount.pod.uid, mount.spec.name)
        for what, folder in (
            ("globalMapPath", volume_paths.block_devices(mount.spec.name)),
            ("volumeMapPath", link[:-1]),
        ):
            note = texts.mapped(mount.spec.name, what, path_of(folder))
            self._tools.events.normal(about, texts.SUCCESSFUL_MOUNT, note)

    async def _try(self, work: Callable[[], object]) -> None:
        """What cannot be removed now is found by the next sweep."""
        try:
            await self._tools.in_thread(work)
        except HostError as error:
            self._tools.log.warning("something of a raw block volume is left", error=str(error))
