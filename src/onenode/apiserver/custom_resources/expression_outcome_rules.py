"""What an expression may come to, and how large that is: values of an object, or what the expression makes. Pure.

An expression is not evaluated here: a loop's variable stands for all items at once. Measuring reads the values, and
what that takes is spent from the same budget as the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

BUDGET: Final = 1_000_000_000
"""The cost of all rules of one object, and of all expressions of one policy for one write: about a second."""
LETTERS_PER_VALUE: Final = 256
"""Letters that cost as much to convert or compare as a value."""
_MEASURE: Final = 400
_VISIT: Final = 1_000
_MOST_ALTERNATIVES: Final = 16


class BudgetSpent(Exception):
    """More would be spent than is left."""


class CostBudget:
    def __init__(self, units: int = BUDGET) -> None:
        self.left = units

    def spend(self, cost: int) -> None:
        """Raise BudgetSpent."""
        self.left -= cost
        if self.left < 0:
            raise BudgetSpent


# ---- outcomes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """One of these values of the object, it is not known which."""

    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ComputedValue:
    """A value that the expression makes, with what it has at most: letters or items, and values with all inside it.

    `part` stands for each of its parts; where it is None, no part is larger than the whole.
    """

    length: int = 0
    weight: int = 1
    part: ExpressionValue | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several. Of a collection in the text, these are the parts."""

    outcomes: tuple[ExpressionValue, ...]


ExpressionValue = ObjectValue | ComputedValue | Either
SCALAR: Final = ComputedValue()


def text_weight(letters: int) -> int:
    return 1 + letters // LETTERS_PER_VALUE


def made_text(letters: int) -> ComputedValue:
    return ComputedValue(letters, text_weight(letters), SCALAR)


def made_list(length: int, part: ExpressionValue, weight_of_part: int) -> ComputedValue:
    return ComputedValue(length, 1 + length * weight_of_part, part)


def weight_of(values: Sequence[Any], budget: CostBudget) -> int:
    """Count values with all that they contain; raise BudgetSpent instead of counting more than a budget is for."""
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
    """Measures outcomes; raises BudgetSpent where that would take more than is left."""

    def __init__(self, budget: CostBudget) -> None:
        self.budget = budget

    def read(self, values: int) -> None:
        """Spend what it takes here to read so many values."""
        self.budget.spend(values * _MEASURE)

    def field(self, outcome: ExpressionValue, field: str) -> ExpressionValue:
        self.budget.spend(_VISIT)
        match outcome:
            case ObjectValue(values):
                self.read(len(values))
                # Where there is no such field, the evaluation ends here.
                return ObjectValue([each[field] for each in values if isinstance(each, dict) and field in each])
            case ComputedValue(_, _, part):
                return outcome if part is None else part
            case Either(outcomes):
                return self._either((*outcomes, *(self.field(each, field) for each in outcomes)))

    def part(self, outcome: ExpressionValue) -> ExpressionValue:
        """Return what stands for an item, a key or a value inside."""
        self.budget.spend(_VISIT)
        match outcome:
            case ObjectValue(values):
                parts = [part for value in values for part in _parts(value)]
                self.read(len(values) + len(parts))
                return ObjectValue(parts)
            case ComputedValue(_, _, part):
                return outcome if part is None else part
            case Either(outcomes):
                return self._either((*outcomes, *(self.part(each) for each in outcomes)))

    def _either(self, outcomes: tuple[ExpressionValue, ...]) -> ExpressionValue:
        """Return one outcome for several; of too many only the bounds are kept."""
        possible = tuple(each for each in outcomes if not isinstance(each, ObjectValue) or each.values)
        if len(possible) <= _MOST_ALTERNATIVES:
            return Either(possible)
        return ComputedValue(self.length(Either(possible)), sum(map(self.weight, possible)))

    def length(self, outcome: ExpressionValue) -> int:
        self.budget.spend(_VISIT)
        match outcome:
            case ObjectValue(values):
                self.read(len(values))
                return max((len(each) for each in values if isinstance(each, str | bytes | list | dict)), default=0)
            case ComputedValue(length, _, _):
                return length
            case Either(outcomes):
                return max([len(outcomes), *map(self.length, outcomes)])

    def weight(self, outcome: ExpressionValue) -> int:
        self.budget.spend(_VISIT)
        match outcome:
            case ObjectValue(values):
                return max((weight_of([each], self.budget) for each in values), default=1)
            case ComputedValue(_, weight, _):
                return weight
            case Either(outcomes):
                return 1 + sum(map(self.weight, outcomes))


def _parts(value: Any) -> Sequence[Any]:
    match value:
        case dict():
            return [*value, *value.values()]
        case list():
            return value
        case _:
            return ()
