"""Records of scratch folders, and the names of buried ones."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.records.ephemeral_folder import (
    LONGEST_VOLUME_ID,
    Burial,
    FolderOptions,
    FolderRecord,
    Owner,
    burial_of,
    decode_record,
    encode_record,
    objection_to_volume_id,
)
from orlop.records.record_format import UnreadableRecord

INLINE_ID = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
volume_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
texts = st.text(max_size=20)
records = st.builds(
    FolderRecord,
    volume_id=volume_ids,
    owner=st.builds(Owner, texts, texts, texts, texts, st.booleans()),
    options=st.builds(
        FolderOptions,
        lifespan_seconds=st.floats(0, 1e9),
        size_bytes=st.integers(0, 2**63 - 1),
        inodes=st.integers(0, 2**63 - 1),
        mode=st.integers(0, 0o777),
        mount_options=st.lists(texts, max_size=3).map(tuple),
        read_only=st.booleans(),
    ),
    created_at=st.floats(0, 1e10),
    targets=st.lists(texts, max_size=3).map(tuple),
    project=st.integers(0, 2**32 - 1),
    volume_name=texts,
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: FolderRecord):
    assert decode_record(encode_record(record)) == record


def test_a_usual_record_is_small_enough_for_an_attribute():
    owner = Owner("00000000-0000-0000-0000-000000000001", "p" * 63, "n" * 63, "s" * 63, verified=True)
    target = "pods/00000000-0000-0000-0000-000000000001/volumes/kubernetes.io~csi/scratch/mount"
    record = FolderRecord(INLINE_ID, owner, FolderOptions(43200.0), 1.7e9, (target,), volume_name="v" * 63)
    assert len(encode_record(record)) < 1000


def test_a_record_from_before_volumes_had_names_is_read():
    old = b'{"volume_id":"v","owner":{},"options":{"lifespan_seconds":60.0},"created_at":1.0,"version":1}'
    assert decode_record(old) == FolderRecord("v", Owner(), FolderOptions(60.0), 1.0)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b'{"volume_id": 5}', b'{"volume_id": "\xff"}', b'{"volume_id": "v", "owner": {}}'],
)
def test_a_damaged_record_is_named_as_that(data: bytes):
    with pytest.raises(UnreadableRecord, match="damaged"):
        decode_record(data)


def test_a_record_of_a_newer_form_is_not_guessed_at():
    with pytest.raises(UnreadableRecord, match="the format 3"):
        decode_record(b'{"version": 3, "volume_id": ["a new shape"]}')


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes):
    with suppress(UnreadableRecord):
        decode_record(data)


@given(volume_ids, st.integers(0, 10**15), st.integers(0, 10**13))
def test_the_name_of_a_buried_folder_says_when_and_for_how_long(volume_id: str, at: int, lifespan: int):
    burial = Burial(volume_id, at / 1000, lifespan / 1000)
    assert burial_of(burial.folder_name) == burial
    assert len(burial.folder_name) <= 255


@given(st.floats(-1e18, 1e18), st.floats(-1e18, 1e18))
def test_any_time_makes_a_name_that_can_be_read(at: float, lifespan: float):
    assert burial_of(Burial("v", at, lifespan).folder_name) is not None


@pytest.mark.parametrize("name", ["", "lost+found", "1_2", "1_2_", "1_2_.hidden", "1_2_a/b", "x_2_v", "1_-2_v", "v"])
def test_a_name_that_we_never_gave_is_no_burial(name: str):
    assert burial_of(name) is None


@pytest.mark.parametrize("good", [INLINE_ID, "v", "0", "a.b_c-d", "x" * LONGEST_VOLUME_ID])
def test_usual_volume_ids_can_name_a_folder(good: str):
    assert objection_to_volume_id(good) is None


@pytest.mark.parametrize(
    "bad", ["", ".", "..", ".hidden", "-x", "_x", "a/b", "a\0b", "a b", "a\nb", "ä", "x" * 129, "\udcff", "a\u202eb"]
)
def test_an_id_that_is_no_single_safe_name_is_refused(bad: str):
    assert objection_to_volume_id(bad)
