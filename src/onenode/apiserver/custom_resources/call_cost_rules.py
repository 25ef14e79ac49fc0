"""Estimate the cost and the result of each function and operator from the sizes of its arguments. Pure.

Measured with cel-expr-python 0.1.3, whose lists are copied whole when an item is added, and rounded up. A function that
is not in `CALLS` is one of Kubernetes' own, written in Python: its arguments are converted for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from onenode.apiserver.custom_resources.expression_value_rules import (
    LETTERS_PER_VALUE,
    SCALAR,
    ComputedValue,
    Either,
    ExpressionValue,
    Measuring,
    ObjectValue,
    made_text,
    text_weight,
)
from onenode.apiserver.custom_resources.pattern_cost_rules import NO_PATTERN, UNKNOWN_PATTERN, PatternCost

STEP: Final = 100
_PER_LETTER: Final = 4
_PER_COPIED_ITEM: Final = 100
_PER_COMPARED_VALUE: Final = 80
_PYTHON_CALL: Final = 3_000
_PER_CONVERTED_VALUE: Final = 600
_PER_PIECE: Final = 250

CallCost = Callable[[Measuring, list[ExpressionValue]], tuple[int, ExpressionValue]]

FREE: Final = frozenset(
    {
        *("_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "@not_strictly_false", "__not_strictly_false__"),
        *("has", "hasValue", "optional.none", "type"),
    }
)
ONE_OF: Final = frozenset(
    {"_?_:_", "optional.of", "optional.ofNonZeroValue", "value", "or", "orValue", "dyn", "math.@max", "math.@min"}
)


def python_call(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate one of Kubernetes' functions, or an unknown one, which reads all of its arguments."""
    weight, length = sum(map(measuring.weight, arguments)), sum(map(measuring.length, arguments))
    cost = _PYTHON_CALL + weight * _PER_CONVERTED_VALUE + length * _PER_LETTER
    return cost, ComputedValue(length + 1, weight + length + 1)


