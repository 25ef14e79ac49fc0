"""Regular expressions of schemas, in Go's dialect, searched for in time linear in the text. Pure.

Python's `re` backtracks: `^(a+)+$` and a text of forty letters would stop the whole server for hours, and clients who
may only create objects choose the text. Go's dialect is that of RE2, which the CEL library contains. The library is
imported with the first pattern; a search takes 20 microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


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
        result = _search().eval(data={"value": value, "pattern": self.text})
        found = result.plain_value()
        if isinstance(found, bool):
            return found
        raise InvalidSchemaPattern(str(result).partition("invalid regular expression: ")[2] or str(result))


@cache
def _search() -> Any:
    # 14 MB that servers without patterns and rules do not need.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # noqa: PLC0415

    variables = dict.fromkeys(("value", "pattern"), cel.Type.STRING)
    return cel.NewEnv(variables=variables).compile("value.matches(pattern)")
