"""Mount one volume into one pod: the steps of kubelet's MountVolume, in their order.

    check the preconditions (mount_preconditions) → MountDevice: folder, vol_data.json, NodeStage
    → SetUp: folder, vol_data.json, NodePublish, fsGroup → NodeExpand where the PV has grown → mounted

The file vol_data.json is written before the driver is called, so that the next kubelet can find and undo what a killed
one left. Kubelet makes the whole staging path, but only the parent of a target: the driver makes the target. After a
final error, the folders are removed at once where nothing is mounted (see `outcome_rules`).

If a driver returns success and leaves nothing at the target, the step counts as failed, and as one that may have taken
effect. If it leaves a plain folder, the step counts as successful, as for kubelet, and an event reports it: the driver
may intend it.
"""

from __future__ import annotations

from typing import Final

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import csi_request_rules as requests
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps import volume_data
from onenode.kubelet.volumes.steps.block_work import BlockMapWork
from onenode.kubelet.volumes.steps.csi_request_rules import CsiDriverFacts, StepFacts, facts_of
from onenode.kubelet.volumes.steps.driver_calls import AnyTalk, read_secret, talk_with
from onenode.kubelet.volumes.steps.expansion_work import ExpansionWork
from onenode.kubelet.volumes.steps.fs_group import FsGroup, NoPolicy, check_policy, group_to_apply
from onenode.kubelet.volumes.steps.mount_folders import MountFolders
from onenode.kubelet.volumes.steps.outcome_rules import (
    FailureKind,
    MountChange,
    StepFailed,
    after_failed_publish,
    after_failed_stage,
)
from onenode.kubelet.volumes.steps.pod_tokens import ServiceAccountTokens
from onenode.kubelet.volumes.volume_seams import KubeletDisk, StepDrivers, reference_to
from onenode.kubelet.volumes.volume_values import LOCAL_DRIVER, DesiredMount, Device, MountState, VolumeMode
from orlop.csi.proto import rpc
from orlop.foundation.runtime import Runtime

DEVICE_DOING: Final = "attacher.MountDevice failed to create newCsiDriverClient"
SET_UP_ASKING: Final = f"{texts.PLUGIN}mounter.SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability: "
INLINE_ASKING: Final = (
    f"{texts.PLUGIN}mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability: "
)
NO_STAGE_WORDS: Final = "fetching NodeStageSecretRef {name} failed: {error}"
NO_PUBLISH_WORDS: Final = "fetching NodePublishSecretRef {name} failed: {error}"
SET_UP_DOING: Final = "mounter.SetUpAt failed to get CSI client"


