"""The files of a drive, below its root: the same for a disk and for a folder.

    drive.json   the drive's record: what it is
    volumes/     one folder for each volume
    trash/       folders that wait to be erased
    reserve      folder drives only: `drive_reserve`

Order of making a drive: the record under a temporary name (the intention) → the shelves, and the reserve → rename the
record to its name, durably. So a folder with `drive.json` is a whole drive. A folder with the temporary name is half
made: it holds no volume, and is made again or removed. Only root can enter a drive.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from contextlib import suppress
from functools import cached_property
from typing import Final

from orlop.host.drive_host import DriveFeatures, DriveSpace
from orlop.host.drives import drive_reserve
from orlop.host.folders.file_contents import REFLINK
from orlop.host.folders.folder_records import ShelfListing, list_shelf, open_shelf
from orlop.host.folders.project_quota import why_not_enforced
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import CONFINED, shown
from orlop.host.mounts.mount_table import mount_of

RECORD: Final = "drive.json"
HALF_MADE: Final = ".drive.json.new"
VOLUMES: Final = "volumes"
TRASH: Final = "trash"
OWN_NAMES: Final = frozenset({RECORD, HALF_MADE, VOLUMES, TRASH, drive_reserve.NAME})
LARGEST_RECORD: Final = 1 << 16
_BLOCK: Final = 4096
_ROOT_ONLY: Final = 0o700
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class LinuxDriveRoot:
    """The root of a drive. It owns the descriptor `root`."""

    def __init__(self, path: str, root: int) -> None:
        self.path = path
        self.root = root

    @cached_property
    def features(self) -> DriveFeatures:
        return DriveFeatures(mount_of(self.root).file_system, why_not_enforced(self.root), has_reflinks(self.root))

    def read_record(self) -> bytes:
        return read_record(self.root)

    def write_record(self, record: bytes) -> None:
        write_record(self.root, record)

    def space(self) -> DriveSpace:
        return space_of(self.root)

    def reserved(self) -> int:
        return drive_reserve.reserved(self.root)

    def fit_reserve(self, capacity: int) -> int:
        return drive_reserve.fit(self.root, capacity)

    def shrink_reserve(self, count: int) -> None:
        drive_reserve.shrink(self.root, count)

    def volumes(self) -> ShelfListing:
        shelf = open_shelf(self.root, VOLUMES)
        try:
            return list_shelf(shelf)
        finally:
            os.close(shelf)

    def why_failing(self) -> str | None:
        """Write and read through the file system, and read the disk itself, because cached data proves nothing."""
        try:
            os.utime(self.root)
            _synchronise(self.root)
            _read_disk(os.fstat(self.root).st_dev)
        except OSError as error:
            return f"it cannot be {'changed' if error.errno == errno.EROFS else 'used'}: {error.strerror}"
        return None

    def close(self) -> None:
        os.close(self.root)


def begin(root: int, record: bytes) -> None:
    """Write the record under its temporary name, durably: from here on the folder is a drive that is being made."""
    try:
        os.fchmod(root, _ROOT_ONLY)
        _write(root, HALF_MADE, record)
    except OSError as error:
        raise HostError.because(error, f"The drive at {shown(root)} cannot be begun") from error


def make_shelves(root: int) -> None:
    for name in (VOLUMES, TRASH):
        os.close(open_shelf(root, name))


def complete(root: int) -> None:
    """Give the record its name, durably: from here on the folder is a drive."""
    try:
        os.rename(HALF_MADE, RECORD, src_dir_fd=root, dst_dir_fd=root)
        _synchronise(root)
    except OSError as error:
        raise HostError.because(error, f"The drive at {shown(root)} cannot be completed") from error


def read_record(root: int, name: str = RECORD) -> bytes:
    """Return the record. ENOENT: there is none. EFBIG, ELOOP: the file of its name is not a record."""
    try:
        file = system_calls.openat2(root, name, _READ, CONFINED)
        try:
            record = os.read(file, LARGEST_RECORD + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise HostError.because(error, f"{shown(root)}/{name} cannot be read") from error
    if len(record) > LARGEST_RECORD:
        raise HostError(errno.EFBIG, f"{shown(root)}/{name} is no record of a drive: it is too large.")
    return record


def write_record(root: int, record: bytes) -> None:
    """Replace the record, durably."""
    begin(root, record)
    complete(root)


def is_drive(folder: int) -> bool:
    """Return whether a folder has the record of a drive, or of one that is being made. A handle (O_PATH) is enough."""
    return any(_is_there(folder, name) for name in (RECORD, HALF_MADE))


def has_volumes(root: int) -> bool:
    """Return whether anything is below `volumes` or `trash`."""
    return any(_names_below(root, name) for name in (VOLUMES, TRASH))


def refuse_volumes(root: int, path: str) -> None:
    if has_volumes(root):
        raise HostError(errno.ENOTEMPTY, f"The drive {path} holds volumes: delete them first.")


def remove_files(root: int) -> None:
    """Remove the files of a drive without volumes, the record last: a kill leaves a drive that is removed again."""
    try:
        for name in (VOLUMES, TRASH):
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=root)
        for name in (drive_reserve.NAME, HALF_MADE, RECORD):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=root)
        _synchronise(root)
    except OSError as error:
        raise HostError.because(error, f"The drive at {shown(root)} cannot be removed") from error


def space_of(root: int) -> DriveSpace:
    try:
        status = os.statvfs(root)
    except OSError as error:
        raise HostError.because(error, f"The space at {shown(root)} cannot be read") from error
    return DriveSpace(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


def has_reflinks(root: int) -> bool:
    """Return whether one file can share the blocks of another, by trying it with two files that have no name."""
    try:
        source, target = (os.open(".", os.O_RDWR | os.O_TMPFILE, 0o600, dir_fd=root) for _ in range(2))
    except OSError:
        return False
    try:
        os.write(source, bytes(_BLOCK))
        fcntl.ioctl(target, REFLINK, source)
    except OSError:
        return False
    finally:
        os.close(source)
        os.close(target)
    return True


def _read_disk(device: int) -> None:
    """Read the first block of a disk past the page cache. A file system without a disk has none to read."""
    try:
        # Not by /dev/block, which exists only with udev.
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    except FileNotFoundError:
        return
    try:
        disk = os.open(f"/dev/{name.replace('!', '/')}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except (PermissionError, FileNotFoundError):
        # A container without the device may still use its file system, as a drive in a folder does. A
        # disk that fails, or is gone, fails in other ways.
        return
    try:
        with mmap.mmap(-1, _BLOCK) as buffer:
            os.preadv(disk, [buffer], 0)
    finally:
        os.close(disk)


def _write(root: int, name: str, content: bytes) -> None:
    file = os.open(name, _WRITE, 0o600, dir_fd=root)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    _synchronise(root)


def _synchronise(root: int) -> None:
    os.fsync(root)
    # An XFS that has shut down returns success for the fsync of a folder, whatever was lost; fstat then fails.
    os.fstat(root)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise HostError.because(error, f"Cannot check whether {shown(folder)} is a drive") from error
    return True


def _names_below(root: int, name: str) -> list[str]:
    try:
        folder = system_calls.openat2(root, name, os.O_RDONLY | os.O_DIRECTORY, CONFINED)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError.because(error, f"{shown(root)}/{name} cannot be read") from error
    try:
        return os.listdir(folder)
    finally:
        os.close(folder)
