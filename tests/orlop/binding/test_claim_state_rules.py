from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding import claim_state_rules as state
from orlop.foundation.quantity import Quantity

NEW, BETA = state.STORAGE_PROVISIONER, state.BETA_STORAGE_PROVISIONER


def claim(annotations: Any = None, **spec: Any) -> Any:
    metadata = {"name": "c", "namespace": "ns", "uid": "u1", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("annotations", "driver"),
    [({}, ""), ({NEW: "a"}, "a"), ({BETA: "b"}, "b"), ({NEW: "a", BETA: "b"}, "a"), ({NEW: "", BETA: "b"}, "b")],
)
def test_the_provisioner_is_that_of_the_current_key_else_of_the_beta_key(annotations: dict[str, str], driver: str):
    assert state.provisioner_of(claim(annotations)) == driver


def test_the_alpha_key_names_a_node_but_never_starts_provisioning():
    alpha = claim({state.ALPHA_SELECTED_NODE: "n1"})

    assert state.selected_node(alpha) == "n1"
    assert not state.is_marked_for_late_provisioning(alpha)
    assert state.is_marked_for_late_provisioning(claim({state.SELECTED_NODE: "n1"}))
    assert not state.is_marked_for_late_provisioning(claim({state.SELECTED_NODE: ""}))


def test_a_claim_is_bound_when_it_names_a_volume_and_the_binder_has_finished():
    done = {state.BIND_COMPLETED: "yes"}

    assert state.is_bound(claim(done, volumeName="v"))
    assert not state.is_bound(claim({}, volumeName="v"))
    assert not state.is_bound(claim(done))


def test_sizes_that_are_missing_or_no_quantities_are_none():
    assert state.requested_size(claim(resources={"requests": {"storage": "5Gi"}})) == Quantity.parse("5Gi")
    assert state.requested_size(claim(resources={"requests": {"storage": "5 apples"}})) is None
    assert state.requested_size(claim(resources={"requests": {}})) is None
    assert state.requested_size(claim()) is None
    assert state.capacity({"spec": {"capacity": {"storage": 5}}}) == Quantity.of(5)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, False),
        ({"namespace": "ns", "name": "c", "uid": "u1"}, True),
        ({"namespace": "ns", "name": "c"}, True),
        ({"namespace": "ns", "name": "c", "uid": ""}, True),
        ({"namespace": "ns", "name": "c", "uid": "u2"}, False),
        ({"namespace": "other", "name": "c", "uid": "u1"}, False),
        ({"namespace": "ns", "name": "d", "uid": "u1"}, False),
    ],
)
def test_a_volume_refers_to_a_claim_by_name_and_by_uid_where_it_gives_one(reference: Any, expected: object):
    assert state.refers_to({"spec": {"claimRef": reference}}, claim()) is expected


FIELDS = ["accessModes", "resources", "requests", "storage", "claimRef", "volumeMode", "volumeName", "capacity", "name"]
anything = some.recursive(
    some.one_of(some.none(), some.booleans(), some.integers(), some.text(max_size=5)),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)


@given(some.dictionaries(some.sampled_from(FIELDS), anything), anything)
def test_an_object_of_any_shape_is_read_without_an_error(spec: dict[str, Any], status: Any):
    odd = {"metadata": {"name": "c", "namespace": "ns", "uid": "u1"}, "spec": spec, "status": status}

    for function in (
        state.class_name,
        state.has_class,
        state.attributes_class_name,
        state.volume_mode,
        state.access_modes,
        state.volume_name,
        state.phase,
        state.is_bound,
        state.selected_node,
        state.provisioner_of,
        state.requested_size,
        state.capacity,
    ):
        function(odd)
    state.refers_to(odd, claim())