class MountWork:
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
        self._actual = actual
        self._expansion = expansion
        self._clock = runtime.clock
        self._blocks = BlockMapWork(api, drivers, disk, actual, expansion, runtime)
        self._folders = MountFolders(disk, runtime.log)
        self._fs_group = FsGroup(disk, api.events, runtime)
        self._tokens = ServiceAccountTokens(api.kube, runtime)

    async def mount(self, mount: DesiredMount, context: dict[str, str]) -> None:
        """Mount a volume whose preconditions were checked. `context` is the publish context of its attachment.

        Raise StepFailed with the name of the step, after the actual state notes what may be mounted.
        """
        if mount.spec.mode is VolumeMode.BLOCK:
            await self._blocks.map(mount, context)
            return
        if not mount.spec.is_inline:
            await self._mount_device(mount, context)
        await self._set_up(mount, context)

    # ---- staging -------------------------------------------------------------------------------------------------

    async def _mount_device(self, mount: DesiredMount, context: dict[str, str]) -> None:
        if self._actual.device(mount.volume) is Device.MOUNTED:
            return
        try:
            await self._stage(mount, context)
        except StepFailed as error:
            await self._stage_failed(mount, error)
            raise
        self._actual.set_device(mount.volume, Device.MOUNTED)

    async def _stage(self, mount: DesiredMount, context: dict[str, str]) -> None:
        spec, prefix = mount.spec, texts.MOUNT_DEVICE
        async with talk_with(self._drivers, self._clock, spec.driver, prefix, DEVICE_DOING) as driver:
            capabilities = await driver.capabilities()
            secrets = await read_secret(self._api.kube, spec.stage_secret, NO_STAGE_WORDS, prefix)
            facts = StepFacts(capabilities, publish_context=context, secrets=secrets)
            target = volume_paths.global_mount(spec.driver, spec.handle)
            await self._folders.make(target, prefix, "attacher.MountDevice")
            if not facts.stages:
                return
            await self._folders.write_data(target[:-1], volume_data.stage_data(spec), prefix, "")
            request = requests.stage_request(mount, facts, self._host.path_of(target))
            await driver.call(rpc.NODE_STAGE_VOLUME, request)

    async def _stage_failed(self, mount: DesiredMount, error: StepFailed) -> None:
        target = volume_paths.global_mount(mount.spec.driver, mount.spec.handle)
        outcome = after_failed_stage(
            self._actual.device(mount.volume),
            error.failure,
            reconstructed=self._actual.is_reconstructed(mount.volume),
            is_mounted=await self._folders.is_mounted(target),
        )
        self._actual.set_device(mount.volume, outcome.device)
        if outcome.remove_folders:
            await self._folders.try_remove(target)

    # ---- publishing ----------------------------------------------------------------------------------------------

    async def _set_up(self, mount: DesiredMount, context: dict[str, str]) -> None:
        try:
            await self._publish(mount, context)
            await self._expansion.at_mount(mount, has_staged=True)
        except StepFailed as error:
            await self._publish_failed(mount, error)
            raise
        self._actual.set_mount(mount.volume, mount.pod.uid, mount.spec, MountState.MOUNTED)

    async def _publish(self, mount: DesiredMount, context: dict[str, str]) -> None:
        spec = mount.spec
        target = volume_paths.mount_target(mount.pod.uid, spec.name)
        async with talk_with(self._drivers, self._clock, spec.driver, texts.SET_UP, SET_UP_DOING) as driver:
            facts = await self._publish_facts(mount, context, driver)
            await self._folders.make(target[:-1], texts.SET_UP, "mounter.SetUpAt")
            data = volume_data.publish_data(spec, self._api.node_name)
            await self._folders.write_data(target[:-1], data, texts.SET_UP, "mounter.SetUpAt ")
            staging = self._host.path_of(volume_paths.global_mount(spec.driver, spec.handle))
            request = requests.publish_request(mount, facts, staging, self._host.path_of(target))
            await driver.call(rpc.NODE_PUBLISH_VOLUME, request)
        await self._look_at(mount)
        if (group := group_to_apply(mount, facts)) is not None and not self._is_shared(mount):
            await self._fs_group.apply(mount, group)

    def _is_shared(self, mount: DesiredMount) -> bool:
        """Return whether another pod has this local volume. As in kubelet, its files keep the first pod's group."""
        is_local = mount.spec.driver == LOCAL_DRIVER
        return is_local and self._actual.is_used_by_others(mount.volume, mount.pod.uid)

    async def _publish_facts(self, mount: DesiredMount, context: dict[str, str], driver: AnyTalk) -> StepFacts:
        about = facts_of(mount.spec.driver, self._drivers.csi_driver(mount.spec.driver))
        _check_lifecycle(mount, about)
        secret = mount.spec.publish_secret
        facts = StepFacts(
            await driver.capabilities(INLINE_ASKING if mount.spec.is_inline else SET_UP_ASKING),
            about,
            context,
            await read_secret(self._api.kube, secret, NO_PUBLISH_WORDS, texts.SET_UP),
            await self._tokens.of(mount, about),
        )
        try:
            check_policy(facts)
        except NoPolicy as error:
            raise StepFailed(texts.SET_UP, str(error)) from None
        return facts

    async def _look_at(self, mount: DesiredMount) -> None:
        target = volume_paths.mount_target(mount.pod.uid, mount.spec.name)
        path = self._host.path_of(target)
        if not await self._folders.is_there(target):
            why = texts.nothing_there(mount.spec.driver, path)
            raise StepFailed(texts.SET_UP, why, FailureKind.NOT_FINAL)
        if not await self._folders.is_mounted(target):
            note = texts.not_a_mount(mount.spec.name, mount.spec.driver, path)
            self._api.events.warning(reference_to(mount.pod), texts.NOT_A_MOUNT, note)

    async def _publish_failed(self, mount: DesiredMount, error: StepFailed) -> None:
        target = volume_paths.mount_target(mount.pod.uid, mount.spec.name)
        before = self._actual.mount(mount.volume, mount.pod.uid)
        outcome = after_failed_publish(before, error.failure, is_mounted=await self._folders.is_mounted(target))
        if outcome.remove_folders:
            # Before it is forgotten: a folder that stays is then still somebody's.
            await self._folders.try_remove(target)
        match outcome.change:
            case MountChange.UNCERTAIN:
                self._actual.set_mount(mount.volume, mount.pod.uid, mount.spec, MountState.UNCERTAIN)
            case MountChange.DROP:
                self._actual.drop_mount(mount.volume, mount.pod.uid)
            case MountChange.KEEP:
                pass


def _check_lifecycle(mount: DesiredMount, about: CsiDriverFacts) -> None:
    mode = mount.spec.lifecycle.value
    if not about.exists and mount.spec.is_inline:
        raise StepFailed(texts.SET_UP, texts.unsupported_mode(mode, mount.spec.driver, None))
    if about.exists and mode not in about.lifecycle_modes:
        raise StepFailed(texts.SET_UP, texts.unsupported_mode(mode, mount.spec.driver, about.lifecycle_modes))
