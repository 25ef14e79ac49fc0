"""Measure the free space of a disk, and the space that a tree of files uses.

Free space is what users can allocate: blocks reserved for root do not count. A tree is measured without leaving it:
no symbolic link is followed, nothing mounted in it is entered or counted, a file with several names counts once, and
any depth is possible. The tree may belong to a tenant and change meanwhile.

Both functions block for as long as the disk does. Measuring a tree takes microseconds for each file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

_BLOCK: Final = 512  # st_blocks counts these, whatever the file system's own are
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_UPWARDS: Final = system_calls.NO_MOUNT_CROSSING | system_calls.NO_SYMLINKS | system_calls.NO_MAGIC_LINKS
_CONFINED: Final = _UPWARDS | system_calls.BENEATH
_PASSED_OVER: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}
"""Errors for an entry that was removed or replaced since it was listed, or is a mount: it is skipped."""


@dataclass(frozen=True, slots=True)
class DiskRoom:
    total_bytes: int
    free_bytes: int
    total_inodes: int
    """0 for a file system that creates inodes as it needs them."""
    free_inodes: int


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """The space that erasing the tree would free, unless files outside it share its blocks."""

    bytes: int
    inodes: int


def room_on(descriptor: int) -> DiskRoom:
    """Return the space on the disk of an open file or folder; for a folder with a quota, the space of its quota."""
    try:
        status = os.statvfs(descriptor)
    except OSError as error:
        raise HostError.because(error, "The free space of the disk cannot be read") from error
    unit = status.f_frsize or status.f_bsize
    return DiskRoom(status.f_blocks * unit, status.f_bavail * unit, status.f_files, status.f_favail)


def _never() -> bool:
    return False


def measure_tree(parent: int, name: str, should_stop: Callable[[], bool] = _never) -> TreeUsage:
    """Measure a folder. ENOENT: there is none; ECANCELED: stopped; ESTALE: folders in it were moved meanwhile."""
    try:
        walk = _Walk(system_calls.openat2(parent, name, _FOLDER_FLAGS, _CONFINED))
        try:
            while walk.advance():
                if should_stop():
                    raise OSError(errno.ECANCELED, "the measurement was stopped")
        finally:
            os.close(walk.folder)
    except OSError as error:
        raise HostError.because(error, f"The folder {name} cannot be measured") from error
    return TreeUsage(walk.bytes, walk.inodes)


@dataclass(slots=True)
class _MeasuredFolder:
    """A folder above the current one: the subfolders not entered yet, and its identity, checked on the way back up."""

    device: int
    inode: int
    to_enter: list[str]


class _Walk:
    """Holds one descriptor at a time and goes up by `..`, so that a tree of any depth can be measured."""

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.bytes = 0
        self.inodes = 0
        self._device = os.fstat(folder).st_dev
        self._levels: list[_MeasuredFolder] = []
        self._counted: set[int] = set()
        """Inodes that have more than one name."""

    def advance(self) -> bool:
        """Enter or leave one folder; return False when the whole tree is counted."""
        if not self._levels:
            if self.inodes:
                return False
            self._count_folder()
        elif self._levels[-1].to_enter:
            self._enter(self._levels[-1].to_enter.pop())
        else:
            self._leave()
        return True

    def _enter(self, name: str) -> None:
        try:
            below = system_calls.openat2(self.folder, name, _FOLDER_FLAGS, _CONFINED)
        except OSError as error:
            if error.errno in _PASSED_OVER:
                return
            raise
        self._hold(below)
        self._count_folder()

    def _leave(self) -> None:
        self._levels.pop()
        if not self._levels:
            return
        # A tenant may have moved the folder while we were in it: then `..` is another folder, perhaps outside the tree.
        self._hold(system_calls.openat2(self.folder, "..", _FOLDER_FLAGS, _UPWARDS))
        status, expected = os.fstat(self.folder), self._levels[-1]
        if (status.st_dev, status.st_ino) != (expected.device, expected.inode):
            raise OSError(errno.ESTALE, "folders in it were moved meanwhile; measure it again")

    def _hold(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder

    def _count_folder(self) -> None:
        """Count the current folder and its files, and remember its subfolders."""
        own = os.fstat(self.folder)
        self._count(own)
        to_enter = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    to_enter.append(entry.name)
                else:
                    self._count_entry(entry)
        self._levels.append(_MeasuredFolder(own.st_dev, own.st_ino, to_enter))

    def _count_entry(self, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_dev != self._device:
            return  # a file of another disk, mounted here
        if status.st_nlink > 1:
            if status.st_ino in self._counted:
                return
            self._counted.add(status.st_ino)
        self._count(status)

    def _count(self, status: os.stat_result) -> None:
        self.bytes += status.st_blocks * _BLOCK
        self.inodes += 1