def _set_call(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate a function of sets: items that have no hash are compared each with each."""
    cost, result = python_call(measuring, arguments)
    first, second = arguments
    item = min(measuring.weight(measuring.part(first)), measuring.weight(measuring.part(second)))
    pairs = measuring.length(first) * measuring.length(second) if item > 1 else 0
    return cost + pairs * item * _PER_COMPARED_VALUE, result


def _comparison(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    return min(map(measuring.weight, arguments)) * _PER_COMPARED_VALUE, SCALAR


def _membership(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    item, collection = arguments
    part = min(measuring.weight(item), measuring.weight(measuring.part(collection)))
    return measuring.length(collection) * part * _PER_COMPARED_VALUE, SCALAR


def _addition(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    length, weight = sum(map(measuring.length, arguments)), sum(map(measuring.weight, arguments))
    per_part = _PER_LETTER if all(map(_is_text, arguments)) else _PER_COPIED_ITEM
    return length * per_part, ComputedValue(length, weight, Either(tuple(measuring.part(each) for each in arguments)))


def _is_text(value: ExpressionValue) -> bool:
    match value:
        case ObjectValue(values):
            return not any(isinstance(each, list | dict) for each in values)
        case ComputedValue(_, _, part):
            return part is SCALAR
        case Either(_):
            return False


def _selection(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    operand, key = arguments
    match key:
        case ObjectValue([str(field)]):
            return STEP, measuring.field(operand, field)
        case _:
            return STEP, measuring.part(operand)


def _size(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    return measuring.length(arguments[0]), SCALAR


def _search(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate `contains` and similar functions: at worst a text is compared at each letter, a list item by item."""
    cost, _ = python_call(measuring, arguments[:2])
    text, part = arguments[:2]
    return cost + measuring.length(text) * (1 + measuring.length(part) // 64) * _PER_LETTER, SCALAR


def _prefix(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    return text_weight(measuring.length(arguments[1])) * _PER_COMPARED_VALUE, SCALAR


def _text(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate a function that reads a text, and makes one that is no longer, or with escapes twice as long."""
    length = measuring.length(arguments[0])
    return STEP + length * 2 * _PER_LETTER, made_text(2 * length)


def _quoted(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    length = measuring.length(arguments[0])
    return length * _PER_PIECE, made_text(2 * length + 2)


def _pattern_search(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    return _pattern_cost(measuring, arguments[1]).of_search(measuring.length(arguments[0])), SCALAR


def _pattern_cost(measuring: Measuring, pattern: ExpressionValue) -> PatternCost:
    match pattern:
        case ObjectValue(values):
            texts = [each for each in values if isinstance(each, str)]
            measuring.read(sum(map(len, texts)))
            costs = [PatternCost.of(each) for each in texts]
            return max(costs, key=lambda cost: (cost.compiling, cost.places), default=NO_PATTERN)
        case _:
            return UNKNOWN_PATTERN


def _find(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    cost, _ = _pattern_search(measuring, arguments)
    calling, _ = python_call(measuring, arguments)
    return cost + calling, made_text(measuring.length(arguments[0]))


def _find_all(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate a search for all matches, each of which may read the rest of the text."""
    cost, text = _find(measuring, arguments)
    length = measuring.length(text) + 1
    again = length * _pattern_cost(measuring, arguments[1]).of_letters(length) // 2
    return cost + again + length * _PER_CONVERTED_VALUE, ComputedValue(length, 1 + length, made_text(length))


def _split(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    length = measuring.length(arguments[0]) + 1
    return length * _PER_PIECE, ComputedValue(length, 1 + length, made_text(length))


def _replace(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    text, old, new = (measuring.length(each) for each in arguments[:3])
    letters = text + (text // max(1, _shortest(old, arguments[1])) + 1) * new
    return text * _PER_PIECE + letters * _PER_LETTER, made_text(letters)


def _shortest(longest: int, value: ExpressionValue) -> int:
    """Return the least length of a value, which is known only if a single value is possible."""
    return longest if isinstance(value, ObjectValue) and len(value.values) == 1 else 0


def _join(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    items = measuring.length(arguments[0])
    longest = measuring.length(measuring.part(arguments[0])) + sum(map(measuring.length, arguments[1:]))
    letters = min(items * longest, measuring.weight(arguments[0]) * (LETTERS_PER_VALUE + longest))
    return items * STEP + letters * 2 * _PER_LETTER, made_text(letters)


def _format(measuring: Measuring, arguments: list[ExpressionValue]) -> tuple[int, ExpressionValue]:
    """Estimate `format`: each clause prints one argument, or a number with as many digits as the clause states."""
    clauses = measuring.length(arguments[0]) // 2 + 1
    letters = measuring.length(arguments[0]) + clauses * (1_000 + measuring.weight(arguments[1]) * LETTERS_PER_VALUE)
    return letters * _PER_LETTER, made_text(letters)


CALLS: Final[Mapping[str, CallCost]] = {
    **dict.fromkeys(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"), _comparison),
    **dict.fromkeys(("@in", "_in_", "in"), _membership),
    **dict.fromkeys(("_[_]", "_?._", "_[?_]"), _selection),
    **dict.fromkeys(("contains", "indexOf", "lastIndexOf"), _search),
    **dict.fromkeys(("startsWith", "endsWith"), _prefix),
    **dict.fromkeys(
        ("lowerAscii", "upperAscii", "trim", "reverse", "substring", "charAt", "string", "bytes"),
        _text,
    ),
    **dict.fromkeys(("sets.contains", "sets.equivalent", "sets.intersects"), _set_call),
    "_+_": _addition,
    "size": _size,
    "matches": _pattern_search,
    "strings.quote": _quoted,
    "find": _find,
    "findAll": _find_all,
    "split": _split,
    "replace": _replace,
    "join": _join,
    "format": _format,
}
