"""Build the parts of CSI responses about volumes on drives: the volume, its health, pages of lists. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orlop.csi.error_codes import Aborted, InvalidArgument
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_choice_rules import DriveFacts
from orlop.driver.persistent.reservation_rules import PlacedVolume
from orlop.driver.persistent.volume_request_rules import wanted_storage
from orlop.records.drive_record import DriveState
from orlop.records.volume_context import TOPOLOGY_NODE, context_of, encode_context, is_volume_id

ErrorType = csi_pb2.VolumeHealthErrorType
HealthTrouble = csi_pb2.VolumeHealth.VolumeHealthEntry
FROM_NAME: Final = "from:"
"""Prefix of the token of a page; the name of the page's first volume follows. Without it, any word would be a token."""
UNUSABLE: Final = {
    DriveState.LOST: ("DriveLost", "the disk or folder of the drive is gone"),
    DriveState.ERROR: ("DriveError", "the drive cannot be used"),
    DriveState.REPAIRING: ("DriveRepairing", "the file system of the drive is being repaired"),
}


def csi_volume(volume: PlacedVolume) -> csi_pb2.Volume:
    """Return a Volume object as CSI's message."""
    spec = volume.spec
    return csi_pb2.Volume(
        volume_id=volume.name,
        capacity_bytes=spec.bytes,
        volume_context=encode_context(context_of(spec)),
        accessible_topology=[csi_pb2.Topology(segments={TOPOLOGY_NODE: spec.node_name})],
    )


def is_listed(volume: PlacedVolume) -> bool:
    """Return whether CSI knows the volume: one that was deleted, or that stands for space alone, does not exist."""
    return not volume.spec.erase and not volume.spec.reservation_only


def page_of(
    volumes: Sequence[PlacedVolume], starting_token: str, max_entries: int
) -> tuple[Sequence[PlacedVolume], str]:
    """Return a page of volumes in the order of their names, and the token of the next page."""
    if max_entries < 0:
        raise InvalidArgument(f"max_entries is {max_entries}")
    first = starting_token.removeprefix(FROM_NAME)
    if starting_token and (first == starting_token or not is_volume_id(first)):
        raise Aborted(f"starting_token {starting_token[:128]!r} is not one of ListVolumes: list from the beginning")
    names = sorted((each for each in volumes if each.name >= first), key=lambda each: each.name)
    if not max_entries or len(names) <= max_entries:
        return names, ""
    return names[:max_entries], f"{FROM_NAME}{names[max_entries].name}"


def why_not_confirmed(volume: PlacedVolume, request: csi_pb2.ValidateVolumeCapabilitiesRequest) -> str | None:
    """Return why a volume is not what ValidateVolumeCapabilities describes; None if it is."""
    try:
        storage = wanted_storage(request.volume_capabilities, request.parameters)
    except InvalidArgument as error:
        return error.message
    spec = volume.spec
    if storage.volume_mode != spec.volume_mode:
        return f"the mode of the volume is {spec.volume_mode}"
    if storage.file_system and storage.file_system != spec.file_system:
        return f"the file system of the volume is {spec.file_system}"
    if request.parameters and dict(storage.parameters) != dict(spec.parameters):
        return f"the volume was made with the parameters {dict(spec.parameters)}"
    context = encode_context(context_of(spec))
    if any(context.get(key, value) != value for key, value in request.volume_context.items()):
        return "the volume context is of another volume"
    return None


def health_of(volume: PlacedVolume, drive: DriveFacts | None) -> csi_pb2.VolumeHealth:
    return csi_pb2.VolumeHealth(volume_id=volume.name, health_statuses=_troubles(volume, drive))


def _troubles(volume: PlacedVolume, drive: DriveFacts | None) -> list[HealthTrouble]:
    spec, status = volume.spec, volume.status
    where = f"the drive {spec.drive} on the node {spec.node_name}"
    if drive is None:
        return [_trouble(ErrorType.INACCESSIBLE, "DriveMissing", f"there is no object of {where}")]
    troubles = []
    if drive.state in UNUSABLE:
        reason, sentence = UNUSABLE[drive.state]
        troubles.append(_trouble(ErrorType.INACCESSIBLE, reason, f"{sentence}: {where}"))
    elif status.phase == "Lost":
        troubles.append(_trouble(ErrorType.INACCESSIBLE, "VolumeLost", status.message or f"it is not on {where}"))
    if status.condition is not None and status.condition.abnormal:
        troubles.append(_trouble(ErrorType.DEGRADED, "VolumeAbnormal", status.condition.message))
    return troubles


def _trouble(kind: ErrorType, reason: str, message: str) -> HealthTrouble:
    return HealthTrouble(status=kind, reason=reason, message=message)
