"""File systems made for tests: images on loop devices below pytest's folder, mounted in this mount namespace only.

The loop device goes with the mount, and the mount with the namespace at the latest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE_BYTES = 600 * 2**20
MAKERS = {
    "xfs": ("mkfs.xfs", "-q"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1"),
}
ROOT_NEEDED = "needs root: it mounts a file system on a loop device"


def is_root_of_the_machine() -> bool:
    """Not only of a user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A new file system of this kind below the folder; the test is skipped, with its reason, where there is none."""
    place = folder / kind
    place.mkdir()
    _mount(kind, folder, place)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _mount(kind: str, folder: Path, place: Path) -> None:
    if kind == "tmpfs":
        if os.geteuid() != 0:
            pytest.skip(ROOT_NEEDED)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place], check=True)
        return
    image = folder / f"{kind}.img"
    make_image(kind, image)
    if not is_root_of_the_machine():
        pytest.skip(ROOT_NEEDED)
    subprocess.run(["mount", "-t", kind, "-o", "loop", image, place], check=True)


def make_image(kind: str, image: Path, size: int = IMAGE_BYTES) -> None:
    if shutil.which(MAKERS[kind][0]) is None:
        pytest.skip(f"needs {MAKERS[kind][0]}, which this machine does not have")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*MAKERS[kind], image], check=True)
