from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from conftest import SOAK
from orlop.host.folders import file_contents, folder_copy
from orlop.host.folders.folder_copy import CopyProgress, FolderCopy, copy_folder
from orlop.host.host_errors import HostError
from support.host.deep_trees import depth_of, dig
from support.host.descriptors import folder_descriptor, opened
from support.host.file_systems import MOUNTS, WHY_NOT, FileSystems
from support.host.trees import TREES, Entry, File, Folder, Special, plant, seen
from support.random_tests import FEW


def copy(source: Path, target: Path, stop: threading.Event | None = None, **options: Any) -> FolderCopy:
    with folder_descriptor(source) as read, folder_descriptor(target) as written:
        return copy_folder(read, written, stop or threading.Event(), **options)


@pytest.fixture
def source(disk: Path) -> Path:
    (disk / "source").mkdir()
    return disk / "source"


@pytest.fixture
def target(disk: Path) -> Path:
    (disk / "target").mkdir()
    return disk / "target"


def stripped(tree: Entry) -> Entry:
    """What must come out of a copy."""
    match tree:
        case File(content, mode):
            return File(content, mode & 0o1777)
        case Folder(entries, mode):
            kept = {name: stripped(entry) for name, entry in entries.items() if not isinstance(entry, Special)}
            return Folder(kept, mode & 0o1777)
    return tree


