"""Clear the flags that prevent erasing: immutable and append-only (`chattr +i`, `chattr +a`).

Plain files and folders have these flags; from Linux 6.17 on, every kind of file. A device is never opened to clear
them: the ioctl would go to the device's driver.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from dataclasses import replace
from typing import Final

from orlop.host.kernel.confined_paths import open_place, reopen
from orlop.host.kernel.system_calls import file_attributes, set_file_attributes

GET_FLAGS: Final = 0x80086601
SET_FLAGS: Final = 0x40086602
IMMUTABLE_OR_APPEND_ONLY: Final = 0x30
SAME_AS_FILE_ATTRIBUTES: Final = 0x18
_FLAGS: Final = struct.Struct("=i4x")  # the request's size says long, the kernel reads and writes an int


def make_erasable(folder: int, name: str) -> bool:
    """Clear the flags of the entry with this name; return whether any was set. Raises OSError if that fails."""
    place = open_place(folder, name)
    try:
        mode = os.fstat(place).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return _make_special_file_erasable(folder, name)
        descriptor = reopen(place)
    finally:
        os.close(place)
    try:
        return make_open_file_erasable(descriptor)
    finally:
        os.close(descriptor)


def make_open_file_erasable(descriptor: int) -> bool:
    """Clear the flags of an open plain file or folder; return whether any was set."""
    (flags,) = _FLAGS.unpack(fcntl.ioctl(descriptor, GET_FLAGS, bytes(_FLAGS.size)))
    if not flags & IMMUTABLE_OR_APPEND_ONLY:
        return False
    fcntl.ioctl(descriptor, SET_FLAGS, _FLAGS.pack(flags & ~IMMUTABLE_OR_APPEND_ONLY))
    return True


def _make_special_file_erasable(folder: int, name: str) -> bool:
    attributes = file_attributes(folder, name)
    if not attributes.flags & SAME_AS_FILE_ATTRIBUTES:
        return False
    set_file_attributes(folder, name, replace(attributes, flags=attributes.flags & ~SAME_AS_FILE_ATTRIBUTES))
    return True
