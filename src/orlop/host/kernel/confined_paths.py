"""Open, create and remove files and folders below a root that is held open, so that no path leads out of it.

The kernel itself refuses symbolic links, `..` and, on request, other mounts, while it resolves a path (openat2): there
is no moment between check and use in which somebody could swap a folder for a link. From then on only the descriptor is
used.

Functions that take names raise HostError, a sentence for people. A step of a walk (`open_child_folder` and its
neighbours) raises the kernel's own OSError: walks decide by it, thousands of times. Files that others made are first
opened as a place (O_PATH), examined, and only then opened for reading, by the place and not by the name: a fifo would
wait for a writer, and a device may act when opened.

This module must not walk a path as text and must not remove anything but an empty folder or file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

_WITHOUT_LINKS: Final = system_calls.NO_SYMLINKS | system_calls.NO_MAGIC_LINKS
_BENEATH: Final = system_calls.BENEATH | _WITHOUT_LINKS
CONFINED: Final = _BENEATH | system_calls.NO_MOUNT_CROSSING
"""How a step of a walk is taken: nothing leads elsewhere, not even a mount."""
_UPWARDS: Final = _WITHOUT_LINKS | system_calls.NO_MOUNT_CROSSING
FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
PLACE_FLAGS: Final = os.O_PATH | os.O_NOFOLLOW
READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
LONGEST_NAME: Final = 255  # bytes
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ADVICE: Final = {
    errno.ELOOP: "a symbolic link is in the way; remove it",
    errno.EXDEV: "a mount is in the way, or it leads out of its root; unmount it",
    errno.ENOTDIR: "something that is no folder is in the way; remove it",
    errno.ENOSYS: "the kernel is too old; Linux 5.14 or newer is needed",
}


class Mounts(Enum):
    """Whether the walk may go from one mount to another."""

    CROSSED = 0
    REFUSED = system_calls.NO_MOUNT_CROSSING


class DescriptorUse(Enum):
    """What a descriptor is for."""

    HANDLE = os.O_PATH
    """To open names below it, bind it or stat it; the file itself is not opened (O_PATH)."""
    FOLDER_HANDLE = os.O_PATH | os.O_DIRECTORY
    FOLDER_CONTENT = os.O_RDONLY | os.O_DIRECTORY
    """To list it, make it durable and reach its attributes."""


@contextmanager
def opened_root(path: str) -> Iterator[int]:
    """Open a root that the admin has named; symbolic links in its path are the admin's, and are followed this once."""
    root = open_root(path)
    try:
        yield root
    finally:
        os.close(root)


def open_root(path: str) -> int:
    """Open a root as `opened_root` does; the caller closes it."""
    try:
        return os.open(path, _ROOT_FLAGS)
    except OSError as error:
        raise HostError.because(error, f"The folder {path} cannot be opened") from error


def open_below(root: int, names: Sequence[str], use: DescriptorUse, mounts: Mounts) -> int:
    """Open what the names lead to; no names mean the root itself."""
    path = _path(names)
    try:
        return system_calls.openat2(root, path, use.value | _NO_FOLLOW, _BENEATH | mounts.value)
    except OSError as error:
        raise _refused(error, f"{path} cannot be opened below {shown(root)}") from error


@contextmanager
def opened_below(root: int, names: Sequence[str], use: DescriptorUse, mounts: Mounts) -> Iterator[int]:
    descriptor = open_below(root, names, use, mounts)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(parent: int, name: str, mode: int) -> bool:
    """Create a folder; return False if it existed, and leave that one as it is. ENOTDIR: something else is there."""
    try:
        os.mkdir(_single(name), mode, dir_fd=parent)
    except FileExistsError as error:
        if not is_folder(parent, name):
            raise HostError(
                errno.ENOTDIR, f"{name} in {shown(parent)} is no folder: it is in the way; remove it."
            ) from error
        return False
    except OSError as error:
        raise HostError.because(error, f"The folder {name} cannot be made in {shown(parent)}") from error
    return True


def remove_empty_folder(parent: int, name: str) -> bool:
    """Remove a folder; return False if it was gone. ENOTEMPTY, EBUSY (mounted on): it stays."""
    try:
        os.rmdir(_single(name), dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"The folder {name} in {shown(parent)} cannot be removed") from error
    return True


def make_file(parent: int, name: str, mode: int) -> bool:
    """Create an empty file; return False if a file has the name, and leave it. EISDIR: something else has it."""
    try:
        os.close(os.open(_single(name), _NEW_FILE, mode, dir_fd=parent))
    except FileExistsError as error:
        if not _is_file(parent, name):
            raise HostError(
                errno.EISDIR, f"{name} in {shown(parent)} is no file: it is in the way; remove it."
            ) from error
        return False
    except OSError as error:
        raise HostError.because(error, f"The file {name} cannot be made in {shown(parent)}") from error
    return True


