"""Which sockets a watched folder has, and which of them are new."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orlop.host.host_errors import HostError
from orlop.host.kernel.socket_folder import SocketFolder


@pytest.fixture
def watched(short_folder: Path) -> Iterator[SocketFolder]:
    with SocketFolder(short_folder) as folder:
        yield folder


def make(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    return str(path)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def has_news(folder: SocketFolder) -> bool:
    return bool(select.select([folder.descriptor], [], [], 0)[0])


def test_what_is_there_already_is_found(short_folder: Path):
    path = make(short_folder / "a.sock")

    with SocketFolder(short_folder) as folder:
        assert list(folder.sockets()) == [path]


def test_a_new_socket_is_told_and_found(short_folder: Path, watched: SocketFolder):
    assert not has_news(watched)
    path = make(short_folder / "a.sock")

    assert has_news(watched)
    assert list(watched.sockets()) == [path]
    assert not has_news(watched)


def test_a_socket_that_was_made_anew_is_another_one(short_folder: Path, watched: SocketFolder):
    path = make(short_folder / "a.sock")
    before = watched.sockets()[path]
    Path(path).unlink()
    make(short_folder / "a.sock")

    assert watched.sockets()[path] != before


def test_a_socket_moved_onto_another_is_another_one(short_folder: Path, watched: SocketFolder):
    path = make(short_folder / "a.sock")
    before = watched.sockets()[path]
    Path(make(short_folder / ".new")).rename(path)

    assert list(watched.sockets()) == [path]
    assert watched.sockets()[path] != before


def test_a_socket_whose_rights_change_stays_the_same(short_folder: Path, watched: SocketFolder):
    path = make(short_folder / "a.sock")
    before = watched.sockets()
    Path(path).chmod(0o700)
    os.link(path, short_folder / ".other")

    assert watched.sockets() == before


def test_a_removed_socket_is_gone(short_folder: Path, watched: SocketFolder):
    Path(make(short_folder / "a.sock")).unlink()

    assert watched.sockets() == {}


def test_a_socket_that_is_moved_away_still_counts_as_there(short_folder: Path, watched: SocketFolder):
    path = make(short_folder / "a.sock")
    watched.sockets()
    Path(path).rename(short_folder / ".away")

    assert list(watched.sockets()) == [path]


def test_folders_below_are_watched_too(short_folder: Path, watched: SocketFolder):
    (short_folder / "below" / "deep").mkdir(parents=True)
    first = make(short_folder / "below" / "a.sock")
    assert list(watched.sockets()) == [first]
    second = make(short_folder / "below" / "deep" / "b.sock")

    assert sorted(watched.sockets()) == [first, second]
    Path(first).unlink()
    Path(second).unlink()
    (short_folder / "below" / "deep").rmdir()
    assert watched.sockets() == {}


def test_files_links_to_nothing_and_names_with_a_dot_are_passed_over(short_folder: Path, watched: SocketFolder):
    (short_folder / "a.sock").write_text("no socket")
    (short_folder / "b.sock").symlink_to("nowhere")
    make(short_folder / ".c.sock")
    (short_folder / ".d").mkdir()
    make(short_folder / ".d" / "e.sock")

    assert watched.sockets() == {}


def test_a_link_to_a_socket_is_one(short_folder: Path, watched: SocketFolder):
    real = make(short_folder / ".real")
    (short_folder / "a.sock").symlink_to(real)

    assert list(watched.sockets()) == [str(short_folder / "a.sock")]


def test_a_folder_with_a_dot_is_watched_if_it_was_there_before(short_folder: Path):
    (short_folder / ".d").mkdir()
    path = make(short_folder / ".d" / "e.sock")
    make(short_folder / ".d" / ".f.sock")

    with SocketFolder(short_folder) as folder:
        assert list(folder.sockets()) == [path]


def test_no_link_leads_to_other_folders(short_folder: Path, watched: SocketFolder, tmp_path: Path):
    (short_folder / "elsewhere").symlink_to(tmp_path)

    assert watched.sockets() == {}
    assert not (tmp_path / "x").exists()


def test_when_the_kernel_dropped_news_everything_is_new(short_folder: Path, watched: SocketFolder):
    path = make(short_folder / "a.sock")
    before = watched.sockets()[path]
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("the kernel's queue is too long to fill")
    for number in range(limit + 10):
        (short_folder / f"f{number % 2}").touch()
        (short_folder / f"f{number % 2}").unlink()
    Path(path).unlink()

    assert watched.sockets() == {}
    make(short_folder / "a.sock")
    assert watched.sockets()[path] != before


def test_no_descriptor_is_left(short_folder: Path):
    before = open_descriptors()
    (short_folder / "below").mkdir()
    with SocketFolder(short_folder) as folder:
        (short_folder / "below").rmdir()
        folder.sockets()

    assert open_descriptors() == before


def test_a_missing_folder_is_told_in_a_sentence(tmp_path: Path):
    before = open_descriptors()
    with pytest.raises(HostError, match="cannot be watched for sockets: No such file or directory"):
        SocketFolder(tmp_path / "missing")

    assert open_descriptors() == before
