"""Mounts that kubelet makes itself: a path inside a volume for one container, and a driver's block device at a file.

A volume's files are the tenant's, who may swap a folder for a link at any moment. The kernel itself resolves the path
once, below the volume's top (openat2): a link that leaves it, and one of /proc's, is an error; a link that stays inside
leads where it leads. What was opened is what is mounted, by its descriptor. Folders that are missing are made one by
one, each opened without following anything, with the mode of the volume's top.

A driver that publishes a raw block volume leaves a device's file, a device mounted on a file, or a link to one: it is
opened without being touched, and what was opened is what is mounted. Anything else there is refused with a sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, system_calls
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, opened_below, path_of, refuse_unfit_name
from orlop.host.mounts import mounts
from orlop.host.mounts.mounts import MountOptions

WITHIN: Final = system_calls.BENEATH | system_calls.NO_MAGIC_LINKS
HANDLE: Final = os.O_PATH | os.O_CLOEXEC
TARGET_FILE_MODE: Final = 0o640
DEVICE_FILE_MODE: Final = 0o750
KINDS_OF_FILES: Final = {stat.S_IFREG: "a plain file", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a character device"}
FOLDER_MODE: Final = 0o750


@contextmanager
def opened_within(volume: int, parts: Sequence[str]) -> Iterator[int]:
    """A handle of what the parts lead to; missing folders are made. `volume` is a descriptor of its top."""
    descriptor = _opened_or_made(volume, parts)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mount_within(source: int, parent: int, name: str) -> None:
    """Mount what the handle stands for at a new name of its kind; keep a mount of the same."""
    if _is_mounted_at(source, parent, name):
        return
    mounts.unmount(parent, name)
    _make_target(source, parent, name)
    options = MountOptions.from_statvfs(os.statvfs(source).f_flag)
    with opened_below(parent, (name,), DescriptorUse.HANDLE, Mounts.REFUSED) as target:
        mounts.bind(source, target, options)


def bind_within(source: int, parent: int, name: str, options: MountOptions) -> None:
    """Bind a folder at a new folder; keep a mount of the same folder."""
    if _is_mounted_at(source, parent, name):
        return
    mounts.unmount(parent, name)
    confined_paths.make_folder(parent, name, FOLDER_MODE)
    with opened_below(parent, (name,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as target:
        mounts.bind(source, target, options)


def _is_mounted_at(source: int, parent: int, name: str) -> bool:
    """Return whether a former call has mounted the source there already."""
    mounted = mounts.mounted_at(parent, name)
    return mounted is not None and mounted.root == mounts.identity_of(source) and not mounted.is_removed


def attach_within(tree: int, parent: int, name: str, failure: str) -> None:
    """Attach a detached mount at a folder. `failure` is the sentence of an error."""
    try:
        system_calls.set_mount_attributes(tree, 0, 0, system_calls.PROPAGATION_PRIVATE)
        with opened_below(parent, (name,), DescriptorUse.FOLDER_HANDLE, Mounts.REFUSED) as target:
            system_calls.attach_tree(tree, target)
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, failure) from error


def unmount_within(parent: int, name: str) -> None:
    """Afterwards neither the mount nor its target is there. ENOTEMPTY: somebody wrote into the target."""
    mounts.unmount(parent, name)
    try:
        if confined_paths.is_folder(parent, name):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError.because(error, f"The target {name} of a subPath cannot be removed") from error


def _opened_or_made(volume: int, parts: Sequence[str]) -> int:
    for part in parts:
        refuse_unfit_name(part)
    try:
        return _open(volume, parts)
    except FileNotFoundError:
        for depth in range(1, len(parts) + 1):
            _make_if_missing(volume, parts[:depth])
    try:
        return _open(volume, parts)
    except OSError as error:
        raise _refused(error, parts) from error


def _open(volume: int, parts: Sequence[str]) -> int:
    try:
        return system_calls.openat2(volume, "/".join(parts) or ".", HANDLE, WITHIN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(error, parts) from error


def _make_if_missing(volume: int, parts: Sequence[str]) -> None:
    try:
        os.close(_open(volume, parts))
    except FileNotFoundError:
        parent = _open(volume, parts[:-1])
        try:
            _make(parent, parts[-1], stat.S_IMODE(os.fstat(volume).st_mode))
        finally:
            os.close(parent)


def _make(parent: int, name: str, mode: int) -> None:
    confined_paths.make_folder(parent, name, FOLDER_MODE)
    with opened_below(parent, (name,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as made:
        os.fchmod(made, mode)


def _make_target(source: int, parent: int, name: str) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        confined_paths.make_folder(parent, name, FOLDER_MODE)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(name, flags, TARGET_FILE_MODE, dir_fd=parent))
    except OSError as error:
        raise HostError.because(error, f"The target {name} of a subPath cannot be made") from error


def _refused(error: OSError, parts: Sequence[str]) -> HostError:
    path = "/".join(parts)
    if error.errno in {errno.EXDEV, errno.ELOOP}:
        return HostError(
            error.errno or errno.EIO, f"The subPath {path!r} leads out of its volume: a link is in the way."
        )
    return HostError.because(error, f"The subPath {path!r} cannot be opened")


# ---- raw block volumes -----------------------------------------------------------------------------------------------


@contextmanager
def opened_device(parent: int, name: str) -> Iterator[int]:
    """A handle of the block device. ENOENT: nothing is there; ENOTBLK: something else is."""
    refuse_unfit_name(name)
    try:
        handle = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        raise HostError.because(error, f"{path_of_entry(parent, name)} cannot be opened") from error
    try:
        require_block_device(handle)
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
        os.close(os.open(name, flags, DEVICE_FILE_MODE, dir_fd=parent))
    except FileExistsError:
        return
    except OSError as error:
        raise HostError.because(error, f"The file {path_of_entry(parent, name)} cannot be made") from error


def mount_device(source: int, parent: int, name: str) -> None:
    """The same device, mounted there already, is kept; another one is replaced."""
    if mounts.is_mount_point(parent, name):
        with opened_below(parent, (name,), DescriptorUse.HANDLE, Mounts.CROSSED) as mounted:
            if _number(mounted) == _number(source):
                return
        mounts.unmount(parent, name)
    make_file(parent, name)
    found = MountOptions.from_statvfs(os.statvfs(source).f_flag)
    with opened_below(parent, (name,), DescriptorUse.HANDLE, Mounts.REFUSED) as target:
        mounts.bind(source, target, found)


def _number(handle: int) -> int | None:
    found = os.fstat(handle)
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else None


def require_block_device(handle: int) -> None:
    mode = os.fstat(handle).st_mode
    if not stat.S_ISBLK(mode):
        what = KINDS_OF_FILES.get(stat.S_IFMT(mode), "something else")
        raise HostError(errno.ENOTBLK, f"{resolved_path(handle)} is {what}, and no block device.")
