"""Decide the next step of a volume that was deleted. Pure.

Order: mark the record, so that the volume cannot be staged again → wait until it is unpublished and unstaged, and
nothing has it mounted → move it to the trash → erase it → return the space. A marked record is enough to continue: the
Volume object may be lost meanwhile.

The Volume object orders the erasure, and could be forged or name another volume: data whose record differs is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from orlop.records.volume import DriveVolumeSpec
from orlop.records.volume_record import VolumeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureSighting:
    """What is known of a volume and of the order to delete it."""

    order: DriveVolumeSpec | None = None
    """The spec of the Volume object; None: the mark in the record alone asks for the deletion."""
    why_no_drive: str = ""
    """Why its drive cannot be used, as a sentence."""
    record: VolumeRecord | None = None
    has_folder: bool = False
    """Its folder is among the volumes of the drive; without a record, the record cannot be read."""
    is_in_use: bool = False
    is_in_trash: bool = False


@dataclass(frozen=True, slots=True)
class MarkDeleted:
    """Write into the record that the volume was deleted."""


@dataclass(frozen=True, slots=True)
class MoveToTrash:
    """Move the folder of the volume to the trash, durably."""


@dataclass(frozen=True, slots=True)
class WaitForErasure:
    """It is in the trash, and is being erased."""


@dataclass(frozen=True, slots=True)
class DataIsGone:
    """Nothing of the volume is left on the drive."""


@dataclass(frozen=True, slots=True)
class ErasureWaits:
    """The volume cannot be deleted yet."""

    why: str


@dataclass(frozen=True, slots=True)
class KeepData:
    """Keep the data, for the reason in `why`."""

    why: str


ErasureStep: TypeAlias = MarkDeleted | MoveToTrash | WaitForErasure | DataIsGone | ErasureWaits | KeepData


def next_erasure_step(volume: ErasureSighting) -> ErasureStep:
    """Return one step. The caller takes it, gathers the facts again, and asks for the next one."""
    if volume.why_no_drive:
        return ErasureWaits(volume.why_no_drive)
    if volume.has_folder:
        return _step_of_folder(volume)
    return WaitForErasure() if volume.is_in_trash else DataIsGone()


def why_another(order: DriveVolumeSpec, record: VolumeRecord) -> str:
    """Return how a Volume object differs from the record on the drive; empty if they are of one volume."""
    claim = order.claim
    pairs = {
        "drive": (order.drive, record.drive),
        "backing": (order.backing, record.backing),
        "fileSystem": (order.file_system, record.file_system),
        "volumeMode": (order.volume_mode, record.volume_mode),
        "persistentVolume": (order.persistent_volume, record.persistent_volume),
        "claim": (
            f"{claim.namespace}/{claim.name}" if claim is not None else "",
            f"{record.claim_namespace}/{record.claim_name}" if record.claim_name else "",
        ),
    }
    different = [f"{name} {ours!r} and not {theirs!r}" for name, (theirs, ours) in pairs.items() if ours != theirs]
    return "; ".join(different)


def _step_of_folder(volume: ErasureSighting) -> ErasureStep:  # noqa: PLR0911 - one line for each reason, in order
    order, record = volume.order, volume.record
    is_marked = record is not None and record.deleted
    if order is not None and order.reservation_only and not is_marked:
        return KeepData("the drive has data under this name, and no record or object orders its erasure")
    if order is None and not is_marked:
        return KeepData("no record or object orders its erasure")
    if order is not None and record is not None and (difference := why_another(order, record)):
        return KeepData(f"the record on the drive is of another volume: it has {difference}")
    if record is not None and not is_marked:
        return MarkDeleted()
    if record is not None and (record.published or record.staged):
        return ErasureWaits(f"it is {'published' if record.published else 'staged'} on the node")
    if volume.is_in_use:
        return ErasureWaits("something has it mounted")
    return MoveToTrash()
