from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.custom_resources.schema_nodes import node_of
from onenode.apiserver.custom_resources.shaping_rules import shaped

PRESERVED = "x-kubernetes-preserve-unknown-fields"
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=8,
)
TEXT: dict[str, Any] = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def shape(schema: dict[str, Any], value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    unknown: list[str] = []
    return shaped(value, node_of(schema), unknown, lambda metadata, _path: {"name": metadata["name"]}), unknown


SHAPES = [
    ("what is declared stays", of(a=TEXT), {"a": "x"}, {"a": "x"}, []),
    ("what is not is pruned", of(a=TEXT), {"a": "x", "b": {"c": 1}}, {"a": "x"}, ["b"]),
    ("an item has its place", of(a={"items": of()}), {"a": [{}, {"b": 1}]}, {"a": [{}, {}]}, ["a[1].b"]),
    ("any key, declared values", of(a={"additionalProperties": of(b=TEXT)}), {"a": {"k": {"b": "", "c": 1}}},
     {"a": {"k": {"b": ""}}}, ["a.k.c"]),
    ("any key, no schema", of(a={"additionalProperties": True}), {"a": {"k": 1, "o": {"b": 1}}},
     {"a": {"k": 1, "o": {}}}, ["a.o.b"]),
    ("unknown fields are preserved", of(a={PRESERVED: True}), {"a": {"k": {"b": 1}}}, {"a": {"k": {"b": 1}}}, []),
    ("below preserved fields what is declared is pruned", of(a={PRESERVED: True, **of(b=of(c=TEXT))}),
     {"a": {"b": {"c": "", "d": 1}, "x": 1}}, {"a": {"b": {"c": ""}, "x": 1}}, ["a.b.d"]),
    ("null without a default is dropped", of(a=TEXT), {"a": None}, {}, []),
    ("null is replaced by the default", of(a={**TEXT, "default": "x"}), {"a": None}, {"a": "x"}, []),
    ("null is kept where it may be", of(a={**TEXT, "nullable": True, "default": "x"}), {"a": None}, {"a": None}, []),
    ("a default for what is absent", of(a={**TEXT, "default": "x"}), {}, {"a": "x"}, []),
    ("a default is deep", of(a={**of(b={"type": "integer", "default": 3}), "default": {}}), {}, {"a": {"b": 3}}, []),
    ("no object for its defaults", of(a=of(b={"type": "integer", "default": 3})), {}, {}, []),
    ("a default of items", of(a={"items": {**TEXT, "default": "x"}}), {"a": [None, "y"]}, {"a": ["x", "y"]}, []),
    ("embedded metadata is reduced", of(a={"x-kubernetes-embedded-resource": True, **of(b=TEXT)}),
     {"a": {"kind": "K", "metadata": {"name": "n", "odd": 1}, "c": 1}}, {"a": {"kind": "K", "metadata": {"name": "n"}}},
     ["a.c"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "expected", "unknown"), [case[1:] for case in SHAPES],
                         ids=[case[0] for case in SHAPES])  # fmt: skip
def test_an_object_is_brought_into_the_shape_of_its_schema(schema: dict, value: dict, expected: dict, unknown: list):
    assert shape(schema, value) == (expected, unknown)


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaf = st.sampled_from(
        [TEXT, {"type": "integer", "default": 7}, {**TEXT, "nullable": True}, {PRESERVED: True}, {"type": "boolean"}]
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda properties: of(**properties)),
            inner.map(lambda schema: {"type": "object", "additionalProperties": schema}),
            inner.map(lambda schema: {"type": "array", "items": schema}),
        ),
        max_leaves=6,
    )


BODIES = st.dictionaries(st.sampled_from("abcd"), JSON_VALUES, max_size=4)


@given(st.dictionaries(st.sampled_from("abc"), schemas(), max_size=3), BODIES)
def test_what_is_in_shape_stays_as_it_is(properties: dict[str, Any], body: dict[str, Any]):
    once, _ = shape(of(**properties), body)

    assert shape(of(**properties), once) == (once, [])


@given(BODIES)
def test_a_schema_that_preserves_unknown_fields_keeps_everything(body: dict[str, Any]):
    assert shape({"type": "object", PRESERVED: True}, body) == (body, [])
