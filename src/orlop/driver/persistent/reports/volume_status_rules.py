"""Build the status of a Volume object from what the node observes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orlop.driver.persistent.upkeep.volume_erasure_rules import (
    DataIsGone,
    ErasureStep,
    ErasureWaits,
    KeepData,
    why_another,
)
from orlop.records.api_record import LONGEST_TEXT, part_of, rounded_quantity
from orlop.records.drive_record import DriveState
from orlop.records.volume import (
    DriveVolumeSpec,
    DriveVolumeStatus,
    PublishedPath,
    VolumePhase,
)
from orlop.records.volume_record import VolumeRecord

ApiObject = Mapping[str, Any]
MOST_PATHS: Final = 256
STEP_SHARE: Final = 100
"""Used bytes are reported when they changed by more than one hundredth: a busy volume changes all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeObservation:
    """What the node observes of one volume."""

    kubelet_dir: str
    record: VolumeRecord | None = None
    """None: its drive has no such volume, or is not read yet."""
    drive_state: DriveState | None = None
    """None: this node has no such drive."""
    drive_why: str = ""
    trouble: str = ""
    used: int | None = None
    """None: not measured."""
    deletion: ErasureStep | None = None
    """The last step of its deletion, if it was ordered."""


def volume_status(obj: ApiObject, observed: VolumeObservation) -> dict[str, Any]:
    """Return the whole status of a Volume. Raises `ValueError` for an object with an invalid field."""
    spec, before = part_of(obj, "spec", DriveVolumeSpec), part_of(obj, "status", DriveVolumeStatus)
    record = observed.record
    trouble = _trouble(spec, observed)
    phase, message = _phase(observed)
    status = msgspec.structs.replace(
        before,
        phase=phase,
        staged_path=_whole(observed, record.staged) if record is not None and record.staged else "",
        published=_published(observed, record),
        message=(message or trouble)[:LONGEST_TEXT],
    )
    if record is not None:
        status = msgspec.structs.replace(status, capacity=rounded_quantity(record.bytes), capacity_bytes=record.bytes)
    if observed.used is not None and _is_worth_reporting(before.used_bytes, observed.used):
        status = msgspec.structs.replace(status, used=rounded_quantity(observed.used), used_bytes=observed.used)
    # Written even if nothing is wrong: it shows that the volume was checked.
    condition = {"abnormal": bool(trouble), **({"message": trouble[:LONGEST_TEXT]} if trouble else {})}
    return {**msgspec.to_builtins(status), "condition": condition}


def _phase(observed: VolumeObservation) -> tuple[VolumePhase, str]:  # noqa: PLR0911 - one line for each phase
    record = observed.record
    match observed.deletion:
        case DataIsGone():
            return "Erased", ""
        case KeepData(why):
            return "Pending", f"The data is kept: {why}."
        case ErasureWaits(why) if record is None or not (record.staged or record.published):
            return "Erasing", f"It is not erased yet: {why.rstrip('.')}."
        case None:
            pass
        case _ if record is None or not (record.staged or record.published):
            return "Erasing", ""
    if observed.drive_state in {None, DriveState.LOST}:
        return "Lost", ""
    if record is None:
        return "Pending", ""
    return ("Published" if record.published else "Staged" if record.staged else "Pending"), ""


def _trouble(spec: DriveVolumeSpec, observed: VolumeObservation) -> str:
    if isinstance(observed.deletion, DataIsGone):
        return ""
    if observed.drive_state is None:
        return f"This node has no drive {spec.drive}."
    if observed.trouble:
        return observed.trouble
    if observed.record is not None and (difference := why_another(spec, observed.record)):
        return f"The record on the drive is of another volume: it has {difference}."
    if observed.drive_state in {DriveState.LOST, DriveState.ERROR}:
        return f"Its drive is {observed.drive_state.value}: {observed.drive_why}"
    return ""


def _published(observed: VolumeObservation, record: VolumeRecord | None) -> tuple[PublishedPath, ...]:
    targets = record.published if record is not None else ()
    return tuple(
        PublishedPath(
            path=_whole(observed, target.path),
            pod_namespace=target.pod_namespace,
            pod_name=target.pod_name,
            pod_uid=target.pod_uid[:128],
            read_only=target.read_only,
        )
        for target in targets[:MOST_PATHS]
    )


def _whole(observed: VolumeObservation, path: str) -> str:
    return f"{observed.kubelet_dir.rstrip('/')}/{path}"


def _is_worth_reporting(before: int, used: int) -> bool:
    return abs(used - before) * STEP_SHARE > before or (used == 0) != (before == 0)
