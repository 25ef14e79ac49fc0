from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.custom_resources.expression_cost_rules import BUDGET, ExpressionCost, ValueExtent, extent_of
from onenode.apiserver.custom_resources.expressions import without_texts

MANY = {"l": [str(number) for number in range(9_000)]}
LONG = {"a": "x" * 1_000_000}


def cost(text: str, value: Any) -> int:
    return ExpressionCost.of(without_texts(text)).on(extent_of(value))


def test_an_extent_counts_what_is_inside():
    assert extent_of({"a": ["x", "yyy"], "b": {"c": None}}, None) == ValueExtent(7, longest_list=2, longest_text=3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.l.all(x, self.l.indexOf(x) >= 0)", MANY),
        ("self.l.exists(x, sets.contains(self.l, [x]))", MANY),
        ("self.a.replace('', self.a) != ''", LONG),
        ("self.a.split('').join(self.a) != ''", LONG),
        ("self.l.map(x, self.a + x).size() > 0", {**MANY, **LONG}),
    ],
)
def test_what_would_stop_the_server_is_beyond_the_budget(text: str, value: Any):
    assert cost(text, value) > BUDGET


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.l.all(x, x.startsWith('a'))", MANY),
        ("self.l.isSorted() && sets.contains(self.l, self.l)", MANY),
        ("self.l.map(x, x.size()).sum() < 100000", {"l": MANY["l"][:900]}),
        ("self.a.matches('^x+$') && self.a != '.all( .replace('", LONG),
        ("self.name.replace('-', '_') == self.name", {"name": "a-b" * 80, "l": MANY["l"][:100]}),
    ],
)
def test_what_people_write_is_within_the_budget(text: str, value: Any):
    assert cost(text, value) <= BUDGET
