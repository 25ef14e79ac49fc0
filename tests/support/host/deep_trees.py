"""Trees deeper than a path can say."""

from __future__ import annotations

import os
from pathlib import Path


def dig(place: Path, levels: int) -> None:
    """A folder with so many folders named `d` in each other, and a file at the bottom."""
    place.mkdir()
    descriptor = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=descriptor)
        descriptor = _entered(descriptor)
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)


def depth_of(place: Path) -> int:
    descriptor = os.open(place, os.O_RDONLY)
    levels = 0
    while "d" in os.listdir(descriptor):  # noqa: PTH208 - of a descriptor
        descriptor = _entered(descriptor)
        levels += 1
    os.close(descriptor)
    return levels


def _entered(descriptor: int) -> int:
    lower = os.open("d", os.O_RDONLY, dir_fd=descriptor)
    os.close(descriptor)
    return lower
