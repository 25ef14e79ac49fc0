from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.host.path_rules import LONGEST_NAME, UnsafePath, names_below, safe_name

UNSAFE = ["", ".", "..", ".hidden", "a/b", "/", "a\0b", "a\nb", "\x1b[31m", "\u202egpj", "x" * 256, "é" * 128, "\udcff"]


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_no_single_visible_name_is_refused(name: str):
    with pytest.raises(UnsafePath):
        safe_name(name)


@pytest.mark.parametrize("name", ["csi-0123", "a b", "ü", "x" * 255, "a.b", "-rf", "~"])
def test_a_single_visible_name_is_taken_as_it_is(name: str):
    assert safe_name(name) == name


def test_the_limit_of_bytes_can_be_lower():
    assert safe_name("é" * 64, longest=128)
    with pytest.raises(UnsafePath, match="has 130 bytes: at most 128"):
        safe_name("é" * 65, longest=128)


@given(st.text())
def test_a_safe_name_is_always_one_entry_of_its_folder(text: str):
    try:
        name = safe_name(text)
    except UnsafePath:
        return
    assert "/" not in name
    assert "\0" not in name
    assert name not in {"", ".", ".."}
    assert len(name.encode()) <= LONGEST_NAME


@pytest.mark.parametrize(
    ("root", "path", "names"),
    [
        ("/var/lib/kubelet", "/var/lib/kubelet/pods/u/mount", ("pods", "u", "mount")),
        ("/var/lib/kubelet/", "/var/lib/kubelet/pods", ("pods",)),
        ("/var/lib/kubelet", "//var/lib//kubelet/pods/", ("pods",)),
        ("/", "/mnt", ("mnt",)),
    ],
)
def test_the_names_from_the_root_to_the_path_are_found(root: str, path: str, names: tuple[str, ...]):
    assert names_below(root, path) == names


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/mnt/disks-other/x", "is not below"),
        ("/mnt", "is not below"),
        ("/mnt/disks", "itself"),
        ("/mnt/disks/../etc", r"holds '\.\.'"),
        ("/mnt/disks/./x", r"holds '\.'"),
        ("mnt/disks/x", "is not absolute"),
        ("", "is not absolute"),
        ("/mnt/disks/a\0b", "holds"),
        ("/mnt/disks/" + "x" * 256, "more than 255 bytes"),
    ],
)
def test_a_path_that_is_not_below_its_root_is_refused_by_a_sentence(path: str, sentence: str):
    with pytest.raises(UnsafePath, match=sentence):
        names_below("/mnt/disks", path)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "disks", "mnt"]), max_size=6))
def test_names_below_a_root_never_lead_out_of_it(parts: list[str]):
    try:
        names = names_below("/mnt/disks", "/" + "/".join(parts))
    except UnsafePath:
        return
    assert names
    assert not {"", ".", ".."} & set(names)
    assert [part for part in parts if part] == ["mnt", "disks", *names]
