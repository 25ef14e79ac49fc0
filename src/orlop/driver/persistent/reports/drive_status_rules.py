"""Build the status of a Drive object from what the node observes. Pure.

While a drive is not open, its object keeps the last observation: capacity, file system, volumes.

A drive whose object lacks a volume that is on the disk is not Ready: its object was lost and made anew, and more
volumes would be placed on it than fit. The controller restores the allocations, from the Volume objects and from
`unrecordedVolumes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, get_args

import msgspec

from orlop.kube import objects
from orlop.records.api_record import LONGEST_TEXT, MOST_VOLUMES, part_of, rounded_quantity
from orlop.records.drive import (
    RELEASED,
    Backing,
    DriveDevice,
    DriveSpec,
    DriveStatus,
    FileSystem,
    UnrecordedVolume,
)
from orlop.records.drive_record import DriveState
from orlop.records.volume_record import VolumeRecord

ApiObject = Mapping[str, Any]
READY: Final = "Ready"
ALLOCATIONS_MISSING: Final = "AllocationsMissing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDriveFacts:
    """The facts about an open drive."""

    capacity: int
    file_system: str
    has_quota: bool
    """Whether the sizes of directories on it are enforced."""
    has_reflinks: bool
    device: DriveDevice | None = None
    folder: str = ""
    volumes: tuple[VolumeRecord, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Names of volumes whose record cannot be read."""
    described: frozenset[str] = frozenset()
    """Names of the volumes on it that a Volume object describes, and not only a reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveObservation:
    """What the node observes of one drive."""

    state: DriveState
    why: str = ""
    opened: OpenDriveFacts | None = None
    is_released: bool = False


def drive_status(obj: ApiObject, observed: DriveObservation, now: datetime) -> dict[str, Any]:
    """Return the whole status of a Drive. Raises `ValueError` for an object with an invalid field."""
    spec, before = part_of(obj, "spec", DriveSpec), part_of(obj, "status", DriveStatus)
    status = before if observed.opened is None else _with_open_facts(before, spec, observed.opened)
    state, reason, message = _state(observed, spec, status)
    allocated = sum(allocation.bytes for allocation in spec.allocations)
    status = msgspec.structs.replace(
        status,
        state=state,
        allocated=rounded_quantity(allocated),
        free=rounded_quantity(max(0, status.capacity_bytes - allocated)),
        observed_generation=objects.generation(obj),
        message=message[:LONGEST_TEXT],
    )
    conditions = _conditions(obj, is_ready=state is DriveState.READY, reason=reason, message=message, now=now)
    if observed.is_released:
        released = {"type": RELEASED, "status": "True", "reason": "Released", "message": observed.why}
        conditions = objects.with_condition(conditions, released, now)
    else:
        conditions = objects.without_condition(conditions, RELEASED)
    # Write zeros too: without them a column of kubectl would be empty.
    return {
        "volumes": len(spec.allocations),
        "allocationsRestored": status.allocations_restored,
        **msgspec.to_builtins(msgspec.structs.replace(status, volumes=len(spec.allocations))),
        "conditions": conditions,
    }


def unlisted(spec: DriveSpec, volumes: Sequence[VolumeRecord]) -> frozenset[str]:
    """Return the volumes on a drive that its object does not list."""
    listed = {allocation.volume for allocation in spec.allocations}
    # A deleted volume must not get its allocation back: it is erased soon.
    return frozenset(each.volume_id for each in volumes if each.volume_id not in listed and not each.deleted)


def _unrecorded_volumes(spec: DriveSpec, drive: OpenDriveFacts) -> tuple[UnrecordedVolume, ...]:
    """Return the volumes that lack an allocation, which the controller restores, or an object, which adoption makes."""
    missing = unlisted(spec, drive.volumes)
    lacking = [
        record
        for record in sorted(drive.volumes, key=lambda each: each.volume_id)
        if not record.deleted and (record.volume_id in missing or record.volume_id not in drive.described)
    ]
    return tuple(map(_unrecorded, lacking))[:MOST_VOLUMES]


def _with_open_facts(before: DriveStatus, spec: DriveSpec, drive: OpenDriveFacts) -> DriveStatus:
    backings: tuple[Backing, ...] = ("directory", "image") if drive.has_quota else ("image",)
    file_systems: dict[str, FileSystem] = {each: each for each in get_args(FileSystem)}
    return msgspec.structs.replace(
        before,
        capacity=rounded_quantity(drive.capacity),
        capacity_bytes=drive.capacity,
        file_system=file_systems.get(drive.file_system),
        backings=backings,
        reflink=drive.has_reflinks,
        device=drive.device,
        path=drive.folder,
        unrecorded_volumes=_unrecorded_volumes(spec, drive),
        allocations_restored=not unlisted(spec, drive.volumes),
    )


def _unrecorded(record: VolumeRecord) -> UnrecordedVolume:
    return UnrecordedVolume(
        volume=record.volume_id,
        bytes=record.bytes,
        persistent_volume=record.persistent_volume,
        claim_namespace=record.claim_namespace,
        claim_name=record.claim_name,
        volume_claim_id=record.volume_claim_id,
        backing=record.backing,
        file_system=record.file_system or None,
        volume_mode=record.volume_mode,
        thin=record.thin,
        access_mode=record.access_mode,
    )


def _state(observed: DriveObservation, spec: DriveSpec, status: DriveStatus) -> tuple[DriveState, str, str]:
    """Return the state, a reason in one word, and a sentence."""
    if observed.state is not DriveState.READY:
        return observed.state, observed.state.value, observed.why
    if not status.allocations_restored:
        count = len({each.volume for each in status.unrecorded_volumes} - {each.volume for each in spec.allocations})
        message = f"It has {count} volumes that this object does not list: the controller restores their allocations."
        return DriveState.ERROR, ALLOCATIONS_MISSING, message
    unreadable = observed.opened.unreadable if observed.opened is not None else ()
    if unreadable:
        names = ", ".join(unreadable[:3])
        return DriveState.READY, READY, f"{len(unreadable)} volumes on it cannot be read, such as {names}."
    return DriveState.READY, READY, ""


def _conditions(obj: ApiObject, *, is_ready: bool, reason: str, message: str, now: datetime) -> list[dict[str, Any]]:
    condition = {
        "type": READY,
        "status": "True" if is_ready else "False",
        "reason": reason,
        "message": message,
        "observedGeneration": objects.generation(obj),
    }
    return objects.with_condition(objects.conditions(obj), condition, now)
