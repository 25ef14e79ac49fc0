"""Parse and format Go durations ("1h30m", "100ms"), as in Kubernetes' flags and `metav1.Duration` fields.

A duration is a whole number of nanoseconds within an int64, as in Go: `timedelta` stops at microseconds and a float
loses digits, so neither would keep the value. Convert it to seconds where code waits. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

MICROSECOND = 1000
MILLISECOND = 1000 * MICROSECOND
SECOND = 1000 * MILLISECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

NANOSECONDS_OF = {
    "ns": 1,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,  # the micro sign
    "\u03bcs": MICROSECOND,  # the Greek letter, which looks the same
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
SHORTEST = -(2**63)
LONGEST = 2**63 - 1
MOST_CHARACTERS = 1000

# Matches wherever it begins, so that the parts found are the whole text; what is missing in one is found by its reader.
PART = re.compile(r"(?=.)([0-9]*)\.?([0-9]*)([^0-9.]*)", re.DOTALL)

WHAT_IS_ALLOWED = (
    'allowed is 0, or numbers each followed by one of h, m, s, ms, us, \u00b5s, ns, such as "1h30m" or "1.5s"'
)
IN_HOURS = frozenset({"d", "day", "days"})


class InvalidDuration(ValueError):
    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r} is not a duration: {why}; {WHAT_IS_ALLOWED}")


@dataclass(frozen=True, order=True, slots=True)
class Duration:
    nanoseconds: int

    def __post_init__(self) -> None:
        if not SHORTEST <= self.nanoseconds <= LONGEST:
            raise ValueError(f"{self.nanoseconds} nanoseconds are more than a duration can hold, which is 292 years")

    @classmethod
    def parse(cls, text: str) -> Duration:
        if len(text) > MOST_CHARACTERS:
            raise InvalidDuration(text[:20] + "…", f"it has {len(text)} characters, of at most {MOST_CHARACTERS}")
        magnitude = text[1:] if text[:1] in {"+", "-"} else text
        nanoseconds = 0 if magnitude == "0" else _sum_of_parts(magnitude, text)
        nanoseconds = -nanoseconds if text[:1] == "-" else nanoseconds
        if not SHORTEST <= nanoseconds <= LONGEST:
            raise InvalidDuration(text, "it is longer than the 292 years a duration can hold")
        return cls(nanoseconds)

    @classmethod
    def of(cls, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> Duration:
        """Round to the nearest nanosecond."""
        return cls(round(Fraction(hours) * HOUR + Fraction(minutes) * MINUTE + Fraction(seconds) * SECOND))

    @property
    def seconds(self) -> float:
        return self.nanoseconds / SECOND

    def timedelta(self) -> timedelta:
        """Return whole microseconds, rounded down."""
        microseconds = abs(self.nanoseconds) // MICROSECOND
        return timedelta(microseconds=microseconds if self.nanoseconds >= 0 else -microseconds)

    def __str__(self) -> str:
        sign = "-" if self.nanoseconds < 0 else ""
        magnitude = abs(self.nanoseconds)
        return sign + (_clock_text(magnitude) if magnitude >= SECOND else _small_text(magnitude))


def _sum_of_parts(magnitude: str, text: str) -> int:
    if not magnitude:
        raise InvalidDuration(text, "it has no number")
    return sum(_part(part[1], part[2], part[3], text) for part in PART.finditer(magnitude))


def _part(whole: str, fraction: str, unit: str, text: str) -> int:
    if not whole + fraction:
        raise InvalidDuration(text, f"there is no number before {unit!r}" if unit else "a point stands without digits")
    if not unit:
        raise InvalidDuration(text, f"there is no unit after {whole}{'.' if fraction else ''}{fraction}")
    if unit not in NANOSECONDS_OF:
        advice = " (days are written as hours: 72h for three of them)" if unit in IN_HOURS else ""
        raise InvalidDuration(text, f"{unit!r} is no unit{advice}")
    return int(whole or "0") * NANOSECONDS_OF[unit] + _fraction_of(fraction, NANOSECONDS_OF[unit])


def _fraction_of(digits: str, unit: int) -> int:
    """Parse a fraction as Go does: an int64 of digits, the rest in floats; "0.3333333333333333333h" is 20 minutes."""
    number, scale = 0, 1.0
    for digit in digits:
        if number > LONGEST // 10 or number * 10 + int(digit) > LONGEST + 1:
            break
        number, scale = number * 10 + int(digit), scale * 10
    return int(number * (unit / scale))


def _clock_text(nanoseconds: int) -> str:
    minutes, rest = divmod(nanoseconds, MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = _decimal(rest, SECOND) + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _small_text(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return "0s"
    if nanoseconds < MICROSECOND:
        return f"{nanoseconds}ns"
    if nanoseconds < MILLISECOND:
        return _decimal(nanoseconds, MICROSECOND) + "\u00b5s"
    return _decimal(nanoseconds, MILLISECOND) + "ms"


def _decimal(nanoseconds: int, unit: int) -> str:
    """Format a number of units, with as many decimals as needed."""
    whole, rest = divmod(nanoseconds, unit)
    places = len(str(unit)) - 1
    return f"{whole}.{rest:0{places}}".rstrip("0").rstrip(".")
