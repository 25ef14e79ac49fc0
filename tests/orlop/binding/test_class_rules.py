from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding import class_rules

DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}
BETA = {"storageclass.beta.kubernetes.io/is-default-class": "true"}


def storage_class(name: str, annotations: Any = None, created: str = "2026-01-01T00:00:00Z", **more: Any) -> Any:
    metadata = {"name": name, "creationTimestamp": created, "annotations": annotations or {}}
    return {"metadata": metadata, "provisioner": "csi.example.com", **more}


def claim(annotations: Any = None, **spec: Any) -> Any:
    return {"metadata": {"name": "c", "namespace": "ns", "annotations": annotations or {}}, "spec": spec}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [(DEFAULT, True), (BETA, True), ({}, False), ({next(iter(DEFAULT)): "True"}, False), (BETA | {"x": "y"}, True)],
)
def test_a_class_is_default_where_either_annotation_is_exactly_true(annotations: dict[str, str], expected: object):
    assert class_rules.is_default(storage_class("a", annotations)) is expected


def test_of_several_defaults_the_newest_is_taken():
    classes = [
        storage_class("a", DEFAULT),
        storage_class("b", DEFAULT, "2026-02-01T00:00:00Z"),
        storage_class("c", BETA),
    ]

    assert class_rules.default_class(classes)["metadata"]["name"] == "b"


def test_of_equally_new_defaults_the_first_by_name_is_taken():
    assert class_rules.default_class([storage_class("b", DEFAULT), storage_class("a", BETA)])["metadata"]["name"] == "a"


def test_a_claim_without_a_class_gets_the_default_afterwards():
    assert class_rules.class_to_assign(claim(), [storage_class("a", DEFAULT)]) == "a"
    assert class_rules.class_to_assign(claim(), [storage_class("a")]) is None


@pytest.mark.parametrize(
    "kept",
    [
        claim(storageClassName=""),
        claim(storageClassName="other"),
        claim({"volume.beta.kubernetes.io/storage-class": ""}),
        claim(volumeName="pv-1"),
    ],
)
def test_a_claim_that_says_anything_about_its_class_or_names_a_volume_is_left_as_it_is(kept: Any):
    assert class_rules.class_to_assign(kept, [storage_class("a", DEFAULT)]) is None


def test_a_class_that_does_not_exist_binds_at_once():
    assert not class_rules.is_late_binding(None)
    assert not class_rules.is_late_binding(storage_class("a"))
    assert class_rules.is_late_binding(storage_class("a", volumeBindingMode="WaitForFirstConsumer"))


@pytest.mark.parametrize(
    ("provisioner", "expected"),
    [("csi.example.com", True), ("", False), ("kubernetes.io/no-provisioner", False), ("kubernetes.io/aws-ebs", False)],
)
def test_only_provisioners_outside_kubernetes_can_be_asked(provisioner: str, expected: object):
    assert class_rules.can_provision(storage_class("a") | {"provisioner": provisioner}) is expected


@given(
    some.dictionaries(some.text(), some.one_of(some.none(), some.integers(), some.lists(some.integers()), some.text()))
)
def test_a_class_of_any_shape_is_read_without_an_error(fields: dict[str, Any]):
    read = (
        class_rules.provisioner,
        class_rules.can_provision,
        class_rules.parameters,
        class_rules.mount_options,
        class_rules.allowed_topologies,
        class_rules.reclaim_policy,
        class_rules.is_late_binding,
    )
    odd = {"metadata": {"name": "a"}, **fields, "parameters": fields.get(""), "mountOptions": 3}

    for function in read:
        function(odd)
