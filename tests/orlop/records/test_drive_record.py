from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.records.drive_record import (
    MIB,
    DriveRecord,
    DriveType,
    decode_drive,
    drive_id_from,
    encode_drive,
    is_drive_id,
    whole_mebibytes,
)
from orlop.records.record_format import UnreadableRecord

RECORD = DriveRecord(
    drive_id="6d7f3c1e-0a0b-4c1d-8e2f-000000000001",
    type=DriveType.DISK,
    file_system="xfs",
    capacity_bytes=931 << 30,
    node_name="node-1",
    created_at=1763500000.5,
)


def test_a_record_is_read_as_it_was_written():
    assert decode_drive(encode_drive(RECORD)) == RECORD


def test_a_record_is_json_that_people_and_other_programs_can_read():
    assert json.loads(encode_drive(RECORD)) == {
        "driveID": "6d7f3c1e-0a0b-4c1d-8e2f-000000000001",
        "type": "Disk",
        "fileSystem": "xfs",
        "capacityBytes": 931 << 30,
        "nodeName": "node-1",
        "createdAt": 1763500000.5,
        "removed": False,
        "version": 1,
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2, "type": "Cloud"}, "has the format 2"),
        ({"driveID": "../../etc"}, "is no UUID"),
        ({"driveID": "6D7F3C1E-0A0B-4C1D-8E2F-000000000001"}, "is no UUID"),
        ({"capacityBytes": -5}, "it is damaged"),
        ({"capacityBytes": MIB + 1}, "it is damaged"),
        ({"type": "Tape"}, "it is damaged"),
    ],
)
def test_a_record_that_is_damaged_or_newer_is_refused_with_the_reason(change: dict[str, object], reason: str):
    written = json.dumps({**json.loads(encode_drive(RECORD)), **change}).encode()

    with pytest.raises(UnreadableRecord, match=reason):
        decode_drive(written)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes):
    with suppress(UnreadableRecord):
        decode_drive(data)


@given(st.binary(min_size=16, max_size=16))
def test_a_new_id_is_a_random_uuid_and_can_name_a_drive(data: bytes):
    made = drive_id_from(data)

    assert is_drive_id(made)
    assert made[14] == "4"
    assert made[19] in "89ab"


@given(st.integers(0, 1 << 50))
def test_capacities_are_whole_mebibytes_and_never_more_than_there_is(size: int):
    assert whole_mebibytes(size) % MIB == 0
    assert 0 <= size - whole_mebibytes(size) < MIB
