from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.records.volume import VolumeClaim
from orlop.records.volume_context import (
    BACKING_KEY,
    BYTES_KEY,
    CLAIM_KEY,
    DRIVE_KEY,
    FILE_SYSTEM_KEY,
    THIN_KEY,
    VOLUME_MODE_KEY,
    InvalidVolumeContext,
    VolumeContext,
    decode_context,
    encode_context,
    is_volume_id,
)

ID = "6355041d-f9c6-4bd6-9335-f2bccbe73929"
CONTEXT = VolumeContext(
    drive=ID,
    bytes=1 << 30,
    backing="image",
    file_system="xfs",
    volume_mode="Filesystem",
    thin=True,
    claim=VolumeClaim(namespace="team", name="data"),
    persistent_volume="pvc-1",
    volume_claim_id="a" * 36,
)


@pytest.mark.parametrize(
    "context",
    [
        CONTEXT,
        VolumeContext(drive=ID, bytes=1, backing="image", file_system="", volume_mode="Block"),
        VolumeContext(drive=ID, bytes=2**63 - 1, backing="directory", file_system="ext4", volume_mode="Filesystem"),
    ],
)
def test_a_context_is_read_as_it_was_written(context: VolumeContext):
    others = {"csi.storage.k8s.io/pod.name": "p", "storage.kubernetes.io/csiProvisionerIdentity": "x"}

    assert decode_context(encode_context(context) | others) == context


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (DRIVE_KEY, "../../etc"),
        (DRIVE_KEY, f"{ID}\n"),
        (DRIVE_KEY, ID.upper()),
        (BYTES_KEY, "0"),
        (BYTES_KEY, "-1"),
        (BYTES_KEY, str(2**63)),
        (BYTES_KEY, "٣"),
        (BACKING_KEY, "auto"),
        (FILE_SYSTEM_KEY, "btrfs"),
        (VOLUME_MODE_KEY, ""),
        (THIN_KEY, "yes"),
    ],
)
def test_a_forged_value_is_named(key: str, value: str):
    with pytest.raises(InvalidVolumeContext, match=key):
        decode_context(encode_context(CONTEXT) | {key: value})


@pytest.mark.parametrize("key", [DRIVE_KEY, BYTES_KEY, BACKING_KEY, FILE_SYSTEM_KEY, VOLUME_MODE_KEY])
def test_a_missing_value_is_named(key: str):
    values = encode_context(CONTEXT)
    del values[key]

    with pytest.raises(InvalidVolumeContext, match=key):
        decode_context(values)


@given(st.dictionaries(st.sampled_from([*encode_context(CONTEXT)]), st.text(max_size=300)))
def test_nothing_but_a_refusal_or_a_checked_context_is_made_of_any_text(values: dict[str, str]):
    with suppress(InvalidVolumeContext):
        context = decode_context(encode_context(CONTEXT) | values)
        assert 0 < context.bytes < 2**63
        assert (context.drive, CLAIM_KEY in values or context.claim == CONTEXT.claim) == (ID, True)


@pytest.mark.parametrize("text", ["pvc-1", "a", "a.b-c", "a" * 128])
def test_ids_that_can_name_a_folder_and_an_object(text: str):
    assert is_volume_id(text)


@pytest.mark.parametrize("text", ["", ".", "..", "a..b", "A", "a/b", "-a", "a-", "a\n", "a" * 129, "é"])
def test_ids_that_cannot(text: str):
    assert not is_volume_id(text)
