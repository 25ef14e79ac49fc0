"""Overwrite parts of a block device that is open for writing, and make that durable.

Zeros and discards are requests to the device driver: no data is copied. Each call blocks until the device has accepted
the bytes; `flush` makes them survive a loss of power.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from contextlib import suppress
from random import Random
from typing import Final

from orlop.host.host_errors import HostError

ZERO_OUT: Final = 0x127F
DISCARD: Final = 0x1277
REREAD_PARTITIONS: Final = 0x125F
RANDOM_BUFFER_BYTES: Final = 4 << 20
_RANGE: Final = struct.Struct("=QQ")


def zero_out(device: int, start: int, count: int) -> None:
    try:
        fcntl.ioctl(device, ZERO_OUT, _RANGE.pack(start, count))
    except OSError as error:
        raise HostError.because(error, f"{count} bytes at {start} cannot be overwritten") from error


def discard(device: int, start: int, count: int) -> None:
    """Report a part as unused. EOPNOTSUPP: the device does not support it. What is read there afterwards is open."""
    try:
        fcntl.ioctl(device, DISCARD, _RANGE.pack(start, count))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise HostError(
                errno.EOPNOTSUPP,
                "The device does not support discard: name another blockCleanerCommand, or none to have it zeroed.",
            ) from error
        raise HostError.because(error, f"{count} bytes at {start} cannot be discarded") from error


def overwrite_randomly(device: int, start: int, count: int, random: Random) -> None:
    """Write random bytes, fresh ones for each block of the buffer: equal blocks could be stored only once."""
    with mmap.mmap(-1, min(RANDOM_BUFFER_BYTES, count)) as buffer, memoryview(buffer) as whole:
        end = start + count
        while start < end:
            size = min(len(whole), end - start)
            whole[:size] = random.randbytes(size)
            start += _written(device, whole[:size], start)


def _written(device: int, piece: memoryview, start: int) -> int:
    with piece:
        try:
            return os.pwrite(device, piece, start)
        except OSError as error:
            raise HostError.because(error, f"{len(piece)} bytes at {start} cannot be overwritten") from error


def flush(device: int) -> None:
    """Make everything written survive a loss of power."""
    try:
        os.fdatasync(device)
        # Otherwise the pages of a whole disk would push those of pods out of memory.
        os.posix_fadvise(device, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise HostError.because(error, "What was written is not durable") from error


def reread_partitions(device: int) -> None:
    """Let the kernel forget partitions whose table was overwritten; a device without partitions refuses that."""
    with suppress(OSError):
        fcntl.ioctl(device, REREAD_PARTITIONS)
