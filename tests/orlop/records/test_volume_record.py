"""The record of a volume: the same after reading, small enough for ext4, and refused if it is none."""

from __future__ import annotations

import zlib
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orlop.records.record_format import UnreadableRecord
from orlop.records.volume_record import LARGEST_RECORD, VolumeRecord, VolumeTarget, decode_volume, encode_volume

DRIVE = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
RECORD = VolumeRecord(
    volume_id="pvc-1",
    drive=DRIVE,
    bytes=4096,
    backing="image",
    file_system="xfs",
    volume_mode="Filesystem",
    created_at=0.0,
)
TARGETS = st.builds(
    VolumeTarget,
    path=st.text(max_size=300),
    read_only=st.booleans(),
    alone=st.booleans(),
    pod_name=st.text(max_size=60),
)


@given(targets=st.lists(TARGETS, max_size=60), staged=st.text(max_size=300))
def test_a_record_is_the_same_after_it_was_written(targets: list[VolumeTarget], staged: str):
    record = replace(RECORD, published=tuple(targets), staged=staged)
    assert decode_volume(encode_volume(record)) == record


@given(st.lists(st.uuids(), min_size=110, max_size=110, unique=True))
@settings(max_examples=10)
def test_the_targets_of_as_many_pods_as_a_node_may_have_fit_into_an_attribute_of_ext4(uids: list[UUID]):
    pv = "pvc-0f1d5b1c-7c0b-4f6a-9a53-7d0a3f0e8f11"
    targets = tuple(VolumeTarget(f"pods/{uid}/volumes/kubernetes.io~csi/{pv}/mount") for uid in uids)
    staged = f"plugins/kubernetes.io/csi/csi.orlop.dev/{'a' * 64}/globalmount"
    record = replace(RECORD, published=targets, staged=staged, claim_namespace="shop", claim_name="data-web-0")
    assert len(encode_volume(record)) <= LARGEST_RECORD


@given(st.binary(max_size=200))
def test_what_is_no_record_is_unreadable_and_nothing_worse(data: bytes):
    for each in (data, b"\x78" + data, zlib.compress(data)):
        with suppress(UnreadableRecord):
            decode_volume(each)


def test_a_record_that_would_fill_the_memory_is_unreadable():
    with pytest.raises(UnreadableRecord):
        decode_volume(zlib.compress(b" " * (1 << 24)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"volume_id": "../x"},
        {"drive": "sda"},
        {"file_system": ""},
        {"volume_mode": "Block"},
        {"volume_mode": "Block", "file_system": "", "backing": "directory"},
    ],
    ids=str,
)
def test_a_record_that_contradicts_itself_is_damaged(wrong: dict[str, str]):
    with pytest.raises(UnreadableRecord, match="damaged"):
        decode_volume(encode_volume(replace(RECORD, **wrong)))


def test_a_record_of_an_earlier_version_is_of_a_volume_with_the_access_mode_read_write_once():
    assert b"accessMode" not in encode_volume(RECORD)
    assert decode_volume(encode_volume(RECORD)).access_mode == "ReadWriteOnce"

    alone = replace(RECORD, access_mode="ReadWriteOncePod")
    assert decode_volume(encode_volume(alone)) == alone


def test_a_record_of_a_newer_format_is_refused_as_such():
    with pytest.raises(UnreadableRecord, match="format 2"):
        decode_volume(encode_volume(replace(RECORD, version=2)))
