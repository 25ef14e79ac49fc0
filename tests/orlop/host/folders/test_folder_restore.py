"""A folder restored into a place of somebody's: complete under its name, or known as unfinished."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from orlop.host.folders.folder_copy import CopyProgress, FolderCopy
from orlop.host.folders.folder_restore import FolderRestore, restore_folder
from orlop.host.host_errors import HostError
from support.host.descriptors import folder_descriptor
from support.host.file_systems import MOUNTS, FileSystems
from support.host.kernel_rooms import disk_image

pytestmark = MOUNTS
UNFINISHED = ".orlop-unfinished-v1"


def restore(source: Path, to: Path, stop_at: int | None = None, name: str = "v1") -> FolderCopy:
    stop = threading.Event()

    def progress(told: CopyProgress) -> None:
        if stop_at is not None and told.entries >= stop_at:
            stop.set()

    with folder_descriptor(source) as folder, folder_descriptor(to) as directory:
        return restore_folder(FolderRestore(folder, directory, name), stop, progress)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def planted(place: Path) -> Path:
    (place / "source" / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (place / "source" / name).write_text(name)
    return place / "source"


@pytest.fixture
def to(disk: Path) -> Path:
    (disk / "to").mkdir()
    return disk / "to"


def test_the_restored_folder_is_complete_and_for_root_alone(disk: Path, to: Path):
    copied = restore(planted(disk), to)

    assert names(to) == ["v1"]
    assert (to / "v1" / "sub" / "c").read_text() == "sub/c"
    assert stat.S_IMODE((to / "v1").stat().st_mode) == 0o700
    assert (copied.entries, copied.stopped) == (4, False)


def test_one_that_is_stopped_is_known_as_unfinished_and_the_next_begins_anew(disk: Path, to: Path):
    source = planted(disk)
    stopped = restore(source, to, stop_at=1)
    assert (stopped.stopped, names(to)) == (True, [UNFINISHED])
    assert stat.S_IMODE((to / UNFINISHED).stat().st_mode) == 0o700
    (to / UNFINISHED / "stale").touch()
    restore(source, to)

    assert names(to) == ["v1"]
    assert names(to / "v1") == ["a", "b", "sub"]


def test_one_that_is_stopped_before_it_began_leaves_nothing(disk: Path, to: Path):
    source, stop = planted(disk), threading.Event()
    stop.set()
    with folder_descriptor(source) as folder, folder_descriptor(to) as directory:
        assert restore_folder(FolderRestore(folder, directory, "v1"), stop, lambda _: None).stopped

    assert names(to) == []


@pytest.mark.parametrize("taken", ["file", "link", "folder"])
def test_nothing_is_replaced(disk: Path, to: Path, taken: str):
    source = planted(disk)
    if taken == "link":
        (to / "v1").symlink_to("/nowhere")
    else:
        (to / "v1").mkdir() if taken == "folder" else (to / "v1").touch()
    with pytest.raises(HostError, match="There is a v1 in that folder already") as refusal:
        restore(source, to)

    assert refusal.value.errno == errno.EEXIST
    assert names(to) == ["v1"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_stands_in_place_of_the_unfinished_folder_leads_nowhere(disk: Path, to: Path, kind: str):
    source, elsewhere = planted(disk), disk / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    (to / UNFINISHED).symlink_to(elsewhere) if kind == "link" else (to / UNFINISHED).touch()
    restore(source, to)

    assert names(to) == ["v1"]
    assert names(elsewhere) == ["mine"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 255])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str):
    source = planted(tmp_path)
    with pytest.raises(HostError):
        restore(source, tmp_path, name=name or "\0")
    assert names(tmp_path) == ["source"]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path):
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(HostError, match="no folder"):
        FolderRestore(file, file, "v1").refuse_what_cannot_be()
    os.close(file)


def test_a_full_disk_is_a_sentence_and_what_is_left_is_known(tmp_path: Path, file_systems: FileSystems):
    source = planted(tmp_path)
    (source / "large").write_bytes(bytes(3 << 20))
    to = tmp_path / "small"
    to.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", to], check=True)
    try:
        with pytest.raises(HostError, match="No space left"):
            restore(source, to)
        assert names(to) == [UNFINISHED]
    finally:
        subprocess.run(["umount", to], check=True)


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_what_was_restored_survives_power_loss(tmp_path: Path, file_system: str):
    source = planted(tmp_path)
    with disk_image(tmp_path / "image", file_system) as image:
        restore(source, image.folder)
        image.cut_power()

        assert (image.folder / "v1" / "sub" / "c").read_text() == "sub/c"
        assert (image.folder / "v1" / "a").read_text() == "a"
