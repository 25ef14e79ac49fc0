"""Decide which block devices can be formatted as drives. Pure.

A device can become a drive if nothing uses it and nothing on it belongs to another program: it is blank, or holds one
file system, or unknown data (both are overwritten only when the request forces it). A partition table, a member of a
volume group or an array, an encrypted device, swap, and several signatures at once are never overwritten: an admin who
is sure wipes the device first (`wipefs --all`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

SMALLEST_BYTES: Final = 512 << 20
LABEL: Final = "orlop"
"""The label of the file systems that we make."""
DRIVE_FILE_SYSTEMS: Final = ("xfs", "ext4")
_MADE_OF: Final = {
    "ram": "it is a RAM disk",
    "zram": "it is compressed memory",
    "sr": "it is an optical drive",
    "fd": "it is a floppy drive",
    "mtdblock": "it is raw flash memory",
    "nbd": "it is a network block device",
}
_KNOWN_MAPPERS: Final = ("CRYPT-", "LVM-", "mpath-")


class SignatureKind(Enum):
    """The kind of content on a device."""

    FILE_SYSTEM = "a file system"
    TABLE = "a partition table"
    MEMBER = "a part of a volume group, an array or an encrypted device"
    SWAP = "swap space"
    OURS = "a drive that is half made"


@dataclass(frozen=True, slots=True)
class Signature:
    """The identity that magic bytes on a device claim."""

    kind: SignatureKind
    name: str
    uuid: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class DeviceContent:
    """The content of the first and the last blocks."""

    signatures: tuple[Signature, ...] = ()
    is_blank: bool = False
    digest: str = ""
    """Digest of the blocks that were read."""
    why_unread: str = ""
    """A sentence, if they could not be read."""

    @property
    def file_system(self) -> Signature | None:
        """Return the file system, if nothing else was found."""
        only = self.signatures[0] if len(self.signatures) == 1 else None
        return only if only is not None and only.kind is SignatureKind.FILE_SYSTEM else None

    @property
    def is_half_made(self) -> bool:
        return any(signature.kind is SignatureKind.OURS for signature in self.signatures)

    @property
    def half_made_drive(self) -> str:
        """Return the id of the drive that is half made; empty if none is."""
        return next((each.uuid for each in self.signatures if each.kind is SignatureKind.OURS), "")

    @property
    def drive(self) -> str:
        """Return the id of the drive that a file system of ours belongs to; empty if it is none of ours."""
        ours = self.file_system
        return ours.uuid if ours is not None and ours.label == LABEL and ours.name in DRIVE_FILE_SYSTEMS else ""

    @property
    def names(self) -> str:
        """Describe the content for people; empty for a blank device, and for one that was not read."""
        if self.is_half_made:
            return SignatureKind.OURS.value
        known = " and ".join(signature.name for signature in self.signatures)
        # Without a digest nothing was read: the content of a device in use is not.
        return known or ("unknown data" if self.digest and not self.is_blank else "")


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """One block device, as the kernel and its content describe it."""

    name: str
    """The kernel's name for it, such as `sdb`."""
    major_minor: str
    bytes: int
    disk_sequence: int = 0
    """A number that the kernel never uses again until it restarts; 0 if it has none."""
    sector_bytes: int = 512
    physical_sector_bytes: int = 512
    model: str = ""
    serial: str = ""
    wwn: str = ""
    is_rotational: bool = False
    is_read_only: bool = False
    is_hidden: bool = False
    partition_of: str = ""
    partitions: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    mapper: str = ""
    """The identifier of a device-mapper device, such as `LVM-…`."""
    backing_file: str = ""
    """The file behind a loop device."""
    mount_points: tuple[str, ...] = ()
    """In all mount namespaces; those of the host come first."""
    mounted_as: str = ""
    """The file system that is mounted from it."""
    is_swap: bool = False
    is_claimed: bool = False
    """Another program holds it exclusively, perhaps in another mount namespace."""
    content: DeviceContent = DeviceContent()

    @property
    def path(self) -> str:
        # The kernel writes `!` for the slash in names such as cciss/c0d0.
        return f"/dev/{self.name.replace('!', '/')}"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """The admin's lists: patterns of names, paths, serials, WWNs and models, as a shell has them."""

    denied: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    """The only allowed devices; none: all are."""
    allow_loop_devices: bool = False


