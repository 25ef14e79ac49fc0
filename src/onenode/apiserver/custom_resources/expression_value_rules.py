"""The values that an expression can have, and how large they are, without evaluating it. Pure.

A value is one of the object's, or one that the expression creates. A loop's variable stands for all items at once.
Measuring reads values of the object; its cost is spent from the same budget as the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

BUDGET: Final = 1_000_000_000
"""The cost of all rules of one object, and of all expressions of one policy for one write: about a second."""
LETTERS_PER_VALUE: Final = 256
"""How many letters cost as much to convert or compare as one value."""
_MEASURE: Final = 400
_VISIT: Final = 1_000
_MOST_ALTERNATIVES: Final = 16


class BudgetSpent(Exception):
    """An evaluation would cost more than is left of its budget."""


class CostBudget:
    def __init__(self, units: int = BUDGET) -> None:
        self.left = units

    def spend(self, cost: int) -> None:
        """Raise BudgetSpent."""
        self.left -= cost
        if self.left < 0:
            raise BudgetSpent


# ---- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """One of several values of the object; the evaluation decides which."""

    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """A value that the expression creates, with upper bounds of its letters or items, and of its weight (`weight_of`).

    `part` stands for each of its parts; if it is None, no part is larger than the whole.
    """

    length: int = 0
    weight: int = 1
    part: ExpressionValue | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several values; for a list or map that is written in the expression, its parts."""

    options: tuple[ExpressionValue, ...]


ExpressionValue = ObjectValue | ComputedValue | Either
SCALAR: Final = ComputedValue()


def text_weight(letters: int) -> int:
    return 1 + letters // LETTERS_PER_VALUE


def made_text(letters: int) -> ComputedValue:
    return ComputedValue(letters, text_weight(letters), SCALAR)


def made_list(length: int, part: ExpressionValue, weight_of_part: int) -> ComputedValue:
    return ComputedValue(length, 1 + length * weight_of_part, part)


def weight_of(values: Sequence[Any], budget: CostBudget) -> int:
    """Count values with all that they contain; raise BudgetSpent if the counting costs more than is left."""
    weight, waiting = 0, list(values)
    while waiting:
        value = waiting.pop()
        weight += 1
        budget.spend(_MEASURE)
        if isinstance(value, str | bytes):
            weight += len(value) // LETTERS_PER_VALUE
        elif isinstance(value, dict):
            waiting.extend(value.values())
            weight += len(value)
        elif isinstance(value, list):
            waiting.extend(value)
    return weight


# ---- measuring -------------------------------------------------------------------------------------------------------


class Measuring:
    """Measure values; raise BudgetSpent if that costs more than is left."""

    def __init__(self, budget: CostBudget) -> None:
        self.budget = budget

    def read(self, values: int) -> None:
        """Spend the cost of reading this many values."""
        self.budget.spend(values * _MEASURE)

    def field(self, value: ExpressionValue, field: str) -> ExpressionValue:
        self.budget.spend(_VISIT)
        match value:
            case ObjectValue(values):
                self.read(len(values))
                # Where there is no such field, the evaluation ends here.
                return ObjectValue([each[field] for each in values if isinstance(each, dict) and field in each])
            case ComputedValue(_, _, part):
                return value if part is None else part
            case Either(options):
                return self._either((*options, *(self.field(each, field) for each in options)))

    def part(self, value: ExpressionValue) -> ExpressionValue:
        """Return a value that stands for each item, key and value inside."""
        self.budget.spend(_VISIT)
        match value:
            case ObjectValue(values):
                parts = [part for each in values for part in _parts(each)]
                self.read(len(values) + len(parts))
                return ObjectValue(parts)
            case ComputedValue(_, _, part):
                return value if part is None else part
            case Either(options):
                return self._either((*options, *(self.part(each) for each in options)))

    def _either(self, options: tuple[ExpressionValue, ...]) -> ExpressionValue:
        """Return one value for several; of too many only the upper bounds are kept."""
        possible = tuple(each for each in options if not isinstance(each, ObjectValue) or each.values)
        if len(possible) <= _MOST_ALTERNATIVES:
            return Either(possible)
        return ComputedValue(self.length(Either(possible)), sum(map(self.weight, possible)))

    def length(self, value: ExpressionValue) -> int:
        self.budget.spend(_VISIT)
        match value:
            case ObjectValue(values):
                self.read(len(values))
                return max((len(each) for each in values if isinstance(each, str | bytes | list | dict)), default=0)
            case ComputedValue(length, _, _):
                return length
            case Either(options):
                return max([len(options), *map(self.length, options)])

    def weight(self, value: ExpressionValue) -> int:
        self.budget.spend(_VISIT)
        match value:
            case ObjectValue(values):
                return max((weight_of([each], self.budget) for each in values), default=1)
            case ComputedValue(_, weight, _):
                return weight
            case Either(options):
                return 1 + sum(map(self.weight, options))


def _parts(value: Any) -> Sequence[Any]:
    match value:
        case dict():
            return [*value, *value.values()]
        case list():
            return value
        case _:
            return ()
