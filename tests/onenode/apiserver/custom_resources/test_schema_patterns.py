from __future__ import annotations

import pytest

from onenode.apiserver.custom_resources.schema_nodes import node_of
from onenode.apiserver.custom_resources.schema_patterns import InvalidSchemaPattern, SchemaPattern
from onenode.apiserver.custom_resources.value_rules import value_causes


def test_a_pattern_that_backtracks_is_searched_for_in_linear_time():
    """With Python's `re` this takes longer than anybody lives."""
    node = node_of({"type": "string", "pattern": "^(a+)+$"})

    assert value_causes("a" * 10_000, node, "x") == []
    (cause,) = value_causes(f"{'a' * 60}X", node, "x")
    assert str(cause).endswith("x in body should match '^(a+)+$'")


FOUND = [
    ("^a$", "a", "a\n"),
    ("[$]", "$", "a"),
    ("^[[:alpha:]_]+$", "a_B", "a1"),
    (r"^\pL+\z", "äöü", "1"),
    ("(?i)abc", "xABCx", "ab"),
    (r"^\d+$", "12", "١٢"),
]


@pytest.mark.parametrize(("pattern", "valid", "wrong"), FOUND)
def test_patterns_have_gos_dialect(pattern: str, valid: str, wrong: str):
    compiled = SchemaPattern.of(pattern)

    assert compiled.is_in(valid)
    assert not compiled.is_in(wrong)


@pytest.mark.parametrize("pattern", ["(", "[", "*a", "a++", "(?=a)", r"(a)\1", "a{1001}", r"\Z"])
def test_what_go_does_not_compile_is_refused(pattern: str):
    with pytest.raises(InvalidSchemaPattern):
        SchemaPattern.of(pattern)
