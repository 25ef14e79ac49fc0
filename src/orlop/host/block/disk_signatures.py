"""Read what a block device holds, by the signatures in its first and last blocks.

Nothing is mounted, and no library is used: a table lists where each file system, partition table and member of an array
keeps its magic bytes. The table need not be complete to be safe. A device is blank only if all blocks that are read are
zero; all other content, known or not, is never overwritten without force.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from orlop.host.block.device_rules import DeviceContent, Signature, SignatureKind

HEAD_BYTES: Final = 2 << 20
TAIL_BYTES: Final = 2 << 20
MARK: Final = b"orlop: this disk is being made a drive\n"
"""At both marks of a device that is half made; the id of the drive follows."""
_ID_BYTES: Final = 36
MARK_BYTES: Final = 4096
FAR: Final = ((64 << 20, 68 << 10), (0x1300000, 4096))
"""Where more signatures are, and how much is read there: the second superblock of btrfs, and that of VMFS."""
_FS, _TABLE, _MEMBER, _SWAP = (
    SignatureKind.FILE_SYSTEM,
    SignatureKind.TABLE,
    SignatureKind.MEMBER,
    SignatureKind.SWAP,
)


@dataclass(frozen=True, slots=True)
class _Zones:
    """The blocks that were read; a position counts from the beginning, or from the end if it is negative."""

    size: int
    head: bytes
    tail: bytes
    far: tuple[tuple[int, bytes], ...]

    def at(self, position: int, count: int) -> bytes:
        start = position if position >= 0 else self.size + position
        for base, zone in ((0, self.head), (self.size - len(self.tail), self.tail), *self.far):
            if base <= start and start + count <= base + len(zone):
                return zone[start - base : start - base + count]
        return b""


@dataclass(frozen=True, slots=True)
class _Magic:
    kind: SignatureKind
    name: str
    positions: tuple[int, ...]
    bytes: bytes
    uuid_at: int | None = None
    """From the beginning of the device."""
    label_at: tuple[int, int] | None = None
    """Position and length."""


_SECTORS: Final = tuple(range(0, 4096, 512))
_PAGES: Final = (4096, 8192, 16384, 32768, 65536)
_MD: Final = struct.pack("<I", 0xA92B4EFC)
_ZFS: Final = struct.pack("<Q", 0x00BAB10C)
_UBERBLOCKS: Final = tuple(range(128 << 10, 256 << 10, 1024))
_TABLE_OF_MAGIC: Final = (
    _Magic(_FS, "xfs", (0,), b"XFSB", 32, (108, 12)),
    _Magic(_FS, "ext4", (1024 + 0x38,), b"\x53\xef", 1024 + 0x68, (1024 + 0x78, 16)),
    _Magic(_FS, "btrfs", (0x10040, (64 << 20) + 0x40), b"_BHRfS_M", 0x10020, (0x1012B, 256)),
    _Magic(_FS, "ntfs", (3,), b"NTFS    "),
    _Magic(_FS, "exfat", (3,), b"EXFAT   "),
    _Magic(_FS, "vfat", (0x52,), b"FAT32   "),
    _Magic(_FS, "vfat", (0x36,), b"FAT1"),
    _Magic(_FS, "f2fs", (1024,), struct.pack("<I", 0xF2F52010)),
    _Magic(_FS, "jfs", (32 << 10,), b"JFS1"),
    _Magic(_FS, "reiserfs", (0x10034, 0x2034), b"ReIsEr"),
    _Magic(_FS, "squashfs", (0,), b"hsqs"),
    _Magic(_FS, "erofs", (1024,), struct.pack("<I", 0xE0F5E1E2)),
    _Magic(_FS, "iso9660", (0x8001,), b"CD001"),
    _Magic(_FS, "udf", (0x8001, 0x8801, 0x9001), b"BEA01"),
    _Magic(_FS, "nilfs2", (1024 + 6,), b"\x34\x34"),
    _Magic(_FS, "gfs2", (0x10000,), struct.pack(">I", 0x01161970)),
    _Magic(_FS, "ocfs2", (1024, 2048, 4096), b"OCFSV2"),
    _Magic(_FS, "hfsplus", (1024,), b"H+"),
    _Magic(_FS, "apfs", (32,), b"NXSB"),
    _Magic(_TABLE, "gpt", (512, 4096, -512, -4096), b"EFI PART"),
    _Magic(_TABLE, "apple partition map", (512,), b"PM\x00\x00"),
    _Magic(_TABLE, "bsd disklabel", (512,), struct.pack("<I", 0x82564557)),
    _Magic(_SWAP, "swap", tuple(page - 10 for page in _PAGES), b"SWAPSPACE2"),
    _Magic(_SWAP, "swap", tuple(page - 10 for page in _PAGES), b"SWAP-SPACE"),
    _Magic(_MEMBER, "lvm", _SECTORS[:4], b"LABELONE"),
    _Magic(_MEMBER, "luks", (0,), b"LUKS\xba\xbe"),
    _Magic(_MEMBER, "luks", tuple(0x4000 << shift for shift in range(7)), b"SKUL\xba\xbe"),
    _Magic(_MEMBER, "bitlocker", (3,), b"-FVE-FS-"),
    _Magic(_MEMBER, "md", (0, 4096), _MD),
    _Magic(_MEMBER, "zfs", _UBERBLOCKS, _ZFS),
    _Magic(_MEMBER, "zfs", _UBERBLOCKS, _ZFS[::-1]),
    _Magic(_MEMBER, "bcache", (4096 + 24,), bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")),
    _Magic(_FS, "bcachefs", (4096 + 24,), bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef")),
    _Magic(_MEMBER, "ceph bluestore", (0,), b"bluestore block device"),
    _Magic(_MEMBER, "stratis", (528, 4624), b"!Stra0tis\x86\xff\x02^\x41rh"),
    _Magic(_MEMBER, "vdo", (0,), b"dmvdo001"),
    _Magic(_MEMBER, "vmfs", (1 << 20, 0x1300000), struct.pack("<I", 0xC001D00D)),
    _Magic(_MEMBER, "isw raid", (-1024,), b"Intel Raid ISM Cfg Sig. "),
    _Magic(_MEMBER, "ddf raid", (-512,), b"\xde\x11\xde\x11"),
    _Magic(_MEMBER, "drbd", (-4096 + 60,), b"\x83\x74\x02\x6b"),
)


def read_content(device: int, size: int) -> DeviceContent:
    """Return what the device holds. It is open for reading, and of this size. Never raises for what cannot be read."""
    try:
        zones = _read_zones(device, size)
    except OSError as error:
        return DeviceContent(why_unread=f"it cannot be read: {error.strerror}")
    blocks = (zones.head, zones.tail, *(zone for _, zone in zones.far))
    digest = hashlib.sha256(b"".join(blocks)).hexdigest()
    if not any(block.strip(b"\0") for block in blocks):
        return DeviceContent(is_blank=True, digest=digest)
    return DeviceContent(tuple(_signatures(zones)), digest=digest)


def marks_of(size: int) -> tuple[int, int]:
    """Return where a device that is half made is marked: at its beginning, and where no file system writes first."""
    return 0, (size - (1 << 20)) // MARK_BYTES * MARK_BYTES


def _read_zones(device: int, size: int) -> _Zones:
    head = _read(device, 0, min(HEAD_BYTES, size))
    tail = _read(device, max(0, size - TAIL_BYTES), min(TAIL_BYTES, size))
    far = tuple((base, _read(device, base, count)) for base, count in FAR if base + count <= size)
    return _Zones(size, head, tail, far)


def _read(device: int, start: int, count: int) -> bytes:
    pieces, at = [], start
    while at < start + count:
        piece = os.pread(device, start + count - at, at)
        if not piece:
            raise OSError(errno.EIO, "it is shorter than the kernel reports")
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def _signatures(zones: _Zones) -> Iterator[Signature]:
    """Yield each signature once, or that the device is half made: then the file system on it is not finished."""
    known = list(_known(zones))
    mark = _mark(zones)
    if mark is not None and not any(each.kind is not _FS for each in known):
        yield Signature(SignatureKind.OURS, "a half-made drive", mark)
        return
    yield from known


def _known(zones: _Zones) -> Iterator[Signature]:
    names: set[str] = set()
    for magic in _TABLE_OF_MAGIC:
        if magic.name not in names and _has(zones, magic):
            names.add(magic.name)
            yield _signature(zones, magic)
    for name, kind, test in _OTHERS:
        if name not in names and test(zones):
            yield Signature(kind, name)


def _has(zones: _Zones, magic: _Magic) -> bool:
    return any(zones.at(position, len(magic.bytes)) == magic.bytes for position in magic.positions)


def _signature(zones: _Zones, magic: _Magic) -> Signature:
    identity = zones.at(magic.uuid_at, 16) if magic.uuid_at is not None else b""
    label = zones.at(*magic.label_at) if magic.label_at is not None else b""
    return Signature(
        magic.kind,
        magic.name,
        str(uuid.UUID(bytes=identity)) if len(identity) == 16 else "",  # noqa: PLR2004 - the bytes of a UUID
        label.split(b"\0", 1)[0].decode("utf-8", "replace"),
    )


def _mark(zones: _Zones) -> str | None:
    """Return the id of the drive that the device is marked for; None if it is not marked."""
    for position in marks_of(zones.size):
        if zones.at(position, len(MARK)) == MARK:
            return zones.at(position + len(MARK), _ID_BYTES).decode("ascii", "replace").strip("\0")
    return None


def _has_partition_entries(zones: _Zones) -> bool:
    """Return whether the first sector is an MBR: its magic, and an entry that is in use and plausible.

    The first sector of FAT and NTFS ends with the same magic; there the entries are program code.
    """
    sector = zones.at(0, 512)
    if sector[510:] != b"\x55\xaa" or zones.at(3, 8) in {b"NTFS    ", b"EXFAT   "}:
        return False
    entries = [sector[at : at + 16] for at in range(446, 510, 16)]
    plausible = all(entry[0] in {0, 0x80} for entry in entries)
    return plausible and any(entry[4] and int.from_bytes(entry[12:], "little") for entry in entries)


def _has_old_md(zones: _Zones) -> bool:
    """Return whether the device has a superblock of md 0.90 or 1.0, which lie at places that depend on the size."""
    old = (zones.size & ~0xFFFF) - 0x10000
    newer = (zones.size // 512 - 16) // 8 * 8 * 512
    return _MD in {zones.at(old, 4), zones.at(newer, 4)} or zones.at(old, 4) == _MD[::-1]


_OTHERS: Final[tuple[tuple[str, SignatureKind, Callable[[_Zones], bool]], ...]] = (
    ("dos partition table", _TABLE, _has_partition_entries),
    ("md", _MEMBER, _has_old_md),
)
