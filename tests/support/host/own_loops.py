"""A loop device of a test's own: its name is nobody else's while nothing is attached to it."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom

import pytest

from support.host.disks import LoopDisk
from support.host.file_systems import WHY_NOT
from support.host.kernel_rooms import run

ADD, REMOVE = 0x4C80, 0x4C81
LOW_NUMBERS = range(64)
"""A program that wants any loop device gets the free one with the lowest number: one of these, and not ours.

They stay: to remove one could take it from a test beside this one that is about to attach it."""
FIRST_NUMBER, LAST_NUMBER = 10_000, 900_000


class OwnDisk(LoopDisk):
    """A disk that keeps its name when it is pulled out."""

    def pull(self) -> None:
        with suppress(subprocess.CalledProcessError):
            run("losetup", "--detach", self.path)

    def plug_again(self) -> None:
        run("losetup", self.path, self.image)


def _new_device(control: int, number: int) -> int:
    """Add the first device from this number on that is not there: another run may have the number, or left it."""
    while True:
        try:
            fcntl.ioctl(control, ADD, number)
        except FileExistsError:
            number += 1
        else:
            return number


@contextmanager
def own_disk(image: Path, size: int) -> Iterator[OwnDisk]:
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    with image.open("wb") as file:
        file.truncate(size)
    disk = OwnDisk(image)
    with Path("/dev/loop-control").open("r+b", buffering=0) as control:
        for low in LOW_NUMBERS:
            with suppress(FileExistsError):
                fcntl.ioctl(control, ADD, low)
        # At random: in namespaces of their own, the workers of all runs have the same process ids.
        number = _new_device(control.fileno(), SystemRandom().randint(FIRST_NUMBER, LAST_NUMBER))
        disk.path = Path(f"/dev/loop{number}")
        try:
            disk.plug_again()
            yield disk
        finally:
            disk.pull()
            with suppress(OSError):  # still attached
                fcntl.ioctl(control, REMOVE, number)
