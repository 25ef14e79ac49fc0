"""A block device that a driver put somewhere, mounted once more at a file of ours.

Who publishes a raw block volume leaves a device's file, a device mounted on a file, or a link to one: it is opened
without being touched, and what was opened is what is mounted. Anything else there is refused with a sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orlop.host import mounts
from orlop.host.confined_paths import Mounts, Use, opened_below, path_of, refuse_unfit_name
from orlop.host.errors import HostError
from orlop.host.mount_option_rules import MountOptions

FILE_MODE: Final = 0o750
KINDS: Final = {stat.S_IFREG: "a plain file", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a character device"}


@contextmanager
def opened_device(parent: int, name: str) -> Iterator[int]:
    """A handle of the block device. ENOENT: nothing is there; ENOTBLK: something else is."""
    refuse_unfit_name(name)
    try:
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        raise HostError.because(error, f"{path_of_entry(parent, name)} cannot be opened") from error
    try:
        _refuse_what_is_none(handle)
        yield handle
    finally:
        os.close(handle)


def resolved_path(handle: int) -> str:
    """Where the device is, without a link on the way."""
    return os.readlink(path_of(handle))


def path_of_entry(parent: int, name: str) -> str:
    return f"{os.readlink(path_of(parent))}/{name}"


def make_file(parent: int, name: str) -> None:
    """An empty one; what is there is left as it is."""
    refuse_unfit_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(name, flags, FILE_MODE, dir_fd=parent))
    except FileExistsError:
        return
    except OSError as error:
        raise HostError.because(error, f"The file {path_of_entry(parent, name)} cannot be made") from error


def mount_device(source: int, parent: int, name: str) -> None:
    """The same device, mounted there already, is kept; another one is replaced."""
    if mounts.is_mount_point(parent, name):
        with opened_below(parent, (name,), Use.HANDLE, Mounts.CROSSED) as mounted:
            if _number(mounted) == _number(source):
                return
        mounts.unmount(parent, name)
    make_file(parent, name)
    found = MountOptions.found(os.statvfs(source).f_flag)
    with opened_below(parent, (name,), Use.HANDLE, Mounts.REFUSED) as target:
        mounts.bind(source, target, found)


def _number(handle: int) -> int | None:
    found = os.fstat(handle)
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else None


def _refuse_what_is_none(handle: int) -> None:
    mode = os.fstat(handle).st_mode
    if not stat.S_ISBLK(mode):
        what = KINDS.get(stat.S_IFMT(mode), "something else")
        raise HostError(errno.ENOTBLK, f"{resolved_path(handle)} is {what}, and no block device.")
