from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.custom_resources.expression_cost_rules import ExpressionValues, spend_on
from onenode.apiserver.custom_resources.expression_value_rules import BUDGET, BudgetSpent, CostBudget, weight_of
from onenode.apiserver.custom_resources.expressions import SELF, compile_expression

NUMBERS = [str(number) for number in range(9_000)]
MANY = {"l": NUMBERS}
LONG = {"a": "x" * 1_000_000}
WIDE_CLASSES = r"^[\pL]{300}$"


def cost(text: str, value: Any) -> int:
    """The cost of one evaluation, at most twice the budget."""
    budget = CostBudget(2 * BUDGET)
    try:
        spend_on(compile_expression(text, "bool").syntax(), ExpressionValues({SELF: value}), budget)
    except BudgetSpent:
        return 2 * BUDGET
    return 2 * BUDGET - budget.left


def test_values_are_counted_with_what_is_inside():
    assert weight_of([{"a": ["x", "y" * 512], "b": {"c": None}}], CostBudget()) == 11


def test_no_more_values_are_counted_than_a_budget_is_for():
    with pytest.raises(BudgetSpent):
        weight_of([NUMBERS], CostBudget(1_000))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.l.all(x, self.l.indexOf(x) >= 0)", MANY),
        ("self.l.all(x, x in self.l)", {"l": [[number] for number in range(9_000)]}),
        ("self.l.all(x, self.l == self.l)", MANY),
        ("self.l.exists(x, sets.contains(self.l, [x]))", MANY),
        ("sets.equivalent(self.l, self.l)", {"l": [[number] for number in range(9_000)]}),
        ("self.l.map(x, x).size() > 0", MANY),
        ("self.l.filter(x, true).size() > 0", MANY),
        ("self.l.all(x, self.l.map(y, y).size() > 0)", {"l": NUMBERS[:4_500]}),
        ("self.l.map(x, self.l + self.l).size() > 0", {"l": NUMBERS[:3_000]}),
        ("self.a.replace('', self.a) != ''", LONG),
        ("self.a.split('').join(self.a) != ''", LONG),
        (
            "cel.bind(pieces, self.a.split(''), pieces.all(x, pieces.size() > 0 && pieces == pieces))",
            {"a": "x" * 9_000},
        ),
        ("self.l.map(x, self.a + x).size() > 0", {"l": NUMBERS[:3_000], **LONG}),
        ("self.l.all(x, self.a.split('x').size() > 0)", {"l": NUMBERS[:1_000], "a": "x" * 20_000}),
        ("self.l.all(x, self.a.contains(self.a))", {"l": NUMBERS[:1_000], "a": "x" * 20_000}),
        ("self.l.all(x, '%s'.format([self.a]) != '')", {"l": NUMBERS[:1_000], **LONG}),
        (f"self.l.all(x, x.matches(r'{WIDE_CLASSES}'))", {"l": NUMBERS[:100]}),
        ("self.l.all(x, x.matches(self.p))", {"l": NUMBERS[:100], "p": WIDE_CLASSES}),
        ("self.l.all(x, x.matches(x + self.p))", {"l": NUMBERS[:100], "p": "a"}),
        ("self.a.matches('a[ab]{900}c')", LONG),
        ("self.a.findAll('x+y').size() > 0", LONG),
        ("(true ? self : [self]).l.map(x, x).size() > 0", MANY),
    ],
)
def test_what_would_stop_the_server_is_beyond_the_budget(text: str, value: Any):
    assert cost(text, value) > BUDGET


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("self.l.all(x, x.startsWith('a'))", MANY),
        ("self.l.all(x, x.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))", MANY),
        ("self.l.isSorted() && sets.contains(self.l, self.l)", MANY),
        ("self.l.map(x, x.size()).sum() < 100000", {"l": NUMBERS[:3_000]}),
        ("self.l.all(x, self.l.exists_one(y, y == x))", {"l": NUMBERS[:100]}),
        ("self.l.all(x, x in self.names)", {"l": NUMBERS[:1_000], "names": NUMBERS[:1_000]}),
        ("self.a.matches('^x+$') && self.a != '.all( .replace('", {"a": "x" * 100_000}),
        ("self.name.replace('-', '_') == self.name", {"name": "a-b" * 80, "l": NUMBERS[:100]}),
        ("self.name.find('[0-9]+') != '' || self.name.findAll('[0-9]').size() > 1", {"name": "a-b" * 80}),
        ("self.name.split('.').all(part, part.size() < 64)", {"name": "a.b" * 80}),
        ("self.l.all(x, '%s-%d'.format([x, 1]) != '')", {"l": NUMBERS[:100]}),
        ("self.o.all(k, self.o[k].size() < 10)", {"o": dict.fromkeys(NUMBERS, "x")}),
        ("self.short.map(x, x).size() > 0", {"short": ["x"], "l": NUMBERS}),
    ],
)
def test_what_people_write_is_within_the_budget(text: str, value: Any):
    assert cost(text, value) <= BUDGET


def test_what_a_selection_cannot_come_to_costs_nothing():
    text = "self.short.map(x, x).size() > 0"

    assert cost(text, {"short": ["x"], "other": []}) < BUDGET // 1_000
