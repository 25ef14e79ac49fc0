"""Names, patterns, paths and sizes are those of local-static-provisioner."""

from __future__ import annotations

import pytest

from orlop.static_pv.naming_rules import (
    InvalidPattern,
    capacity_text,
    check_patterns,
    entry_fault,
    entry_path,
    matches,
    rounded_capacity,
    volume_name,
)

KIB, MIB, GIB, TIB = (1 << bits for bits in (10, 20, 30, 40))


@pytest.mark.parametrize(
    ("entry", "node", "storage_class", "name"),
    [
        ("disk1", "node1", "fast-disks", "local-pv-b461536f"),
        ("", "", "", "local-pv-811c9dc5"),
        # Of the published vectors of FNV-1a: the texts are hashed with nothing between them.
        ("foo", "b", "ar", "local-pv-bf9cf968"),
    ],
)
def test_a_name_is_the_hash_that_the_other_product_computes(entry: str, node: str, storage_class: str, name: str):
    assert volume_name(entry, node, storage_class) == name


def test_a_hash_is_not_padded():
    names = {volume_name(f"disk{number}", "node1", "fast") for number in range(1000)}

    assert not any(name.startswith("local-pv-0") for name in names)
    assert any(len(name) < len("local-pv-b461536f") for name in names)


@pytest.mark.parametrize(
    ("size", "rounded", "text"),
    [
        (10 * GIB, 10 * GIB, "10Gi"),
        (11 * GIB - 1, 10 * GIB, "10Gi"),
        (10 * GIB - 1, 10 * GIB - MIB, "10239Mi"),
        (10 * MIB + 5, 10 * MIB, "10Mi"),
        (10 * MIB - 1, 10 * MIB - 1, str(10 * MIB - 1)),
        (2 * TIB + 7, 2 * TIB, "2Ti"),
        (4 * KIB, 4 * KIB, "4Ki"),
        (500, 500, "500"),
        (0, 0, "0"),
    ],
)
def test_capacity_is_rounded_down_to_what_people_can_read(size: int, rounded: int, text: str):
    assert rounded_capacity(size) == rounded
    assert capacity_text(rounded) == text


@pytest.mark.parametrize("entry", ["disk1", "nvme0n1", "a b", "..disk", "...", "größe", "a:b", "-rf", "*", "x" * 255])
def test_an_ordinary_name_can_be_that_of_a_volume(entry: str):
    assert entry_fault(entry) == ""
    assert entry_path("/mnt/disks", entry) == f"/mnt/disks/{entry}"
    assert entry_path("/mnt/disks/", entry) == f"/mnt/disks/{entry}"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        *((entry, "it is not the name of a file in the folder") for entry in ("", ".", "..", "/", "a/b", "../a", "/a")),
        ("a\nb", "it contains a character that cannot be printed"),
        ("a\x00", "it contains a character that cannot be printed"),
        ("a\u202eb", "it contains a character that cannot be printed"),
        ("a\udcff", "it is not UTF-8"),
        ("x" * 256, "it is longer than 255 bytes"),
        ("ö" * 128, "it is longer than 255 bytes"),
    ],
)
def test_a_name_that_would_leave_its_folder_or_cannot_be_written_is_refused(entry: str, why: str):
    assert entry_fault(entry) == why
    with pytest.raises(ValueError, match="cannot be an entry of /mnt/disks"):
        entry_path("/mnt/disks", entry)


@pytest.mark.parametrize(
    ("patterns", "entry", "is_matched"),
    [
        ("*", "disk1", True),
        ("*", ".hidden", True),
        ("disk?", "disk1", True),
        ("disk?", "disk12", False),
        ("sd[a-c]", "sdb", True),
        ("sd[a-c]", "sdd", False),
        ("sd[^a-c]", "sdd", True),
        ("sd[^a-c]", "sda", False),
        ("sd[!a]", "sd!", True),
        ("sd[!a]", "sdb", False),
        (r"sd[\^a]", "sd^", True),
        (r"sd[\]]", "sd]", True),
        ("sd[z-a]", "sdb", False),
        ("sd[^z-a]", "sdb", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        ("a.b", "axb", False),
        ("nvme*,sd*", "sda", True),
        ("nvme*,,sd*", "vda", False),
        ("disk", "disk1", False),
        ("d*k", "disk", True),
    ],
)
def test_patterns_are_those_of_go(patterns: str, entry: str, is_matched: bool):  # noqa: FBT001
    check_patterns(patterns)
    assert matches(patterns, entry) is is_matched


@pytest.mark.parametrize("pattern", ["[", "[]", "[a", "[a-]", "[-a]", "[^]", "a\\", "*,[", "[a\\"])
def test_a_pattern_that_go_cannot_read_is_refused(pattern: str):
    with pytest.raises(InvalidPattern, match="is not a pattern of names"):
        check_patterns(pattern)
