"""File systems made for tests: images on loop devices below pytest's folder, mounted in this mount namespace only.

The loop device goes with the mount, and the mount with the namespace at the latest.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.host.kernel_rooms import why_nothing_can_be_mounted

IMAGE_BYTES = 600 * 2**20
MAKERS = {
    "xfs": ("mkfs.xfs", "-q"),
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-i", "2048"),  # many small files
}
WHY_NOT = why_nothing_can_be_mounted()
MOUNTS = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
"""For tests that mount, make devices or give files to others."""


@contextmanager
def mounted(kind: str, folder: Path, options: str = "mode=755") -> Iterator[Path]:
    """A new file system of this kind below the folder; the test is skipped, with its reason, where there is none.

    `options` are a tmpfs's.
    """
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    place = folder / kind
    place.mkdir(exist_ok=True)
    _mount(kind, folder, place, options)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def _mount(kind: str, folder: Path, place: Path, options: str) -> None:
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
        return
    image = folder / f"{kind}.img"
    make_image(kind, image)
    subprocess.run(["mount", "-t", kind, "-o", "loop", image, place], check=True)


def make_image(kind: str, image: Path, size: int = IMAGE_BYTES) -> None:
    if shutil.which(MAKERS[kind][0]) is None:
        pytest.skip(f"needs {MAKERS[kind][0]}, which this machine does not have")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*MAKERS[kind], image], check=True)


class FileSystems:
    """Each kind is made once for the session, when the first test asks for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._mounted: dict[str, Path] = {}
        self._folders = 0

    def new_folder(self, kind: str) -> Path:
        if kind not in self._mounted:
            self._mounted[kind] = self._stack.enter_context(mounted(kind, self._folder))
        self._folders += 1
        folder = self._mounted[kind] / f"test-{self._folders}"
        folder.mkdir()
        return folder


@pytest.fixture(scope="session")
def file_systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileSystems]:
    with ExitStack() as stack:
        yield FileSystems(tmp_path_factory.mktemp("file-systems"), stack)


@pytest.fixture(params=["tmpfs", "ext4", "xfs"])
def disk(request: pytest.FixtureRequest, file_systems: FileSystems) -> Path:
    """An empty folder on each kind of file system."""
    return file_systems.new_folder(request.param)


@pytest.fixture
def xfs(file_systems: FileSystems) -> Path:
    return file_systems.new_folder("xfs")


@pytest.fixture
def tmpfs(file_systems: FileSystems) -> Path:
    return file_systems.new_folder("tmpfs")
