"""Who may take a lease and what is written: the decision alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.lease_rules import (
    SIDECAR_TIMES,
    Candidate,
    Create,
    HeldByOther,
    LeaseTimes,
    Write,
    lock_name,
    next_step,
    observed,
    released,
)
from orlop.kube.objects import ObjectName

WALL = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
NOW = "2026-01-02T03:04:05.000678Z"
ME = Candidate(ObjectName("ns", "lock"), "me")


def lease(holder: str, **spec: Any) -> dict[str, Any]:
    record = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 3, "acquireTime": "then"}
    return {"metadata": {"name": "lock", "resourceVersion": "5"}, "spec": {**record, **spec}}


def test_a_lease_that_is_not_there_is_created():
    step = next_step(None, ME, 0.0, WALL)

    assert step == Create(
        {
            "metadata": {"namespace": "ns", "name": "lock"},
            "spec": {
                "holderIdentity": "me",
                "leaseDurationSeconds": 15,
                "acquireTime": NOW,
                "renewTime": NOW,
                "leaseTransitions": 0,
            },
        }
    )


def test_our_own_is_renewed_and_was_acquired_when_it_was():
    step = next_step(observed(None, lease("me", preferredHolder="x"), 0.0), ME, 100.0, WALL)

    assert isinstance(step, Write)
    assert step.lease["metadata"]["resourceVersion"] == "5"
    assert step.lease["spec"] == lease("me", renewTime=NOW, preferredHolder="x")["spec"]


@pytest.mark.parametrize("elapsed", [0.0, 15.0])
def test_a_free_one_is_taken_at_once(elapsed: float):
    step = next_step(observed(None, lease(""), 0.0), ME, elapsed, WALL)

    assert isinstance(step, Write)
    assert step.lease["spec"] == lease("me", leaseTransitions=4, acquireTime=NOW, renewTime=NOW)["spec"]


def test_labels_are_set_by_whoever_leads_and_those_of_others_stay():
    labelled = Candidate(ME.lease, "me", labels={"app": "x", "tier": "1"})
    made = next_step(None, labelled, 0.0, WALL)
    assert isinstance(made, Create)
    assert made.lease["metadata"]["labels"] == {"app": "x", "tier": "1"}
    theirs = {**lease("me"), "metadata": {"name": "lock", "labels": {"app": "y", "theirs": "z"}}}
    renewed = next_step(observed(None, theirs, 0.0), labelled, 1.0, WALL)
    assert isinstance(renewed, Write)
    assert renewed.lease["metadata"] == {"name": "lock", "labels": {"app": "x", "tier": "1", "theirs": "z"}}


def test_anothers_is_taken_when_it_has_not_changed_for_its_duration_by_our_clock():
    seen = observed(None, lease("other", leaseDurationSeconds=30, renewTime="in the far future"), 100.0)

    assert next_step(seen, ME, 129.9, WALL) == HeldByOther("other")
    assert isinstance(next_step(seen, ME, 130.0, WALL), Write)


def test_a_renewal_begins_the_wait_anew_and_a_label_does_not():
    first = observed(None, lease("other", renewTime="1"), 10.0)
    labelled = observed(first, {**lease("other", renewTime="1"), "metadata": {"labels": {"a": "b"}}}, 20.0)
    renewed = observed(labelled, lease("other", renewTime="2"), 24.0)

    assert (first.since, labelled.since, renewed.since) == (10.0, 10.0, 24.0)


@pytest.mark.parametrize("odd", [{}, {"spec": None}, {"spec": {"holderIdentity": None}}, {"spec": []}])
def test_a_record_without_a_holder_is_free(odd: dict[str, Any]):
    assert isinstance(next_step(observed(None, odd, 0.0), ME, 0.0, WALL), Write)


@pytest.mark.parametrize("duration", [None, 0, -1, "15"])
def test_a_record_without_a_duration_has_ours(duration: Any):
    seen = observed(None, lease("other", leaseDurationSeconds=duration), 0.0)

    assert next_step(seen, ME, 14.9, WALL) == HeldByOther("other")
    assert isinstance(next_step(seen, ME, 15.0, WALL), Write)


def test_a_released_lease_has_no_holder_and_is_short():
    assert (
        released(lease("me"), WALL)["spec"] == lease("", leaseDurationSeconds=1, acquireTime=NOW, renewTime=NOW)["spec"]
    )


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2.4, 2), (15, 10, 0), (15, 10, -1), (float("inf"), 10, 2)])
def test_times_that_cannot_work_are_refused(times: tuple[float, float, float]):
    with pytest.raises(ValueError, match="must be longer"):
        LeaseTimes(*times)


def test_the_times_are_upstreams():
    assert LeaseTimes() == LeaseTimes(15, 10, 2)
    assert LeaseTimes(15, 10, 5) == SIDECAR_TIMES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("external-attacher-leader-csi.orlop.dev", "external-attacher-leader-csi-orlop-dev"),
        ("disk.csi.example.com/", "disk-csi-example-com-X"),
        ("a/b", "a-b"),
    ],
)
def test_locks_are_called_as_upstream_calls_them(text: str, name: str):
    assert lock_name(text) == name


@pytest.mark.parametrize(("namespace", "identity"), [(None, "me"), ("ns", "")])
def test_a_candidate_is_somebody_somewhere(namespace: str | None, identity: str):
    with pytest.raises(ValueError, match="needs an identity"):
        Candidate(ObjectName(namespace, "lock"), identity)


@given(st.floats(0, 1000), st.floats(0, 1000), st.integers(1, 60))
def test_no_lease_of_another_is_taken_before_its_duration_has_passed(seen_at: float, later: float, duration: int):
    seen = observed(None, lease("other", leaseDurationSeconds=duration), seen_at)
    step = next_step(seen, ME, seen_at + later, WALL)

    assert isinstance(step, Write) == (seen_at + later >= seen_at + duration)
