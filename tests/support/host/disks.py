"""Disks for tests: loop devices over sparse files, which can be pulled out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from orlop.host.block.block_devices import BlockDevices, FoundDevice
from orlop.host.block.device_rules import DeviceLimits
from support.host.file_systems import WHY_NOT
from support.host.kernel_rooms import run

GIB = 1 << 30
LIMITS = DeviceLimits(allow_loop_devices=True)
"""For one disk by its name. A survey takes `LoopDisk.limits`: it would claim the disks of tests beside this one."""


class LoopDisk:
    """A disk. `plug` attaches it, `pull` takes it out, even if it is in use."""

    def __init__(self, image: Path) -> None:
        self.image = image
        self.path = Path()
        self.is_plugged = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def limits(self) -> DeviceLimits:
        return DeviceLimits(allowed=(self.name,), allow_loop_devices=True)

    def plug(self, *options: str) -> None:
        words = ["losetup", "--find", "--show", *options, self.image]
        self.path = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
        self.is_plugged = True

    def replace(self, image: Path) -> bool:
        """Plug in another disk under the same name; return whether it got it, which a test beside this one may have."""
        self.pull()
        words = ["losetup", self.path, image]
        self.is_plugged = subprocess.run(words, check=False, capture_output=True).returncode == 0
        return self.is_plugged

    def pull(self) -> None:
        # Once only: afterwards the loop device may be the disk of a test beside this one.
        if self.is_plugged:
            self.is_plugged = False
            with suppress(subprocess.CalledProcessError):
                run("losetup", "--detach", self.path)

    def write(self, position: int, content: bytes) -> None:
        """Change the disk behind everybody's back."""
        with self.path.open("r+b") as disk:
            disk.seek(position)
            disk.write(content)
            disk.flush()
            os.fsync(disk.fileno())

    def found(self, limits: DeviceLimits = LIMITS) -> FoundDevice:
        return BlockDevices(limits).find(self.name)


@contextmanager
def loop_disk(image: Path, size: int = GIB) -> Iterator[LoopDisk]:
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    with image.open("wb") as file:
        file.truncate(size)
    disk = LoopDisk(image)
    disk.plug()
    try:
        yield disk
    finally:
        disk.pull()
        image.unlink(missing_ok=True)
