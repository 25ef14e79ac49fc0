"""A folder is emptied and stays, whatever a tenant left in it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orlop.host.erase.empty_folder import ASIDE, empty_folder
from orlop.host.host_errors import HostError
from support.host.kernel_rooms import descriptor, mount_room, run


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as made:
        (made / "disk").mkdir()
        run("mount", "-t", "tmpfs", "tmpfs", made / "disk")
        yield made


def emptied(folder: Path, stop: threading.Event | None = None) -> None:
    with descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        empty_folder(opened, stop or threading.Event())


def test_everything_goes_and_the_folder_stays(room: Path):
    disk = room / "disk"
    inode = disk.stat().st_ino
    (disk / "deep/er/est").mkdir(parents=True)
    (disk / "deep/er/file").write_text("old")
    for name in ("x" * 255, "-rf", "new\nline", f"{ASIDE}0", ".rest-x"):
        (disk / name).touch()
    (disk / f"{ASIDE}1").mkdir()
    (disk / ("y" * 255)).mkdir()
    (disk / ("y" * 255) / ("z" * 255)).touch()
    os.mkfifo(disk / "fifo")

    emptied(disk)

    assert list(disk.iterdir()) == []
    assert disk.stat().st_ino == inode
    emptied(disk)


def test_links_and_mounts_that_lead_out_leave_the_victim_alone(room: Path):
    disk, victim = room / "disk", room / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "precious").write_text("keep")
    (disk / "link").symlink_to(victim)
    for name in ("mounted", "deep/mounted"):
        (disk / name).mkdir(parents=True)
        run("mount", "--bind", victim, disk / name)

    emptied(disk)

    assert list(disk.iterdir()) == []
    assert (victim / "precious").read_text() == "keep"
    assert (victim / "sub").is_dir()


LONGEST = "x" * 255


def mounted_image(room: Path, *mkfs: str) -> Path:
    image, disk = room / "image", room / "real"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    run(*mkfs, "-q", image)
    run("mount", "-o", "loop", image, disk)
    for found in disk.glob("lost+found"):
        found.rmdir()
    return disk


def fill_blocks(folder: Path) -> None:
    with descriptor(folder / "large", os.O_CREAT | os.O_RDWR) as file:
        size, step = 0, 64 << 20
        while step >= 512:
            try:
                os.posix_fallocate(file, size, step)
                size += step
            except OSError:
                step //= 2
    with pytest.raises(OSError, match="No space"):
        make_folders(folder)


def fill_inodes(folder: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        make_folders(folder)


def make_folders(folder: Path) -> None:
    for number in range(100_000):
        (folder / f"{number}").mkdir()


@pytest.mark.parametrize(
    ("mkfs", "fill"),
    [
        (("mkfs.ext4", "-m", "0"), fill_blocks),
        (("mkfs.ext4", "-m", "0", "-N", "200"), fill_inodes),
        (("mkfs.xfs",), fill_blocks),
    ],
    ids=["ext4", "ext4 without inodes", "xfs"],
)
def test_a_disk_that_a_tenant_has_filled_is_emptied(room: Path, mkfs: tuple[str, ...], fill: Callable[[Path], None]):
    disk = mounted_image(room, *mkfs)
    for name in ("a", "b", LONGEST):
        (disk / name / "deep").mkdir(parents=True)
    fill(disk / LONGEST / "deep")

    emptied(disk)

    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_extended_attributes_that_a_tenant_set_on_the_folder_are_removed(room: Path, file_system: str):
    disk = mounted_image(room, f"mkfs.{file_system}")
    os.setxattr(disk, "user.secret", b"a tenant's")
    os.setxattr(disk, "trusted.admins", b"kept")

    emptied(disk)

    assert [name for name in os.listxattr(disk) if name != "security.selinux"] == ["trusted.admins"]


def test_many_folders_at_the_top_go_too(room: Path):
    for number in range(2000):
        (room / f"disk/{number}").mkdir()
        (room / f"disk/{number}/file").touch()

    emptied(room / "disk")

    assert list((room / "disk").iterdir()) == []


def test_an_emptying_that_is_stopped_says_so_and_goes_on_later(room: Path):
    (room / "disk/file").touch()
    stop = threading.Event()
    stop.set()
    with pytest.raises(HostError) as caught:
        emptied(room / "disk", stop)
    assert caught.value.errno == errno.ECANCELED

    emptied(room / "disk")

    assert list((room / "disk").iterdir()) == []
