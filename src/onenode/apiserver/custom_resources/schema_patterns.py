"""Regular expressions of schemas and rules, in Go's dialect, searched for in time linear in the text. Pure.

Python's `re` backtracks: `^(a+)+$` and a text of forty letters would stop the whole server for hours, and clients who
may only create objects choose the text. Go's dialect is that of RE2, which the CEL library contains. The library is
imported with the first pattern; a search takes 10 microseconds, or as long as the pattern takes to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from onenode.apiserver.custom_resources.pattern_cost_rules import PatternCost

_ENVIRONMENT: Final = """
name: patterns
extensions: [{name: optional}, {name: regex}]
variables:
- {name: text, type_name: string}
- {name: pattern, type_name: string}
- {name: marked, type_name: string}
- {name: limit, type_name: int}
"""
_PRIVATE_USE: Final = range(0xE000, 0xF900)


class InvalidSchemaPattern(ValueError):
    """A regular expression that cannot be compiled, with RE2's reason."""


@dataclass(frozen=True, slots=True)
class SchemaPattern:
    """A pattern that has been compiled once, so that it is known to be valid."""

    text: str

    @classmethod
    def of(cls, text: str) -> SchemaPattern:
        """Raise InvalidSchemaPattern."""
        pattern = cls(text)
        pattern.is_in("")
        return pattern

    def is_in(self, value: str) -> bool:
        result = _program("text.matches(pattern)").eval(data={"text": value, "pattern": self.text})
        return bool(_value(result, bool))

    def cost_in(self, value: str) -> int:
        """Return about how many nanoseconds a search takes at most."""
        return _cost(self.text).of_search(len(value))


def found_in(text: str, pattern: str, limit: int = -1) -> Sequence[str]:
    """Return the matches of a pattern in turn, all of them where the limit is negative. Raise InvalidSchemaPattern."""
    # Of the library's functions only this one sees the whole text for each match, and so knows where the text begins.
    # It puts each match between two letters that the text does not have.
    begin, end = _letters_absent_from(text)
    data = {"text": text, "pattern": pattern, "marked": f"{begin}\\0{end}", "limit": max(limit, -1)}
    replaced = _value(_program("regex.replace(text, pattern, marked, limit)").eval(data=data), str)
    return [piece.partition(end)[0] for piece in replaced.split(begin)[1:]]


def _letters_absent_from(text: str) -> tuple[str, str]:
    present = set(text)
    absent = (letter for number in _PRIVATE_USE if (letter := chr(number)) not in present)
    begin, end = next(absent, ""), next(absent, "")
    if not end:
        raise ValueError("the text has all letters for private use, so no pattern can be searched for")
    return begin, end


def _value(result: Any, type_: type) -> Any:
    value = result.plain_value()
    # An error is a value, too: its text.
    if isinstance(value, type_) and result.type().name() != "ERROR":
        return value
    raise InvalidSchemaPattern(str(result).partition("invalid regular expression: ")[2] or str(result))


@cache
def _cost(pattern: str) -> PatternCost:
    return PatternCost.of(pattern)


@cache
def _program(expression: str) -> Any:
    # 14 MB that servers without patterns and rules do not need.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # noqa: PLC0415

    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT)).compile(expression)
