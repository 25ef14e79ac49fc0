from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.binding.node_affinity_rules import (
    node_selector_matches,
    pod_allows_node,
    topology_terms_match,
    volume_allows_node,
)

LABELS = {"zone": "a", "disks": "4"}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def selector(*terms: Any) -> dict[str, Any]:
    return {"nodeSelectorTerms": list(terms)}


def matches(*expressions: Any) -> bool:
    return node_selector_matches(selector({"matchExpressions": list(expressions)}), LABELS, fields=None)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (expression("zone", "In", "a", "b"), True),
        (expression("zone", "In", "b"), False),
        (expression("zone", "NotIn", "b"), True),
        (expression("rack", "NotIn", "b"), True),
        (expression("zone", "Exists"), True),
        (expression("rack", "Exists"), False),
        (expression("rack", "DoesNotExist"), True),
        (expression("disks", "Gt", "3"), True),
        (expression("disks", "Gt", "4"), False),
        (expression("disks", "Lt", "5"), True),
        (expression("zone", "Gt", "3"), False),
        (expression("zone", "Is", "a"), False),
        (expression("zone", "In"), False),
        ({}, False),
    ],
)
def test_each_operator_is_kubernetes_own_and_an_unknown_one_never_matches(one: dict[str, Any], expected: object):
    assert matches(one) is expected


def test_requirements_of_a_term_hold_together_and_one_term_is_enough():
    a, b = expression("zone", "In", "a"), expression("zone", "In", "b")

    assert not matches(a, b)
    assert node_selector_matches(selector({"matchExpressions": [b]}, {"matchExpressions": [a]}), LABELS, fields=None)


def test_no_selector_allows_every_node_and_an_empty_one_none():
    assert node_selector_matches(None, LABELS, fields=None)
    assert not node_selector_matches(selector(), LABELS, fields=None)
    assert not node_selector_matches(selector({}), LABELS, fields=None)


def test_fields_of_a_volume_s_affinity_never_match_and_those_of_a_pod_s_do():
    by_name = selector({"matchFields": [expression("metadata.name", "In", "n1")]})
    volume = {"spec": {"nodeAffinity": {"required": by_name}}}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": by_name}}
    nodes = [{"metadata": {"name": name, "labels": LABELS}} for name in ("n1", "n2")]

    assert not volume_allows_node(volume, LABELS)
    assert [pod_allows_node({"spec": {"affinity": affinity}}, node) for node in nodes] == [True, False]


def test_a_pods_node_selector_and_its_affinity_both_count():
    node = {"metadata": {"name": "n1", "labels": LABELS}}

    assert pod_allows_node({"spec": {"nodeSelector": {"zone": "a"}}}, node)
    assert not pod_allows_node({"spec": {"nodeSelector": {"zone": "b"}}}, node)
    assert pod_allows_node({}, node)


def test_a_class_without_topologies_allows_every_node_and_a_term_without_requirements_none():
    assert topology_terms_match(None, LABELS)
    assert topology_terms_match([], LABELS)
    assert not topology_terms_match([{}], LABELS)
    assert topology_terms_match([{"matchLabelExpressions": [{"key": "zone", "values": ["b", "a"]}]}], LABELS)
    assert not topology_terms_match([{"matchLabelExpressions": [{"key": "rack", "values": ["b", "a"]}]}], LABELS)


keys = some.sampled_from(["zone", "rack"])
values = some.lists(some.sampled_from("abc"), min_size=1, max_size=2)


@given(some.lists(some.tuples(keys, values), min_size=1, max_size=3), some.dictionaries(keys, some.sampled_from("abc")))
def test_not_in_is_the_opposite_of_in(terms: list[tuple[str, list[str]]], labels: dict[str, str]):
    for key, allowed in terms:
        inside = selector({"matchExpressions": [expression(key, "In", *allowed)]})
        outside = selector({"matchExpressions": [expression(key, "NotIn", *allowed)]})

        assert node_selector_matches(inside, labels, None) != node_selector_matches(outside, labels, None)
