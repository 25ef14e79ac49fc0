"""Explanations of claims and volumes for objects of any shape: they never fail."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from orlop.admin.claim_seen import ClaimSeen
from orlop.admin.explain_claim import explain_claim
from orlop.admin.explain_volume import explain_volume
from orlop.admin.explanation import Explanation, Unreadable, joined
from orlop.admin.object_shapes import OBJECT, well_formed
from orlop.admin.past_events import events_about, failures
from orlop.admin.provisioner_outlook import ProvisionerSeen
from orlop.admin.shell_commands import delete_command
from orlop.admin.volume_seen import DriveSeen, VolumeSeen
from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import mismatches, volume_for_binder
from orlop.kube import kinds
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.random_tests import FEWER

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DRIVER = "disks.example.com"
WORDS = some.sampled_from(
    [
        *("", "a", "team", "data", "pv1", "n1", DRIVER, "fast", "True", "False", "true", "x\x1b[2J", "../x"),
        *("Bound", "Pending", "Lost", "Released", "Failed", "Available", "Delete", "Retain", "Recycle", "Block"),
        *(
            "WaitForFirstConsumer",
            "kubernetes.io/no-provisioner",
            "PodScheduled",
            "Warning",
            "10Gi",
            "1e999999999",
            "-1",
        ),
        *("2026-01-02T03:00:05Z", "2026-13-02T03:00:05Z", "In", "Exists", "ReadWriteOnce", "PersistentVolumeClaim"),
        *(state.PVC_PROTECTION, state.PV_PROTECTION, CLONING_PROTECTION, FINALIZER),
    ]
)
KEYS = some.sampled_from(
    [
        *(state.BIND_COMPLETED, state.SELECTED_NODE, state.STORAGE_PROVISIONER, state.PROVISIONED_BY, state.BETA_CLASS),
        *(
            "csi.storage.k8s.io/fstype",
            "orlop.dev/provisioning",
            "other",
            "storageclass.kubernetes.io/is-default-class",
        ),
    ]
)
ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | WORDS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(KEYS | WORDS, inner, max_size=3),
    max_leaves=5,
)


def of_shape(shape: Any) -> some.SearchStrategy[Any]:
    """Return values that mostly have the shape, so that rules look deep into them, and sometimes anything."""
    if isinstance(shape, dict):
        fields = {name: of_shape(inner) for name, inner in shape.items()}
        shaped: some.SearchStrategy[Any] = some.fixed_dictionaries({}, optional=fields)
    elif isinstance(shape, list):
        shaped = some.lists(of_shape(shape[0]), max_size=2)
    else:
        shaped = WORDS | some.dictionaries(KEYS, WORDS, max_size=3) | some.integers() | some.booleans()
    return some.one_of(shaped, shaped, shaped, ANYTHING)


OBJECTS = of_shape(OBJECT).map(well_formed)
SOME = some.lists(OBJECTS, max_size=2).map(tuple)
MAYBE = some.none() | OBJECTS
UNREADABLES = some.lists(
    some.builds(
        Unreadable,
        some.sampled_from(
            [kinds.POD, kinds.NODE, PERSISTENT_VOLUME, kinds.PERSISTENT_VOLUME_CLAIM, kinds.STORAGE_CLASS, kinds.LEASE]
        ),
        some.sampled_from(["", "x"]),
    ),
    max_size=3,
).map(tuple)
PROVISIONERS = some.builds(ProvisionerSeen, WORDS, MAYBE, SOME, SOME, UNREADABLES)
ON_DRIVE = some.builds(DriveSeen, MAYBE, MAYBE, MAYBE, some.booleans(), some.booleans())
CLAIMS_SEEN = some.builds(
    ClaimSeen,
    OBJECTS,
    MAYBE,
    SOME,
    SOME,
    SOME,
    SOME,
    SOME,
    MAYBE,
    MAYBE,
    MAYBE,
    MAYBE,
    MAYBE,
    SOME,
    PROVISIONERS,
    UNREADABLES,
    some.none() | SOME,
    ON_DRIVE,
    SOME,
)
VOLUMES_SEEN = some.builds(
    VolumeSeen, OBJECTS, MAYBE, SOME, SOME, SOME, SOME, SOME, SOME, PROVISIONERS, UNREADABLES, ON_DRIVE, SOME, SOME
)


def is_whole(explanation: Explanation) -> bool:
    sentences = (explanation.what, explanation.state, explanation.next)
    return all(sentences) and bool(explanation.fields["state"]) and bool(json.dumps(explanation.fields))


@FEWER
@given(CLAIMS_SEEN)
def test_a_claim_of_any_shape_is_explained(seen: ClaimSeen):
    explanation = explain_claim(seen, NOW)
    assert is_whole(explanation)
    assert explanation.fields["unreadable"] == [str(each) for each in seen.unreadable]


@FEWER
@given(VOLUMES_SEEN)
def test_a_volume_of_any_shape_is_explained(seen: VolumeSeen):
    assert is_whole(explain_volume(seen, NOW))


@FEWER
@given(ANYTHING)
def test_an_object_of_any_shape_becomes_one_that_rules_can_read(value: Any):
    shaped = well_formed(value)
    assert well_formed(shaped) == shaped


def test_fields_of_the_right_type_stay_and_unknown_ones_too():
    claim = {"metadata": {"name": "data", "labels": {"a": "b"}}, "spec": {"volumeName": "pv1", "later": [1, None]}}
    assert well_formed(claim) == claim
    assert well_formed({"metadata": {"creationTimestamp": "yesterday"}}) == {"metadata": {}}
    assert well_formed({"metadata": {"name": 5, "labels": {"a": 1, "b": "c"}}}) == {"metadata": {"labels": {"b": "c"}}}


@FEWER
@given(OBJECTS, OBJECTS)
def test_a_volume_has_no_mismatch_exactly_if_the_binder_would_choose_it(claim: Any, volume: Any):
    chosen = volume_for_binder(claim, [volume], is_late_binding=False)
    assert (mismatches(claim, volume) == []) == (chosen is not None)


def test_a_volume_that_is_reserved_for_a_claim_fits_it_whatever_its_class_and_phase():
    claim = {"metadata": {"namespace": "team", "name": "data"}, "spec": {"storageClassName": "fast"}}
    volume = {"metadata": {"name": "pv1"}, "spec": {"claimRef": {"namespace": "team", "name": "data"}}}
    assert volume_for_binder(claim, [volume], is_late_binding=False) == volume
    assert mismatches(claim, volume) == []


def test_a_name_that_a_shell_would_obey_is_quoted_in_commands():
    command = delete_command(PERSISTENT_VOLUME, None, "x; rm -rf /")
    assert shlex.split(command.strip("`")) == ["kubectl", "delete", "persistentvolume", "x; rm -rf /"]


def test_events_of_a_former_object_are_not_meant_and_equal_ones_are_shown_once():
    def event(uid: str, message: str, time: str) -> dict[str, Any]:
        about = {"involvedObject": {"uid": uid}, "type": "Warning", "reason": "R"}
        return {**about, "message": message, "lastTimestamp": time}

    events = events_about(
        [
            event("u", "old", "2026-01-02T03:00:00Z"),
            event("u", "new", "2026-01-02T03:03:00Z"),
            event("u", "new", "2026-01-02T03:01:00Z"),
            event("former", "other", "2026-01-02T03:04:00Z"),
        ],
        "u",
    )
    assert [each.message for each in failures(events)] == ["new", "old"]
    assert events[0].sentence(NOW) == "R 65s ago: new"


def test_of_many_names_the_first_are_listed():
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert joined(map(str, range(9))) == "0, 1, 2, 3, 4 and 4 more"
