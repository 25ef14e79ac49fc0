"""Folders for tests that really mount: in the mount namespace the tests have to themselves, and taken apart again.

Where the kernel does not let us (no root, or the machine's own namespace), such tests are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import eventually_there

SWAP = """
import ctypes, os, sys
swap = ctypes.CDLL(None, use_errno=True).renameat2
one, other = map(os.fsencode, sys.argv[1:3])
print("ready", flush=True)
while swap(-100, one, -100, other, 2) == 0 or "--stubborn" in sys.argv:
    pass
"""
SHUT_DOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, and ext4's of the same number
WITHOUT_FLUSHING_THE_LOG = 2
SIZES = {"ext4": 64 << 20, "xfs": 320 << 20}


def why_nothing_can_be_mounted() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if not _is_root_of_the_machine():
        return "needs root outside of user namespaces: trusted attributes are for it alone"
    if not _has_a_namespace_of_its_own():
        return "needs a mount namespace of its own: run it by tools/test.sh"
    return None


def _is_root_of_the_machine() -> bool:
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]


def _has_a_namespace_of_its_own() -> bool:
    """Whether we are still in the mount namespace that tools/test.sh or its worker made and named."""
    return os.environ.get("ORLOP_TEST_MOUNTS") == str(Path("/proc/self/ns/mnt").readlink())


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a shared mount of its own, taken apart with all that is mounted in it."""
    with mount_room(tmp_path / "room") as folder:
        yield folder


@contextmanager
def mount_room(folder: Path) -> Iterator[Path]:
    reason = why_nothing_can_be_mounted()
    if reason:
        pytest.skip(reason)
    folder.mkdir()
    run("mount", "--bind", folder, folder)
    run("mount", "--make-shared", folder)
    try:
        yield folder
    finally:
        run("umount", "--lazy", folder)  # with all that is mounted in it


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextmanager
def other_namespace(propagation: str = "unchanged", *, chrooted: Path | None = None) -> Iterator[int]:
    """The process id of somebody in a mount namespace of their own, copied from ours now."""
    chroot = ["chroot", str(chrooted)] if chrooted else []
    words = ["unshare", "--mount", "--propagation", propagation, *chroot, "sh", "-c", "echo ready; read word"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


@contextmanager
def descriptor(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    opened = os.open(path, flags)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def swapped_again_and_again(one: Path, other: Path, *, stubborn: bool = False) -> Iterator[None]:
    """Somebody, in a process of their own, who exchanges two names as fast as the kernel does it.

    A stubborn one goes on when that fails: when a name is gone, or mounted on.
    """
    words = [sys.executable, "-S", "-c", SWAP, str(one), str(other), *(["--stubborn"] if stubborn else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        try:
            yield
            assert attacker.poll() is None
        finally:
            attacker.kill()


def shut_down(folder: Path) -> None:
    """Nothing reaches the disk of this file system any more, as after an I/O error, until it is mounted anew."""
    with descriptor(folder) as opened:
        fcntl.ioctl(opened, SHUT_DOWN, struct.pack("=I", WITHOUT_FLUSHING_THE_LOG))


class DiskImage:
    """A file system of its own, in a file, whose power can be cut."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file = file
        self.folder = folder

    def switch_on(self) -> None:
        run("mount", "-o", "loop", self._file, self.folder)

    def cut_power(self) -> None:
        """What was not made durable is lost; the rest is there again."""
        self.lose_power()
        self.switch_off()
        self.switch_on()

    def lose_power(self) -> None:
        """From now on nothing reaches the disk, and everybody who tries is told; it can be switched off."""
        shut_down(self.folder)

    def switch_off(self) -> None:
        """Unmount, and wait until no copy of the mount exists: until then a file system that was shut down stays so."""
        # A loop device is closed late if another test reads all block devices at that moment; until then an image on
        # this disk keeps it busy.
        eventually_there(self._is_unmounted)
        eventually_there(lambda: not self._loop_devices())

    def _is_unmounted(self) -> bool:
        ended = subprocess.run(["umount", self.folder], check=False, capture_output=True, text=True)
        assert ended.returncode == 0 or "busy" in ended.stderr, ended.stderr
        return ended.returncode == 0

    def _loop_devices(self) -> bytes:
        return subprocess.run(["losetup", "--associated", self._file], check=True, capture_output=True).stdout


@contextmanager
def disk_image(folder: Path, file_system: str) -> Iterator[DiskImage]:
    maker = f"mkfs.{file_system}"
    if shutil.which(maker) is None:
        pytest.skip(f"needs {maker}")
    with mount_room(folder) as room:
        file = room / "image"
        with file.open("wb") as image:
            image.truncate(SIZES[file_system])
        run(maker, "-q", file)
        (room / "disk").mkdir()
        disk = DiskImage(file, room / "disk")
        disk.switch_on()
        try:
            yield disk
        finally:
            disk.switch_off()


def mount_points_of(process: int | str) -> list[str]:
    lines = Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [line.split()[4] for line in lines]
