"""Folders that carry their own record, on shelves: the file system is the database.

A shelf is a folder that only root can enter; the shelf that a folder is on is its state. The record is bytes in a
`trusted.` attribute of the folder, which no tenant can change, so folder and record cannot be separated. Callers know
what the bytes mean.

Order of effects:
- a new folder: created under a temporary name, given mode and record, renamed. So a folder with its final name always
  has its record; one left half-made by a crash holds at most its image, and is known by its name;
- a changed record: one system call (the old or the new one, never a mixture), the folder synchronised;
- a move: one rename that replaces nothing.
A new folder and a move survive power loss once the shelf that they went to has been synchronised. The journals of ext4
and XFS keep the order of changes, so one fsync covers every change before it, also those of other calls.

This module must not remove a folder that holds anything but a half-made image, and must not look into folders.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orlop.host.node_host import FolderPlace

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    make_folder,
    names_in,
    open_below,
    opened_below,
    remove_empty_folder,
)
from orlop.host.kernel.file_flags import make_erasable, make_open_file_erasable

RECORD: Final = "trusted.orlop.record"
HALF_MADE: Final = ".new."
IMAGE: Final = "image"
"""The file of a folder whose content is in an image."""
_ROOT_ONLY: Final = 0o700
_SYNC_ADVICE: Final = "The disk may be failing; check the kernel's log (dmesg)"


@dataclass(frozen=True, slots=True)
class RecordedFolder:
    name: str
    record: bytes


@dataclass(frozen=True, slots=True)
class Stranger:
    """An entry on a shelf that is not ours: reported, never changed."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class ShelfListing:
    """The folders on a shelf, in no order."""

    folders: tuple[RecordedFolder, ...]
    strangers: tuple[Stranger, ...]
    half_made: tuple[str, ...]
    """The final names of half-made folders."""