def remove_empty_file(parent: int, name: str) -> bool:
    """Remove a file that holds nothing; return False if it was gone. ENOTEMPTY, EISDIR, EBUSY: it stays."""
    try:
        status = os.stat(_single(name), dir_fd=parent, follow_symlinks=False)
        holds_data = stat.S_ISREG(status.st_mode) and status.st_size > 0
        if not holds_data:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise HostError.because(error, f"The file {name} in {shown(parent)} cannot be removed") from error
    if holds_data:
        raise HostError(errno.ENOTEMPTY, f"The file {name} in {shown(parent)} holds data: it stays.")
    return True


def _is_file(parent: int, name: str) -> bool:
    """Return whether a plain file, or a device that is mounted on one, has this name."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError as error:
        raise HostError.because(error, f"Cannot check whether {name} in {shown(parent)} is a file") from error
    return stat.S_ISREG(mode) or stat.S_ISBLK(mode)


def is_folder(parent: int, name: str) -> bool:
    """Return whether a folder has this name; a link to a folder is none."""
    try:
        descriptor = system_calls.openat2(
            parent, _single(name), DescriptorUse.FOLDER_HANDLE.value | _NO_FOLLOW, _BENEATH
        )
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        raise _refused(error, f"Cannot check whether {name} in {shown(parent)} is a folder") from error
    os.close(descriptor)
    return True


def names_in(folder: int) -> list[str]:
    """List a folder opened with `FOLDER_CONTENT`, in no order."""
    try:
        return os.listdir(folder)
    except OSError as error:
        raise HostError.because(error, f"The folder {shown(folder)} cannot be listed") from error


def folders_upwards(folder: int) -> Iterator[int]:
    """Yield handles of an open folder and of all folders above it, across mounts; each is closed before the next."""
    current = _step(folder, ".")
    try:
        while True:
            yield current
            above = _step(current, "..")
            if _is_same_place(above, current):
                os.close(above)
                return
            os.close(current)
            current = above
    finally:
        os.close(current)


# ---- one step of a walk ----------------------------------------------------------------------------------------------


def open_child_folder(folder: int, name: str) -> int:
    """Open a folder to work in it. EXDEV: something is mounted there. ENOTDIR, ELOOP: it is no folder."""
    return system_calls.openat2(folder, name, FOLDER_FLAGS, CONFINED)


def open_place(folder: int, name: str) -> int:
    """Return a handle (O_PATH) of whatever has this name, without opening it."""
    return system_calls.openat2(folder, name, PLACE_FLAGS, CONFINED)


def open_parent_folder(folder: int) -> int:
    """Open the parent of a folder that is known to be inside. The caller checks that it is the expected one."""
    return system_calls.openat2(folder, "..", FOLDER_FLAGS, _UPWARDS)


def reopen(place: int, flags: int = READ_FLAGS) -> int:
    """Open what the handle stands for. The caller has checked that it is a plain file or a folder."""
    return os.open(path_of(place), flags)


# ---- paths and names -------------------------------------------------------------------------------------------------


def path_of(descriptor: int) -> str:
    """Return a path to what the descriptor stands for, valid even if it is renamed."""
    return f"/proc/self/fd/{descriptor}"


def path_by_descriptor(parent: int, name: str) -> str:
    """Return a path for system calls that take no descriptor; the kernel resolves it from the open folder."""
    return f"{path_of(parent)}/{_single(name)}"


def refuse_unfit_name(name: str) -> None:
    """Raise HostError (EINVAL) unless this can be the name of one entry of a folder, on any file system."""
    if len(os.fsencode(_single(name))) > LONGEST_NAME:
        raise HostError(errno.EINVAL, f"{name[:40]!r}… cannot be a name in a folder: it has over {LONGEST_NAME} bytes.")


def _step(folder: int, name: str) -> int:
    try:
        return os.open(name, DescriptorUse.FOLDER_HANDLE.value | _NO_FOLLOW, dir_fd=folder)
    except OSError as error:
        raise HostError.because(error, f"The folder above {shown(folder)} cannot be opened") from error


def _is_same_place(above: int, current: int) -> bool:
    # Compare the mount too: a folder can be mounted on a folder below itself, and then appears twice on the way up.
    is_same = os.path.samestat(os.fstat(above), os.fstat(current))
    return is_same and system_calls.statx(above, "").mount_id == system_calls.statx(current, "").mount_id


def _path(names: Sequence[str]) -> str:
    return "/".join(_single(name) for name in names) or "."


def _single(name: str) -> str:
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        raise HostError(errno.EINVAL, f"{name!r} is not the name of one entry of a folder: write it without slashes.")
    return name


def _refused(error: OSError, what: str) -> HostError:
    advice = _ADVICE.get(error.errno or 0)
    return HostError(error.errno or errno.EIO, f"{what}: {advice}.") if advice else HostError.because(error, what)


def shown(folder: int) -> str:
    """Return the current path of an open folder, for error messages only."""
    try:
        return os.readlink(path_of(folder))
    except OSError:
        return f"the folder with descriptor {folder}"
