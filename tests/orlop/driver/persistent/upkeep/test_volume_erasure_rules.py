"""What is done next with a volume that was deleted, and what keeps its data."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orlop.driver.persistent.upkeep.volume_erasure_rules import (
    DataIsGone,
    ErasureSighting,
    ErasureStep,
    ErasureWaits,
    KeepData,
    MarkDeleted,
    MoveToTrash,
    WaitForErasure,
    next_erasure_step,
    why_another,
)
from orlop.records.volume import VolumeClaim
from orlop.records.volume_record import VolumeTarget
from support.drives.reporting_nodes import volume_on_disk, volume_spec
from support.drives.watched_nodes import OTHER

ORDER = volume_spec(erase=True)
TO_FIND = volume_spec(erase=True, reservation_only=True)
RECORD = volume_on_disk()
MARKED = replace(RECORD, deleted=True)
THERE = ErasureSighting(order=ORDER, record=RECORD, has_folder=True)
TARGET = (VolumeTarget(path="pods/u/mount"),)

STEPS: list[tuple[str, ErasureSighting, ErasureStep]] = [
    ("the record is marked first", THERE, MarkDeleted()),
    ("also while it is used", replaced(THERE, record=replace(RECORD, staged="x")), MarkDeleted()),
    ("then it is moved", replaced(THERE, record=MARKED), MoveToTrash()),
    ("a mark is enough without an order", ErasureSighting(record=MARKED, has_folder=True), MoveToTrash()),
    ("a damaged record does not protect what was ordered", replaced(THERE, record=None), MoveToTrash()),
    ("it is erased from the trash", ErasureSighting(order=ORDER, is_in_trash=True), WaitForErasure()),
    ("nothing is left", ErasureSighting(order=ORDER), DataIsGone()),
    ("nothing was there", ErasureSighting(order=TO_FIND), DataIsGone()),
]
WAITS = [
    ("staged", replaced(THERE, record=replace(MARKED, staged="x")), "it is staged"),
    ("published", replaced(THERE, record=replace(MARKED, published=TARGET)), "it is published"),
    ("mounted elsewhere", replaced(THERE, record=MARKED, is_in_use=True), "something has it mounted"),
    ("a lost drive", replaced(THERE, why_no_drive="its drive is lost"), "its drive is lost"),
]
KEPT = [
    ("data of which nothing else is known", replaced(THERE, order=TO_FIND), "no record or object orders its erasure"),
    ("without order and mark", ErasureSighting(record=RECORD, has_folder=True), "no record or object"),
    ("another PersistentVolume", replaced(THERE, record=replace(RECORD, persistent_volume="b")), "persistentVolume"),
    ("another claim", replaced(THERE, record=replace(RECORD, claim_name="b")), "claim 'team/b'"),
    ("another drive", replaced(THERE, record=replace(MARKED, drive=OTHER)), "drive"),
]


@pytest.mark.parametrize(("volume", "step"), [each[1:] for each in STEPS], ids=[each[0] for each in STEPS])
def test_the_next_step(volume: ErasureSighting, step: ErasureStep):
    assert next_erasure_step(volume) == step


@pytest.mark.parametrize(("volume", "why"), [each[1:] for each in WAITS], ids=[each[0] for each in WAITS])
def test_what_a_deletion_waits_for(volume: ErasureSighting, why: str):
    step = next_erasure_step(volume)

    assert isinstance(step, ErasureWaits)
    assert why in step.why


@pytest.mark.parametrize(("volume", "why"), [each[1:] for each in KEPT], ids=[each[0] for each in KEPT])
def test_what_keeps_the_data(volume: ErasureSighting, why: str):
    step = next_erasure_step(volume)

    assert isinstance(step, KeepData)
    assert why in step.why


def test_an_object_and_its_record_are_of_one_volume():
    assert why_another(ORDER, RECORD) == ""
    assert "claim" in why_another(replace(ORDER, claim=VolumeClaim(namespace="a", name="b")), RECORD)


@given(
    st.builds(
        ErasureSighting,
        order=st.sampled_from([None, ORDER, TO_FIND]),
        why_no_drive=st.sampled_from(["", "lost"]),
        record=st.sampled_from([None, RECORD, MARKED, replace(MARKED, staged="x"), replace(RECORD, drive=OTHER)]),
        has_folder=st.booleans(),
        is_in_use=st.booleans(),
        is_in_trash=st.booleans(),
    )
)
def test_no_data_is_moved_that_is_used_or_that_nobody_ordered_to_erase(volume: ErasureSighting):
    if next_erasure_step(volume) == MoveToTrash():
        assert not volume.is_in_use
        assert not volume.why_no_drive
        assert volume.record is None or (volume.record.deleted and not volume.record.staged)
        ordered = volume.order is not None and volume.order.erase and not volume.order.reservation_only
        assert ordered or (volume.record is not None and volume.record.deleted)
