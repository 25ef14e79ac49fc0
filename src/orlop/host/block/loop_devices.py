"""Hold block devices with loop devices: while a loop device has a block device open, the kernel keeps its number.

A loop device is found again by the path of its backing file, which the kernel reports (/sys/block/loop*/loop). So a
restarted process finds the devices that an earlier process held. Loop devices are attached read-only: a container that
may only read gets the loop device instead of the block device, because file permissions on a device do not stop root.
A read without O_DIRECT through the loop device may return older data than another process wrote to the block device.

Order of holding: search for an existing loop device → get a free number → attach and configure it in one call. If
another process took the number in between, start again. This module starts no program.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import READ_FLAGS, reopen

CONTROL: Final = "/dev/loop-control"
DEVICES: Final = "/sys/block"
GET_FREE, CONFIGURE, CLEAR = 0x4C82, 0x4C0A, 0x4C01
READ_ONLY: Final = 1
MOST_TRIES: Final = 100
_CONFIG: Final = struct.Struct("=II52xI176x64x")  # descriptor, block size, flags; of struct loop_config
_REMOVED: Final = " (deleted)"


def holder_of(path: str) -> str | None:
    """Return the loop device, such as /dev/loop3, whose backing file is this path; None if there is none."""
    return next((f"/dev/{name}" for name in _loop_names() if _path_behind(name) == path), None)


def held_below(folder: str) -> list[str]:
    """Return the backing files of loop devices below a folder. `folder` is a path without symbolic links."""
    paths = (_path_behind(name) for name in _loop_names())
    return sorted(path for path in paths if path is not None and path.startswith(f"{folder.rstrip('/')}/"))


def hold(place: int, path: str) -> str:
    """Return the loop device that holds the path; attach one if none does. `place` is a handle of the block device."""
    for _ in range(MOST_TRIES):
        if (existing := holder_of(path)) is not None:
            return existing
        # GET_FREE reserves nothing: another process may attach the same number before us, and then we need another one.
        if (attached := _attached(place, _free_device())) is not None:
            return attached
    raise HostError(
        errno.EBUSY, f"No loop device could be attached to {path}: other processes took each free one. Try again."
    )


def release(path: str) -> bool:
    """Detach every loop device of the path; return whether there was one. EBUSY: a process has the loop device open."""
    was_held = False
    for _ in range(MOST_TRIES):
        device = holder_of(path)
        if device is None:
            return was_held
        was_held = True
        _clear(device)
        # The kernel accepts CLEAR for a device that is open elsewhere, and detaches it at the last close.
        if holder_of(path) == device:
            raise HostError(errno.EBUSY, f"{device}, which holds {path}, is in use: 'fuser {device}' shows by whom.")
    raise HostError(
        errno.EBUSY,
        f"Another process keeps attaching loop devices to {path}. Find it with 'losetup --list' and stop it.",
    )


@contextmanager
def opened_holder(path: str) -> Iterator[int]:
    """Open the loop device that holds the path, as a handle (O_PATH)."""
    device = holder_of(path)
    if device is None:
        raise HostError(errno.ENXIO, f"No loop device holds {path}, so it cannot be offered read-only: map it again.")
    handle = _opened(device, os.O_PATH)
    try:
        yield handle
    finally:
        os.close(handle)


def _loop_names() -> list[str]:
    try:
        return sorted(name for name in os.listdir(DEVICES) if name.startswith("loop"))
    except OSError as error:
        raise HostError.because(error, f"The loop devices cannot be listed in {DEVICES}") from error


def _path_behind(name: str) -> str | None:
    try:
        with open(f"{DEVICES}/{name}/loop/backing_file", "rb") as file:
            return os.fsdecode(file.read().removesuffix(b"\n")).removesuffix(_REMOVED)
    except OSError:  # it is free
        return None


def _free_device() -> str:
    control = _opened(CONTROL, os.O_RDWR)
    try:
        return f"/dev/loop{fcntl.ioctl(control, GET_FREE)}"
    except OSError as error:
        raise HostError.because(error, "No loop device is free") from error
    finally:
        os.close(control)


def _attached(place: int, device: str) -> str | None:
    """Attach the block device to this loop device and return it; None if another process took the loop device first."""
    loop = _opened(device, os.O_RDWR)
    try:
        behind = _open_behind(place)
        try:
            fcntl.ioctl(loop, CONFIGURE, _CONFIG.pack(behind, 0, READ_ONLY))
        finally:
            os.close(behind)
    except HostError:
        raise
    except OSError as error:
        if error.errno == errno.EBUSY:
            return None
        raise HostError.because(error, f"{device} cannot be attached") from error
    finally:
        os.close(loop)
    return device


def _open_behind(place: int) -> int:
    try:
        return reopen(place, READ_FLAGS)
    except OSError as error:
        raise HostError.because(error, "The block device cannot be opened") from error


def _clear(device: str) -> None:
    try:
        loop = _opened(device, os.O_RDONLY)
    except HostError as error:
        if error.errno in {errno.ENOENT, errno.ENXIO}:
            return
        raise
    try:
        fcntl.ioctl(loop, CLEAR)
    except OSError as error:
        if error.errno != errno.ENXIO:  # nothing is attached any more
            raise HostError.because(error, f"{device} cannot be detached") from error
    finally:
        os.close(loop)


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise HostError.because(error, f"{path} cannot be opened: are there loop devices on this machine?") from error