@MOUNTS
@settings(parent=FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_a_random_tree_is_copied_but_for_what_must_be_stripped(tmpfs: Path, tree: Folder):
    plant(tree, os.fsencode(tmpfs / "source"))
    (tmpfs / "target").mkdir()

    copied = copy(tmpfs / "source", tmpfs / "target")

    assert seen(tmpfs / "target") == Folder(stripped(tree).entries, 0o700)
    assert seen(tmpfs / "source") == tree
    assert not copied.stopped
    assert all("not copied" in problem.sentence for problem in copied.problems)
    shutil.rmtree(tmpfs / "source")
    shutil.rmtree(tmpfs / "target")


def test_contents_owners_times_and_user_attributes_are_kept(source: Path, target: Path):
    (source / "folder").mkdir()
    (source / "folder" / "file").write_bytes(b"hello" * 10_000)
    os.setxattr(source / "folder" / "file", "user.note", b"kept")
    os.setxattr(source / "folder", "user.note", b"kept too")
    if WHY_NOT is None:
        os.chown(source / "folder" / "file", 1000, 1001)
    os.utime(source / "folder" / "file", ns=(1_000_000_001, 2_000_000_002))
    os.utime(source / "folder", ns=(3_000_000_003, 4_000_000_004))

    copy(source, target)

    copied, original = (target / "folder" / "file").stat(), (source / "folder" / "file").stat()
    assert (target / "folder" / "file").read_bytes() == b"hello" * 10_000
    assert (copied.st_uid, copied.st_gid, copied.st_mtime_ns) == (original.st_uid, original.st_gid, 2_000_000_002)
    assert (target / "folder").stat().st_mtime_ns == 4_000_000_004
    assert os.getxattr(target / "folder" / "file", "user.note") == b"kept"
    assert os.getxattr(target / "folder", "user.note") == b"kept too"


@MOUNTS
def test_setid_bits_capabilities_and_trusted_attributes_are_stripped(source: Path, target: Path):
    (source / "program").write_text("x")
    (source / "program").chmod(0o6755)
    os.setxattr(source / "program", "trusted.orlop", b"a record")
    net_admin = bytes.fromhex("0100000200100000000000000000000000000000")
    os.setxattr(source / "program", "security.capability", net_admin)
    (source / "folder").mkdir()
    (source / "folder").chmod(0o3777)

    copy(source, target)

    assert stat.S_IMODE((target / "program").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o1777
    names = os.listxattr(target / "program")
    assert [name for name in names if name.startswith(("trusted.", "security.cap"))] == []


def test_the_top_folder_is_only_its_owner_s_from_the_first_moment(source: Path, target: Path):
    (source / "file").write_text("x")
    source.chmod(0o777)
    target.chmod(0o777)
    modes = []

    copy(source, target, progress=lambda _progress: modes.append(stat.S_IMODE(target.stat().st_mode)))

    assert set(modes) == {0o700}
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_symbolic_links_are_copied_as_they_are_and_never_followed(source: Path, target: Path, disk: Path):
    (disk / "secret").write_text("not yours")
    (source / "absolute").symlink_to(disk / "secret")
    (source / "up").symlink_to("../secret")
    (source / "folder").symlink_to(disk)

    copied = copy(source, target)

    assert (target / "absolute").readlink() == disk / "secret"
    assert (target / "up").readlink() == Path("../secret")
    assert (target / "folder").is_symlink()
    assert copied.bytes == 0
    assert copied.entries == 3


def test_hard_links_within_the_tree_stay_one_file(source: Path, target: Path):
    (source / "a").mkdir()
    (source / "a" / "first").write_text("one")
    (source / "b").hardlink_to(source / "a" / "first")
    (source / "c").hardlink_to(source / "a" / "first")

    copied = copy(source, target)

    assert (target / "a" / "first").stat().st_ino == (target / "b").stat().st_ino == (target / "c").stat().st_ino
    assert (target / "b").stat().st_nlink == 3
    assert (target / "b").read_text() == "one"
    assert copied.bytes == 3


@MOUNTS
def test_devices_fifos_and_sockets_are_told_and_left_out(source: Path, target: Path):
    os.mkfifo(source / "fifo")
    os.mknod(source / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(source / "socket", stat.S_IFSOCK | 0o666)
    (source / "file").write_text("x")

    copied = copy(source, target)

    assert {entry.name for entry in target.iterdir()} == {"file"}
    assert {(problem.path, problem.sentence) for problem in copied.problems} == {
        ("fifo", "It is a fifo, which is not copied."),
        ("device", "It is a device, which is not copied."),
        ("socket", "It is a socket, which is not copied."),
    }


@MOUNTS
def test_what_is_mounted_in_the_source_is_told_and_not_copied(source: Path, target: Path, disk: Path):
    (disk / "secret").mkdir()
    (disk / "secret" / "file").write_text("not yours")
    (source / "mount").mkdir()
    (source / "file").write_text("covered")
    subprocess.run(["mount", "--bind", disk / "secret", source / "mount"], check=True)
    subprocess.run(["mount", "--bind", disk / "secret" / "file", source / "file"], check=True)

    copied = copy(source, target)

    subprocess.run(["umount", source / "mount"], check=True)
    subprocess.run(["umount", source / "file"], check=True)
    assert list(target.iterdir()) == []
    assert [problem.path for problem in copied.problems] == ["file", "mount"]
    assert "mounted" in copied.problems[0].sentence


def test_holes_stay_holes(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_contents, "REFLINK", 0)  # where a reflink would keep them anyway
    with (source / "sparse").open("wb") as file:
        file.seek(64 * 2**20)
        file.write(b"data")
        file.truncate(256 * 2**20)

    copied = copy(source, target)

    found = (target / "sparse").stat()
    assert found.st_size == 256 * 2**20
    assert found.st_blocks * 512 < 2**20
    assert copied.bytes < 2**20
    with (target / "sparse").open("rb") as file:
        file.seek(64 * 2**20)
        assert file.read(5) == b"data\0"


def test_a_file_is_shared_by_reflink_where_the_file_system_can(xfs: Path):
    (xfs / "source").mkdir()
    (xfs / "target").mkdir()
    (xfs / "source" / "file").write_bytes(os.urandom(20 * 2**20))
    os.sync()
    free = os.statvfs(xfs).f_bavail

    copy(xfs / "source", xfs / "target")

    os.sync()
    assert (xfs / "target" / "file").read_bytes() == (xfs / "source" / "file").read_bytes()
    assert (free - os.statvfs(xfs).f_bavail) * os.statvfs(xfs).f_bsize < 10 * 2**20


def test_a_copy_to_another_file_system_is_equal(source: Path, tmp_path: Path):
    (tmp_path / "target").mkdir()
    (source / "file").write_bytes(os.urandom(3 * 2**20 + 17))
    (source / "empty").touch()

    copied = copy(source, tmp_path / "target")

    assert (tmp_path / "target" / "file").read_bytes() == (source / "file").read_bytes()
    assert (tmp_path / "target" / "empty").read_bytes() == b""
    assert copied.bytes == 3 * 2**20 + 17
    assert copied.problems == ()


def test_thousands_of_levels_are_copied_with_few_descriptors(tmpfs: Path):
    levels = 20_000 if SOAK else 5_000
    dig(tmpfs / "source", levels)
    (tmpfs / "target").mkdir()
    before, most, steps = len(opened()), 0, 0

    def look(_progress: CopyProgress) -> None:
        nonlocal most, steps
        steps += 1
        if not steps % 1_000:
            most = max(most, len(opened()))

    copied = copy(tmpfs / "source", tmpfs / "target", progress=look)

    assert copied.entries == levels + 1
    assert depth_of(tmpfs / "target") == levels
    assert most - before < 100


def test_a_target_that_is_not_empty_is_refused(source: Path, target: Path):
    (target / "there").touch()

    with pytest.raises(HostError, match="not empty") as caught:
        copy(source, target)
    assert caught.value.errno == errno.ENOTEMPTY


def test_a_full_target_ends_it_with_a_sentence_and_no_half_copied_file(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    (source / "file").write_bytes(b"x" * 100_000)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_contents.FileCopier, "copy", full)
    with pytest.raises(HostError, match="'file' cannot be copied: No space left on device"):
        copy(source, target)
    assert list(target.iterdir()) == []


def test_a_file_that_cannot_be_read_is_told_and_the_rest_is_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    (source / "bad").write_text("x")
    (source / "good").write_text("y")
    whole = file_contents.FileCopier.copy

    def unreadable(self: file_contents.FileCopier, read: int, written: int, size: int) -> None:
        if Path(f"/proc/self/fd/{read}").readlink().name == "bad":
            raise OSError(errno.EIO, "Input/output error")
        whole(self, read, written, size)

    monkeypatch.setattr(file_contents.FileCopier, "copy", unreadable)
    copied = copy(source, target)

    assert [problem.path for problem in copied.problems] == ["bad"]
    assert {entry.name for entry in target.iterdir()} == {"good"}


def test_it_stops_between_steps_and_leaves_no_half_copied_file(source: Path, target: Path):
    for number in range(5):
        (source / f"file-{number}").write_bytes(b"x" * 100)
    stop = threading.Event()

    def end_soon(progress: CopyProgress) -> None:
        if progress.entries == 2:
            stop.set()

    copied = copy(source, target, stop, progress=end_soon)

    assert copied.stopped
    assert copied.entries == 2
    assert all(entry.stat().st_size == 100 for entry in target.iterdir())
    assert len(list(target.iterdir())) == 2


def test_it_stops_within_a_file(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_contents, "MOST_AT_ONCE", 1_000)
    (tmp_path / "target").mkdir()
    (source / "file").write_bytes(b"x" * 10_000)
    stop = threading.Event()

    def end_soon(progress: CopyProgress) -> None:
        if progress.bytes >= 3_000:
            stop.set()

    copied = copy(source, tmp_path / "target", stop, progress=end_soon)

    assert copied.stopped
    assert list((tmp_path / "target").iterdir()) == []


def test_a_folder_moved_away_under_a_deep_walk_ends_it(tmpfs: Path):
    dig(tmpfs / "source", 100)
    (tmpfs / "target").mkdir()
    (tmpfs / "elsewhere").mkdir()
    place = tmpfs / "source"
    for _ in range(60):
        place /= "d"

    def move(progress: CopyProgress) -> None:
        if progress.entries == 1 and place.exists():
            place.rename(tmpfs / "elsewhere" / "d")

    with pytest.raises(HostError, match="moved while it was read"):
        copy(tmpfs / "source", tmpfs / "target", progress=move)


def test_more_linked_files_than_are_remembered_become_files(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folder_copy, "MOST_LINKED_FILES", 0)
    (source / "a").write_text("one")
    (source / "b").hardlink_to(source / "a")

    copied = copy(source, target)

    assert (target / "b").read_text() == "one"
    assert copied.problem_count == 2


def test_a_file_larger_than_the_target_takes_is_told_and_the_rest_is_copied(file_systems: FileSystems):
    source, target = file_systems.new_folder("xfs"), file_systems.new_folder("ext4")
    (source / "small").write_bytes(b"kept")
    with (source / "huge").open("wb") as file:
        file.truncate(2**62)

    copied = copy(source, target)

    assert [problem.path for problem in copied.problems] == ["huge"]
    assert "too large" in copied.problems[0].sentence
    assert [path.name for path in target.iterdir()] == ["small"]


def test_a_file_with_more_names_than_the_target_allows_becomes_as_few_files_as_possible(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
):
    (source / "0").write_bytes(b"content")
    for number in range(1, 10):
        (source / str(number)).hardlink_to(source / "0")
    link = os.link

    def allowing_four(first: str, name: str, **options: Any) -> None:
        if Path(first).stat().st_nlink == 4:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(first, name, **options)

    monkeypatch.setattr(os, "link", allowing_four)
    copied = copy(source, target)

    assert (copied.entries, copied.problems) == (10, ())
    assert sorted(path.name for path in target.iterdir()) == [str(number) for number in range(10)]
    assert sorted(path.stat().st_nlink for path in target.iterdir()) == [2, 2, *[4] * 8]
