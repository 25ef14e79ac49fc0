"""Overwrite parts of a block device that is open for writing, and make that durable.

Zeros and discards are requests to the device driver: no data is copied. Each call blocks until the device has accepted
the bytes; `flush` makes them survive a loss of power.
"""

from __future__ import annotations

import errno
import fcntl
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
SHIFT_BYTES: Final = 16
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
    """Write random bytes. To make them takes longer than to write them: a buffer is written again and again, shifted.

    Shifted, because a device that finds blocks to be equal would store them only once.
    """
    shifts = -(-count // RANDOM_BUFFER_BYTES) - 1
    size = min(RANDOM_BUFFER_BYTES, count)
    buffer = memoryview(random.randbytes(size + shifts * SHIFT_BYTES))
    for number in range(shifts + 1):
        done, begin = number * RANDOM_BUFFER_BYTES, number * SHIFT_BYTES
        _write(device, buffer[begin : begin + min(size, count - done)], start + done)


def _write(device: int, piece: memoryview, start: int) -> None:
    while piece:
        try:
            written = os.pwrite(device, piece, start)
        except OSError as error:
            raise HostError.because(error, f"{len(piece)} bytes at {start} cannot be overwritten") from error
        piece, start = piece[written:], start + written


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
