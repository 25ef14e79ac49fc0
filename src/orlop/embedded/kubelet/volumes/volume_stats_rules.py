"""What a driver's answer says of a volume: how full it is, and whether it is well. Pure.

The condition of a volume has left the interface, but not the drivers: it is read where it was. What came in its place
is asked by a kubelet only where an alpha feature is on, and so not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from orlop.csi.proto import csi_pb2

BYTES: Final = csi_pb2.VolumeUsage.Unit.BYTES
INODES: Final = csi_pb2.VolumeUsage.Unit.INODES
ABILITY: Final = "GET_VOLUME_STATS"
CONDITION_FIELD: Final = 2
"""A message, whose first field says whether the volume is not well, and the second why."""
ABNORMAL_TAG: Final = 0x08


@dataclass(frozen=True, slots=True)
class Amount:
    total: int = 0
    used: int = 0
    available: int = 0


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """`abnormal` is None where the driver says nothing of the volume's condition."""

    bytes: Amount | None
    inodes: Amount | None
    abnormal: bool | None


def usage_of(answer: csi_pb2.NodeGetVolumeStatsResponse) -> VolumeUsage | None:
    """None where the driver told nothing: kubelet takes that for a failure."""
    amounts = {
        one.unit: Amount(max(0, one.total), max(0, one.used), max(0, one.available))
        for one in answer.usage
        if one.unit in {BYTES, INODES}
    }
    abnormal = _abnormal(answer)
    if not amounts and abnormal is None:
        return None
    return VolumeUsage(amounts.get(BYTES), amounts.get(INODES), abnormal)


def _abnormal(answer: csi_pb2.NodeGetVolumeStatsResponse) -> bool | None:
    """Protobuf leaves out what is false: a condition that begins with anything else is a good one."""
    unknown = UnknownFieldSet(answer)
    for field in (unknown[place] for place in range(len(unknown))):
        if field.field_number == CONDITION_FIELD and isinstance(field.data, bytes):
            return field.data[:1] == bytes([ABNORMAL_TAG]) and field.data[1:2] != b"\0"
    return None
