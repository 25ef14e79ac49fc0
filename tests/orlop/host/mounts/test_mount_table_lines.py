from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.host.mounts.mount_table import (
    BadMountLine,
    FolderInFileSystem,
    MountedFolders,
    folder_of_path,
    line_of_mount,
    parse_mount_lines,
)

TABLE = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
90 27 254:0 /scratch/live/a /pods/one ro,nosuid,nodev shared:7 master:1 - ext4 /dev/vda rw,discard
91 27 254:0 /scratch/live/b\040c/sub /pods/two\011tab rw master:3 propagate_from:1 - ext4 /dev/vda rw,discard
92 27 0:4 mnt:[4026532500] /run/ns/x rw - nsfs nsfs rw
93 27 254:0 /scratch/live/gone//deleted /pods/three rw - ext4 /dev/vda rw
94 27 0:55 / /empty rw -  tmpfs  rw,size=1k
"""
WORK = FolderInFileSystem("254:0", "/scratch")


def test_a_line_is_read_field_by_field():
    mount = parse_mount_lines(TABLE)[2]

    assert (mount.mount_id, mount.parent_id) == (90, 27)
    assert mount.root == FolderInFileSystem("254:0", "/scratch/live/a")
    assert mount.mount_point == "/pods/one"
    assert mount.options == {"ro", "nosuid", "nodev"}
    assert (mount.is_shared, mount.peer_group) == (True, 7)
    assert (mount.file_system, mount.source) == ("ext4", "/dev/vda")
    assert mount.file_system_options == {"rw", "discard"}


def test_escaped_characters_are_given_back():
    mount = parse_mount_lines(TABLE)[3]

    assert mount.root.path == "/scratch/live/b c/sub"
    assert mount.mount_point == "/pods/two\ttab"
    assert not mount.is_shared


def test_a_backslash_before_digits_in_a_name_is_not_taken_for_an_escape():
    line = rb"1 1 8:1 /a\134040b /x rw - ext4 /dev/a rw"

    assert parse_mount_lines(line)[0].root.path == r"/a\040b"


def test_a_name_with_a_carriage_return_or_bytes_that_are_no_text_does_not_break_its_line():
    line = b"1 1 8:1 /a\rb\xff\xfe /x rw - ext4 /dev/a rw\n"

    assert [mount.root.path for mount in parse_mount_lines(line)] == ["/a\rb\udcff\udcfe"]


def test_one_mount_is_found_by_its_number_alone():
    found = line_of_mount(TABLE, 90)

    assert found is not None
    assert found.mount_point == "/pods/one"
    assert line_of_mount(TABLE, 9) is None


@pytest.mark.parametrize("line", [b"1 2 3", b"1 2 8:1 / / rw - ext4", b"1 2 8:1 / rw - ext4 a rw", b"hello"])
def test_a_line_of_another_form_is_refused(line: bytes):
    with pytest.raises(BadMountLine, match="proc"):
        parse_mount_lines(line)


@pytest.mark.parametrize(
    ("path", "mounted"),
    [
        ("/scratch/live/a", True),
        ("/scratch/live/b c", True),
        ("/scratch/live/b c/sub", True),
        ("/scratch/live/b c/sub/deeper", False),
        ("/scratch/live/b", False),
        ("/scratch/live", True),
        ("/scratch/live/aa", False),
        ("/scratch/live/gone", False),
        ("/", True),
    ],
)
def test_a_folder_is_mounted_when_it_or_something_below_it_is_a_root(path: str, *, mounted: bool):
    table = MountedFolders.from_tables([TABLE])

    assert table.holds(FolderInFileSystem("254:0", path)) is mounted
    assert not table.holds(FolderInFileSystem("254:1", path))


def test_several_tables_are_asked_as_one():
    other = b"5 1 254:0 /scratch/live/z/deep /x rw - ext4 /dev/vda rw\n"

    assert MountedFolders.from_tables([TABLE, other]).names_below(WORK, 2) == {
        ("live", "a"),
        ("live", "b c"),
        ("live", "z"),
    }


def test_mounts_of_what_is_above_count_for_nothing_below():
    table = b"5 1 254:0 /scratch /x rw - ext4 d rw\n6 1 254:0 /scratch/live /y rw - ext4 d rw\n"

    assert MountedFolders.from_tables([table]).names_below(WORK, 2) == frozenset()


@pytest.mark.parametrize(
    ("root", "point", "path", "expected"),
    [
        ("/", "/", "/scratch", "/scratch"),
        ("/", "/", "/", "/"),
        ("/", "/mnt", "/mnt", "/"),
        ("/", "/mnt", "/mnt/a/b", "/a/b"),
        ("/vol", "/mnt", "/mnt/a", "/vol/a"),
        ("/vol", "/mnt", "/mnt", "/vol"),
    ],
)
def test_a_path_is_told_from_the_root_of_its_file_system(root: str, point: str, path: str, expected: str):
    mount = parse_mount_lines(f"1 1 8:1 {root} {point} rw - ext4 d rw".encode())[0]

    assert folder_of_path(mount, path) == FolderInFileSystem("8:1", expected)


def test_a_path_on_another_mount_is_refused():
    mount = parse_mount_lines(b"1 1 8:1 / /mnt rw - ext4 d rw")[0]

    with pytest.raises(BadMountLine, match="does not lie on the mount"):
        folder_of_path(mount, "/mnt2/a")


names = st.text(alphabet="ab-. \\\t\n\r0é", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))


def as_the_kernel_writes_it(path: str) -> str:
    return "".join(f"\\{ord(letter):03o}" if letter in " \t\n\\" else letter for letter in path)


@given(st.lists(paths), paths)
def test_the_quick_answer_is_the_plain_one(roots: list[str], asked: str):
    table = "".join(f"1 1 8:1 {as_the_kernel_writes_it(root)} /x rw - ext4 d rw\n" for root in roots)

    mounted = MountedFolders.from_tables([table.encode()])

    beginning = asked.rstrip("/") + "/"
    assert mounted.holds(FolderInFileSystem("8:1", asked)) == any(
        root == asked or root.startswith(beginning) for root in roots
    )


@given(st.lists(paths))
def test_names_below_are_exactly_the_folders_that_are_mounted(roots: list[str]):
    base = FolderInFileSystem("8:1", "/a")
    mounted = MountedFolders({"8:1": roots})

    for found in mounted.names_below(base, 2):
        assert mounted.holds(base.below(*found))
    for root in roots:
        parts = tuple(root.split("/")[1:])
        if parts[0] == "a" and len(parts) >= 3:
            assert parts[1:3] in mounted.names_below(base, 2)
