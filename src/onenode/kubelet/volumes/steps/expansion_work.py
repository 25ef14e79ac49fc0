"""Has a driver expand a volume that grew, on this node: at the end of a mount, and while the volume is in use.

Order: the claim is read → its status says that the node has begun → NodeExpandVolume → events → its status has the new
capacity, and nothing of the resizing any more. Killed in between it is done again, which drivers must bear.

After an error the claim has a condition; where the driver says that it can never be, its status says so too, and the
resizer may begin anew with another size. A driver that cannot while the volume is in use is not asked again here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import csi_request_rules as requests
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps import expansion_rules as rules
from onenode.kubelet.volumes.steps.csi_request_rules import StepFacts
from onenode.kubelet.volumes.steps.driver_calls import read_secret, talk_with
from onenode.kubelet.volumes.steps.expansion_rules import AlreadyExpanded, ExpandOnNode, NotNow
from onenode.kubelet.volumes.steps.outcome_rules import FailureKind, NotPrepared, StepFailed
from onenode.kubelet.volumes.volume_seams import KubeletDisk, StepDrivers, reference_to
from onenode.kubelet.volumes.volume_values import NOTHING, DesiredMount, VolumeMode
from orlop.csi.error_codes import Code
from orlop.csi.proto import rpc
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM

EXPAND_ASKING: Final = "Expander.NodeExpand failed to check if node supports expansion : "
NO_EXPAND_WORDS: Final = "expander.NodeExpand failed to get NodeExpandSecretRef {name}: {error}"
NO_CLAIM: Final = "mountVolume.NodeExpandVolume get PVC failed : "


@dataclass(frozen=True, slots=True)
class _Step:
    mount: DesiredMount
    claim: Any
    prefix: str
    staging: str


class _NotSupported(Exception):
    pass


class ExpansionWork:
    def __init__(
        self, api: NodeApi, drivers: StepDrivers, disk: KubeletDisk, actual: ActualState, runtime: Runtime
    ) -> None:
        self._api = api
        self._drivers = drivers
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._actual = actual
        self._runtime = runtime

    async def at_mount(self, mount: DesiredMount, *, has_staged: bool) -> None:
        """Expand the volume if that is due; raise StepFailed if the mount has to wait for it.

        `has_staged`: this operation has staged it. Only then the request has the staging path of a device.
        """
        is_block = mount.spec.mode is VolumeMode.BLOCK
        if not rules.is_due_at_mount(mount.claim, mount.spec.size):
            return
        prefix = texts.MAP_EXPANDING if is_block else texts.SET_UP_EXPANDING
        staging = self._staging(mount) if has_staged or not is_block else ""
        try:
            await self._expand(mount, prefix, staging)
        except StepFailed as error:
            raise StepFailed(prefix, error.why, FailureKind.NOT_FINAL) from None

    async def in_use(self, mount: DesiredMount) -> None:
        """Expand the volume while it is in use. Raise NotPrepared while it is not yet this node's turn."""
        if not await self._expand(mount, texts.EXPAND, self._staging(mount)):
            raise NotPrepared(texts.EXPAND, "the claim says that it is not this node's turn")

    async def _expand(self, mount: DesiredMount, prefix: str, staging: str) -> bool:
        """Whether the node has done its part."""
        claim = await self._read_claim(mount, prefix)
        if mount.read_only:
            self._tell(mount, claim, texts.read_only_expansion(mount.spec.name), is_warning=True)
            return True
        decision = rules.decide(rules.claim_facts(claim), _size_of(mount))
        match decision:
            case NotNow():
                return False
            case AlreadyExpanded():
                self._actual.set_size(mount.volume, _size_of(mount))
                return True
            case ExpandOnNode():
                return await self._ask(_Step(mount, claim, prefix, staging), decision)

    async def _ask(self, step: _Step, ask: ExpandOnNode) -> bool:
        if not ask.is_older and not ask.is_told:
            step = await self._begun(step)
        try:
            await self._call(step, ask.size)
        except _NotSupported as error:
            if ask.is_older or ask.is_told:
                self._actual.set_size(step.mount.volume, _size_of(step.mount))
                return True
            raise await self._failed(step, ask, StepFailed(step.prefix, str(error))) from None
        except StepFailed as error:
            if error.code is Code.FAILED_PRECONDITION:
                await self._give_up(step, ask, error)
                return True
            raise await self._failed(step, ask, error) from None
        await self._finished(step, ask)
        return True

    # ---- the driver ----------------------------------------------------------------------------------------------

    async def _call(self, step: _Step, size: Quantity) -> None:
        spec = step.mount.spec
        async with talk_with(self._drivers, self._runtime.clock, spec.driver, step.prefix, "") as driver:
            capabilities = await driver.capabilities(EXPAND_ASKING)
            if requests.EXPANDS not in capabilities:
                raise _NotSupported(f"NodeExpand is not supported by the CSI driver {spec.driver}")
            secrets = await read_secret(self._api.kube, spec.expand_secret, NO_EXPAND_WORDS, step.prefix)
            facts = StepFacts(capabilities, secrets=secrets)
            path = await self._volume_path(step)
            request = requests.expand_request(step.mount, facts, path, step.staging, size.value())
            await driver.call(rpc.NODE_EXPAND_VOLUME, request)

    async def _volume_path(self, step: _Step) -> str:
        spec, pod_uid, host = step.mount.spec, step.mount.pod.uid, self._host
        if spec.mode is VolumeMode.FILESYSTEM:
            return host.path_of(volume_paths.mount_target(pod_uid, spec.name))
        try:
            return await self._in_thread(partial(host.device_at, volume_paths.block_publish(spec.name, pod_uid)))
        except HostError as error:
            raise StepFailed(step.prefix, str(error)) from None

    def _staging(self, mount: DesiredMount) -> str:
        spec = mount.spec
        is_block = spec.mode is VolumeMode.BLOCK
        block, folder = volume_paths.block_staging(spec.name), volume_paths.global_mount(spec.driver, spec.handle)
        return self._host.path_of(block if is_block else folder)

    # ---- the claim -----------------------------------------------------------------------------------------------

    async def _read_claim(self, mount: DesiredMount, prefix: str) -> Any:
        assert mount.claim is not None  # noqa: S101 - who has no claim has no size, and is never asked for
        try:
            return await self._api.kube.get(PERSISTENT_VOLUME_CLAIM, mount.claim.name)
        except ApiError as error:
            raise StepFailed(prefix, f"{NO_CLAIM}{error.message}") from None

    async def _begun(self, step: _Step) -> _Step:
        claim = await self._write(step, rules.begun(step.claim), "")
        return _Step(step.mount, claim, step.prefix, step.staging)

    async def _finished(self, step: _Step, ask: ExpandOnNode) -> None:
        note = texts.expanded(step.mount.spec.name, self._api.node_name)
        self._tell(step.mount, step.claim, note, is_warning=False)
        if not ask.is_told:
            words = texts.OLDER_CLAIM_NOT_WRITTEN if ask.is_older else texts.CLAIM_NOT_WRITTEN
            await self._write(step, rules.finished(step.claim, ask.size), words)
        self._actual.set_size(step.mount.volume, max(ask.size, _size_of(step.mount)))

    async def _failed(self, step: _Step, ask: ExpandOnNode, error: StepFailed) -> StepFailed:
        """Write the failure into the status of the claim, if possible; return the error to raise."""
        is_infeasible = error.code in rules.INFEASIBLE_CODES
        words = texts.not_expanded(error.why, is_infeasible=is_infeasible) if error.code else error.why
        failure = StepFailed(step.prefix, words, error.failure)
        if not ask.is_older and not self._is_driver_missing(step):
            wanted = rules.claim_facts(step.claim).requested
            is_given_up = wanted != ask.size and self._actual.has_failed_to_expand(step.mount.volume)
            await self._note_failure(step, words, is_infeasible=is_infeasible or is_given_up)
            self._actual.note_failed_expansion(step.mount.volume)
        return failure

    async def _give_up(self, step: _Step, ask: ExpandOnNode, error: StepFailed) -> None:
        """Stop expanding a volume that cannot be expanded while it is in use. The pod keeps the size that it has."""
        self._actual.stop_expanding(step.mount.volume)
        words = texts.not_expanded(error.why, is_infeasible=False)
        self._runtime.log.warning("volume cannot be expanded while in use", volume=step.mount.volume, error=words)
        if not ask.is_older:
            await self._note_failure(step, words, is_infeasible=False)

    async def _note_failure(self, step: _Step, why: str, *, is_infeasible: bool) -> None:
        now = objects.time_text(self._runtime.clock.now())
        try:
            await self._write(step, rules.failed(step.claim, why, now, is_infeasible=is_infeasible), "")
        except StepFailed as error:
            self._runtime.log.warning("claim status not written after failed expansion", error=error.why)

    async def _write(self, step: _Step, patch: dict[str, Any], words: str) -> Any:
        name = objects.name_of(step.claim)
        try:
            return await self._api.kube.patch(PERSISTENT_VOLUME_CLAIM, name, MergePatch(patch), subresource="status")
        except ApiError as error:
            why = f'{words}patchPVCStatus failed to patch PVC "{name.name}": {error.message}'
            raise StepFailed(step.prefix, why) from None

    def _is_driver_missing(self, step: _Step) -> bool:
        return self._drivers.driver(step.mount.spec.driver) is None

    def _tell(self, mount: DesiredMount, claim: Any, note: str, *, is_warning: bool) -> None:
        for about in (reference_to(mount.pod), claim):
            if is_warning:
                self._api.events.warning(about, texts.RESIZE_REFUSED, note)
            else:
                self._api.events.normal(about, texts.RESIZED, note)


def _size_of(mount: DesiredMount) -> Quantity:
    return mount.spec.size or NOTHING
