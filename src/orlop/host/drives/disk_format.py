"""Make a whole disk a drive: a file system, and the files of a drive in it.

The disk is held exclusively from the last check to the end, so that what is formatted is what was checked. mkfs claims
its device for itself, so it works on a loop device over the disk that we hold. Everything before the end happens
without a mount point: the new file system is mounted detached, and disappears with this process.

Order: hold → check again: the fingerprint of what was shown, and that nothing forbids it → mark the disk at two places
as half made, durably → erase what its first and last blocks hold → mkfs → files of the drive, the record last →
synchronise → remove the mark that no file system writes over. A disk with a mark is half made: it holds nothing, and is
formatted again without force. So a kill at any step leaves the old content, a disk that is marked, or a drive.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from orlop.host.block.block_devices import BlockDevices, HeldDevice
from orlop.host.block.device_rules import DRIVE_FILE_SYSTEMS, LABEL, BlockDevice, destroyed_content, why_unusable
from orlop.host.block.disk_signatures import FAR, HEAD_BYTES, MARK, MARK_BYTES, TAIL_BYTES, marks_of
from orlop.host.block.image_formats import run_maker
from orlop.host.block.loop_devices import UNTIL_CLOSED, attach
from orlop.host.drive_host import DiskOrder
from orlop.host.drives import drive_files
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls

LONGEST_MKFS_SECONDS: Final = 1800.0
NO_ACCESS_TIMES: Final = 0x10
_LARGEST_SECTOR: Final = 4096
_PIECE: Final = 1 << 20
_NOT_SUPPORTED: Final = frozenset({errno.EINVAL, errno.ESRCH, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOENT})
"""The errors of a mount with quota on a kernel without it."""


def make_disk_drive(devices: BlockDevices, order: DiskOrder, record_of: Callable[[int], bytes]) -> None:
    """Format a disk. `record_of` returns the drive's record for a number of free bytes.

    ENOENT, ENODEV: there is no such device, or it is not the one that was shown. EBUSY: it is in use. EEXIST: it holds
    something that only force overwrites. EINVAL: it cannot become a drive.
    """
    with devices.held(order.name) as held:
        _refuse_unfit(held, devices, order)
        with formatting(held, order.drive_id) as disk:
            disk.mark()
            disk.make(order.file_system, record_of)
            disk.remove_mark()


def check_order(devices: BlockDevices, order: DiskOrder) -> None:
    """Raise what `make_disk_drive` would, changing nothing."""
    with devices.held(order.name) as held:
        _refuse_unfit(held, devices, order)


@contextmanager
def formatting(held: HeldDevice, drive_id: str) -> Iterator[DiskFormat]:
    """Attach the loop device that mkfs works on, in this context."""
    try:
        # Not our exclusive descriptor: udev or a survey may still have the loop device open after us, which keeps it
        # attached, and a claim that lived on in it would make the mount of the new drive fail.
        shared = os.open(f"/proc/self/fd/{held.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise HostError.because(error, f"{held.found.device.path} cannot be opened") from error
    try:
        path, loop = attach(shared, UNTIL_CLOSED, sector=held.found.device.sector_bytes)
    finally:
        os.close(shared)
    try:
        yield DiskFormat(held.found.device, held.descriptor, path, drive_id)
    finally:
        if loop is not None:
            os.close(loop)


@dataclass(frozen=True, slots=True)
class DiskFormat:
    """One disk that is being formatted. `disk` is the exclusive descriptor, `path` the loop device over it."""

    device: BlockDevice
    disk: int
    path: str
    drive_id: str

    def mark(self) -> None:
        """Mark the disk as half made, then erase its first and last blocks."""
        try:
            for position in marks_of(self.device.bytes):
                _write(self.disk, position, (MARK + self.drive_id.encode()).ljust(MARK_BYTES, b"\0"))
            os.fsync(self.disk)
            for start, end in self._stale_ranges():
                for at in range(start, end, _PIECE):
                    _write(self.disk, at, bytes(min(_PIECE, end - at)))
            os.fsync(self.disk)
        except OSError as error:
            raise HostError.because(error, f"{self.device.path} cannot be written") from error

    def make(self, file_system: str, record_of: Callable[[int], bytes]) -> None:
        """Make the file system and the files of the drive."""
        self._run_mkfs(file_system, has_quota=True)
        try:
            root = self._mounted(file_system)
        except HostError as error:
            # ext4 with quota cannot be mounted for writing by a kernel that has none; XFS can.
            if file_system != "ext4" or error.errno not in _NOT_SUPPORTED:
                raise
            self._run_mkfs(file_system, has_quota=False)
            root = self._mounted(file_system)
        try:
            record = record_of(drive_files.space_of(root).free)
            drive_files.begin(root, record)
            drive_files.make_shelves(root)
            drive_files.complete(root)
            system_calls.syncfs(root)
        except OSError as error:
            raise HostError.because(error, f"The new file system of {self.device.path} cannot be written") from error
        finally:
            os.close(root)

    def remove_mark(self) -> None:
        """Remove the mark that mkfs did not write over: from here on the disk is a drive."""
        position = marks_of(self.device.bytes)[1]
        try:
            os.fsync(self.disk)
            # The file system may have put something of its own there, which is not ours to erase.
            if os.pread(self.disk, len(MARK), position) == MARK:
                _write(self.disk, position, bytes(MARK_BYTES))
            os.fsync(self.disk)
        except OSError as error:
            raise HostError.because(error, f"{self.device.path} cannot be written") from error

    def _stale_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges whose old signatures would make the disk ambiguous: all that are read, but the marks."""
        size, (_, mark) = self.device.bytes, marks_of(self.device.bytes)
        yield MARK_BYTES, min(HEAD_BYTES, size)
        for start, length in FAR:
            if start + length <= size - TAIL_BYTES:
                yield start, start + length
        yield max(0, size - TAIL_BYTES), mark
        yield mark + MARK_BYTES, size

    def _run_mkfs(self, file_system: str, *, has_quota: bool) -> None:
        device = self.device
        sector = min(max(device.sector_bytes, device.physical_sector_bytes), _LARGEST_SECTOR)
        if file_system == "xfs":
            # Without -K mkfs discards the whole disk first, which takes minutes on some.
            words = ["mkfs.xfs", "-q", "-f", "-K", "-L", LABEL, "-m", f"uuid={self.drive_id}", "-s", f"size={sector}"]
        else:
            quota = ["-O", "quota,project", "-E", "nodiscard,quotatype=prjquota"] if has_quota else ["-E", "nodiscard"]
            words = ["mkfs.ext4", "-q", "-F", "-L", LABEL, "-U", self.drive_id, "-b", "4096", "-m", "0", *quota]
        run_maker((*words, self.path), within=LONGEST_MKFS_SECONDS)

    def _mounted(self, file_system: str) -> int:
        """Mount the file system detached; return a descriptor of its root."""
        try:
            tree = system_calls.new_file_system(file_system, {"source": self.path}, NO_ACCESS_TIMES)
        except OSError as error:
            raise HostError.because(error, f"The new file system of {self.device.path} cannot be mounted") from error
        try:
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
        finally:
            os.close(tree)


def _refuse_unfit(held: HeldDevice, devices: BlockDevices, order: DiskOrder) -> None:
    found = held.found
    path = found.device.path
    if order.file_system not in DRIVE_FILE_SYSTEMS:
        raise HostError(errno.EINVAL, f"{order.file_system[:20]!r} cannot be made on a drive: choose xfs or ext4.")
    if reasons := why_unusable(found.device, devices.limits):
        raise HostError(errno.EINVAL, f"{path} cannot become a drive: {'; '.join(reasons)}.")
    # A disk that this order marked as half made was checked then; its fingerprint has changed since, because of us.
    if found.fingerprint != order.fingerprint and found.device.content.half_made_drive != order.drive_id:
        raise HostError(
            errno.ENODEV, f"{path} has changed since it was shown: run 'orlop drives discover' again, and choose again."
        )
    if (content := destroyed_content(found.device)) and not order.force:
        raise HostError(errno.EEXIST, f"{path} holds {content}; only --force overwrites it.")


def _write(disk: int, position: int, content: bytes) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(disk, content[done:], position + done)
