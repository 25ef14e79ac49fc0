"""Parse, compare, add and format Kubernetes quantities ("5Gi", "100m", "1e3"), in their canonical form.

A quantity is a whole number of billionths and the family of suffixes it was written with. What is finer than a
billionth is rounded away from zero; a quantity with a binary suffix ends at 2^63-1. Nothing here is a float.

As in Kubernetes, a binary quantity that no binary suffix divides is written without one, and read back as a decimal one
of the same value: 1.953125Ki becomes "2000", and that "2k".

The grammar and the canonical form are those the Go type documents; where its code differs by accident, we follow the
documentation, so that no value is lost or invented:
- A text without a digit ("Ki", ".") is refused; Go reads it as zero.
- `str()` is always canonical; Go repeats a few texts as they were written ("+5", "1.500", "1E6").
- `value()` is exact however large it is; Go's is zero or wraps around beyond an int64.
- A binary quantity beyond 2^63-1, which only adding makes, is written in decimal: its binary form would be read back as
  2^63-1.
- Texts of more than 1000 characters and quantities of 10^500 and more are refused: they have no use, and the digits of
  1e999999999 would fill the memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

MOST_CHARACTERS = 1000
MOST_DIGITS = 500
# Of a text this short, no larger exponent makes a quantity that is not refused, and no smaller one makes more than 1n.
ENOUGH_EXPONENT = 2 * MOST_CHARACTERS
LARGEST_BINARY = 2**63 - 1
# Below this a binary quantity is written in decimal, as Kubernetes does.
SMALLEST_BINARY_TEXT = 1024
NANOS_EXPONENT = -9
NANOS_PER_UNIT = 10**9

DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
DECIMAL_SUFFIX_OF_EXPONENT = {exponent: suffix for suffix, exponent in DECIMAL_SUFFIXES.items()}

NUMBER_AND_SUFFIX = re.compile(r"([+-]?)([0-9]*)\.?([0-9]*)(.*)", re.DOTALL)
EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)")

WHAT_IS_ALLOWED = (
    "allowed is a decimal number, followed by nothing, by one of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, "
    "or by an exponent such as e3"
)


class Format(Enum):
    """The family of suffixes of a quantity."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class InvalidQuantity(ValueError):
    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r} is not a quantity: {why}; {WHAT_IS_ALLOWED}")


@dataclass(frozen=True, order=True, slots=True)
class Quantity:
    """A quantity, compared by value: 1024 and 1Ki are equal, in different formats."""

    nanos: int
    format: Format = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Quantity:
        if len(text) > MOST_CHARACTERS:
            raise InvalidQuantity(text[:20] + "…", f"it has {len(text)} characters, of at most {MOST_CHARACTERS}")
        sign, whole, fraction, suffix = _split(text)
        multiplier, exponent, form = _meaning_of_suffix(suffix, text)
        nanos = _round_up(int(whole + fraction) * multiplier, exponent - len(fraction) - NANOS_EXPONENT)
        if nanos >= 10**MOST_DIGITS * NANOS_PER_UNIT:
            raise InvalidQuantity(text, f"it is larger than 10 to the power of {MOST_DIGITS}")
        if form is Format.BINARY_SI:
            nanos = min(nanos, LARGEST_BINARY * NANOS_PER_UNIT)
            if 0 < nanos < NANOS_PER_UNIT:
                form = Format.DECIMAL_SI  # no binary suffix can express it
        return cls(-nanos if sign == "-" else nanos, form)

    @classmethod
    def of(cls, value: int, form: Format = Format.BINARY_SI) -> Quantity:
        return cls(value * NANOS_PER_UNIT, form)

    def value(self) -> int:
        """Return the whole number of units, such as bytes, rounded away from zero."""
        units = -(-abs(self.nanos) // NANOS_PER_UNIT)
        return units if self.nanos >= 0 else -units

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos + other.nanos, self._format_beside(other))

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nanos - other.nanos, self._format_beside(other))

    def __str__(self) -> str:
        if self.format is Format.BINARY_SI and self._can_be_written_in_binary():
            return _binary_text(self.value())
        return _decimal_text(self.nanos, with_suffix=self.format is not Format.DECIMAL_EXPONENT)

    def _format_beside(self, other: Quantity) -> Format:
        return self.format if self.nanos else other.format

    def _can_be_written_in_binary(self) -> bool:
        units, rest = divmod(abs(self.nanos), NANOS_PER_UNIT)
        return rest == 0 and SMALLEST_BINARY_TEXT <= units <= LARGEST_BINARY


def _split(text: str) -> tuple[str, str, str, str]:
    match = NUMBER_AND_SUFFIX.fullmatch(text)
    if match is None or not match[2] + match[3]:
        raise InvalidQuantity(text, "it does not begin with a number")
    return match[1], match[2], match[3], match[4]


def _meaning_of_suffix(suffix: str, text: str) -> tuple[int, int, Format]:
    """Return the suffix's factor, power of ten, and format."""
    if suffix in DECIMAL_SUFFIXES:
        return 1, DECIMAL_SUFFIXES[suffix], Format.DECIMAL_SI
    if suffix in BINARY_SUFFIXES:
        return 1 << BINARY_SUFFIXES[suffix], 0, Format.BINARY_SI
    if match := EXPONENT.fullmatch(suffix):
        exponent = max(-ENOUGH_EXPONENT, min(int(match[1]), ENOUGH_EXPONENT))
        return 1, exponent, Format.DECIMAL_EXPONENT
    raise InvalidQuantity(text, f"{suffix!r} is no suffix")


def _round_up(number: int, exponent: int) -> int:
    """Return the number times ten to the exponent, rounded up."""
    power: int = 10 ** abs(exponent)
    return number * power if exponent >= 0 else -(-number // power)


def _binary_text(units: int) -> str:
    for suffix, bits in reversed(BINARY_SUFFIXES.items()):
        if units % (1 << bits) == 0:
            return f"{units >> bits}{suffix}"
    return str(units)


def _decimal_text(nanos: int, *, with_suffix: bool) -> str:
    if nanos == 0:
        return "0"
    number, exponent = nanos, NANOS_EXPONENT
    while number % 1000 == 0:
        number, exponent = number // 1000, exponent + 3
    if exponent == 0 or (with_suffix and exponent in DECIMAL_SUFFIX_OF_EXPONENT):
        return f"{number}{DECIMAL_SUFFIX_OF_EXPONENT[exponent]}"
    return f"{number}e{exponent}"
