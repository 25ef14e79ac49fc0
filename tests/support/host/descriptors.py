"""The descriptors this process has open, and a folder's while a test needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


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


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    before = opened()
    yield
    left = {number: path for number, path in opened().items() if before.get(number) != path}
    assert not {path for path in left.values() if path.startswith("/") and not path.startswith("/dev")}, left
