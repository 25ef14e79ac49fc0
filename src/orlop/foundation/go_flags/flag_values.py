"""Values of flags: parsers from text to value, and checks of values.

Each raises a ValueError that says what is allowed. Nothing here knows flags.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

LARGEST_INT64 = 2**63 - 1
SMALLEST_INT64 = -(2**63)

TRUE_SPELLINGS = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE_SPELLINGS = frozenset({"0", "f", "F", "false", "FALSE", "False"})
# Python's int() and float() also accept white space and digits of other scripts, which Go refuses.
INTEGER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<binary>(?:_?[01])+)|0[oO]?(?P<octal>(?:_?[0-7])+)"
    r"|(?P<decimal>0|[1-9](?:_?[0-9])*))"
)
BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
DIGITS = r"[0-9](?:_?[0-9])*"
DECIMAL_FLOAT = re.compile(rf"[+-]?(?:{DIGITS}(?:\.(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][+-]?{DIGITS})?")
HEX_DIGITS = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
HEX_FLOAT = re.compile(rf"[+-]?0[xX]_?(?:{HEX_DIGITS}(?:\.(?:{HEX_DIGITS})?)?|\.{HEX_DIGITS})[pP][+-]?{DIGITS}")
NAMED_FLOAT = re.compile(r"[+-]?inf(?:inity)?|nan", re.IGNORECASE)


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    """Parse as Go's ParseBool. A flag with this parser needs no value, and accepts one only after `=`."""
    if value in TRUE_SPELLINGS:
        return True
    if value in FALSE_SPELLINGS:
        return False
    raise ValueError("allowed are true, t, 1, false, f and 0")


def integer(value: str) -> int:
    """Parse as Go's ParseInt with base 0, in 64 bits: a leading 0 means octal."""
    match = INTEGER.fullmatch(value)
    if match is None:
        raise ValueError("allowed are whole numbers such as 10, -3, 1_000, 0x1f, 0o17 and 0b101")
    base, digits = next((BASES[name], match[name]) for name in BASES if match[name] is not None)
    number = int(match["sign"] + digits.replace("_", ""), base)
    if not SMALLEST_INT64 <= number <= LARGEST_INT64:
        raise ValueError("allowed are whole numbers that fit into 64 bits")
    return number


def floating(value: str) -> float:
    """Parse as Go's ParseFloat in 64 bits, including hexadecimal."""
    if NAMED_FLOAT.fullmatch(value):
        return float(value)
    if DECIMAL_FLOAT.fullmatch(value):
        return _finite(float(value))
    if HEX_FLOAT.fullmatch(value):
        return _finite(_from_hexadecimal(value.replace("_", "")))
    raise ValueError("allowed are numbers such as 5, 0.5, -1e3 and inf")


def _from_hexadecimal(value: str) -> float:
    try:
        return float.fromhex(value)
    except OverflowError:
        return math.inf


def _finite(number: float) -> float:
    if math.isinf(number):
        raise ValueError("allowed are numbers that fit into 64 bits")
    return number


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """Values separated by commas; a repeated flag adds to the list."""

    item: Callable[[str], T]

    def __call__(self, value: str) -> tuple[T, ...]:
        return tuple(self.item(part) for part in value.split(",")) if value else ()

    def merge(self, earlier: tuple[T, ...], later: tuple[T, ...]) -> tuple[T, ...]:
        return earlier + later


@dataclass(frozen=True, slots=True)
class MapOf(Generic[T]):
    """`key=value` pairs separated by commas, as in --feature-gates; a repeated flag adds to the map."""

    item: Callable[[str], T]
    sign: str = "="

    def __call__(self, value: str) -> Mapping[str, T]:
        return dict(self._pair(part.strip()) for part in value.split(",") if part.strip())

    def _pair(self, part: str) -> tuple[str, T]:
        key, sign, value = part.partition(self.sign)
        if not sign or not key.strip():
            raise ValueError(f"allowed are pairs key{self.sign}value separated by commas, and {part!r} is none")
        try:
            return key.strip(), self.item(value.strip())
        except ValueError as error:
            raise ValueError(f"for {key.strip()} {error}") from error

    def merge(self, earlier: Mapping[str, T], later: Mapping[str, T]) -> Mapping[str, T]:
        return {**earlier, **later}


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts exactly these texts."""

    def parse(value: str) -> str:
        if value in choices:
            return value
        raise ValueError(f"allowed are {', '.join(choices)}")

    return parse


def at_least(smallest: float) -> Callable[[float], str | None]:
    """Return a check for numbers."""
    return lambda number: None if number >= smallest else f"allowed is {smallest} or more"


def between(smallest: float, largest: float) -> Callable[[float], str | None]:
    """Return a check for numbers; both ends are allowed."""
    return lambda number: None if smallest <= number <= largest else f"allowed is {smallest} to {largest}"
