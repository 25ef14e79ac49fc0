r"""Estimate the cost of a search for a regular expression. Pure.

RE2 is linear in the text, and here it compiles for each search. Costs are about nanoseconds. A class of letters such
as `\pL` takes half a millisecond to compile, and each repetition copies it: `[\pL]{300}` takes 170 ms for each text.
For each letter of the text RE2 may have to move in every place of the pattern at once: `x[xy]{900}c` takes 30
microseconds for a letter. RE2 refuses a pattern that needs more memory than it has, so that none takes much longer to
compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SEARCH: Final = 20_000
_MOST_TO_COMPILE: Final = 250_000_000
_PLAIN: Final = 300
_ANY: Final = 10_000
_UNICODE: Final = 700_000
_PER_LETTER: Final = 10
_PER_LETTER_AND_PLACE: Final = 35
_PLACES_OF_UNICODE: Final = 50
_TOKENS: Final = re.compile(
    r"(?P<text>\\Q.*?(?:\\E|$))|(?P<unicode>\\[pP](?:\{[^}]*\}|.)?)|(?P<escape>\\.)|(?P<group>\()|(?P<end>\))"
    r"|(?P<class>\[\^?\]?(?:\[:\^?[a-z]+:\]|\\[pP]\{[^}]*\}|\\.|[^\]])*\]?)"
    r"|(?P<repeated>\{(?P<least>\d+)(?P<most>,\d*)?\})|(?P<any>.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PatternCost:
    """The time to compile a pattern, and how many places it has when its repetitions are written out."""

    compiling: int
    places: int

    @classmethod
    def of(cls, pattern: str) -> PatternCost:
        return cls(_SEARCH + min(_total(pattern, _time_to_compile), _MOST_TO_COMPILE), _total(pattern, _places))

    def of_search(self, letters: int) -> int:
        """Return the cost of compiling the pattern and searching a text for it."""
        return self.compiling + self.of_letters(letters)

    def of_letters(self, letters: int) -> int:
        """Return the cost of reading the letters of a text."""
        return letters * (_PER_LETTER + self.places * _PER_LETTER_AND_PLACE)


UNKNOWN_PATTERN: Final = PatternCost(_MOST_TO_COMPILE, 10_000)
"""The cost of a pattern that is known only when the search begins."""
NO_PATTERN: Final = PatternCost(_SEARCH, 0)


def _total(pattern: str, cost_of: Callable[[re.Match[str]], int]) -> int:
    """Add up what the parts of a pattern cost, each as often as it is repeated."""
    outside: list[int] = []
    total, last = 0, 0
    for token in _TOKENS.finditer(pattern):
        if token["group"] is not None:
            outside.append(total)
            total = last = 0
        elif token["end"] is not None:
            # RE2 refuses a pattern that closes a group which it did not open.
            last, total = total, total + (outside.pop() if outside else 0)
        elif token["repeated"] is not None:
            times = max(int(token["least"]), int((token["most"] or "")[1:] or 0), 1)
            total += last * (times - 1)
            last *= times
        else:
            last = cost_of(token)
            total += last
    return total + sum(outside)


def _time_to_compile(token: re.Match[str]) -> int:
    text = token[0]
    if token["unicode"] is not None:
        return _UNICODE
    if token["text"] is not None:
        return len(text) * _PLAIN
    if token["escape"] is not None:
        return _ANY if text[1] in "WSDC" else _PLAIN
    if token["class"] is not None:
        return _time_of_class(text)
    return _PLAIN if text.isascii() and text != "." else _ANY


def _time_of_class(text: str) -> int:
    unicode = len(re.findall(r"\\[pP]", text)) * _UNICODE
    is_wide = text.startswith("[^") or not text.isascii() or re.search(r"\\[WSDx]|:\^", text) is not None
    return unicode + (_ANY + len(text) * _PLAIN * 10 if is_wide else _PLAIN + len(text) * 10)


def _places(token: re.Match[str]) -> int:
    if token["unicode"] is not None or (token["class"] is not None and re.search(r"\\[pP]", token[0])):
        return _PLACES_OF_UNICODE
    return len(token[0]) if token["text"] is not None else 1
