"""Real block devices for tests: loop devices over files, detached in the end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.host.kernel_rooms import run

SIZE = 1 << 20


@contextmanager
def block_device(image: Path, size: int = SIZE) -> Iterator[Path]:
    """Such as /dev/loop7, over a new file."""
    with image.open("wb") as file:
        file.truncate(size)
    told = subprocess.run(["losetup", "--find", "--show", image], check=True, capture_output=True, text=True)
    device = Path(told.stdout.strip())
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


def publish_device(device: Path, target: Path) -> None:
    """As drivers do: the device, mounted on a file of theirs."""
    target.touch()
    run("mount", "--bind", device, target)


def unpublish_device(target: Path) -> None:
    run("umount", target)
    target.unlink()


def loops_about(folder: Path) -> list[str]:
    """The paths below the folder that loop devices hold."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    paths = [file.read_text().strip() for file in files]
    return sorted(path for path in paths if path.startswith(f"{folder}/"))
