"""Estimate the cost of an expression before it is evaluated, so that none stops the server. Pure.

The library ends an evaluation after 10,000 iterations of its loops, and does not count what an iteration does: a call
of one of Kubernetes' functions converts its whole list, and texts grow with each `join`. So what an expression does
repeatedly makes the values that it sees more expensive. An estimate knows the values, and not what is made of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

BUDGET: Final = 1_000_000
"""The cost of all rules of one object, and of all expressions of one policy."""
TEXT_PER_VALUE: Final = 100
"""Characters that cost as much in a loop as a value."""
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(")
_OF_LISTS: Final = re.compile(r"\.\s*(?:isSorted|sum|min|max|indexOf|lastIndexOf)\s*\(|\bsets\s*\.")
_GROWING: Final = re.compile(r"\.\s*(?:replace|join)\s*\(")


@dataclass(frozen=True, slots=True)
class ValueExtent:
    """How much an expression may see."""

    values: int
    longest_list: int = 0
    longest_text: int = 0


def extent_of(*values: Any) -> ValueExtent:
    """Measure values, with all that they contain."""
    count, longest_list, longest_text = 0, 0, 0
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, str):
            longest_text = max(longest_text, len(value))
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            longest_list = max(longest_list, len(value))
            waiting.extend(value)
    return ValueExtent(count, longest_list, longest_text)


@dataclass(frozen=True, slots=True)
class ExpressionCost:
    loops: bool
    converts_in_loops: bool
    grows: bool

    @classmethod
    def of(cls, plain: str) -> ExpressionCost:
        """Read an expression whose quoted texts are blank."""
        loops = _LOOP.search(plain) is not None
        return cls(loops, loops and _OF_LISTS.search(plain) is not None, _GROWING.search(plain) is not None)

    def on(self, extent: ValueExtent) -> int:
        factor = 1
        if self.loops:
            factor = max(factor, extent.longest_text // TEXT_PER_VALUE)
        if self.converts_in_loops:
            factor = max(factor, extent.longest_list)
        if self.grows:
            factor = max(factor, extent.longest_text)
        return extent.values * factor
