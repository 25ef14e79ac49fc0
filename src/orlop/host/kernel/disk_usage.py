"""How much room a disk has, and how much a tree of files takes.

Room is what users can have: what the file system keeps for root does not count. A tree is measured without leaving it:
no symbolic link is followed and nothing that is mounted in it is entered or counted; a file with several names counts
once; depth does not matter. It may be somebody else's tree, changing meanwhile.

Both can block as long as the disk does, and a tree takes microseconds for each file.
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
"""Gone or replaced since it was listed, or a mount."""


@dataclass(frozen=True, slots=True)
class DiskRoom:
    total_bytes: int
    free_bytes: int
    total_inodes: int
    """0 where the file system makes inodes as it needs them."""
    free_inodes: int


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What erasing the tree would give back, as far as nothing outside shares it."""

    bytes: int
    inodes: int


def room_on(descriptor: int) -> DiskRoom:
    """Of the disk that an open file or folder is on; of a volume with a quota of its own, the volume's."""
    try:
        found = os.statvfs(descriptor)
    except OSError as error:
        raise HostError.because(error, "The room on the disk cannot be found out") from error
    unit = found.f_frsize or found.f_bsize
    return DiskRoom(found.f_blocks * unit, found.f_bavail * unit, found.f_files, found.f_favail)


def _never() -> bool:
    return False


def measure_tree(parent: int, name: str, should_stop: Callable[[], bool] = _never) -> TreeUsage:
    """ENOENT: it is not there; ECANCELED: stopped; ESTALE: folders were moved about while we were inside."""
    try:
        walk = _Walk(system_calls.openat2(parent, name, _FOLDER_FLAGS, _CONFINED))
        try:
            while walk.goes_on():
                if should_stop():
                    raise OSError(errno.ECANCELED, "it was asked to stop")
        finally:
            os.close(walk.folder)
    except OSError as error:
        raise HostError.because(error, f"The folder {name} cannot be measured") from error
    return TreeUsage(walk.bytes, walk.inodes)


@dataclass(slots=True)
class _MeasuredFolder:
    """A folder on the way down: what is still to be entered, and what it must be when we come back up."""

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

    def goes_on(self) -> bool:
        """One folder further; False when all were seen."""
        if not self._levels:
            if self.inodes:
                return False
            self._look()
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
        self._look()

    def _leave(self) -> None:
        self._levels.pop()
        if not self._levels:
            return
        self._hold(system_calls.openat2(self.folder, "..", _FOLDER_FLAGS, _UPWARDS))
        found, expected = os.fstat(self.folder), self._levels[-1]
        if (found.st_dev, found.st_ino) != (expected.device, expected.inode):
            raise OSError(errno.ESTALE, "somebody moved folders in it; measure it again")

    def _hold(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder

    def _look(self) -> None:
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
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if found.st_dev != self._device:
            return  # a file of another disk, mounted here
        if found.st_nlink > 1:
            if found.st_ino in self._counted:
                return
            self._counted.add(found.st_ino)
        self._count(found)

    def _count(self, found: os.stat_result) -> None:
        self.bytes += found.st_blocks * _BLOCK
        self.inodes += 1
