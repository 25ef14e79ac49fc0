"""The requests that kubelet makes of a driver's Node service, field by field, and what its CSIDriver asks for. Pure.

What is not said here is not sent: no default file system, no pod info but where the CSIDriver asks for it, no staging
path for a driver that does not stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from onenode.kubelet.volumes.volume_values import (
    LOCAL_DRIVER,
    DesiredMount,
    Lifecycle,
    PodFacts,
    VolumeMode,
    VolumeSpec,
)
from orlop.csi.proto import csi_pb2


@dataclass(frozen=True, slots=True)
class CsiDriverFacts:
    exists: bool = False
    attach_required: bool = True
    pod_info_on_mount: bool = False
    lifecycle_modes: tuple[str, ...] = (Lifecycle.PERSISTENT.value,)
    fs_group_policy: str | None = "ReadWriteOnceWithFSType"
    """None: an object that says nothing, which no API server stores."""
    requires_republish: bool = False
    token_requests: tuple[Mapping[str, Any], ...] = ()
    tokens_in_secrets: bool = False


LOCAL_FACTS: Final = CsiDriverFacts(exists=True, attach_required=False, fs_group_policy="File")
"""The facts of local volumes, which have no CSIDriver object."""


def facts_of(name: str, driver: Mapping[str, Any] | None) -> CsiDriverFacts:
    """Return the facts about the driver of a volume; `driver` is its CSIDriver object."""
    return LOCAL_FACTS if name == LOCAL_DRIVER else driver_facts(driver)


def driver_facts(driver: Mapping[str, Any] | None) -> CsiDriverFacts:
    if driver is None:
        return CsiDriverFacts()
    spec = driver.get("spec") or {}
    return CsiDriverFacts(
        exists=True,
        attach_required=spec.get("attachRequired") is not False,
        pod_info_on_mount=spec.get("podInfoOnMount") is True,
        lifecycle_modes=tuple(spec.get("volumeLifecycleModes") or (Lifecycle.PERSISTENT.value,)),
        fs_group_policy=spec.get("fsGroupPolicy") or None,
        requires_republish=spec.get("requiresRepublish") is True,
        token_requests=tuple(spec.get("tokenRequests") or ()),
        tokens_in_secrets=spec.get("serviceAccountTokenInSecrets") is True,
    )


EXPANDS: Final = "EXPAND_VOLUME"
STAGES: Final = "STAGE_UNSTAGE_VOLUME"
MULTI_WRITER: Final = "SINGLE_NODE_MULTI_WRITER"
MOUNT_GROUP: Final = "VOLUME_MOUNT_GROUP"
PREFIX: Final = "csi.storage.k8s.io/"
TOKENS: Final = f"{PREFIX}serviceAccount.tokens"

AccessMode = csi_pb2.VolumeCapability.AccessMode.Mode
READ_WRITE_ONCE: Final = "ReadWriteOnce"
MODES: Final[Mapping[str, Any]] = {
    READ_WRITE_ONCE: AccessMode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": AccessMode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": AccessMode.MULTI_NODE_MULTI_WRITER,
}
MODES_OF_MULTI_WRITERS: Final[Mapping[str, Any]] = {
    **MODES,
    READ_WRITE_ONCE: AccessMode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_SINGLE_WRITER,
}


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What was read for one step: never printed, since it holds secrets."""

    capabilities: frozenset[str]
    driver: CsiDriverFacts = field(default_factory=CsiDriverFacts)
    publish_context: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    tokens: Mapping[str, Any] | None = field(default=None, repr=False)
    """By audience."""

    @property
    def stages(self) -> bool:
        return STAGES in self.capabilities


def stage_request(mount: DesiredMount, facts: StepFacts, staging_path: str) -> csi_pb2.NodeStageVolumeRequest:
    return csi_pb2.NodeStageVolumeRequest(
        volume_id=mount.spec.handle,
        publish_context=facts.publish_context,
        staging_target_path=staging_path,
        volume_capability=_capability(mount, facts),
        secrets=facts.secrets,
        volume_context=mount.spec.attributes,
    )


