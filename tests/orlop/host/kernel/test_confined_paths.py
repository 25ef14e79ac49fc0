from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from conftest import SOAK
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    is_folder,
    make_folder,
    names_in,
    open_below,
    open_root,
    opened_below,
    opened_root,
    remove_empty_folder,
)
from support.host.kernel_rooms import descriptor, run, swapped_again_and_again

ENOUGH = 5_000 if SOAK else 100


def reached(root: Path, *names: str, mounts: Mounts = Mounts.CROSSED) -> int:
    """The inode that the names lead to."""
    with opened_root(str(root)) as opened, opened_below(opened, names, DescriptorUse.FOLDER_HANDLE, mounts) as folder:
        return os.fstat(folder).st_ino


def refusal(root: Path, *names: str, mounts: Mounts = Mounts.CROSSED) -> int | None:
    with pytest.raises(HostError) as caught:
        reached(root, *names, mounts=mounts)
    return caught.value.errno


def test_names_lead_to_the_folder_below_the_root(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)

    assert reached(tmp_path, "a", "b") == (tmp_path / "a" / "b").stat().st_ino
    assert reached(tmp_path) == tmp_path.stat().st_ino


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b"])
def test_a_name_that_is_no_single_name_is_refused(tmp_path: Path, name: str):
    assert refusal(tmp_path, name) == errno.EINVAL


@pytest.mark.parametrize("names", [("link",), ("link", "inside"), ("a", "back"), ("absolute",)])
def test_a_symbolic_link_is_refused_anywhere_on_the_way(tmp_path: Path, names: tuple[str, ...]):
    (tmp_path / "a" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a" / "back").symlink_to("..")
    (tmp_path / "absolute").symlink_to("/etc")

    assert refusal(tmp_path, *names) in {errno.ELOOP, errno.ENOTDIR}


def test_a_refusal_is_a_sentence_that_says_where_and_what_to_do(tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc")

    with pytest.raises(HostError) as caught:
        reached(tmp_path, "link", "x")

    assert str(caught.value) == (f"link/x cannot be opened below {tmp_path}: a symbolic link is in the way; remove it.")


def test_a_missing_name_and_a_file_in_the_way_are_told_apart(tmp_path: Path):
    (tmp_path / "file").write_text("")

    assert refusal(tmp_path, "missing") == errno.ENOENT
    assert refusal(tmp_path, "file") == errno.ENOTDIR
    assert refusal(tmp_path, "file", "x") == errno.ENOTDIR


def test_a_mount_is_crossed_or_refused_as_asked(room: Path):
    (room / "point").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "point")
    (room / "point" / "inside").mkdir()

    assert reached(room, "point", "inside") == (room / "point" / "inside").stat().st_ino
    assert refusal(room, "point", mounts=Mounts.REFUSED) == errno.EXDEV
    assert refusal(room, "point", "inside", mounts=Mounts.REFUSED) == errno.EXDEV


def test_a_bind_within_the_same_file_system_is_a_mount_too(room: Path):
    (room / "point").mkdir()
    (room / "other").mkdir()
    run("mount", "--bind", room / "other", room / "point")

    assert reached(room, "point") == (room / "other").stat().st_ino
    assert refusal(room, "point", mounts=Mounts.REFUSED) == errno.EXDEV


def test_a_root_that_is_missing_or_no_folder_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")

    for name in ("missing", "file"):
        with pytest.raises(HostError, match=f"The folder {tmp_path / name} cannot be opened"):
            open_root(str(tmp_path / name))


def test_a_folder_is_made_once_and_found_again(tmp_path: Path):
    with descriptor(tmp_path) as parent:
        assert make_folder(parent, "x", 0o750)
        assert not make_folder(parent, "x", 0o700)
        assert is_folder(parent, "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o750


def test_a_link_to_a_folder_is_never_taken_for_the_folder(tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").write_text("")

    with descriptor(tmp_path) as parent:
        for name in ("link", "dangling", "file"):
            assert not is_folder(parent, name)
            with pytest.raises(HostError, match="is no folder") as caught:
                make_folder(parent, name, 0o750)
            assert caught.value.errno == errno.ENOTDIR
    assert not (tmp_path / "nowhere").exists()


def test_only_an_empty_folder_is_removed(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to("empty")

    with descriptor(tmp_path) as parent:
        for name, reason in (("full", errno.ENOTEMPTY), ("link", errno.ENOTDIR)):
            with pytest.raises(HostError, match="cannot be removed") as caught:
                remove_empty_folder(parent, name)
            assert caught.value.errno == reason
        assert remove_empty_folder(parent, "empty")
        assert not remove_empty_folder(parent, "empty")
        assert sorted(names_in(parent)) == ["full", "link"]


def test_a_folder_that_is_mounted_on_is_not_removed(room: Path):
    (room / "point").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", room / "point")

    with descriptor(room) as parent, pytest.raises(HostError) as caught:
        remove_empty_folder(parent, "point")

    assert caught.value.errno == errno.EBUSY


def test_whoever_swaps_a_folder_for_a_link_while_we_walk_leads_us_nowhere(tmp_path: Path):
    root, victim = tmp_path / "root", tmp_path / "victim"
    (root / "pods" / "one").mkdir(parents=True)
    (victim / "one").mkdir(parents=True)
    (root / "swap").symlink_to(victim)
    outcomes: Counter[int | None] = Counter()

    with descriptor(root) as opened, swapped_again_and_again(root / "pods", root / "swap"):
        while len(outcomes) < 2 or min(outcomes.values()) < ENOUGH:
            try:
                parent = open_below(opened, ("pods", "one"), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED)
            except HostError as error:
                outcomes[error.errno] += 1
                continue
            try:
                make_folder(parent, "target", 0o750)
                remove_empty_folder(parent, "target")
                outcomes[os.fstat(parent).st_ino] += 1
            finally:
                os.close(parent)
            assert not (victim / "one" / "target").exists()

    honest = next(path for path in (root / "pods", root / "swap") if not path.is_symlink())
    assert set(outcomes) == {errno.ELOOP, (honest / "one").stat().st_ino}
