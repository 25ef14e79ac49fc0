"""Loop devices that keep a block device from being pulled away: as long as one has it open, its number stays its own.

A loop device is found again by the path of the file behind it, which the kernel reports (/sys/block/loop*/loop): so a
process that starts anew finds what an earlier life held. Each is attached read-only: nobody writes through it, and a
container that may only read gets this device instead of the one behind it, since the permissions of a device's file
stop no root user. What is read through it without O_DIRECT may be older than what somebody else wrote to the device.

Order of holding: find → ask for a free number → attach, all at once; when another process took the number, again.
Nothing here starts a program.
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
    """The loop device, such as /dev/loop3, behind which this path is."""
    return next((f"/dev/{name}" for name in _loop_names() if _path_behind(name) == path), None)


def held_below(folder: str) -> list[str]:
    """Return the paths below the folder, a path without links, that loop devices hold."""
    paths = (_path_behind(name) for name in _loop_names())
    return sorted(path for path in paths if path is not None and path.startswith(f"{folder.rstrip('/')}/"))


def hold(place: int, path: str) -> str:
    """The loop device that has it, from before or now. `place` is a handle of the block device at the path."""
    for _ in range(MOST_TRIES):
        if (found := holder_of(path)) is not None:
            return found
        if (made := _attached(place, _free_device())) is not None:
            return made
    raise HostError(errno.EBUSY, f"No loop device can be had for {path}: others take each that is free. Try again.")


def release(path: str) -> bool:
    """Whether one had it; afterwards none has. EBUSY: somebody has the loop device open."""
    found = False
    for _ in range(MOST_TRIES):
        device = holder_of(path)
        if device is None:
            return found
        found = True
        _clear(device)
        if holder_of(path) == device:
            raise HostError(errno.EBUSY, f"{device}, which holds {path}, is in use: 'fuser {device}' shows by whom.")
    raise HostError(errno.EBUSY, f"Somebody keeps attaching loop devices to {path}. Find out who.")


@contextmanager
def opened_holder(path: str) -> Iterator[int]:
    """A handle of the loop device itself."""
    device = holder_of(path)
    if device is None:
        raise HostError(errno.ENXIO, f"No loop device holds {path}, so that it cannot be read only: map it again.")
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
    """None: somebody else was quicker."""
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
