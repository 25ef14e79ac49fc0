"""How full a volume is, as kubelet is told. Pure.

Of a volume with limits its limit is the size, and what is left to it is what both its limit and the disk have left.
Else it may have all that the disk has. Where not even its own use is known, the disk's is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from orlop.csi.proto import csi_pb2

Usage = csi_pb2.VolumeUsage


@dataclass(frozen=True, slots=True)
class Filling:
    """In bytes, or in inodes. `used` and `limit` are the volume's, None where unknown or unlimited."""

    used: int | None
    limit: int | None
    disk_total: int
    disk_free: int


def volume_usage(of_bytes: Filling, of_inodes: Filling) -> list[csi_pb2.VolumeUsage]:
    return [
        Usage(unit=Usage.Unit.BYTES, **_numbers(of_bytes)),
        Usage(unit=Usage.Unit.INODES, **_numbers(of_inodes)),
    ]


def _numbers(filling: Filling) -> dict[str, int]:
    used = filling.used if filling.used is not None else filling.disk_total - filling.disk_free
    if filling.limit is None:
        return {"used": used, "available": filling.disk_free, "total": used + filling.disk_free}
    left = max(0, min(filling.limit - used, filling.disk_free))
    return {"used": used, "available": left, "total": filling.limit}
