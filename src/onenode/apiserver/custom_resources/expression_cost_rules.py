"""Estimate what an expression costs on its values before it is evaluated, so that none stops the server. Pure.

The library ends an evaluation after 10,000 iterations of its loops, and does not count what one iteration does: `map`
copies the list that it has made so far for each item, a text is compared letter by letter, a call of one of
Kubernetes' functions converts its arguments. So the syntax tree is walked with the values: how often each call is made
at most, and how large its arguments can be. A cost is about the nanoseconds that a call takes at worst, on a machine of
2026; calls that allocate cost more, so that a budget is also at most some 300 MB of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onenode.apiserver.custom_resources.call_cost_rules import CALLS, FREE, ONE_OF, STEP, python_call
from onenode.apiserver.custom_resources.expression_syntax import (
    Call,
    Collection,
    Literal,
    Loop,
    NameReference,
    Selection,
    Syntax,
)
from onenode.apiserver.custom_resources.expression_value_rules import (
    SCALAR,
    ComputedValue,
    CostBudget,
    Either,
    ExpressionValue,
    Measuring,
    ObjectValue,
    made_list,
    weight_of,
)

ITERATIONS: Final = 10_000
"""The library ends an evaluation after this many iterations of its loops."""
EVALUATION: Final = 40_000
PER_VALUE: Final = 400
"""The cost of each value that an expression sees, because it is converted for the library."""
_ITERATION: Final = 300


class ExpressionValues:
    """The values of an expression's names. The weight of each is kept for the next expression."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._weights: dict[str, int] = {}

    def of(self, name: str) -> ExpressionValue | None:
        return ObjectValue((self._values[name],)) if name in self._values else None

    def weight(self, name: str, budget: CostBudget) -> int:
        if name not in self._weights:
            self._weights[name] = weight_of([self._values[name]], budget)
        return self._weights[name]


def spend_on(syntax: Syntax, values: ExpressionValues, budget: CostBudget) -> None:
    """Spend the highest cost of one evaluation; raise BudgetSpent if it is more than is left."""
    budget.spend(EVALUATION)
    _CostWalk(values, budget).value_of(syntax, 1)


class _CostWalk:
    """One walk of a syntax tree. `times` is the highest number of evaluations of a part."""

    def __init__(self, values: ExpressionValues, budget: CostBudget) -> None:
        self._values = values
        self._budget = budget
        self._measuring = Measuring(budget)
        self._bound: dict[str, ExpressionValue] = {}
        self._converted: set[str] = set()

    def value_of(self, syntax: Syntax, times: int) -> ExpressionValue:
        """Return the value of a part of the tree, after spending what it costs."""
        self._budget.spend(times * STEP)
        match syntax:
            case Literal(value):
                return SCALAR if value is None else ObjectValue((value,))
            case NameReference(name):
                return self._named(name) or SCALAR
            case Selection(operand, field):
                return self._measuring.field(self.value_of(operand, times), field)
            case Collection(parts):
                return Either(tuple(self.value_of(part, times) for part in parts))
            case Loop():
                return self._loop(syntax, times)
            case Call(function, arguments):
                return self._call(function, [self.value_of(each, times) for each in arguments], times)

    def _named(self, name: str) -> ExpressionValue | None:
        if name in self._bound:
            return self._bound[name]
        value = self._values.of(name)
        if value is not None and name not in self._converted:
            self._converted.add(name)
            self._budget.spend(self._values.weight(name, self._budget) * PER_VALUE)
        return value

    # ---- loops -------------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop, times: int) -> ExpressionValue:
        range_, initial = self.value_of(loop.range, times), self.value_of(loop.initial, times)
        items = min(self._measuring.length(range_), ITERATIONS)
        rounds = min(times * items, ITERATIONS)
        self._budget.spend(rounds * _ITERATION)
        outer = dict(self._bound)
        part = self._measuring.part(range_) if items else SCALAR
        self._bound |= dict.fromkeys(loop.variables, part)
        makes_list = loop.initial == Collection(()) and items > 0
        # A list is copied for each item that is added to it; on average half of them are there.
        self._bound[loop.accumulator] = ComputedValue(items // 2, 0, SCALAR) if makes_list else initial
        self.value_of(loop.condition, rounds)
        step = self.value_of(loop.step, rounds)
        if makes_list:
            item = self._measuring.part(step)
            self._bound[loop.accumulator] = made_list(items, item, self._measuring.weight(item))
        result = self.value_of(loop.result, times)
        self._bound = outer
        return result

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, function: str, arguments: list[ExpressionValue], times: int) -> ExpressionValue:
        if function in FREE or not arguments:
            return SCALAR
        if function in ONE_OF:
            return Either(tuple(arguments))
        if (call := CALLS.get(function)) is not None:
            cost, result = call(self._measuring, arguments)
        else:
            cost, result = python_call(self._measuring, arguments)
        self._budget.spend(cost * times)
        return result
