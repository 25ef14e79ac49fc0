from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlop.host.block.device_rules import DeviceContent, SignatureKind
from orlop.host.block.disk_signatures import MARK, marks_of, read_content

MIB = 1 << 20
SIZE = 600 * MIB


def content_of(image: Path) -> DeviceContent:
    with image.open("rb") as file:
        return read_content(file.fileno(), image.stat().st_size)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, SIZE)
    return path


def write(image: Path, position: int, content: bytes) -> None:
    with image.open("r+b") as file:
        file.seek(position if position >= 0 else SIZE + position)
        file.write(content)


def make(image: Path, *words: str, stdin: str = "") -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    subprocess.run([*words, image], check=True, capture_output=True, input=stdin, text=True)


def test_a_disk_of_zeros_is_blank(image: Path):
    content = content_of(image)

    assert content.is_blank
    assert content.names == ""


def test_file_systems_are_known_with_their_uuid_and_label(image: Path):
    uuid = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
    make(image, "mkfs.xfs", "-q", "-L", "music", "-m", f"uuid={uuid}")
    xfs = content_of(image).file_system
    make(image, "mkfs.ext4", "-q", "-F", "-L", "films", "-U", uuid)
    ext4 = content_of(image).file_system

    assert xfs is not None
    assert (xfs.name, xfs.uuid, xfs.label) == ("xfs", uuid, "music")
    assert ext4 is not None
    assert (ext4.name, ext4.uuid, ext4.label) == ("ext4", uuid, "films")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("mkswap",), "swap"),
        (("mkfs.btrfs", "-q", "-f"), "btrfs"),
        (("mkfs.vfat",), "vfat"),
        (("mkfs.exfat",), "exfat"),
        (("mkfs.ntfs", "-F", "-f"), "ntfs"),
        (("mkfs.f2fs",), "f2fs"),
    ],
)
def test_what_other_programs_make_is_known(image: Path, words: tuple[str, ...], name: str):
    make(image, *words)

    assert content_of(image).names == name


@pytest.mark.parametrize("kind", ["gpt", "dos"])
def test_partition_tables_are_known(image: Path, kind: str):
    if shutil.which("sfdisk") is None:
        pytest.skip("needs sfdisk")
    table = f"label: {kind}\nstart=2048, size=8192\n"
    subprocess.run(["sfdisk", "-q", image], input=table, text=True, check=True, capture_output=True)

    assert SignatureKind.TABLE in {signature.kind for signature in content_of(image).signatures}


def test_a_dos_partition_table_is_known_without_any_program(image: Path):
    entry = struct.pack("<B3sB3sII", 0x80, b"\0\1\0", 0x83, b"\0\0\0", 2048, 100_000)
    write(image, 446, entry.ljust(64, b"\0") + b"\x55\xaa")

    assert content_of(image).names == "dos partition table"


@pytest.mark.parametrize(
    ("name", "position", "magic"),
    [
        ("lvm", 512, b"LABELONE"),
        ("luks", 0, b"LUKS\xba\xbe\0\2"),
        ("luks", 0x4000, b"SKUL\xba\xbe\0\2"),
        ("md", 4096, struct.pack("<I", 0xA92B4EFC)),
        ("md", 0, struct.pack("<I", 0xA92B4EFC)),
        ("md", -65536, struct.pack("<I", 0xA92B4EFC)),
        ("md", -8192, struct.pack("<I", 0xA92B4EFC)),
        ("zfs", (128 << 10) + 5 * 1024, struct.pack("<Q", 0x00BAB10C)),
        ("gpt", -512, b"EFI PART"),
        ("ceph bluestore", 0, b"bluestore block device\n"),
        ("swap", 65536 - 10, b"SWAPSPACE2"),
        ("btrfs", (64 << 20) + 0x40, b"_BHRfS_M"),
        ("vmfs", 0x1300000, struct.pack("<I", 0xC001D00D)),
    ],
)
def test_a_signature_is_known_wherever_its_format_keeps_it(image: Path, name: str, position: int, magic: bytes):
    write(image, position, magic)

    content = content_of(image)

    assert [signature.name for signature in content.signatures] == [name]
    assert not content.is_blank


def test_two_signatures_are_both_reported(image: Path):
    make(image, "mkfs.xfs", "-q")
    write(image, -512, b"EFI PART")

    content = content_of(image)

    assert {signature.name for signature in content.signatures} == {"xfs", "gpt"}
    assert content.file_system is None


@settings(max_examples=10)
@given(position=st.integers(0, 2 * MIB - 1) | st.integers(SIZE - 2 * MIB, SIZE - 1), value=st.integers(1, 255))
def test_one_byte_that_is_read_makes_a_disk_not_blank(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
):
    image = tmp_path_factory.mktemp("one-byte") / "disk"
    image.touch()
    os.truncate(image, SIZE)
    blank = content_of(image).digest
    write(image, position, bytes((value,)))

    content = content_of(image)
    image.unlink()

    assert not content.is_blank
    assert content.digest != blank


@pytest.mark.parametrize("which", [0, 1])
def test_a_marked_disk_is_half_made_also_with_the_file_system_that_mkfs_left(image: Path, which: int):
    if which:
        make(image, "mkfs.xfs", "-q")
    write(image, marks_of(SIZE)[which], MARK)

    assert content_of(image).is_half_made


def test_a_mark_does_not_hide_what_must_never_be_overwritten(image: Path):
    write(image, marks_of(SIZE)[1], MARK)
    write(image, 512, b"LABELONE")

    assert [signature.name for signature in content_of(image).signatures] == ["lvm"]


def test_a_disk_that_cannot_be_read_is_reported_so(image: Path):
    with image.open("rb") as file:
        content = read_content(file.fileno(), SIZE + 512)

    assert content.why_unread
    assert not content.is_blank