def why_not_to_be_read(device: BlockDevice, limits: DeviceLimits) -> tuple[str, ...]:
    """Return the reasons that need neither the content nor a claim; none: read the content next."""
    return tuple(_plain_reasons(device, limits))


def why_unusable(device: BlockDevice, limits: DeviceLimits) -> tuple[str, ...]:
    """Return every reason why a device cannot become a drive, as ends of a sentence; none: it can."""
    return (*_plain_reasons(device, limits), *_reasons_of_content(device))


def destroyed_content(device: BlockDevice) -> str:
    """Return what formatting would destroy; empty if nothing."""
    content = device.content
    return "" if content.is_blank or content.is_half_made else content.names or "unknown data"


def fingerprint_of(device: BlockDevice, boot: str) -> str:
    """Return a text that changes when the name means another device, or the device holds something else.

    `boot` names the run of the kernel in which the disk sequence is unique.
    """
    facts: Mapping[str, object] = {
        "boot": boot if device.disk_sequence else "",
        "sequence": device.disk_sequence,
        "number": device.major_minor,
        "name": device.name,
        "bytes": device.bytes,
        "sector": device.sector_bytes,
        "identity": (device.model, device.serial, device.wwn),
        "use": (device.is_read_only, device.partitions, device.holders, device.backing_file, device.mapper),
        "content": device.content.digest,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _plain_reasons(device: BlockDevice, limits: DeviceLimits) -> Iterator[str]:
    yield from _reasons_of_kind(device, limits)
    if _matches(device, limits.denied):
        yield "--deny-devices of its node denies it"
    # A refused loop device has a reason about --allow-devices already.
    elif limits.allowed and not _is_refused_loop(device, limits) and not _matches(device, limits.allowed):
        yield "--allow-devices of its node does not allow it"
    if device.is_read_only:
        yield "it is read-only"
    if device.bytes < SMALLEST_BYTES:
        yield f"it is too small: {device.bytes} bytes, and a drive needs {SMALLEST_BYTES}"
    if device.partitions:
        yield f"it is partitioned: {', '.join(device.partitions)}"
    if device.holders:
        yield f"it is in use by {', '.join(device.holders)}"
    if device.mount_points:
        yield f"it is mounted at {device.mount_points[0]}"
    if device.is_swap:
        yield "it is swap space in use"


def _is_refused_loop(device: BlockDevice, limits: DeviceLimits) -> bool:
    return device.name.rstrip("0123456789") == "loop" and not limits.allow_loop_devices


def _reasons_of_kind(device: BlockDevice, limits: DeviceLimits) -> Iterator[str]:
    kind = device.name.rstrip("0123456789")
    if kind in _MADE_OF:
        yield _MADE_OF[kind]
    if _is_refused_loop(device, limits):
        yield "it is a loop device, which --allow-devices of its node does not allow"
    if device.partition_of:
        yield f"it is a partition of {device.partition_of}; a drive is a whole disk"
    if device.is_hidden:
        yield "the kernel hides it"
    # A volume of LVM has one dash in its identifier; the parts of pools and mirrors that LVM keeps to itself have two.
    if device.name.startswith("dm-") and (
        not device.mapper.startswith(_KNOWN_MAPPERS)
        or (device.mapper.startswith("LVM-") and device.mapper.count("-") > 1)
    ):
        yield f"it is a part of the device mapper ({device.mapper or 'unnamed'})"


def _reasons_of_content(device: BlockDevice) -> Iterator[str]:
    content = device.content
    if device.is_claimed:
        yield "it is in use, perhaps in another mount namespace"
    if content.why_unread:
        yield content.why_unread
    if content.is_half_made:
        return
    for signature in content.signatures:
        if signature.kind is not SignatureKind.FILE_SYSTEM:
            yield f"it holds {signature.kind.value} ({signature.name}); if it is unused, wipe it with wipefs"
    if len(content.signatures) > 1:
        names = " and ".join(signature.name for signature in content.signatures)
        yield f"its content is ambiguous: it has signatures of {names}; if it is unused, wipe it with wipefs"


def _matches(device: BlockDevice, patterns: tuple[str, ...]) -> bool:
    words = [word for word in (device.name, device.path, device.serial, device.wwn, device.model) if word]
    return any(fnmatchcase(word, pattern) for word in words for pattern in patterns)
