from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.custom_resources.leaf_rules import go_number
from onenode.apiserver.custom_resources.schema_nodes import node_of
from onenode.apiserver.custom_resources.value_rules import list_causes, searches_cost, value_causes

LIST_MAP = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["k"],
    "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
}
TEXTS = [
    ({"type": "string"}, 1, 'x: Invalid value: "integer": x in body must be of type string: "integer"'),
    ({"type": "number"}, "1", 'x: Invalid value: "string": x in body must be of type number: "string"'),
    ({"type": "integer"}, 1.5, 'x: Invalid value: "number": x in body must be of type integer: "number"'),
    ({"type": "object"}, [], 'x: Invalid value: "array": x in body must be of type object: "array"'),
    ({"type": "array", "items": {"type": "string"}}, [True],
     'x[0]: Invalid value: "boolean": x[0] in body must be of type string: "boolean"'),
    ({"type": "string"}, None, 'x: Invalid value: "null": x in body must be of type string: "null"'),
    ({"type": "integer", "multipleOf": 5}, 7, "x: Invalid value: 7: x in body should be a multiple of 5"),
    ({"type": "number", "multipleOf": 0.1}, 0.25, "x: Invalid value: 0.25: x in body should be a multiple of 0.1"),
    ({"type": "integer", "maximum": 1000000.0}, 1000001,
     "x: Invalid value: 1000001: x in body should be less than or equal to 1000000"),
    ({"type": "integer", "maximum": 5, "exclusiveMaximum": True}, 5,
     "x: Invalid value: 5: x in body should be less than 5"),
    ({"type": "number", "minimum": 0.5, "exclusiveMinimum": True}, 0.5,
     "x: Invalid value: 0.5: x in body should be greater than 0.5"),
    ({"type": "array", "minItems": 2}, [1], "x: Invalid value: 1: x in body should have at least 2 items"),
    ({"type": "array", "maxItems": 1}, [1, 2], "x: Too many: 2: must have at most 1 item"),
    ({"type": "object", "minProperties": 1}, {}, "x: Invalid value: 0: x in body should have at least 1 properties"),
    ({"type": "object", "maxProperties": 0}, {"a": 1}, "x: Too many: 1: must have at most 0 items"),
    ({"type": "object", "required": ["a"]}, {}, "x.a: Required value"),
    ({"enum": [1, "a"]}, 2, 'x: Unsupported value: 2: supported values: "1", "a"'),
    ({"type": "string", "format": "ipv4"}, "1.2.3",
     'x: Invalid value: "1.2.3": x in body must be of type ipv4: "1.2.3"'),
    ({"type": "string", "format": "date-time"}, "now",
     'x: Invalid value: "now": x in body must be of type date-time: "now"'),
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {},
     '<nil>: Invalid value: "": "x" must validate at least one schema (anyOf)'),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": 1},
     '<nil>: Invalid value: "": "x" must validate one and only one schema (oneOf). Found 2 valid alternatives'),
    ({"not": {"required": ["a"]}}, {"a": 1}, '<nil>: Invalid value: "": "x" must not validate the schema (not)'),
    ({"allOf": [{"required": ["a"]}, {"minProperties": 0}]}, {"b": 1}, "x.a: Required value"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "text"), TEXTS)
def test_the_first_cause_has_kubernetes_text(schema: dict, value: Any, text: str):
    assert str(value_causes(value, node_of(schema), "x")[0]) == text


FORMATS = [
    ("byte", "YQ==", "Y"),
    ("cidr", "10.0.0.0/8", "10.0.0.0"),
    ("date", "2026-11-18", "18.11.2026"),
    ("date-time", "2026-11-18T10:00:00.123456789Z", "2026-11-18"),
    ("duration", "1h30m", "long"),
    ("email", "a@example.com", "a"),
    ("hostname", "a.example.com", "-a"),
    ("ipv6", "::1", "1.2.3.4"),
    ("mac", "00:00:5e:00:53:01", "00"),
    ("uuid", "6a17b9af-5b56-4643-9037-cdff7c240d49", "6a17"),
    ("uri", "https://example.com", "example"),
]


@pytest.mark.parametrize(("name", "valid", "wrong"), FORMATS)
def test_a_format_is_validated(name: str, valid: str, wrong: str):
    node = node_of({"type": "string", "format": name})

    assert value_causes(valid, node, "x") == []
    assert len(value_causes(wrong, node, "x")) == 1


def test_a_format_kubernetes_does_not_know_is_not_validated():
    assert value_causes("x", node_of({"type": "string", "format": "made-up"}), "x") == []


@pytest.mark.parametrize(("number", "text"), [(5, "5"), (0.5, "0.5"), (1e6, "1e+06"), (0.00001, "1e-05"), (0, "0")])
def test_numbers_are_printed_as_go_prints_them(number: float, text: str):
    assert go_number(number) == text


def test_items_of_a_list_map_correlate_by_their_keys():
    node = node_of({"type": "object", "properties": {"l": LIST_MAP}})
    invalid = {"k": "a", "v": "no number"}

    assert value_causes({"l": [{"k": "new"}, invalid]}, node, "", {"l": [invalid]}) == []
    assert [cause.field for cause in value_causes({"l": [{**invalid, "k": "b"}]}, node, "", {"l": [invalid]})] == [
        "l[0].v"
    ]


def test_items_of_an_atomic_list_have_no_old_value():
    node = node_of({"type": "array", "items": {"type": "integer"}})

    assert len(value_causes(["a", 1], node, "x", ["a"])) == 1
    assert value_causes(["a"], node, "x", ["a"]) == []


@given(st.lists(st.sampled_from("abc")))
def test_an_item_that_is_repeated_is_reported_once(items: list[str]):
    node = node_of({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}})

    causes = list(list_causes(items, node, "x"))

    assert len(causes) == len({item for item in items if items.count(item) > 1})
    assert all(cause.reason == "FieldValueDuplicate" for cause in causes)


SEARCHED = {"type": "string", "pattern": r"^[\pL]{3}$"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": SEARCHED},
        {"type": "array", "items": {"anyOf": [{"maxLength": 1}, {"not": SEARCHED}]}},
        {"type": "array", "items": {"type": "string", "allOf": [SEARCHED]}},
    ],
)
def test_each_search_for_a_pattern_has_its_cost(schema: dict[str, Any]):
    node = node_of(schema)
    one, two = searches_cost(["abc"], node), searches_cost(["abc"] * 2, node)

    assert 0 < one < two == 2 * one


def test_values_that_are_not_searched_cost_nothing():
    node = node_of({"type": "object", "additionalProperties": SEARCHED})

    assert searches_cost({"a": 1}, node) == 0
    assert searches_cost({"a": "x", "b": "y"}, node, {"a": "x", "b": "y"}) == 0
    assert searches_cost({"a": "x", "b": "z"}, node, {"a": "x", "b": "y"}) == searches_cost({"b": "z"}, node)
