"""File systems inside images: made by mkfs, or copied from one that mkfs made earlier for the same size; grown online.

mkfs of an empty image writes few blocks: some hundred KiB for XFS, some MiB for a large ext4. They depend on size,
kind and the mode of the root alone. So they are read back once, and written into each further image of that size, which
costs about a hundredth of running mkfs and works on every drive. Images made so share the UUID of their file system.
XFS is mounted with `nouuid` for this reason.

The new image must read as zeros. Its root folder gets mode 0777 by default, as an emptyDir has: the volume belongs to
one claim or pod, whose processes may run as any user. A file system that is too small for XFS is refused (`SMALLEST`).

Sectors are of 4096 bytes (`image_devices`). mkfs gets the image as an open descriptor: no path is resolved again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orlop.host.folders.file_contents import data_ranges
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import path_of
from orlop.host.kernel.programs import ask_program, find_program

BLOCK: Final = 4096
MIB: Final = 1 << 20
SMALLEST: Final = {"xfs": 300 * MIB, "ext4": 16 * MIB}
"""Below it mkfs.xfs refuses, and ext4 would be mostly its own metadata."""
ROOT_MODE: Final = 0o777
LONGEST_MKFS_SECONDS: Final = 120.0
MOST_KEPT_BYTES: Final = 8 * MIB
"""The memory that may hold blocks of file systems made before."""
_GROW_XFS, _GROW_EXT4 = 0x4010_586E, 0x4008_6610
_XFS_SIZE: Final = struct.Struct("=QII")  # blocks, largest share of inodes in percent, unused
_INODE_SHARE: Final = 25
_PIECE: Final = MIB


@dataclass(frozen=True, slots=True)
class _WrittenBlocks:
    """The blocks that mkfs wrote into an image that read as zeros."""

    pieces: tuple[tuple[int, bytes], ...]

    @property
    def bytes(self) -> int:
        return sum(len(data) for _, data in self.pieces)


class ImageFormatter:
    """Makes file systems in images; may be used by several threads."""

    def __init__(self, most_kept_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most = most_kept_bytes
        self._kept: OrderedDict[tuple[str, int, int], _WrittenBlocks] = OrderedDict()
        self._lock = threading.Lock()

    def format(self, image: int, kind: str, size: int, mode: int = ROOT_MODE) -> None:
        """Make a file system in an image of this size that reads as zeros. Not durable until the caller's fsync."""
        refuse_too_small(kind, size)
        key = (kind, size, mode)
        with self._lock:
            written = self._kept.get(key)
            if written is not None:
                self._kept.move_to_end(key)
        if written is None:
            make_file_system(image, kind, mode)
            self._keep(key, image)
        else:
            _write(image, written)

    def _keep(self, key: tuple[str, int, int], image: int) -> None:
        try:
            # Data that is not on disk yet hides which ranges are allocated and never written.
            os.fsync(image)
            written = _read_written(image, key[1], self._most)
        except OSError as error:
            raise HostError.because(error, "The new file system cannot be read back") from error
        if written is None:
            return  # too large to keep in memory: mkfs runs again for the next image
        with self._lock:
            self._kept[key] = written
            while sum(each.bytes for each in self._kept.values()) > self._most:
                self._kept.popitem(last=False)


def refuse_too_small(kind: str, size: int) -> None:
    """Raise EINVAL if a file system of this kind does not fit."""
    if kind not in SMALLEST:
        raise HostError(errno.EINVAL, f"{kind[:20]!r} cannot be made in a volume: choose {' or '.join(SMALLEST)}.")
    if size < SMALLEST[kind]:
        least = SMALLEST[kind] // MIB
        raise HostError(errno.EINVAL, f"{kind} needs at least {least} MiB, and the volume has {size} bytes.")


def make_file_system(image: int, kind: str, mode: int = ROOT_MODE) -> None:
    """Run mkfs on an open image; `mode` is that of its root folder, at most 0777."""
    if kind == "xfs":
        root = os.memfd_create("root folder")
        try:
            os.write(root, b"/\n0 0\nd--%03o 0 0\n$\n" % mode)
            run_maker(
                ("mkfs.xfs", "-q", "-f", "-K", "-s", f"size={BLOCK}", "-p", path_of(root), path_of(image)), image, root
            )
        finally:
            os.close(root)
        return
    # The image reads as zeros: without this the kernel would write zeros to all of its inode tables later.
    prepared = "nodiscard,assume_storage_prezeroed=1"
    run_maker(("mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-m", "0", "-E", prepared, path_of(image)), image)
    run_maker(("debugfs", "-w", "-R", f"set_inode_field <2> mode 040{mode:03o}", path_of(image)), image)


def grow_file_system(root: int, kind: str, size: int) -> None:
    """Grow a mounted file system, by a descriptor of its root, to the size of its device. Succeeds if it has it."""
    try:
        if kind == "xfs":
            fcntl.ioctl(root, _GROW_XFS, _XFS_SIZE.pack(size // BLOCK, _INODE_SHARE, 0))
        else:
            fcntl.ioctl(root, _GROW_EXT4, struct.pack("=Q", size // BLOCK))
    except OSError as error:
        raise HostError.because(error, f"The {kind} file system cannot grow to {size} bytes") from error


def run_maker(words: Sequence[str], *descriptors: int, within: float = LONGEST_MKFS_SECONDS) -> None:
    """Run a program that makes or changes a file system, with these descriptors open in it. ENOSPC: it has no room.

    EIO: the disk failed. EPROTO: any other failure.
    """
    program = find_program(words[0])
    if program is None:
        raise HostError(errno.ENOENT, f"{words[0]} is not installed here: install xfsprogs and e2fsprogs (1.47).")
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
    try:
        code, _, stderr = ask_program((program, *words[1:]), environment, b"", within, descriptors=descriptors)
    except HostError:
        raise
    except OSError as error:
        raise HostError.because(error, f"{words[0]} cannot be run") from error
    if code:
        lines = stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1][:200] if lines else f"exit code {code}"
        # Other failures are of the program, and prove nothing about the disk.
        known = (number for number in (errno.ENOSPC, errno.EIO) if os.strerror(number) in why)
        raise HostError(next(known, errno.EPROTO), f"{words[0]} failed: {why.rstrip('.')}.")


def _read_written(image: int, size: int, most: int) -> _WrittenBlocks | None:
    pieces: list[tuple[int, bytes]] = []
    total = 0
    for start, end in data_ranges(image, size):
        for at, data in _pieces(image, start, end):
            total += len(data)
            if total > most:
                return None
            pieces.append((at, data))
    return _WrittenBlocks(tuple(pieces))


def _pieces(image: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks that are not zero, neighbours together."""
    zeros = bytes(BLOCK)
    for at in range(start, end, _PIECE):
        data = os.pread(image, min(_PIECE, end - at), at)
        first: int | None = None
        for offset in range(0, len(data) + BLOCK, BLOCK):
            is_data = offset < len(data) and data[offset : offset + BLOCK] != zeros
            if is_data and first is None:
                first = offset
            elif not is_data and first is not None:
                yield at + first, data[first:offset]
                first = None


def _write(image: int, written: _WrittenBlocks) -> None:
    try:
        for at, data in written.pieces:
            done = 0
            while done < len(data):
                done += os.pwrite(image, data[done:], at + done)
    except OSError as error:
        raise HostError.because(error, "The file system cannot be written into the image") from error
