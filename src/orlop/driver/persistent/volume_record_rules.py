"""Decide what a volume's record allows, and how it changes, in staging, publishing and expansion. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from orlop.csi.error_codes import FailedPrecondition, OutOfRange, ResourceExhausted
from orlop.foundation.quantity import Quantity
from orlop.records.volume_context import VolumeContext
from orlop.records.volume_record import LARGEST_RECORD, VolumeRecord, VolumeTarget, encode_volume

LEAST_INODES: Final = 1024
BYTES_OF_AN_INODE: Final = {"xfs": 4096, "ext4": 16384}
"""Bytes of a directory's size for each file that it may have: on ext4, as many as mkfs makes inodes for."""


def inodes_of(record: VolumeRecord) -> int:
    """Return the most files that a directory volume may have."""
    return max(LEAST_INODES, record.bytes // BYTES_OF_AN_INODE.get(record.file_system, 4096))


def refuse_other_volume(record: VolumeRecord, context: VolumeContext) -> None:
    """Raise FAILED_PRECONDITION if a context is not that of the volume on the drive.

    The size is not compared: the context keeps the first size of a volume that has grown since.
    """
    if record.deleted:
        raise FailedPrecondition(f"the volume {record.volume_id} was deleted, and waits to be erased")
    pairs = (
        ("drive", record.drive, context.drive),
        ("backing", record.backing, context.backing),
        ("file system", record.file_system, context.file_system),
        ("volume mode", record.volume_mode, context.volume_mode),
    )
    for name, recorded, requested in pairs:
        if recorded != requested:
            raise FailedPrecondition(
                f"the volume {record.volume_id} has the {name} {recorded!r}, and its volume context {requested!r}: the "
                "PersistentVolume was not made by Orlop's controller, or was changed"
            )


def refuse_without_room(capacity: int, promised: int, needed: int) -> None:
    """Raise if volumes would be promised more than the drive has: a forged volume context has no reservation.

    OUT_OF_RANGE: the drive could never have it.
    """
    if needed > capacity:
        raise OutOfRange(f"the drive has {Quantity.of(capacity)}, and the volume needs {Quantity.of(needed)}")
    if promised + needed > capacity:
        free = Quantity.of(max(0, capacity - promised))
        raise ResourceExhausted(
            f"the drive has {free} that no volume was promised, and {Quantity.of(needed)} are needed"
        )


def refuse_second_target(record: VolumeRecord, target: VolumeTarget, others: Sequence[VolumeTarget]) -> None:
    """Raise FAILED_PRECONDITION if a volume for one pod alone would have two targets; `others` are mounted now."""
    taken = next((other for other in others if other.alone or target.alone), None)
    if taken is not None:
        raise FailedPrecondition(
            f"the volume {record.volume_id} is published at {taken.path}, and its access mode (ReadWriteOncePod) "
            "allows one target at a time"
        )


def with_targets(record: VolumeRecord, targets: tuple[VolumeTarget, ...]) -> VolumeRecord:
    """Return the record with these targets; without the names of pods if the record would become too large."""
    full = replace(record, published=targets)
    if len(encode_volume(full)) <= LARGEST_RECORD:
        return full
    plain = tuple(VolumeTarget(each.path, read_only=each.read_only, alone=each.alone) for each in targets)
    without_pods = replace(record, published=plain)
    if len(encode_volume(without_pods)) > LARGEST_RECORD:
        raise ResourceExhausted(
            f"the volume {record.volume_id} cannot be published {len(targets)} times: its record has no space for more"
        )
    return without_pods


def without_target(record: VolumeRecord, path: str) -> VolumeRecord:
    return replace(record, published=tuple(each for each in record.published if each.path != path))


def is_published_at(record: VolumeRecord, path: str) -> bool:
    return any(each.path == path for each in record.published)