def publish_request(
    mount: DesiredMount, facts: StepFacts, staging_path: str, target_path: str
) -> csi_pb2.NodePublishVolumeRequest:
    is_block = mount.spec.mode is VolumeMode.BLOCK
    has_staging_path = is_block or (facts.stages and not mount.spec.is_inline)
    return csi_pb2.NodePublishVolumeRequest(
        volume_id=mount.spec.handle,
        publish_context=facts.publish_context,
        staging_target_path=staging_path if has_staging_path else "",
        target_path=target_path,
        volume_capability=_capability(mount, facts),
        readonly=mount.read_only,
        secrets={**facts.secrets, **(_tokens(facts) if facts.driver.tokens_in_secrets else {})},
        volume_context=_volume_context(mount, facts),
    )


def unpublish_request(handle: str, target_path: str) -> csi_pb2.NodeUnpublishVolumeRequest:
    return csi_pb2.NodeUnpublishVolumeRequest(volume_id=handle, target_path=target_path)


def unstage_request(handle: str, staging_path: str) -> csi_pb2.NodeUnstageVolumeRequest:
    return csi_pb2.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=staging_path)


def expand_request(
    mount: DesiredMount, facts: StepFacts, volume_path: str, staging_path: str, required: int
) -> csi_pb2.NodeExpandVolumeRequest:
    """Return the request without the pod's group: kubelet never sends it here."""
    groupless = replace(facts, capabilities=facts.capabilities - {MOUNT_GROUP})
    return csi_pb2.NodeExpandVolumeRequest(
        volume_id=mount.spec.handle,
        volume_path=volume_path,
        capacity_range=csi_pb2.CapacityRange(required_bytes=required),
        staging_target_path=staging_path,
        volume_capability=_capability(mount, groupless),
        secrets=facts.secrets,
    )


def _volume_context(mount: DesiredMount, facts: StepFacts) -> dict[str, str]:
    """Attributes first, then pod info, then tokens: what comes later wins."""
    context = dict(mount.spec.attributes)
    if facts.driver.pod_info_on_mount:
        context |= _pod_info(mount.pod, mount.spec)
    if mount.spec.mode is VolumeMode.FILESYSTEM and not facts.driver.tokens_in_secrets:
        context |= _tokens(facts)
    return context


def _pod_info(pod: PodFacts, spec: VolumeSpec) -> dict[str, str]:
    return {
        f"{PREFIX}pod.name": pod.name.name,
        f"{PREFIX}pod.namespace": pod.name.namespace or "",
        f"{PREFIX}pod.uid": pod.uid,
        f"{PREFIX}serviceAccount.name": pod.service_account,
        f"{PREFIX}ephemeral": "true" if spec.is_inline else "false",
    }


def _tokens(facts: StepFacts) -> dict[str, str]:
    if facts.tokens is None:
        return {}
    return {TOKENS: json.dumps(facts.tokens, sort_keys=True, separators=(",", ":"))}


def _capability(mount: DesiredMount, facts: StepFacts) -> csi_pb2.VolumeCapability:
    mode = csi_pb2.VolumeCapability.AccessMode(mode=_access_mode(mount.spec, facts.capabilities))
    if mount.spec.mode is VolumeMode.BLOCK:
        return csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=mode)
    return csi_pb2.VolumeCapability(mount=_mount_volume(mount, facts), access_mode=mode)


def _mount_volume(mount: DesiredMount, facts: StepFacts) -> csi_pb2.VolumeCapability.MountVolume:
    group = mount.pod.fs_group
    has_group = group is not None and MOUNT_GROUP in facts.capabilities
    return csi_pb2.VolumeCapability.MountVolume(
        fs_type=mount.spec.fs_type,
        mount_flags=mount.spec.mount_options,
        volume_mount_group=str(group) if has_group else "",
    )


def _access_mode(spec: VolumeSpec, capabilities: frozenset[str]) -> Any:
    """The first of a PV's alone; an inline volume, and a PV that names none, is read and written by one node."""
    table = MODES_OF_MULTI_WRITERS if MULTI_WRITER in capabilities else MODES
    named = spec.access_modes[0] if spec.access_modes else READ_WRITE_ONCE
    return table.get(named, AccessMode.UNKNOWN)
