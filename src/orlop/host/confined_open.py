"""Opening what lies below a folder, so that no symbolic link, mount or `..` leads anywhere else.

A name is one step: `open_child` opens it relative to the folder's descriptor. Files that others made are first opened
as a mere place (O_PATH), looked at, and only then opened for reading, by the place and not by the name: a fifo would
wait for a writer, and a device may act when opened. Nothing here changes anything.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from orlop.host.errors import HostError
from orlop.host.system_calls import BENEATH, NO_MAGIC_LINKS, NO_MOUNT_CROSSING, NO_SYMLINKS, openat2

CONFINED: Final = NO_MOUNT_CROSSING | NO_MAGIC_LINKS | NO_SYMLINKS | BENEATH
UPWARDS: Final = NO_MOUNT_CROSSING | NO_MAGIC_LINKS | NO_SYMLINKS
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
PLACE_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW
READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LONGEST_NAME: Final = 255  # bytes


def refuse_unfit_name(name: str) -> None:
    """HostError (EINVAL) unless it is the name of one entry of a folder."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
        raise HostError(errno.EINVAL, f"{name!r} is not the name of an entry of a folder. Give one name, not a path.")


def open_child_folder(folder: int, name: str) -> int:
    """For listing and working in it; EXDEV says that something is mounted there, ENOTDIR or ELOOP that it is none."""
    return openat2(folder, name, FOLDER_FLAGS, CONFINED)


def open_place(folder: int, name: str) -> int:
    """A descriptor that stands for whatever has this name, without opening it: only for looking."""
    return openat2(folder, name, PLACE_FLAGS, CONFINED)


def open_parent_folder(folder: int) -> int:
    """Of a folder whose parent is known to be inside; the caller compares what it gets with what it expects."""
    return openat2(folder, "..", FOLDER_FLAGS, UPWARDS)


def reopen(place: int, flags: int = READ_FLAGS) -> int:
    """What the place stands for, opened; the caller has seen that it is a plain file or a folder."""
    return os.open(path_of(place), flags)


def path_of(descriptor: int) -> str:
    """A path that leads to what the descriptor stands for, whatever happens to its names."""
    return f"/proc/self/fd/{descriptor}"
