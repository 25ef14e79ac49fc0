"""The identity of a drive, kept in the file `drive.json` at its root. Pure.

A drive describes itself: it keeps its identity when every object of the API server is lost, and when its disk is put
into another machine.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Final

import msgspec

from orlop.records.record_format import UnreadableRecord, refuse_newer, version_of

DRIVE_FORMAT: Final = 1
MIB: Final = 1 << 20
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class DriveType(Enum):
    """What a drive is made of."""

    DISK = "Disk"
    """A whole disk with a file system of its own."""
    FOLDER = "Folder"
    """A folder of a file system that others use too."""


class DriveState(Enum):
    """`status.state` of a Drive, written by its node."""

    READY = "Ready"
    LOST = "Lost"
    """Its disk or folder is not there."""
    ERROR = "Error"
    """It is there, and cannot be used."""
    REMOVING = "Removing"
    """`spec.removing` is set: it takes no new volumes, and is released when the last one is gone."""
    REPAIRING = "Repairing"
    """Its file system is being repaired."""


class DriveRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What `drive.json` holds. It is written once, when the drive is made; `removed` is set when it is taken away."""

    drive_id: str = msgspec.field(name="driveID")
    """The UUID of the file system (Disk), or a UUID of the folder's own (Folder), in lower case."""
    type: DriveType
    file_system: str
    """The kind of the file system of a disk: `xfs` or `ext4`. That below a folder is measured when it is opened."""
    capacity_bytes: Annotated[int, msgspec.Meta(ge=MIB, multiple_of=MIB)]
    """The most that all volumes may have together: decided when the drive is made, in whole MiB."""
    node_name: str
    """The node that made the drive, or adopted it."""
    created_at: float
    """Seconds since 1970."""
    removed: bool = False
    """The drive was removed from the cluster on purpose: it is not offered for adoption, and may be made anew."""
    version: int = DRIVE_FORMAT


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(DriveRecord)


def encode_drive(record: DriveRecord) -> bytes:
    return msgspec.json.format(_encoder.encode(record)) + b"\n"


def decode_drive(data: bytes) -> DriveRecord:
    """Return the record. Raises UnreadableRecord with the reason, as the end of a sentence."""
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        refuse_newer(version_of(data), DRIVE_FORMAT)
        raise UnreadableRecord(f"it is damaged: {error}") from None
    refuse_newer(record.version, DRIVE_FORMAT)
    if not is_drive_id(record.drive_id):
        raise UnreadableRecord(f"it is damaged: {record.drive_id[:40]!r} is no UUID in lower case")
    return record


def is_drive_id(text: str) -> bool:
    """Return whether a text can be the id of a drive, and so the name of its folder and its object."""
    return _UUID.fullmatch(text) is not None


def whole_mebibytes(size: int) -> int:
    """Round bytes down to whole MiB."""
    return size // MIB * MIB


def drive_id_from(random_bytes: bytes) -> str:
    """Return a new id, a random UUID (version 4), made of 16 random bytes."""
    number = int.from_bytes(random_bytes, "big")
    number = number & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
