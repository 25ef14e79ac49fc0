"""Drives as the choice sees them, and requests for volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_choice_rules import DriveFacts, Offer
from orlop.driver.persistent.volume_request_rules import WantedVolume, wanted_volume
from orlop.records.drive import Allocation
from orlop.records.volume_context import TOPOLOGY_NODE

GIB = 1 << 30
MIB = 1 << 20
QUOTA = Offer("xfs", ("directory", "image"))
IMAGES = Offer("ext4", ("image",))
Mode = csi_pb2.VolumeCapability.AccessMode.Mode


def drive(
    name: str = "d1", node: str = "n1", capacity: int = 10 * GIB, volumes: Mapping[str, int] | None = None, **facts: Any
) -> DriveFacts:
    allocations = {each: Allocation(volume=each, bytes=size) for each, size in (volumes or {}).items()}
    made: dict[str, Any] = {
        "name": name,
        "node_name": node,
        "capacity": capacity,
        "free": capacity - sum(each.bytes for each in allocations.values()),
        "allocations": allocations,
        "offer": QUOTA,
    }
    facts["labels"] = tuple(sorted(facts.get("labels", {}).items()))
    return DriveFacts(**(made | facts))


def on(*nodes: str) -> list[csi_pb2.Topology]:
    return [csi_pb2.Topology(segments={TOPOLOGY_NODE: node}) for node in nodes]


def mount(fs_type: str = "", mode: Mode = Mode.SINGLE_NODE_MULTI_WRITER) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
    )


def block(mode: Mode = Mode.SINGLE_NODE_MULTI_WRITER) -> csi_pb2.VolumeCapability:
    return csi_pb2.VolumeCapability(
        block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode)
    )


def creation(
    name: str = "pvc-1",
    size: int = GIB,
    *,
    limit: int = 0,
    capability: csi_pb2.VolumeCapability | None = None,
    requisite: tuple[str, ...] = (),
    preferred: tuple[str, ...] = (),
    **parameters: str,
) -> csi_pb2.CreateVolumeRequest:
    """A request; parameters are written with underscores and without the prefix: `access_tier="hot"`."""
    return csi_pb2.CreateVolumeRequest(
        name=name,
        capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit),
        volume_capabilities=[capability or mount()],
        parameters={f"orlop.dev/{key.replace('_', '-')}": value for key, value in parameters.items()},
        accessibility_requirements=csi_pb2.TopologyRequirement(requisite=on(*requisite), preferred=on(*preferred)),
    )


def wanted(name: str = "pvc-1", size: int = GIB, **options: Any) -> WantedVolume:
    return wanted_volume(creation(name, size, **options))
