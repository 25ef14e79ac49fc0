"""Build the attacher's requests to a driver's Controller service, and name the capabilities it depends on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.csi.proto import csi_pb2
from orlop.sidecars.attacher.volume_source_rules import (
    MANY,
    ONCE_POD,
    READ_MANY,
    VolumeSource,
    checked_access_modes,
)

CAN_ATTACH: Final = "PUBLISH_UNPUBLISH_VOLUME"
CAN_ATTACH_READ_ONLY: Final = "PUBLISH_READONLY"
CAN_MULTI_WRITER: Final = "SINGLE_NODE_MULTI_WRITER"
CAN_LIST_PUBLISHED: Final = frozenset({"LIST_VOLUMES", "LIST_VOLUMES_PUBLISHED_NODES"})

AccessMode = csi_pb2.VolumeCapability.AccessMode.Mode


def publish_request(
    source: VolumeSource, node_id: str, capabilities: frozenset[str], default_fs_type: str, secrets: Mapping[str, str]
) -> csi_pb2.ControllerPublishVolumeRequest:
    """Build a ControllerPublishVolume request. Raises `BadObject` if the access modes contradict each other."""
    return csi_pb2.ControllerPublishVolumeRequest(
        volume_id=source.handle,
        node_id=node_id,
        volume_capability=_capability(source, capabilities, default_fs_type),
        readonly=source.read_only and CAN_ATTACH_READ_ONLY in capabilities,
        secrets=secrets,
        volume_context=source.attributes,
    )


def unpublish_request(
    handle: str, node_id: str, secrets: Mapping[str, str]
) -> csi_pb2.ControllerUnpublishVolumeRequest:
    return csi_pb2.ControllerUnpublishVolumeRequest(volume_id=handle, node_id=node_id, secrets=secrets)


def _capability(source: VolumeSource, capabilities: frozenset[str], default_fs_type: str) -> csi_pb2.VolumeCapability:
    mode = csi_pb2.VolumeCapability.AccessMode(mode=access_mode(source.access_modes, capabilities))
    if source.is_block:
        return csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=mode)
    mount = csi_pb2.VolumeCapability.MountVolume(
        fs_type=source.fs_type or default_fs_type, mount_flags=source.mount_options
    )
    return csi_pb2.VolumeCapability(mount=mount, access_mode=mode)


def access_mode(names: tuple[str, ...], capabilities: frozenset[str]) -> Any:
    """Return the one CSI access mode for all modes of the volume: the widest. Raises `BadObject` as above."""
    modes = checked_access_modes(names)
    if MANY in modes:
        return AccessMode.MULTI_NODE_MULTI_WRITER
    if READ_MANY in modes:
        return AccessMode.MULTI_NODE_READER_ONLY
    if CAN_MULTI_WRITER in capabilities:
        return AccessMode.SINGLE_NODE_SINGLE_WRITER if ONCE_POD in modes else AccessMode.SINGLE_NODE_MULTI_WRITER
    return AccessMode.SINGLE_NODE_WRITER
