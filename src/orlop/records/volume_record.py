"""The record of a volume on a drive, kept in an attribute of the volume's folder. Pure.

The record is what a node knows without an API server: what the volume is, whose it is, and where it may be mounted. It
names a path before anything is mounted there, until nothing is: the kernel reports what is really mounted.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final, Literal

import msgspec

from orlop.records.api_record import LONGEST_NAME, LONGEST_PATH
from orlop.records.drive import Backing, VolumeAccessMode, VolumeMode
from orlop.records.drive_record import is_drive_id
from orlop.records.record_format import UnreadableRecord, refuse_newer, version_of
from orlop.records.volume import FileSystemOrNone
from orlop.records.volume_context import LARGEST, VolumeContext, is_volume_id

VOLUME_FORMAT: Final = 1
LARGEST_RECORD: Final = 3500
"""ext4 keeps all attributes of a folder in one block of 4 KiB."""
_LARGEST_PLAIN: Final = 1024
"""A larger record is compressed: the paths of many pods differ in little."""
_LARGEST_READ: Final = 1 << 20
_COMPRESSED: Final = 0x78
"""The first byte that zlib writes."""
Unfinished = Literal["", "image", "growth"]
_Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
_Path = Annotated[str, msgspec.Meta(max_length=LONGEST_PATH)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class VolumeTarget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename="camel"):
    """A target where the volume is, or is about to be, published."""

    path: _Path
    """Below kubelet's folder."""
    read_only: bool = False
    alone: bool = False
    """No other target may have the volume at the same time."""
    pod_namespace: _Name = ""
    pod_name: _Name = ""
    pod_uid: _Name = ""


class VolumeRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename="camel", kw_only=True):
    """What the node knows of a volume."""

    volume_id: _Name
    drive: str
    bytes: _Bytes
    """The size that was promised. The backing is never larger, and grows to it when it is staged or expanded."""
    backing: Backing
    file_system: FileSystemOrNone
    """Empty for a raw block volume."""
    volume_mode: VolumeMode
    created_at: float
    """Seconds since 1970."""
    thin: bool = False
    access_mode: VolumeAccessMode = "ReadWriteOnce"
    """As of the last staging. Without a PersistentVolume, no object has it. Records of earlier versions lack it."""
    claim_namespace: _Name = ""
    claim_name: _Name = ""
    persistent_volume: _Name = ""
    volume_claim_id: _Name = ""
    project: int = 0
    """The number that the quota of a directory counts under; 0: none."""
    staged: _Path = ""
    """Where it is, or is about to be, staged: below kubelet's folder."""
    published: tuple[VolumeTarget, ...] = ()
    unfinished: Unfinished = ""
    """What was begun and is not confirmed yet: the image is made, or the backing grows. Without it, an image that is
    missing was lost, and is never made anew."""
    deleted: bool = False
    """The volume was deleted on purpose: it is moved to the trash and erased as soon as nothing uses it."""
    version: int = VOLUME_FORMAT

    @property
    def is_block(self) -> bool:
        return self.volume_mode == "Block"

    @property
    def is_image(self) -> bool:
        return self.backing == "image"


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(VolumeRecord)


def new_volume_record(
    volume_id: str, context: VolumeContext, now: float, access_mode: VolumeAccessMode = "ReadWriteOnce"
) -> VolumeRecord:
    claim = context.claim
    return VolumeRecord(
        volume_id=volume_id,
        drive=context.drive,
        bytes=context.bytes,
        backing=context.backing,
        file_system=context.file_system,
        volume_mode=context.volume_mode,
        thin=context.thin,
        access_mode=access_mode,
        created_at=round(now, 3),
        claim_namespace=claim.namespace if claim is not None else "",
        claim_name=claim.name if claim is not None else "",
        persistent_volume=context.persistent_volume,
        volume_claim_id=context.volume_claim_id,
    )


def encode_volume(record: VolumeRecord) -> bytes:
    data = _encoder.encode(record)
    return data if len(data) <= _LARGEST_PLAIN else zlib.compress(data, 9)


def decode_volume(data: bytes) -> VolumeRecord:
    """Return the record. Raises UnreadableRecord with the reason, as the end of a sentence."""
    data = _decompressed(data)
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        refuse_newer(version_of(data), VOLUME_FORMAT)
        raise UnreadableRecord(f"it is damaged: {error}") from None
    refuse_newer(record.version, VOLUME_FORMAT)
    if not is_volume_id(record.volume_id) or not is_drive_id(record.drive):
        raise UnreadableRecord("it is damaged: it names no volume, or no drive")
    if record.is_block != (record.file_system == "") or (record.is_block and not record.is_image):
        raise UnreadableRecord(
            f"it is damaged: a {record.backing} with the file system {record.file_system!r} is no {record.volume_mode}"
        )
    return record


def _decompressed(data: bytes) -> bytes:
    """Return the text of a record. A drive may come from anywhere: the text is never larger than a record can be."""
    if data[:1] != bytes((_COMPRESSED,)):
        return data
    try:
        return zlib.decompressobj().decompress(data, _LARGEST_READ)
    except zlib.error as error:
        raise UnreadableRecord(f"it is damaged: {error}") from None
