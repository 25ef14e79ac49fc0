"""Events in both forms: what is in them, and that Kubernetes' own rules take them whatever they tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.kinds import core_kind_rules
from orlop.kube.events.event_bodies import (
    ObjectReference,
    Occurrence,
    Repetitions,
    Reporter,
    core_form,
    event_name,
    make_occurrence,
    new_form,
    shortened,
)

FIRST = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
CLAIM = ObjectReference("v1", "PersistentVolumeClaim", "data", "ns", "u1")
REPORTER = Reporter("orlop.dev/provisioner", "pod-1")


def told(
    regarding: ObjectReference = CLAIM, *, note: str = "no room", reason: str = "Failed", action: str = ""
) -> Occurrence:
    return make_occurrence(regarding, warning=True, reason=reason, note=note, action=action, related=None)


def seen(count: int = 1) -> Repetitions:
    return Repetitions(count, FIRST, FIRST + timedelta(seconds=count - 1))


def test_the_new_form_tells_who_what_when_and_to_what():
    assert new_form("data.1", told(), REPORTER, seen()) == {
        "metadata": {"name": "data.1", "namespace": "ns"},
        "eventTime": "2026-01-02T03:04:05.000600Z",
        "type": "Warning",
        "reason": "Failed",
        "action": "Failed",
        "note": "no room",
        "regarding": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": "data",
            "namespace": "ns",
            "uid": "u1",
        },
        "reportingController": "orlop.dev/provisioner",
        "reportingInstance": "pod-1",
    }


def test_what_happened_more_than_once_is_a_series():
    assert new_form("x", told(), REPORTER, seen(3))["series"] == {
        "count": 3,
        "lastObservedTime": "2026-01-02T03:04:07.000600Z",
    }
    repeated = core_form("x", told(), REPORTER, seen(3))
    assert (repeated["count"], repeated["firstTimestamp"], repeated["lastTimestamp"]) == (
        3,
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:07Z",
    )


def test_an_event_of_an_object_without_a_namespace_goes_into_default():
    volume = told(ObjectReference("v1", "PersistentVolume", "pv"))

    assert new_form("x", volume, REPORTER, seen())["metadata"]["namespace"] == "default"
    assert "namespace" not in new_form("x", volume, REPORTER, seen())["regarding"]


def test_a_name_holds_the_object_and_the_moment():
    assert event_name(told(), 0x18AB) == "data.18ab"
    long = event_name(told(ObjectReference("v1", "Pod", "x" * 253, "ns")), 2**62)
    assert len(long) == 253
    assert long.endswith(".4000000000000000")


@given(st.text(max_size=2000), st.integers(4, 300))
def test_what_is_cut_off_is_still_text_and_short_enough(text: str, longest: int):
    short = shortened(text, longest)

    assert len(short.encode()) <= longest
    if len(text.encode(errors="replace")) <= longest:
        assert short == text.encode(errors="replace").decode()


WORDS = st.text(max_size=200)


@pytest.mark.parametrize("regarding", [CLAIM, ObjectReference("v1", "PersistentVolume", "pv")])
@given(note=st.text(max_size=2000), reason=WORDS, action=WORDS, instance=st.text(min_size=1), count=st.integers(1, 5))
def test_kubernetes_takes_it_whatever_it_tells(
    regarding: ObjectReference, note: str, reason: str, action: str, instance: str, count: int
):
    what = told(regarding, note=note, reason=reason, action=action)
    reporter = Reporter("orlop.dev/provisioner", instance)

    assert list(core_kind_rules.event(new_form("x", what, reporter, seen(count)))) == []
    assert list(core_kind_rules.core_event(core_form("x", what, reporter, seen(count)))) == []
