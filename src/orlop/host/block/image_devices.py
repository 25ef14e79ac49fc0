"""Loop devices over image files: attached with direct I/O, and found again by the identity of the image.

An image is found by the device and inode of the file behind each loop device, which the kernel reports, and not by its
path: a path may be another one in another mount namespace, and changes when a volume is renamed. So a restarted process
finds what an earlier one attached, and no image is attached for writing twice.

Direct I/O: what a pod writes is not kept twice in memory, and a full cache of the drive cannot delay it. All devices
have sectors of 4096 bytes, whatever the drive has: with direct I/O the kernel requires at least the sectors of the
drive, and a file that shares blocks needs whole blocks; a file system that was made for smaller sectors could then not
be mounted.

A device that is attached UNTIL_CLOSED is detached by the kernel when its mount ends. So a process that is killed
between attaching and mounting leaves nothing, and an unmounted file system leaves no device.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from orlop.host.block.loop_devices import (
    DEVICES,
    DIRECT_IO,
    READ_ONLY,
    UNTIL_CLOSED,
    attach,
    clear,
    is_soon_detached,
    loop_names,
    opened_device,
    path_behind,
)
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import FileIdentity, identity_of

SECTOR: Final = 4096
LOOP_MAJOR: Final = 7
"""The major device number of all loop devices."""
GET_STATUS, SET_CAPACITY = 0x4C05, 0x4C07
_STATUS: Final = struct.Struct("=QQ36xI176x")  # device and inode of the backing file, flags; of struct loop_info64
_BY_NUMBER: Final = "/sys/dev/block"
_NOTHING_ATTACHED: Final = frozenset({errno.ENXIO, errno.ENOENT, errno.ENODEV})


@dataclass(frozen=True, slots=True)
class ImageDevice:
    """A loop device over an image."""

    path: str
    """Such as /dev/loop3."""
    is_read_only: bool


def devices_of(image: int, ending: str) -> tuple[ImageDevice, ...]:
    """Return the loop devices over an open image. The path of its file ends with `ending`, in every mount namespace."""
    identity = identity_of(image)
    # Comparing the ending avoids opening the devices of other images. The identity decides.
    near = [name for name in loop_names() if (path_behind(name) or "").endswith(ending)]
    devices = (_device(f"/dev/{name}") for name in near)
    return tuple(device for device, behind in filter(None, devices) if behind == identity)


def image_behind(number: int) -> FileIdentity | None:
    """Return the identity of the file behind the loop device with this device number; None if it is no loop device."""
    try:
        name = os.path.basename(os.readlink(f"{_BY_NUMBER}/{os.major(number)}:{os.minor(number)}"))
    except OSError:
        return None  # a file system without a device
    loop = _device(f"/dev/{name}") if name.startswith("loop") else None
    return loop[1] if loop is not None else None


def attached_images(file_name: str) -> Iterator[tuple[str, FileIdentity]]:
    """Yield the files of this name that have a loop device: the name of the file's folder, and the file's identity."""
    for name in loop_names():
        folder, slash, last = (path_behind(name) or "").rpartition("/")
        loop = _device(f"/dev/{name}") if slash and last == file_name else None
        if loop is not None:
            yield os.path.basename(folder), loop[1]


def is_image_removed(number: int) -> bool:
    """Return whether the device with this number is a loop device whose image has no name any more."""
    try:
        with open(f"{_BY_NUMBER}/{os.major(number)}:{os.minor(number)}/loop/backing_file", "rb") as file:
            return file.read().endswith(b" (deleted)\n")
    except OSError:  # it is no loop device, or free
        return False


@contextmanager
def attached_until_mounted(image: int, *, read_only: bool, keeps_space: bool) -> Iterator[str]:
    """Attach an image for a mount that is made in the block; the kernel detaches it with the last mount of it."""
    device, loop = attach(image, _flags(read_only) | UNTIL_CLOSED, sector=SECTOR)
    assert loop is not None  # noqa: S101 - no other device was offered to `attach`
    try:
        if keeps_space:
            _refuse_discards(device)
        yield device
    finally:
        os.close(loop)


def attach_image(image: int, *, read_only: bool, keeps_space: bool) -> str:
    """Attach an image until `detach` and return the device. The caller has checked that there is none yet."""
    device, loop = attach(image, _flags(read_only), sector=SECTOR)
    if loop is not None:
        os.close(loop)
    if keeps_space:
        _refuse_discards(device)
    return device


def detach(image: int, ending: str, *, read_only: bool | None = None) -> int:
    """Detach the devices of an image, or only its read-only or writable ones; return how many. EBUSY: one is open."""
    chosen = [each for each in devices_of(image, ending) if read_only is None or each.is_read_only is read_only]
    for device in chosen:
        _refuse_if_open(device.path)
        clear(device.path)
    cleared = {device.path for device in chosen}
    if is_soon_detached(lambda: any(device.path in cleared for device in devices_of(image, ending))):
        return len(chosen)
    devices = " ".join(sorted(cleared))
    raise HostError(errno.EBUSY, f"{devices} is in use: 'fuser {devices}' shows by whom. End that process.")


def detach_lost(folder: str, ending: str) -> int:
    """Detach the loop devices whose image was below a folder, at a path with this ending; return how many.

    Use it for an image on a file system that failed: the identity of the image cannot be read there, and the loop
    devices would keep the file system mounted. EBUSY: one is open.
    """
    count = 0
    for name in loop_names():
        path = path_behind(name) or ""
        if path.endswith(ending) and (path.startswith(f"{folder.rstrip('/')}/") or _is_out_of_sight(path)):
            _refuse_if_open(f"/dev/{name}")
            clear(f"/dev/{name}")
            count += 1
    return count


def _is_out_of_sight(path: str) -> bool:
    """Return whether a file was opened in a mount namespace that has ended, such as that of our previous container.

    The kernel shows its path from the root of its file system then, which is no path here.
    """
    return not os.path.lexists(path)


def adopt_size(device: str) -> None:
    """Make a loop device as large as its image is now; what has it open keeps working."""
    loop = opened_device(device, os.O_RDONLY)
    try:
        fcntl.ioctl(loop, SET_CAPACITY)
    except OSError as error:
        raise HostError.because(error, f"{device} cannot get the new size of its image") from error
    finally:
        os.close(loop)


def _flags(read_only: bool) -> int:  # noqa: FBT001 - of the kernel's flags
    return DIRECT_IO | (READ_ONLY if read_only else 0)


def _device(path: str) -> tuple[ImageDevice, FileIdentity] | None:
    """Return a loop device and the identity of the file behind it; None if nothing is attached."""
    try:
        loop = opened_device(path, os.O_RDONLY)
    except HostError as error:
        if error.errno in _NOTHING_ATTACHED:
            return None
        raise
    status = bytearray(_STATUS.size)
    try:
        fcntl.ioctl(loop, GET_STATUS, status)
    except OSError as error:
        # EIO: of a file system that failed. An image that can be opened is on another one.
        if error.errno in {*_NOTHING_ATTACHED, errno.EIO}:
            return None
        raise HostError.because(error, f"The file behind {path} cannot be read") from error
    finally:
        os.close(loop)
    device, inode, flags = _STATUS.unpack(status)
    return ImageDevice(path, bool(flags & READ_ONLY)), FileIdentity(device, inode)


def _refuse_if_open(device: str) -> None:
    """Raise EBUSY if a process or a mount has a device open for itself; others are noticed after detaching."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise HostError(errno.EBUSY, f"{device} is in use: 'fuser {device}' shows by whom.") from error
        if error.errno not in _NOTHING_ATTACHED:
            raise HostError.because(error, f"{device} cannot be opened") from error


def _refuse_discards(device: str) -> None:
    """Stop discards, which would return blocks of the image to the drive: its space was promised to this volume."""
    limit = f"{DEVICES}/{os.path.basename(device)}/queue/discard_max_bytes"
    # Where /sys is read-only, or the kernel has no such file, the volume still works; a pod that discards gives away
    # its own space only.
    with contextlib.suppress(OSError):
        with open(limit) as file:
            # The kernel keeps the limit for the next image on this device, and takes longer to set it than to mount.
            if file.read().strip() == "0":
                return
        with open(limit, "w") as file:
            file.write("0")
