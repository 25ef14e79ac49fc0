"""Attach loop devices, and hold block devices with them: the kernel keeps the number of a block device that is open.

A loop device is found again by the path of its backing file, which the kernel reports (/sys/block/loop*/loop). So a
restarted process finds the devices that an earlier process held. Those are attached read-only: a container that may
only read gets the loop device instead of the block device, because file permissions on a device do not stop root.
A read without O_DIRECT through the loop device may return older data than another process wrote to the block device.
`image_devices` attaches image files, which it finds by their identity.

Order of holding: search for an existing loop device → get a free number → attach and configure it in one call. If
another process took the number in between, start again. This module starts no program.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import READ_FLAGS, reopen

CONTROL: Final = "/dev/loop-control"
DEVICES: Final = "/sys/block"
GET_FREE, CONFIGURE, CLEAR = 0x4C82, 0x4C0A, 0x4C01
READ_ONLY, UNTIL_CLOSED, DIRECT_IO = 1, 4, 16
"""Flags of a loop device. UNTIL_CLOSED: it is detached when no process and no mount has it open any more."""
MOST_TRIES: Final = 100
MOST_CHECKS: Final = 2_000
"""Checks whether a device is detached, about 0.2 s of CPU. A program that only lists devices has closed it by then."""
_CONFIG: Final = struct.Struct("=II52xI176x64x")  # descriptor, block size, flags; of struct loop_config
_PARTITIONS: Final = "/proc/partitions"
_LOOP: Final = re.compile(r"loop[0-9]+")
_LONGEST_PATH: Final = 4096
"""A file of /sys has at most one page."""
_REMOVED: Final = " (deleted)"


def holder_of(path: str) -> str | None:
    """Return the loop device, such as /dev/loop3, whose backing file is this path; None if there is none."""
    return next((f"/dev/{name}" for name in loop_names() if path_behind(name) == path), None)


def held_below(folder: str) -> list[str]:
    """Return the backing files of loop devices below a folder. `folder` is a path without symbolic links."""
    paths = (path_behind(name) for name in loop_names())
    return sorted(path for path in paths if path is not None and path.startswith(f"{folder.rstrip('/')}/"))


def hold(place: int, path: str) -> str:
    """Return the loop device that holds the path; attach one if none does. `place` is a handle of the block device."""
    if (existing := holder_of(path)) is not None:
        return existing
    behind = _open_behind(place)
    try:
        device, loop = attach(behind, READ_ONLY, unless=lambda: holder_of(path))
    finally:
        os.close(behind)
    if loop is not None:
        os.close(loop)
    return device


def attach(
    behind: int, flags: int, *, sector: int = 0, unless: Callable[[], str | None] = lambda: None
) -> tuple[str, int | None]:
    """Attach a free loop device to an open file; return it and its descriptor, which the caller closes.

    Where another process took the free device first, `unless` is called before the next try; a device that it returns
    is returned, without a descriptor. `sector` 0: the kernel chooses the size of a sector.
    """
    for attempt in range(MOST_TRIES):
        if attempt and (existing := unless()) is not None:
            return existing, None
        # GET_FREE reserves nothing: another process may attach the same number before us, and then we need another one.
        device = _free_device()
        loop = opened_device(device, os.O_RDONLY if flags & READ_ONLY else os.O_RDWR)
        try:
            fcntl.ioctl(loop, CONFIGURE, _CONFIG.pack(behind, sector, flags))
        except OSError as error:
            os.close(loop)
            if error.errno != errno.EBUSY:
                raise HostError.because(error, f"{device} cannot be attached") from error
        else:
            return device, loop
    raise HostError(errno.EBUSY, "No loop device could be attached: other processes took each free one. Try again.")


def release(path: str) -> bool:
    """Detach every loop device of the path; return whether there was one. EBUSY: a process has the loop device open."""
    was_held = False
    for _ in range(MOST_TRIES):
        device = holder_of(path)
        if device is None:
            return was_held
        was_held = True
        clear(device)
        if not is_soon_detached(partial(_is_holder, device, path)):
            raise HostError(
                errno.EBUSY,
                f"{device}, which holds {path}, is in use: 'fuser {device}' shows which processes have it open, and "
                f"'grep -l {device} /proc/[0-9]*/mountinfo' those that have it mounted, in whatever namespace.",
            )
    raise HostError(
        errno.EBUSY,
        f"Another process keeps attaching loop devices to {path}. Find it with 'losetup --list' and stop it.",
    )


def _is_holder(device: str, path: str) -> bool:
    return holder_of(path) == device


def is_soon_detached(is_attached: Callable[[], bool]) -> bool:
    """Wait a moment for the detachment of a cleared device; return whether it is detached.

    The kernel accepts CLEAR for a device that is open elsewhere, and detaches it at the last close. A program that
    lists loop devices has each of them open for a moment, and does not use this one: do not fail because of it.
    """
    for _ in range(MOST_CHECKS):
        if not is_attached():
            return True
        os.sched_yield()
    return False


@contextmanager
def opened_holder(path: str) -> Iterator[int]:
    """Open the loop device that holds the path, as a handle (O_PATH)."""
    device = holder_of(path)
    if device is None:
        raise HostError(errno.ENXIO, f"No loop device holds {path}, so it cannot be offered read-only: map it again.")
    handle = opened_device(device, os.O_PATH)
    try:
        yield handle
    finally:
        os.close(handle)


def loop_names() -> list[str]:
    """Return the names of the loop devices that have a file behind them, such as loop3.

    A machine may have hundreds of free ones. /proc/partitions lists only devices that have a size: reading it costs as
    much as asking five devices whether they are free.
    """
    try:
        with open(_PARTITIONS) as file:
            rows = [line.split() for line in file]
    except OSError as error:
        raise HostError.because(error, f"The loop devices cannot be listed in {_PARTITIONS}") from error
    return sorted(row[-1] for row in rows if row and _LOOP.fullmatch(row[-1]))


def path_behind(name: str) -> str | None:
    """Return the path of the backing file of a loop device; None if it is free."""
    try:
        # Read for every loop device of the machine, again and again: a file object costs five more system calls.
        file = os.open(f"{DEVICES}/{name}/loop/backing_file", os.O_RDONLY | os.O_CLOEXEC)
        try:
            path = os.read(file, _LONGEST_PATH)
        finally:
            os.close(file)
    except OSError:  # it is free
        return None
    return os.fsdecode(path.removesuffix(b"\n")).removesuffix(_REMOVED)


def _free_device() -> str:
    control = opened_device(CONTROL, os.O_RDWR)
    try:
        return f"/dev/loop{fcntl.ioctl(control, GET_FREE)}"
    except OSError as error:
        raise HostError.because(error, "No loop device is free") from error
    finally:
        os.close(control)


def _open_behind(place: int) -> int:
    try:
        return reopen(place, READ_FLAGS)
    except OSError as error:
        raise HostError.because(error, "The block device cannot be opened") from error


def clear(device: str) -> None:
    """Detach a loop device, at its last close if it is open elsewhere. Succeeds if nothing is attached."""
    try:
        loop = opened_device(device, os.O_RDONLY)
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


def opened_device(path: str, flags: int) -> int:
    """Open a loop device, or the control device; the caller closes it."""
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise HostError.because(error, f"{path} cannot be opened: are there loop devices on this machine?") from error
