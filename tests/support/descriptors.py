"""The descriptors this process has open, and a folder's while a test needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def opened() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - may lead to no path
    return found


@contextlib.contextmanager
def folder_descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
