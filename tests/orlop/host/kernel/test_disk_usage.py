from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SOAK
from orlop.host.host_errors import HostError
from orlop.host.kernel.disk_usage import TreeUsage, measure_tree, room_on
from support.host.kernel_rooms import descriptor, run

DEEP = 20_000 if SOAK else 2_000


def measured(folder: Path) -> TreeUsage:
    with descriptor(folder.parent) as parent:
        return measure_tree(parent, folder.name)


def du(folder: Path) -> int:
    told = subprocess.run(["du", "-s", "-x", "--block-size=1", folder], check=True, capture_output=True).stdout
    return int(told.split()[0])


def test_the_room_on_a_disk_is_what_users_can_have(tmp_path: Path):
    told = os.statvfs(tmp_path)

    with descriptor(tmp_path) as opened:
        room = room_on(opened)

    assert room.total_bytes == told.f_blocks * told.f_frsize
    assert room.total_inodes == told.f_files
    assert 0 < room.free_bytes < room.total_bytes
    assert 0 <= room.free_inodes <= room.total_inodes


def test_what_is_kept_for_root_is_not_free(room: Path):
    image, disk = room / "image", room / "disk"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    run("mkfs.ext4", "-q", "-m", "50", image)
    disk.mkdir()
    run("mount", "-o", "loop", image, disk)

    with descriptor(disk) as opened:
        found = room_on(opened)

    assert found.free_bytes < found.total_bytes * 0.6


def test_a_tree_takes_what_its_files_and_folders_take(tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "big").write_bytes(b"x" * 100_000)
    (tree / "a" / "b" / "small").write_text("x")
    (tree / "link").symlink_to("/")
    os.mkfifo(tree / "fifo")

    assert measured(tree) == TreeUsage(du(tree), 7)


def test_a_hole_in_a_file_takes_no_room(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    with (tmp_path / "tree" / "sparse").open("wb") as file:
        file.truncate(1 << 40)

    assert measured(tmp_path / "tree").bytes < 1 << 20


def test_a_file_with_two_names_counts_once(tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "one").write_bytes(b"x" * 50_000)
    (tree / "sub" / "two").hardlink_to(tree / "one")

    assert measured(tree) == TreeUsage(du(tree), 3)


def test_what_is_mounted_inside_is_not_entered(room: Path):
    tree = room / "tree"
    for name in ("disk", "bound"):
        (tree / name).mkdir(parents=True)
    (room / "other").mkdir()
    (room / "other" / "big").write_bytes(b"x" * 100_000)
    before = measured(tree).bytes - 2 * (tree / "disk").stat().st_blocks * 512
    run("mount", "-t", "tmpfs", "tmpfs", tree / "disk")
    (tree / "disk" / "big").write_bytes(b"x" * 100_000)
    run("mount", "--bind", room / "other", tree / "bound")

    assert measured(tree) == TreeUsage(before, 1)


def test_a_file_of_another_disk_mounted_inside_is_not_counted(room: Path):
    tree = room / "tree"
    (room / "disk").mkdir()
    tree.mkdir()
    (tree / "spot").write_text("")
    run("mount", "-t", "tmpfs", "tmpfs", room / "disk")
    (room / "disk" / "big").write_bytes(b"x" * 100_000)
    run("mount", "--bind", room / "disk" / "big", tree / "spot")

    assert measured(tree).inodes == 1


def test_names_that_are_no_text_and_any_depth_are_measured(tmp_path: Path):
    tree = tmp_path / "tree"
    tree.mkdir()
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir(b"\xff", dir_fd=folder)
        below = os.open(b"\xff", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)

    assert measured(tree).inodes == DEEP + 1
    subprocess.run(["rm", "-rf", tree], check=True)


def test_a_missing_folder_a_file_and_a_link_are_errors_with_a_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/")

    for name in ("missing", "file", "link"):
        with pytest.raises(HostError, match=f"The folder {name} cannot be measured"):
            measured(tmp_path / name)


def test_measuring_ends_when_it_is_told_to_and_leaves_nothing_open(tmp_path: Path):
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    before = sorted(Path("/proc/self/fd").iterdir())

    with descriptor(tmp_path) as parent, pytest.raises(HostError, match="the measurement was stopped") as caught:
        measure_tree(parent, "tree", lambda: True)

    assert caught.value.errno == errno.ECANCELED
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_folder_moved_out_while_we_are_inside_does_not_lead_us_out(tmp_path: Path):
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    turns = iter(range(10))

    def move_the_middle() -> bool:
        if next(turns) == 2:
            (tmp_path / "tree" / "a" / "b").rename(tmp_path / "outside" / "b")
        return False

    with descriptor(tmp_path) as parent, pytest.raises(HostError, match="folders in it were moved") as caught:
        measure_tree(parent, "tree", move_the_middle)

    assert caught.value.errno == errno.ESTALE


trees = st.recursive(
    st.integers(0, 20_000), lambda inner: st.dictionaries(st.sampled_from("abcde"), inner, max_size=4), max_leaves=12
)


def plant(path: Path, tree: object) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name, inner in tree.items():
            plant(path / name, inner)
    else:
        path.write_bytes(b"x" * tree)


@given(st.dictionaries(st.sampled_from("abcde"), trees, max_size=4))
@settings(max_examples=200 if SOAK else 20)
def test_every_tree_takes_what_du_says(tmp_path_factory: pytest.TempPathFactory, tree: object):
    folder = tmp_path_factory.mktemp("usage") / "tree"
    plant(folder, tree)

    assert measured(folder).bytes == du(folder)
    subprocess.run(["rm", "-rf", folder.parent], check=True)
