"""Find the block devices of this machine in /sys, and read what they are.

Nothing here needs udev; where its database is (/run/udev/data) it adds models and serials that the kernel does not
show. A device is opened only for reading, and only if nothing else shows that it is in use. Its exclusive claim is
tried last, for a moment: while a claim lasts, a mount by another program would fail. Our own mounts and formats lock
the device first (`locked_device`), and a device that is locked is not claimed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orlop.host.block.device_rules import BlockDevice, DeviceContent, DeviceLimits, fingerprint_of, why_not_to_be_read
from orlop.host.block.disk_signatures import read_content
from orlop.host.host_errors import HostError
from orlop.host.mounts.mount_table import parse_mount_lines, read_all_namespaces

SECTOR: Final = 512
SIZE_OF_DEVICE: Final = 0x80081272
DISK_SEQUENCE: Final = 0x80081280
BOOT: Final = "proc/sys/kernel/random/boot_id"
_NAME: Final = re.compile(r"[A-Za-z0-9_.:!-]{1,64}")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]+")
_LONGEST_TEXT: Final = 128
_SERIAL_PAGE: Final = 4  # the bytes before the serial in the page that a SCSI disk returns


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device, and its fingerprint at the moment of the survey."""

    device: BlockDevice
    fingerprint: str


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that we hold exclusively, through `descriptor`, with its facts and fingerprint at that moment."""

    descriptor: int
    found: FoundDevice


class BlockDevices:
    """The block devices of a machine. `root` is `/`, or a folder that a test has made."""

    def __init__(self, limits: DeviceLimits, root: str = "/") -> None:
        self.limits = limits
        self._root = Path(root)
        self._class = self._root / "sys/class/block"

    def all_devices(self) -> tuple[FoundDevice, ...]:
        """Return every device that has a size, ordered by name."""
        uses = _Uses.read(self._root)
        devices = (self._device(name, uses) for name in self._names())
        return tuple(self._with_fingerprint(device) for device in devices if device is not None)

    def described(self, names: Iterable[str]) -> dict[str, BlockDevice]:
        """Return devices by name, as /sys and the mount tables describe them. None of them is opened."""
        uses = _Uses.read(self._root)
        devices = {name: self._device(name, uses) for name in names if _NAME.fullmatch(name)}
        return {name: device for name, device in devices.items() if device is not None}

    def find(self, name: str) -> FoundDevice:
        """Return one device, as it is now. ENOENT: there is none of this name."""
        device = self._device(name, _Uses.read(self._root)) if _NAME.fullmatch(name) else None
        if device is None:
            raise HostError(errno.ENOENT, f"There is no block device {name[:64]!r} on this node.")
        return self._with_fingerprint(device)

    @contextmanager
    def held(self, name: str) -> Iterator[HeldDevice]:
        """Hold a device exclusively, for writing: no other program can mount or format it in this context.

        ENOENT: there is none of this name. EBUSY: another program holds it. ENODEV: the name means another device.
        """
        device = self._device(name, _Uses.read(self._root)) if _NAME.fullmatch(name) else None
        if device is None:
            raise HostError(errno.ENOENT, f"There is no block device {name[:64]!r} on this node.")
        if reasons := why_not_to_be_read(device, self.limits):
            raise HostError(errno.EBUSY, f"{device.path} cannot become a drive: {'; '.join(reasons)}.")
        with locked_device(device), opened_device(device, os.O_RDWR | os.O_EXCL) as opened:
            device = replace(device, content=read_content(opened, device.bytes))
            yield HeldDevice(opened, FoundDevice(device, fingerprint_of(device, self.boot)))

    @property
    def boot(self) -> str:
        return _text(self._root / BOOT)

    def _with_fingerprint(self, device: BlockDevice) -> FoundDevice:
        if not why_not_to_be_read(device, self.limits):
            device = self._with_content(device)
        return FoundDevice(device, fingerprint_of(device, self.boot))

    def _with_content(self, device: BlockDevice) -> BlockDevice:
        try:
            with opened_device(device, os.O_RDONLY) as opened:
                content = read_content(opened, device.bytes)
        except HostError as error:
            return replace(device, content=DeviceContent(why_unread=str(error).rstrip(".")))
        return replace(device, content=content, is_claimed=_is_claimed(device))

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._class) if _NAME.fullmatch(name))
        except OSError as error:
            raise HostError.because(error, f"The block devices cannot be listed in {self._class}") from error

    def _device(self, name: str, uses: _Uses) -> BlockDevice | None:
        """Read one device from /sys; None if it has no size, or is gone."""
        folder = self._class / name
        number, size = _text(folder / "dev"), _number(folder / "size") * SECTOR
        if not number or not size:
            return None
        udev = _udev(self._root, number)
        is_partition = (folder / "partition").exists()
        return BlockDevice(
            name=name,
            major_minor=number,
            bytes=size,
            disk_sequence=_number(folder / "diskseq"),
            sector_bytes=_number(folder / "queue/logical_block_size") or SECTOR,
            physical_sector_bytes=_number(folder / "queue/physical_block_size") or SECTOR,
            model=_first(_model(folder), udev.get("ID_MODEL", "")),
            serial=_first(_serial(folder), udev.get("ID_SERIAL_SHORT", ""), udev.get("ID_SERIAL", "")),
            wwn=_first(_text(folder / "device/wwid"), _text(folder / "wwid"), udev.get("ID_WWN", "")),
            is_rotational=_text(folder / "queue/rotational") == "1",
            is_read_only=_text(folder / "ro") == "1",
            is_hidden=_text(folder / "hidden") == "1",
            partition_of=folder.resolve().parent.name if is_partition else "",
            partitions=_partitions(folder, name),
            holders=_listed(folder / "holders"),
            mapper=_text(folder / "dm/uuid"),
            backing_file=_text(folder / "loop/backing_file"),
            mount_points=uses.mount_points.get(number, ()),
            mounted_as=uses.file_systems.get(number, ""),
            is_swap=number in uses.swaps,
        )


@contextmanager
def opened_device(device: BlockDevice, flags: int) -> Iterator[int]:
    """Open the file of a device, and check that it is the device. EBUSY: with O_EXCL, another program claims it."""
    try:
        opened = os.open(device.path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise HostError.because(error, f"{device.path} cannot be opened") from error
    try:
        refuse_another_device(opened, device)
        yield opened
    finally:
        os.close(opened)


@contextmanager
def locked_device(device: BlockDevice) -> Iterator[None]:
    """Keep other programs from claiming or probing a device in this context; wait for one that does so now.

    udev has the same convention: it does not probe a disk that is locked, and rereads it afterwards.
    """
    with opened_device(device, os.O_RDONLY) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            raise HostError.because(error, f"{device.path} cannot be locked") from error
        yield


def refuse_another_device(opened: int, device: BlockDevice) -> None:
    """Raise ENODEV unless the descriptor is this device: the kernel reuses names of /dev, also during a survey."""
    try:
        number = os.fstat(opened).st_rdev
        size = int.from_bytes(fcntl.ioctl(opened, SIZE_OF_DEVICE, bytes(8)), "little")
        sequence = _sequence_of(opened)
    except OSError as error:
        raise HostError.because(error, f"{device.path} cannot be read") from error
    is_same = f"{os.major(number)}:{os.minor(number)}" == device.major_minor and size == device.bytes
    if not is_same or (sequence and device.disk_sequence and sequence != device.disk_sequence):
        raise HostError(errno.ENODEV, f"{device.path} is another device now: list the devices again.")


def _sequence_of(opened: int) -> int:
    try:
        (sequence,) = struct.unpack("=Q", fcntl.ioctl(opened, DISK_SEQUENCE, bytes(8)))
    except OSError:  # before Linux 5.15
        return 0
    return int(sequence)


def _is_claimed(device: BlockDevice) -> bool:
    try:
        with opened_device(device, os.O_RDONLY) as opened:
            # Without the lock, the claim could make our own mount of the device fail, which is about to begin.
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with opened_device(device, os.O_RDONLY | os.O_EXCL):
                return False
    except BlockingIOError:
        return True
    except HostError as error:
        return error.errno == errno.EBUSY


# ---- uses of devices -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Uses:
    mount_points: Mapping[str, tuple[str, ...]]
    file_systems: Mapping[str, str]
    swaps: frozenset[str]

    @classmethod
    def read(cls, root: Path) -> _Uses:
        points: dict[str, list[str]] = {}
        file_systems: dict[str, str] = {}
        for table in read_all_namespaces(str(root / "proc")).tables:
            for line in parse_mount_lines(table):
                known = points.setdefault(line.root.device, [])
                file_systems[line.root.device] = line.file_system
                if line.mount_point not in known:
                    known.append(line.mount_point)
        return cls({number: tuple(paths) for number, paths in points.items()}, file_systems, _swaps(root))


def _swaps(root: Path) -> frozenset[str]:
    """Return the numbers of devices with swap space in use; swap files do not count."""
    numbers = set()
    for line in _text(root / "proc/swaps").splitlines()[1:]:
        with suppress(OSError, IndexError):
            status = os.stat(line.split()[0])
            numbers.add(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    return frozenset(numbers)


# ---- /sys and udev ---------------------------------------------------------------------------------------------------


def _partitions(folder: Path, name: str) -> tuple[str, ...]:
    return tuple(
        entry for entry in _listed(folder) if entry.startswith(name) and (folder / entry / "partition").exists()
    )


def _model(folder: Path) -> str:
    vendor, model = _text(folder / "device/vendor"), _text(folder / "device/model")
    # Virtual devices have a number for a vendor.
    return model if vendor.startswith("0x") or not model else f"{vendor} {model}".strip()


def _serial(folder: Path) -> str:
    return _first(_text(folder / "serial"), _text(folder / "device/serial"), _scsi_serial(folder))


def _scsi_serial(folder: Path) -> str:
    with suppress(OSError):
        return _clean((folder / "device/vpd_pg80").read_bytes()[_SERIAL_PAGE:])
    return ""


def _udev(root: Path, number: str) -> Mapping[str, str]:
    """Return the properties that udev has stored; none without udev."""
    lines = _text(root / f"run/udev/data/b{number}", longest=1 << 16).splitlines()
    properties = (line[2:].partition("=") for line in lines if line.startswith("E:"))
    return {name: value for name, _, value in properties}


def _listed(folder: Path) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple(sorted(os.listdir(folder)))
    return ()


def _first(*texts: str) -> str:
    return next((clean for text in texts if (clean := " ".join(text.split()))), "")[:_LONGEST_TEXT]


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0


def _text(path: Path, longest: int = 1 << 14) -> str:
    """Return the content of a small file of the kernel; empty if it is missing. A device may disappear meanwhile."""
    with suppress(OSError), path.open("rb") as file:
        content = file.read(longest)
        return content.decode("utf-8", "replace").strip() if b"\n" in content.strip() else _clean(content)
    return ""


def _clean(content: bytes) -> str:
    return _UNPRINTABLE.sub(" ", content.decode("utf-8", "replace")).strip()
