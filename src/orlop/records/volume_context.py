"""The volume context of a PersistentVolume: all that the first staging needs, without an API server. Pure.

Users who may write a PersistentVolume can forge it: the node checks each value, takes no path from it, and searches
the volume on its own drives only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from orlop.records.api_record import GROUP, LONGEST_NAME, LONGEST_VOLUME_ID, VOLUME_ID
from orlop.records.drive import Backing, VolumeMode
from orlop.records.drive_record import is_drive_id
from orlop.records.volume import DriveVolumeSpec, FileSystemOrNone, VolumeClaim

TOPOLOGY_NODE: Final = f"topology.{GROUP}/node"
"""Topology key of the node that a volume can be used on."""

DRIVE_KEY: Final = f"{GROUP}/drive"
BYTES_KEY: Final = f"{GROUP}/bytes"
BACKING_KEY: Final = f"{GROUP}/backing"
FILE_SYSTEM_KEY: Final = f"{GROUP}/file-system"
VOLUME_MODE_KEY: Final = f"{GROUP}/volume-mode"
THIN_KEY: Final = f"{GROUP}/thin"
CLAIM_KEY: Final = f"{GROUP}/claim"
PERSISTENT_VOLUME_KEY: Final = f"{GROUP}/persistent-volume"
VOLUME_CLAIM_ID_KEY: Final = f"{GROUP}/volume-claim-id"

_Value = TypeVar("_Value")
LARGEST: Final = 2**63 - 1
_VOLUME_ID: Final = re.compile(VOLUME_ID.removesuffix("$") + r"\Z", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_BACKINGS: Final[Mapping[str, Backing]] = {each: each for each in get_args(Backing)}
_FILE_SYSTEMS: Final[Mapping[str, FileSystemOrNone]] = {each: each for each in get_args(FileSystemOrNone)}
_MODES: Final[Mapping[str, VolumeMode]] = {each: each for each in get_args(VolumeMode)}
_FLAGS: Final[Mapping[str, bool]] = {"true": True, "false": False}


class InvalidVolumeContext(ValueError):
    """A volume context that Orlop's controller did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeContext:
    """The volume as the controller placed it."""

    drive: str
    bytes: int
    backing: Backing
    file_system: FileSystemOrNone
    volume_mode: VolumeMode
    thin: bool = False
    claim: VolumeClaim | None = None
    persistent_volume: str = ""
    volume_claim_id: str = ""


def context_of(spec: DriveVolumeSpec) -> VolumeContext:
    return VolumeContext(
        drive=spec.drive,
        bytes=spec.bytes,
        backing=spec.backing,
        file_system=spec.file_system,
        volume_mode=spec.volume_mode,
        thin=spec.thin,
        claim=spec.claim,
        persistent_volume=spec.persistent_volume,
        volume_claim_id=spec.volume_claim_id,
    )


def encode_context(context: VolumeContext) -> dict[str, str]:
    claim = context.claim
    optional = {
        CLAIM_KEY: f"{claim.namespace}/{claim.name}" if claim is not None else "",
        PERSISTENT_VOLUME_KEY: context.persistent_volume,
        VOLUME_CLAIM_ID_KEY: context.volume_claim_id,
    }
    return {
        DRIVE_KEY: context.drive,
        BYTES_KEY: str(context.bytes),
        BACKING_KEY: context.backing,
        FILE_SYSTEM_KEY: context.file_system,
        VOLUME_MODE_KEY: context.volume_mode,
        THIN_KEY: "true" if context.thin else "false",
        **{key: value for key, value in optional.items() if value},
    }


def decode_context(values: Mapping[str, str]) -> VolumeContext:
    """Return the context in a request. Other keys are ignored: kubelet and the provisioner add theirs."""
    drive = values.get(DRIVE_KEY, "")
    if not is_drive_id(drive):
        raise InvalidVolumeContext(f"{DRIVE_KEY}={drive[:LONGEST_NAME]!r} in the volume context is not a drive's id")
    return VolumeContext(
        drive=drive,
        bytes=_bytes(values.get(BYTES_KEY, "")),
        backing=_one_of(_BACKINGS, values, BACKING_KEY),
        file_system=_one_of(_FILE_SYSTEMS, values, FILE_SYSTEM_KEY),
        volume_mode=_one_of(_MODES, values, VOLUME_MODE_KEY),
        thin=_one_of(_FLAGS, {THIN_KEY: "false", **values}, THIN_KEY),
        claim=_claim(values.get(CLAIM_KEY, "")),
        persistent_volume=values.get(PERSISTENT_VOLUME_KEY, "")[:LONGEST_NAME],
        volume_claim_id=values.get(VOLUME_CLAIM_ID_KEY, "")[:LONGEST_NAME],
    )


def is_volume_id(text: str) -> bool:
    """Return whether a text names a volume: also as a folder, and in an object's name."""
    return len(text) <= LONGEST_VOLUME_ID and _VOLUME_ID.match(text) is not None


def _bytes(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > LARGEST:
        raise InvalidVolumeContext(f"{BYTES_KEY}={text[:LONGEST_NAME]!r} in the volume context is not a size in bytes")
    return int(text)


def _one_of(allowed: Mapping[str, _Value], values: Mapping[str, str], key: str) -> _Value:
    text = values.get(key)
    if text is None or text not in allowed:
        fault = "is missing" if text is None else f"is {text[:LONGEST_NAME]!r}"
        raise InvalidVolumeContext(f"{key} in the volume context {fault}; it is one of {', '.join(map(repr, allowed))}")
    return allowed[text]


def _claim(text: str) -> VolumeClaim | None:
    namespace, slash, name = text[: 2 * LONGEST_NAME].partition("/")
    return VolumeClaim(namespace=namespace, name=name) if slash else None
