"""Build CreateVolume and DeleteVolume requests from an order, and check the volume that the driver returns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.binding.claim_state_rules import BLOCK
from orlop.binding.topology_rules import topology_faults
from orlop.csi.proto import csi_pb2
from orlop.records.volume_order import TopologyTerm, VolumeOrder

MULTI_WRITER: Final = "SINGLE_NODE_MULTI_WRITER"
CLAIM_NAME: Final = "csi.storage.k8s.io/pvc/name"
CLAIM_NAMESPACE: Final = "csi.storage.k8s.io/pvc/namespace"
VOLUME_NAME: Final = "csi.storage.k8s.io/pv/name"
LARGEST_SIZE: Final = 2**63 - 1
LONGEST_ID: Final = 4096
"""More than any driver needs; the id becomes part of the PersistentVolume, which etcd limits to 1.5 MiB."""
LARGEST_CONTEXT: Final = 256 << 10
"""Bytes of all keys and values: the limit that Kubernetes has for annotations."""

AccessMode = csi_pb2.VolumeCapability.AccessMode.Mode
ACCESS_MODES: Final[Mapping[str, Any]] = {
    "ReadWriteOnce": AccessMode.SINGLE_NODE_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_WRITER,
    "ReadOnlyMany": AccessMode.MULTI_NODE_READER_ONLY,
    "ReadWriteMany": AccessMode.MULTI_NODE_MULTI_WRITER,
}
PRECISE_ACCESS_MODES: Final[Mapping[str, Any]] = {
    **ACCESS_MODES,
    "ReadWriteOnce": AccessMode.SINGLE_NODE_MULTI_WRITER,
    "ReadWriteOncePod": AccessMode.SINGLE_NODE_SINGLE_WRITER,
}
"""For drivers with the capability SINGLE_NODE_MULTI_WRITER: they distinguish one pod from several pods on a node."""


def create_request(
    order: VolumeOrder, capabilities: frozenset[str], secrets: Mapping[str, str]
) -> csi_pb2.CreateVolumeRequest:
    request = csi_pb2.CreateVolumeRequest(
        name=order.volume_name,
        # No limit_bytes: a claim has no upper limit, and a driver may round the size up.
        capacity_range=csi_pb2.CapacityRange(required_bytes=order.size_bytes),
        volume_capabilities=[_capability(order, mode, capabilities) for mode in order.access_modes],
        parameters=dict(order.storage.parameters) | _metadata(order),
        mutable_parameters=dict(order.storage.mutable_parameters),
        secrets=secrets,
    )
    if order.source_volume_id:
        request.volume_content_source.volume.volume_id = order.source_volume_id
    if order.placement.requisite:
        requisite, preferred = order.placement.requisite, order.placement.preferred
        request.accessibility_requirements.requisite.extend(_topology(term) for term in requisite)
        request.accessibility_requirements.preferred.extend(_topology(term) for term in preferred)
    return request


def delete_request(volume_id: str, secrets: Mapping[str, str]) -> csi_pb2.DeleteVolumeRequest:
    return csi_pb2.DeleteVolumeRequest(volume_id=volume_id, secrets=secrets)


@dataclass(frozen=True, slots=True)
class UnusableVolume:
    """The driver returned a volume that the claim cannot use; it has to be deleted."""

    reason: str
    volume_id: str = ""
    """The volume to delete. Empty if the driver returned no id, or if the volume belongs to another claim."""
    retry_slowly: bool = False
    """A retry alone changes nothing."""


def fault_of_volume(order: VolumeOrder, volume: csi_pb2.Volume) -> UnusableVolume | None:
    """Return what is wrong with a created volume; None if it is what was ordered."""
    if not volume.volume_id:
        return UnusableVolume("the driver returned a volume without an id", retry_slowly=True)
    reason = _why_unusable(order, volume)
    return None if reason is None else UnusableVolume(reason, volume.volume_id)


def _why_unusable(order: VolumeOrder, volume: csi_pb2.Volume) -> str | None:
    if len(volume.volume_id.encode()) > LONGEST_ID:
        return f"the driver returned a volume id of more than {LONGEST_ID} bytes"
    # CSI: a capacity of 0 is unknown. The PersistentVolume then gets the requested size.
    if volume.capacity_bytes and volume.capacity_bytes < order.size_bytes:
        return f"created volume capacity {volume.capacity_bytes} less than requested capacity {order.size_bytes}"
    if order.source_volume_id and not volume.HasField("content_source"):
        return "volume content source missing"
    if _size(volume.volume_context) > LARGEST_CONTEXT:
        return f"the volume context is larger than {LARGEST_CONTEXT} bytes"
    if sum(_size(entry.segments) for entry in volume.accessible_topology) > LARGEST_CONTEXT:
        return f"the topology of the volume is larger than {LARGEST_CONTEXT} bytes"
    faults = topology_faults([dict(entry.segments) for entry in volume.accessible_topology])
    return f"the driver returned an illegal topology: {faults[0]}" if faults else None


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in texts.items())


def _capability(order: VolumeOrder, mode: str, capabilities: frozenset[str]) -> csi_pb2.VolumeCapability:
    modes = PRECISE_ACCESS_MODES if MULTI_WRITER in capabilities else ACCESS_MODES
    access_mode = csi_pb2.VolumeCapability.AccessMode(mode=modes[mode])
    if order.volume_mode == BLOCK:
        return csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=access_mode)
    mount = csi_pb2.VolumeCapability.MountVolume(fs_type=order.storage.fs_type, mount_flags=order.storage.mount_options)
    return csi_pb2.VolumeCapability(mount=mount, access_mode=access_mode)


def _metadata(order: VolumeOrder) -> dict[str, str]:
    if not order.claim_metadata:
        return {}
    return {CLAIM_NAME: order.claim.name, CLAIM_NAMESPACE: order.claim.namespace, VOLUME_NAME: order.volume_name}


def _topology(term: TopologyTerm) -> csi_pb2.Topology:
    return csi_pb2.Topology(segments=dict(term))