def open_shelf(workdir: int, name: str) -> int:
    """Open a shelf, created if missing, which only root can enter.

    Everything on the shelf is durable then, also changes of a process that was killed before it could synchronise:
    setting the mode is a later change, and synchronising it covers every change before it.
    """
    is_new = make_folder(workdir, name, _ROOT_ONLY)
    shelf = open_below(workdir, (name,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED)
    try:
        synchronise_shelf(shelf, name)
        if is_new:
            _synchronise(workdir, name)
    except OSError as error:
        os.close(shelf)
        raise HostError.because(error, f"The folder {name} cannot be prepared") from error
    return shelf


def synchronise_shelf(shelf: int, name: str) -> None:
    """Make everything on the shelf durable. Use when an earlier failed call may have taken effect."""
    try:
        os.fchmod(shelf, _ROOT_ONLY)
    except OSError as error:
        raise HostError.because(error, f"The folder {name} cannot be changed") from error
    _synchronise(shelf, name)


def create(shelf: int, name: str, record: bytes, mode: int, prepare: Callable[[int], object] | None = None) -> None:
    """Create an empty folder.

    `prepare` is called with its descriptor before the folder gets its name, for what it must never be without. EEXIST:
    the name is taken, and the existing folder is unchanged.
    """
    passing_name = HALF_MADE + name
    try:
        _make_half(shelf, passing_name, record, mode, prepare)
        _rename(shelf, passing_name, shelf, name)
    except OSError:
        # The caller retries with the same name, so remove the half-made folder now. After a crash the next start does.
        with contextlib.suppress(OSError):
            _remove_half(shelf, passing_name)
        raise


def read_record(shelf: int, name: str) -> bytes:
    """Return the record of a folder. ENOENT: no such folder; ENODATA: it has no record."""
    with opened_folder(shelf, name) as folder:
        try:
            return os.getxattr(folder, RECORD)
        except OSError as error:
            raise HostError.because(error, f"The record of {name} cannot be read") from error


def write_record(shelf: int, name: str, record: bytes, *, durable: bool = True) -> None:
    """Replace the record. After a failure the old one is still there, or the new one if only fsync failed."""
    with opened_folder(shelf, name) as folder:
        _set_record(folder, name, record)
        if durable:
            _synchronise(folder, name)


def move(shelf: int, name: str, to_shelf: int, new_name: str) -> None:
    """Move a folder. EEXIST: the new name is taken; EBUSY: something is mounted on it; ENOENT: no such folder."""
    _rename(shelf, name, to_shelf, new_name)


def make_durable(shelf: int, name: str) -> None:
    """Synchronise the shelf: every change on it, by any call, survives power loss."""
    _synchronise(shelf, name)


def has_record(folder: int) -> bool:
    """Return whether an open folder has a record, wherever it is mounted."""
    try:
        os.getxattr(f"/proc/self/fd/{folder}", RECORD)
    except OSError:
        return False
    return True


def list_shelf(shelf: int) -> ShelfListing:
    """Read every record of a shelf; folders that disappear meanwhile are left out."""
    folders, strangers, half_made = [], [], []
    for name in names_in(shelf):
        if name.startswith(HALF_MADE):
            half_made.append(name.removeprefix(HALF_MADE))
            continue
        try:
            folders.append(RecordedFolder(name, _read_listed(shelf, name)))
        except FileNotFoundError:
            continue
        except OSError as error:
            strangers.append(Stranger(name, _why_strange(error)))
    return ShelfListing(tuple(folders), tuple(strangers), tuple(half_made))


def remove_half_made(shelf: int, name: str) -> bool:
    """Remove a half-made folder; return whether there was one. Nobody could have mounted it."""
    return _remove_half(shelf, HALF_MADE + name)


def opened_folder(shelf: int, name: str) -> contextlib.AbstractContextManager[int]:
    """Open the folder for its attributes and its content, and never what is mounted on it."""
    return opened_below(shelf, (name,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED)


def _make_half(shelf: int, name: str, record: bytes, mode: int, prepare: Callable[[int], object] | None) -> None:
    if not make_folder(shelf, name, _ROOT_ONLY):
        _remove_half(shelf, name)  # left by a process that died here
        make_folder(shelf, name, _ROOT_ONLY)
    with opened_folder(shelf, name) as folder:
        os.fchmod(folder, mode)
        _set_record(folder, name, record)
        if prepare:
            prepare(folder)


def _remove_half(shelf: int, passing_name: str) -> bool:
    # It holds nothing but the image that its `prepare` was making: no tenant has ever seen it.
    with suppress(OSError), opened_folder(shelf, passing_name) as folder:
        os.unlink(IMAGE, dir_fd=folder)
    return remove_empty_folder(shelf, passing_name)


def _set_record(folder: int, name: str, record: bytes) -> None:
    try:
        try:
            os.setxattr(folder, RECORD, record)
        except PermissionError:
            if not make_open_file_erasable(folder):
                raise
            os.setxattr(folder, RECORD, record)
    except OSError as error:
        advice = "The disk must have room, and its file system trusted attributes"
        raise HostError.because(error, f"The record of {name} cannot be written. {advice}") from error


def _rename(shelf: int, name: str, to_shelf: int, new_name: str) -> None:
    try:
        try:
            system_calls.renameat2(shelf, name, to_shelf, new_name, system_calls.RENAME_NO_REPLACE)
        except PermissionError:
            if not _clear_flags(shelf, name):
                raise
            system_calls.renameat2(shelf, name, to_shelf, new_name, system_calls.RENAME_NO_REPLACE)
    except OSError as error:
        raise HostError.because(error, f"The folder {name} cannot be renamed to {new_name}") from error


def _clear_flags(shelf: int, name: str) -> bool:
    """Clear the immutable and append-only flags; return whether any was set. A privileged tenant can set them."""
    with contextlib.suppress(OSError):
        return make_erasable(shelf, name)
    return False


def _synchronise(descriptor: int, name: str) -> None:
    try:
        os.fsync(descriptor)
        # An XFS that has shut down returns success for the fsync of a folder, whatever was lost; fstat then fails.
        os.fstat(descriptor)
    except OSError as error:
        raise HostError.because(error, f"The change of {name} may not survive power loss. {_SYNC_ADVICE}") from error


def _read_listed(shelf: int, name: str) -> bytes:
    # Spelled out instead of `opened_folder`: ten thousand folders are listed at start.
    folder = system_calls.openat2(shelf, name, _FOLDER_FLAGS, _CONFINED)
    try:
        return os.getxattr(folder, RECORD)
    finally:
        os.close(folder)


_FOLDER_FLAGS: Final = DescriptorUse.FOLDER_CONTENT.value | os.O_NOFOLLOW
_CONFINED: Final = (
    system_calls.BENEATH | system_calls.NO_SYMLINKS | system_calls.NO_MAGIC_LINKS | system_calls.NO_MOUNT_CROSSING
)
_WHY_STRANGE: Final = {
    errno.ENODATA: "it has no record",
    errno.EXDEV: "something is mounted on it",
    errno.ENOTDIR: "it is no folder",
    errno.ELOOP: "it is a symbolic link",
}


def _why_strange(error: OSError) -> str:
    return _WHY_STRANGE.get(error.errno or 0) or f"it cannot be read: {error.strerror}"


# ---- sizes -----------------------------------------------------------------------------------------------------------


SIZE: Final = "trusted.orlop.size"
_SIZE_NOTE: Final = re.compile(rb"([0-9]{1,19}) (.{1,64})", re.DOTALL)


class FolderSizes:
    """Stores the measured size of a folder on the folder itself, so that a restart need not measure it again.

    The note is a `trusted.` attribute, which no tenant can change. It holds the size and `true_of`: the caller's word
    for the state of the folder that was measured. It is not made durable: after power loss it may be missing, and the
    folder is measured again. `open_folder` opens the folder, as `LinuxWorkdir.opened` does. Blocks; raises no OSError.
    """

    def __init__(self, open_folder: Callable[[FolderPlace], AbstractContextManager[int]]) -> None:
        self._open_folder = open_folder

    def noted(self, place: FolderPlace, true_of: str) -> int | None:
        """Return the stored size; None if there is none, or it was measured in another state."""
        try:
            with self._open_folder(place) as folder:
                note = _SIZE_NOTE.fullmatch(os.getxattr(folder, SIZE))
        except OSError:
            return None
        return int(note[1]) if note is not None and note[2] == true_of.encode() else None

    def note(self, place: FolderPlace, size: int, true_of: str) -> None:
        with suppress(HostError, OSError), self._open_folder(place) as folder:
            os.setxattr(folder, SIZE, f"{size} {true_of}".encode())
