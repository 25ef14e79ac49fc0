"""Render any value as text on one line, which can neither forge another line nor control a terminal.

Must never raise: a value that cannot be rendered becomes a note about that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TRACEBACK_LIMITS = 8  # a traceback may be as long as this number of values
LONGEST_CONTAINER = 100
DEEPEST_CONTAINER = 4
LARGEST_PRINTED_INT = 10**40
LONGEST_USUAL_MESSAGE = 100

# A text that begins with a digit is quoted, so that a reader can distinguish the text "1" from the number 1.
BARE_WORD = re.compile(r"(?!(?:true|false|null)$)[A-Za-z/_][A-Za-z0-9_./:@+%-]*")


class LongText(str):
    """A text, such as a traceback, that may be longer than other values."""

    __slots__ = ()


class Values:
    """Render any value as JSON on one line, or as a bare word where the text style allows it."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def as_text(self, value: object) -> str:
        if type(value) is str and len(value) <= self._limit and BARE_WORD.fullmatch(value):
            return value
        return self.as_json(value)

    def as_message(self, message: str) -> str:
        """Render a message as JSON. Cached, because messages are constants in source code."""
        known = len(message) <= min(self._limit, LONGEST_USUAL_MESSAGE)
        return _quoted_before(message) if known else self.as_json(message)

    def as_json(self, value: object, depth: int = 0) -> str:
        kind = type(value)
        if kind is str:
            return quoted(_shortened(value, self._limit))  # type: ignore[arg-type]
        if kind is int and -LARGEST_PRINTED_INT < value < LARGEST_PRINTED_INT:  # type: ignore[operator]
            return repr(value)
        if kind is float and math.isfinite(value):  # type: ignore[arg-type]
            return repr(value)
        if value is None or kind is bool:
            return "null" if value is None else "true" if value else "false"
        try:
            return self._uncommon(value, depth)
        except Exception as error:  # noqa: BLE001 - errors of the value's own methods must not reach the code that logs
            return quoted(f"<{kind.__name__} that cannot be shown: {type(error).__name__}>")

    def _uncommon(self, value: object, depth: int) -> str:
        if isinstance(value, LongText):
            return quoted(_shortened(value, self._limit * TRACEBACK_LIMITS))
        if isinstance(value, list | tuple | set | frozenset | Mapping) and depth < DEEPEST_CONTAINER:
            return self._container(value, depth + 1)
        return quoted(_shortened(_text_of(value), self._limit))

    def _container(self, value: Iterable[object], depth: int) -> str:
        if isinstance(value, Mapping):
            pairs = islice(value.items(), LONGEST_CONTAINER)
            rendered = "{" + ",".join(f"{quoted(_text_of(k))}:{self.as_json(v, depth)}" for k, v in pairs) + "}"
        else:
            items = [self.as_json(item, depth) for item in islice(value, LONGEST_CONTAINER)]
            rendered = "[" + ",".join(sorted(items) if isinstance(value, set | frozenset) else items) + "]"
        left_out = len(value) - LONGEST_CONTAINER  # type: ignore[arg-type]
        if left_out > 0:
            rendered = f"{rendered}…({left_out} more)"
        whole = left_out <= 0 and len(rendered) <= self._limit
        return rendered if whole else quoted(_shortened(rendered, self._limit))


def _text_of(value: object) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, bytes | bytearray):
        return repr(value)
    if type(value) is int and abs(value) >= LARGEST_PRINTED_INT:
        return hex(value)  # Python refuses to write very large ones in decimal
    return str(value)


def _shortened(text: str, limit: int) -> str:
    """Cut the middle of a long text: its beginning identifies it, and programs print errors at the end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}…({len(text) - 2 * half} characters left out)…{text[len(text) - half :]}"


def quoted(text: str) -> str:
    quoted = encode_basestring(text)
    if quoted.isprintable():
        return quoted
    # JSON allows characters that end a line or control a terminal: DEL, C1, U+2028, direction marks, lone surrogates.
    return "".join(character if character.isprintable() else json_escape(character) for character in quoted)


def json_escape(character: str | re.Match[str]) -> str:
    return json.dumps(character if isinstance(character, str) else character[0])[1:-1]


@lru_cache(maxsize=1024)
def _quoted_before(message: str) -> str:
    return quoted(message)
