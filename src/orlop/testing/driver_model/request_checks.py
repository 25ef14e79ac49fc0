"""Check what CSI requires of every request to any driver. Raise `InvalidArgument`, which names the field.

Pure: reads the request and the driver's facts, never its storage.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from orlop.csi.error_codes import InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message

    from orlop.testing.driver_model.facts import DriverFacts

LONGEST_NAME: Final = 128
_BANNED_IN_NAMES: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
AccessMode = csi_pb2.VolumeCapability.AccessMode.Mode
WORKLOAD_MODES: Final = frozenset({AccessMode.SINGLE_NODE_SINGLE_WRITER, AccessMode.SINGLE_NODE_MULTI_WRITER})


def demand_fields(request: Message, *names: str) -> None:
    """Check that each of these fields is set."""
    for name in names:
        field = request.DESCRIPTOR.fields_by_name[name]
        is_there = request.HasField(name) if field.has_presence else getattr(request, name)
        if not is_there:
            raise InvalidArgument(f"{name} is missing in the {request.DESCRIPTOR.name}: it is required")


def check_name(name: str) -> None:
    length = len(name.encode())
    if length > LONGEST_NAME:
        raise InvalidArgument(f"the name has {length} bytes: at most {LONGEST_NAME} are allowed")
    if _BANNED_IN_NAMES.search(name):
        raise InvalidArgument(f"the name {name!r} contains control characters: only tab and line breaks are allowed")


def check_paths(request: Any, *names: str) -> None:
    for name in names:
        path = getattr(request, name)
        if path and not path.startswith("/"):
            raise InvalidArgument(f"{name} is {path!r}: it must be an absolute path")


def check_capability(capability: csi_pb2.VolumeCapability, allowed: frozenset[str]) -> None:
    """Check a volume capability. `allowed` are the capabilities of the service that was called."""
    if capability.WhichOneof("access_type") is None:
        raise InvalidArgument("a volume capability has no access type: either block or mount is required")
    mode = capability.access_mode.mode
    if mode == AccessMode.UNKNOWN:
        raise InvalidArgument("a volume capability has no access mode: one is required")
    if mode in WORKLOAD_MODES and "SINGLE_NODE_MULTI_WRITER" not in allowed:
        raise InvalidArgument(f"the access mode {AccessMode.Name(mode)} needs the capability SINGLE_NODE_MULTI_WRITER")


def check_capabilities(capabilities: Sequence[csi_pb2.VolumeCapability], allowed: frozenset[str]) -> None:
    for capability in capabilities:
        check_capability(capability, allowed)


def check_node_capability(capability: csi_pb2.VolumeCapability, facts: DriverFacts) -> None:
    check_capability(capability, facts.capabilities.node)
    if capability.mount.volume_mount_group and "VOLUME_MOUNT_GROUP" not in facts.capabilities.node:
        raise InvalidArgument("volume_mount_group needs the capability VOLUME_MOUNT_GROUP")


def check_range(capacity_range: csi_pb2.CapacityRange) -> None:
    if capacity_range.required_bytes < 0 or capacity_range.limit_bytes < 0:
        raise InvalidArgument("capacity_range holds a negative size: sizes are 0 (open) or more")
    if not capacity_range.required_bytes and not capacity_range.limit_bytes:
        raise InvalidArgument("capacity_range is empty: set required_bytes or limit_bytes")
    if capacity_range.limit_bytes and capacity_range.limit_bytes < capacity_range.required_bytes:
        raise OutOfRange(
            f"capacity_range requests at least {capacity_range.required_bytes} "
            f"and at most {capacity_range.limit_bytes} bytes"
        )


def check_mutable_parameters(parameters: Mapping[str, str], facts: DriverFacts) -> None:
    if parameters and "MODIFY_VOLUME" not in facts.capabilities.controller:
        raise InvalidArgument("mutable_parameters need the capability MODIFY_VOLUME")
    unknown = sorted(set(parameters) - facts.mutable_parameters) if facts.mutable_parameters is not None else []
    if unknown:
        allowed = ", ".join(sorted(facts.mutable_parameters or ())) or "none"
        raise InvalidArgument(f"mutable_parameters holds {', '.join(unknown)}: allowed are {allowed}")


def check_topology(requirement: csi_pb2.TopologyRequirement, ability: str, facts: DriverFacts) -> None:
    """Check a topology requirement, which needs the capability `ability`."""
    if (requirement.requisite or requirement.preferred) and ability not in facts.capabilities.plugin:
        raise InvalidArgument(f"accessibility_requirements need the capability {ability}")
    requisite = [dict(place.segments) for place in requirement.requisite]
    stray = [dict(place.segments) for place in requirement.preferred if dict(place.segments) not in requisite]
    if requisite and stray:
        raise InvalidArgument(f"accessibility_requirements prefers {stray[0]}, which is not among the requisite places")
