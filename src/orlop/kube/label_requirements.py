"""One requirement of a label selector, with the API server's errors for invalid ones. Pure.

Errors are worded as the API server's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value, invalid_value


class InvalidSelector(ValueError):
    """An invalid selector; the message is that of the API server's 400."""


class Operator(Enum):
    IN = "in"
    NOT_IN = "notin"
    EQUALS = "="
    NOT_EQUALS = "!="
    GREATER = ">"
    LESS = "<"
    EXISTS = "exists"
    NOT_EXISTS = "!"


SETS: Final = frozenset({Operator.IN, Operator.NOT_IN})
UNARY: Final = frozenset({Operator.EXISTS, Operator.NOT_EXISTS})
COMPARISONS: Final = frozenset({Operator.GREATER, Operator.LESS})
NEGATION: Final[Mapping[Operator, Operator]] = {
    Operator.IN: Operator.NOT_IN,
    Operator.NOT_IN: Operator.IN,
    Operator.EQUALS: Operator.NOT_EQUALS,
    Operator.NOT_EQUALS: Operator.EQUALS,
    Operator.EXISTS: Operator.NOT_EXISTS,
    Operator.NOT_EXISTS: Operator.EXISTS,
}
LARGEST_INT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on one label. Values are sorted and unique; invalid ones raise `InvalidSelector`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))
        faults = list(_faults(self.key, self.operator, self.values))
        if faults:
            raise InvalidSelector(faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]")

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN | Operator.EQUALS:
                return value in self.values
            case Operator.NOT_IN | Operator.NOT_EQUALS:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.NOT_EXISTS:
                return value is None
            case Operator.GREATER | Operator.LESS:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or (number := _int64(value)) is None:
            return False
        limit = int(self.values[0])
        return number > limit if self.operator is Operator.GREATER else number < limit

    def negated(self) -> Requirement:
        """Return the negation. A comparison has none: it also fails where the label is missing."""
        if self.operator not in NEGATION:
            raise ValueError(f"there is no requirement that matches exactly what {self} does not")
        return Requirement(self.key, NEGATION[self.operator], self.values)

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.NOT_EXISTS:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({','.join(self.values)})"
            case _:
                return f"{self.key}{self.operator.value}{self.values[0]}"


def _faults(key: str, operator: Operator, values: tuple[str, ...]) -> Iterator[str]:
    if key_faults := faults_of_label_key(key):
        yield invalid_value("key", key, key_faults)
    if operator in SETS and not values:
        yield "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
    elif operator in UNARY and values:
        yield f"values: Invalid value: {_json(values)}: values set must be empty for exists and does not exist"
    elif operator not in SETS | UNARY and len(values) != 1:
        yield f"values: Invalid value: {_json(values)}: {_one_value(operator)}"
    for index, value in enumerate(values):
        if operator in COMPARISONS and _int64(value) is None:
            text = "for 'Gt', 'Lt' operators, the value must be an integer"
            yield invalid_value(f"values[{index}]", value, (text,))
        if value_faults := faults_of_label_value(value):
            yield invalid_value(f"values[{index}][{key}]", value, value_faults)


def _one_value(operator: Operator) -> str:
    if operator in COMPARISONS:
        return "for 'Gt', 'Lt' operators, exactly one value is required"
    return "exact-match compatibility requires one single value"


def _json(values: tuple[str, ...]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def _int64(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,4000}", text):
        return None
    number = int(text)
    return number if -LARGEST_INT - 1 <= number <= LARGEST_INT else None
