from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from orlop.host.folders import folder_reading, read_only_walk
from orlop.host.folders.folder_reading import FolderEntry, list_folder, read_file
from orlop.host.folders.read_only_walk import Problems
from orlop.host.folders.tar_stream import TarStream
from orlop.host.host_errors import HostError
from support.host.deep_trees import dig
from support.host.descriptors import folder_descriptor
from support.host.file_systems import MOUNTS
from support.host.trees import TREES, Entry, File, Folder, Special, plant, seen
from support.random_tests import FEW


def listed(folder: Path, path: str = "") -> list[FolderEntry]:
    with folder_descriptor(folder) as descriptor:
        return list(list_folder(descriptor, path))


def content(folder: Path, path: str, start: int = 0) -> bytes:
    with folder_descriptor(folder) as descriptor:
        return b"".join(read_file(descriptor, path, start))


def archive(folder: Path, path: str = "", top: str = "top") -> tuple[bytes, Problems]:
    with folder_descriptor(folder) as descriptor:
        stream = TarStream(descriptor, path, top)
        return b"".join(stream), stream.problems


def names_in(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a secret beside it."""
    (tmp_path / "secret").write_text("not yours")
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "file").write_text("hello")
    return tmp_path / "folder"


# ---- listing ---------------------------------------------------------------------------------------------------------


def test_a_list_has_every_entry_in_the_order_of_names(folder: Path):
    (folder / "b").write_bytes(b"123")
    (folder / "a").symlink_to("../secret")
    os.mkfifo(folder / "c")

    found = listed(folder)

    assert [(entry.name, entry.kind) for entry in found] == [
        ("a", "a symbolic link"),
        ("b", "a file"),
        ("c", "a fifo"),
        ("sub", "a folder"),
    ]
    assert found[0].link == "../secret"
    assert found[1].size == 3
    assert found[1].mode == stat.S_IMODE((folder / "b").stat().st_mode)
    assert [entry.name for entry in listed(folder, "sub")] == ["file"]
    assert [entry.name for entry in listed(folder, "sub/file")] == ["file"]


def test_a_large_folder_is_listed_whole_though_few_names_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_reading, "MOST_NAMES_AT_ONCE", 7)
    monkeypatch.setattr(read_only_walk, "MOST_NAMES_AT_ONCE", 7)
    for number in range(100):
        (folder / "sub" / f"file-{number:03}").touch()

    expected = ["file", *(f"file-{number:03}" for number in range(100))]
    assert [entry.name for entry in listed(folder, "sub")] == expected
    data, _problems = archive(folder, "sub")
    assert names_in(data) == ["top", *(f"top/{name}" for name in expected)]


def test_names_that_are_not_utf8_are_listed_and_read(folder: Path):
    (folder / os.fsdecode(b"\xff\xfe")).write_text("odd")

    assert os.fsencode(listed(folder)[-1].name) == b"\xff\xfe"
    assert content(folder, os.fsdecode(b"\xff\xfe")) == b"odd"


@MOUNTS
def test_a_mount_is_listed_and_not_entered(folder: Path, tmp_path: Path):
    (tmp_path / "other").mkdir()
    subprocess.run(["mount", "--bind", tmp_path / "other", folder / "sub"], check=True)
    try:
        assert [(entry.name, entry.kind) for entry in listed(folder)] == [("sub", "a mount, which is not entered")]
        with pytest.raises(HostError, match="something is mounted on 'sub'"):
            content(folder, "sub/file")
    finally:
        subprocess.run(["umount", folder / "sub"], check=True)


# ---- reading one file ------------------------------------------------------------------------------------------------


def test_a_file_is_read_from_any_place_in_it(folder: Path):
    (folder / "long").write_bytes(bytes(range(256)) * 4_000)

    assert content(folder, "sub/file") == b"hello"
    assert content(folder, "./sub//file") == b"hello"
    assert content(folder, "sub/file", 3) == b"lo"
    assert content(folder, "long") == bytes(range(256)) * 4_000


@pytest.mark.parametrize("path", ["../secret", "sub/../../secret", "..", "sub/..", "/..", "a\0b"])
def test_a_path_that_leads_up_is_refused(folder: Path, path: str):
    with pytest.raises(HostError, match="does not stay in the folder") as caught:
        content(folder, path)
    assert caught.value.errno == errno.EINVAL


def test_an_absolute_path_is_one_below_the_folder(folder: Path):
    assert content(folder, "/sub/file") == b"hello"
    with pytest.raises(HostError, match="there is no 'etc'"):
        content(folder, "/etc/passwd")


def test_links_are_not_followed_wherever_they_lead(folder: Path, tmp_path: Path):
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("..")
    (folder / "inside").symlink_to("sub")

    with pytest.raises(HostError, match="'link' is a symbolic link: only files can be read"):
        content(folder, "link")
    for path in ("up/secret", "inside/file"):
        with pytest.raises(HostError, match="Symbolic links are not followed"):
            content(folder, path)


@MOUNTS
def test_fifos_devices_and_folders_are_refused_unopened(folder: Path):
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))

    for path, kind in (("fifo", "a fifo"), ("device", "a device"), ("sub", "a folder")):
        with pytest.raises(HostError, match=f"is {kind}: only files can be read"):
            content(folder, path)


def test_a_file_swapped_for_a_fifo_after_it_was_looked_at_is_still_the_file(folder: Path):
    with folder_descriptor(folder) as descriptor, folder_reading.place_below(descriptor, "sub/file") as place:
        (folder / "sub" / "file").unlink()
        os.mkfifo(folder / "sub" / "file")
        with folder_reading.opened_file(place, "sub/file") as file:
            assert os.read(file, 10) == b"hello"


def test_a_reader_that_is_left_early_closes_everything(folder: Path):
    with folder_descriptor(folder) as descriptor:
        pieces = read_file(descriptor, "sub/file")
        next(pieces)
        pieces.close()
        stream = iter(TarStream(descriptor, "", "top"))
        next(stream)
        next(stream)
        stream.close()


# ---- archives --------------------------------------------------------------------------------------------------------


def unpacked(data: bytes, place: Path) -> Path:
    place.mkdir()
    subprocess.run(["tar", "-x", "-C", place, "--delay-directory-restore"], input=data, check=True)
    return place / "top"


def as_archived(tree: Entry) -> Entry:
    match tree:
        case File(data, mode):
            return File(data, mode & 0o1777)
        case Folder(entries, mode):
            kept = {name: as_archived(entry) for name, entry in entries.items() if not isinstance(entry, Special)}
            return Folder(kept, mode & 0o1777)
    return tree


@MOUNTS
@settings(parent=FEW, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(tree=TREES)
def test_a_random_tree_comes_out_of_its_archive_as_it_was(tmpfs: Path, tree: Folder):
    plant(tree, os.fsencode(tmpfs / "folder"))

    data, _problems = archive(tmpfs / "folder")

    assert seen(unpacked(data, tmpfs / "out")) == as_archived(tree)
    shutil.rmtree(tmpfs / "folder")
    shutil.rmtree(tmpfs / "out")


def test_an_archive_is_read_by_python_too(folder: Path):
    odd = os.fsdecode(b"\xff\xfe odd")
    (folder / odd).write_text("odd")
    (folder / "link").symlink_to("sub")
    (folder / "again").hardlink_to(folder / "sub" / "file")
    (folder / ("long" * 50)).write_text("long")

    data, _problems = archive(folder)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        first = tar.getmember("top/again")
        second = tar.getmember("top/sub/file")

    assert set(names) == {
        *("top", "top/sub", "top/sub/file", "top/link", "top/again"),
        f"top/{odd}",
        f"top/{'long' * 50}",
    }
    assert first.isreg()
    assert second.islnk()
    assert second.linkname == "top/again"


def test_a_part_of_a_folder_and_a_single_file_are_archives_too(folder: Path):
    for path, expected in (("sub", ["top", "top/file"]), ("sub/file", ["top"])):
        data, _problems = archive(folder, path)
        assert names_in(data) == expected


def test_holes_stay_holes_in_an_archive_and_when_unpacked(folder: Path, tmp_path: Path):
    with (folder / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(64 * 2**20)
        file.write(b"middle")
        file.truncate(2**40)
    with (folder / "hole").open("wb") as file:
        file.truncate(2**30)

    data, _problems = archive(folder)
    place = unpacked(data, tmp_path / "out")

    assert len(data) < 2**20
    assert (place / "sparse").stat().st_size == 2**40
    assert (place / "hole").stat().st_size == 2**30
    with (place / "sparse").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(64 * 2**20)
        assert file.read(7) == b"middle\0"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getmember("top/sparse").size == 2**40


@MOUNTS
def test_what_is_no_file_is_left_out_of_an_archive_and_told(folder: Path):
    os.mkfifo(folder / "fifo")
    os.mknod(folder / "device", stat.S_IFBLK | 0o666, os.makedev(7, 250))

    data, problems = archive(folder)

    assert names_in(data) == ["top", "top/sub", "top/sub/file"]
    assert [str(problem) for problem in problems.first] == [
        "'device': It is a device, which is left out.",
        "'fifo': It is a fifo, which is left out.",
    ]


def test_a_file_that_becomes_shorter_while_it_is_read_is_filled_with_zeros_and_told(folder: Path):
    (folder / "log").write_bytes(b"x" * 600_000)
    with folder_descriptor(folder) as descriptor:
        stream = TarStream(descriptor, "log", "top")
        pieces = []
        for piece in stream:
            pieces.append(piece)
            os.truncate(folder / "log", 300_000)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        file = tar.extractfile("top")
        assert file is not None
        read = file.read()

    assert len(read) == 600_000
    assert read == b"x" * read.count(b"x") + bytes(read.count(b"\0"))
    assert "became shorter" in stream.problems.first[0].sentence


def test_an_archive_of_a_very_deep_tree_ends_where_nobody_could_unpack_it(tmpfs: Path):
    dig(tmpfs / "folder", 5_000)

    data, problems = archive(tmpfs / "folder")

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        longest = max(len(name) for name in tar.getnames())
    assert 3_900 < longest <= 4_000
    assert problems.count == 1
    assert "too deep" in problems.first[0].sentence


def test_memory_does_not_grow_with_what_is_archived(tmpfs: Path):
    (tmpfs / "folder").mkdir()
    (tmpfs / "folder" / "file").write_bytes(bytes(range(256)) * 200_000)
    with folder_descriptor(tmpfs / "folder") as descriptor:
        tracemalloc.start()
        size = sum(len(piece) for piece in TarStream(descriptor, "", "top"))
        _now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert size > 51_200_000
    assert most < 4_000_000
