"""Metadata is read from plain dicts, whatever is missing; times are read and written as Kubernetes has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import objects
from orlop.kube.objects import InvalidTime, ObjectName
from support.random_tests import FEWER

NOON = datetime(2026, 1, 2, 12, 0, 0, 987654, tzinfo=UTC)

POD = {
    "metadata": {
        "name": "web-0",
        "namespace": "default",
        "uid": "u-1",
        "resourceVersion": "17",
        "generation": 3,
        "labels": {"app": "web"},
        "annotations": {"note": "x"},
        "finalizers": ["a.io/x", "b.io/y"],
        "ownerReferences": [{"uid": "o-1", "controller": False}, {"uid": "o-2", "controller": True}],
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T03:04:06Z",
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Bound", "status": "False"}]},
}


def test_every_part_of_the_metadata_is_read():
    assert objects.name_of(POD) == ObjectName("default", "web-0")
    assert (objects.uid(POD), objects.resource_version(POD), objects.generation(POD)) == ("u-1", "17", 3)
    assert objects.labels(POD) == {"app": "web"}
    assert objects.annotations(POD) == {"note": "x"}
    assert objects.finalizers(POD) == ("a.io/x", "b.io/y")
    assert objects.has_finalizer(POD, "b.io/y")
    assert objects.controller_of(POD) == {"uid": "o-2", "controller": True}
    assert objects.is_owned_by(POD, "o-1")
    assert not objects.is_owned_by(POD, "o-3")
    assert objects.creation_time(POD) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert objects.deletion_time(POD) == datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
    assert objects.is_being_deleted(POD)
    assert objects.is_condition_true(POD, "Ready")
    assert not objects.is_condition_true(POD, "Bound")
    assert not objects.is_condition_true(POD, "Odd")


NOTHING_THERE = [
    {},
    {"metadata": None, "status": None},
    {"metadata": {}, "status": {}},
    {
        "metadata": {
            "labels": None,
            "annotations": None,
            "finalizers": None,
            "ownerReferences": None,
            "deletionTimestamp": None,
            "generation": None,
            "namespace": "",
        },
        "status": {"conditions": None},
    },
]


@pytest.mark.parametrize("obj", NOTHING_THERE, ids=["no metadata", "null", "empty", "null inside"])
def test_what_is_missing_null_or_empty_reads_the_same(obj):
    assert objects.name_of(obj) == ObjectName(None, "")
    assert (objects.uid(obj), objects.resource_version(obj), objects.generation(obj)) == ("", "", 0)
    assert (objects.labels(obj), objects.annotations(obj), objects.finalizers(obj)) == ({}, {}, ())
    assert (objects.owner_references(obj), objects.controller_of(obj), objects.conditions(obj)) == ((), None, ())
    assert (objects.creation_time(obj), objects.deletion_time(obj)) == (None, None)
    assert not objects.is_being_deleted(obj)


# ---- names -----------------------------------------------------------------------------------------------------------

NAMES = st.text("abc-.0", min_size=1, max_size=5)


@FEWER
@given(namespace=st.none() | NAMES, name=NAMES)
def test_a_name_survives_being_written_and_read(namespace: str | None, name: str):
    whole = ObjectName(namespace, name)
    assert ObjectName.parse(str(whole)) == whole


@pytest.mark.parametrize("text", ["", "/", "/a", "a/", "a/b/c", "//"])
def test_what_names_no_object_is_refused(text: str):
    with pytest.raises(ValueError, match="does not name an object"):
        ObjectName.parse(text)


# ---- versions --------------------------------------------------------------------------------------------------------


@FEWER
@given(one=st.integers(0, 10**30), other=st.integers(0, 10**30))
def test_resource_versions_are_ordered_as_the_numbers_they_are(one: int, other: int):
    assert (objects.version_order(str(one)) < objects.version_order(str(other))) == (one < other)


@pytest.mark.parametrize("version", ["", "01", "-1", "1.0", "abc", "1 ", "٣"])
def test_a_version_that_is_no_number_is_not_compared(version: str):
    with pytest.raises(ValueError, match="cannot be compared"):
        objects.version_order(version)


# ---- conditions ------------------------------------------------------------------------------------------------------

OLD = {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z", "observedGeneration": 7}


def test_a_condition_whose_status_stays_keeps_the_time_of_its_last_change():
    new = {"type": "Ready", "status": "False", "reason": "Other", "message": "still not"}
    assert objects.with_condition([OLD], new, NOON) == [{**OLD, **new}]


def test_a_condition_whose_status_changes_gets_the_time_of_the_change():
    changed = objects.with_condition([OLD], {"type": "Ready", "status": "True"}, NOON)
    assert changed == [{**OLD, "status": "True", "lastTransitionTime": "2026-01-02T12:00:00Z"}]


def test_a_new_condition_is_added_at_the_end_and_others_are_not_touched():
    before = [dict(OLD)]
    after = objects.with_condition(before, {"type": "Bound", "status": "True"}, NOON)
    assert after == [OLD, {"type": "Bound", "status": "True", "lastTransitionTime": "2026-01-02T12:00:00Z"}]
    assert before == [OLD]


def test_a_condition_that_never_had_a_time_gets_one():
    changed = objects.with_condition([{"type": "Ready", "status": "True"}], {"type": "Ready", "status": "True"}, NOON)
    assert changed[0]["lastTransitionTime"] == "2026-01-02T12:00:00Z"


def test_a_condition_can_be_taken_out():
    assert objects.without_condition([OLD, {"type": "Bound"}], "Ready") == [{"type": "Bound"}]
    assert objects.without_condition([OLD], "Bound") == [OLD]


# ---- times -----------------------------------------------------------------------------------------------------------


def test_times_are_written_in_utc_to_the_second_and_micro_times_with_six_decimals():
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    assert objects.time_text(berlin) == "2026-01-02T12:00:00Z"
    assert objects.micro_time_text(berlin) == "2026-01-02T12:00:00.987654Z"
    assert objects.micro_time_text(NOON.replace(microsecond=0)) == "2026-01-02T12:00:00.000000Z"
    assert objects.time_text(datetime(7, 1, 1, tzinfo=UTC)) == "0007-01-01T00:00:00Z"


READ = [
    ("2026-01-02T12:00:00Z", NOON.replace(microsecond=0)),
    ("2026-01-02T12:00:00.987654Z", NOON),
    ("2026-01-02T12:00:00.987654999Z", NOON),
    ("2026-01-02T12:00:00.5Z", NOON.replace(microsecond=500_000)),
    ("2026-01-02T13:30:00.987654+01:30", NOON),
    ("2026-01-02T10:30:00.987654-01:30", NOON),
]


@pytest.mark.parametrize(("text", "moment"), READ, ids=[text for text, _ in READ])
def test_a_time_is_read_in_any_zone_and_precision(text: str, moment: datetime):
    assert objects.read_time(text) == moment
    assert objects.read_time(text).tzinfo is UTC


BAD_TIMES = [
    "",
    "now",
    "2026-01-02",
    "2026-01-02T12:00:00",
    "2026-01-02 12:00:00Z",
    "2026-01-02t12:00:00z",
    "2026-01-02T24:00:00Z",
    "2026-01-02T12:60:00Z",
    "2026-01-02T12:00:60Z",
    "2026-02-30T12:00:00Z",
    "0000-01-01T00:00:00Z",
    "2026-01-02T12:00:00+25:00",
    "0001-01-01T00:00:00+01:00",
    "2026-01-02T12:00:00.Z",
    "2026-01-02T12:00:00Z\n",
    "٢026-01-02T12:00:00Z",
]


@pytest.mark.parametrize("text", BAD_TIMES)
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(InvalidTime, match="is no time"):
        objects.read_time(text)


def test_a_moment_without_a_zone_is_not_written():
    with pytest.raises(ValueError, match="has no time zone"):
        objects.time_text(datetime(2026, 1, 1))  # noqa: DTZ001 - the point


@FEWER
@given(moment=st.datetimes(timezones=st.just(UTC)))
def test_a_micro_time_survives_being_written_and_read(moment: datetime):
    assert objects.read_time(objects.micro_time_text(moment)) == moment
    assert objects.read_time(objects.time_text(moment)) == moment.replace(microsecond=0)
