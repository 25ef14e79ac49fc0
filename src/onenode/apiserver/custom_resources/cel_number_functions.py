"""Kubernetes' functions of quantities and semantic versions in CEL.

The library takes no values of types of ours. So a quantity or a version is a map with one key, which no data has: its
canonical text, so that `==` compares what the text means. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from onenode.apiserver.custom_resources.cel_function import CelFunction, CelValue, function, holds, member, unwrapped
from orlop.foundation.quantity import NANOS_PER_UNIT, Quantity

QUANTITY: Final = "kubernetes.Quantity"
SEMVER: Final = "kubernetes.Semver"
LARGEST_INTEGER: Final = 2**63 - 1

_NUMBER: Final = "0|[1-9][0-9]*"
_PRE: Final = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PRE}(?:\.{_PRE})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


# ---- quantities ------------------------------------------------------------------------------------------------------


def _quantity(text: str) -> CelValue:
    return _of_nanos(Quantity.parse(text).nanos)


def _of_nanos(nanos: int) -> CelValue:
    return {QUANTITY: str(nanos)}


def _nanos(value: Any) -> int:
    """Return the billionths of a quantity, or of an integer."""
    return value * NANOS_PER_UNIT if isinstance(value, int) else int(unwrapped(value, QUANTITY))


def _is_integer(value: CelValue) -> bool:
    return not _nanos(value) % NANOS_PER_UNIT and abs(_nanos(value)) // NANOS_PER_UNIT <= LARGEST_INTEGER


def _as_integer(value: CelValue) -> int:
    if not _is_integer(value):
        raise ValueError("cannot convert value to integer")
    return _nanos(value) // NANOS_PER_UNIT


def _sign(value: CelValue) -> int:
    nanos = _nanos(value)
    return (nanos > 0) - (nanos < 0)


# ---- semantic versions -----------------------------------------------------------------------------------------------


def _semver(text: str, normalize: bool = False) -> CelValue:  # noqa: FBT001, FBT002 - as expressions call it
    match = _VERSION.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise ValueError(f"{text!r} is no semantic version")
    # What is behind a plus has no part in comparisons.
    return {SEMVER: match[0].partition("+")[0]}


def _normalized(text: str) -> str:
    """A leading v goes, zeros before numbers go, and a version may have fewer than three numbers."""
    parts = text.removeprefix("v").split(".", 2)
    if len(parts) < 3 and re.search("[+-]", parts[-1]):  # noqa: PLR2004 - major, minor and patch
        raise ValueError("a short version cannot contain a pre-release or build metadata")
    stripped = [re.sub("^0+(?=[0-9])", "", part) for part in parts]
    return ".".join([*stripped, "0", "0"][:3])


def _number(place: int) -> Callable[[CelValue], int]:
    def number(value: CelValue) -> int:
        return int(re.split("[.-]", unwrapped(value, SEMVER))[place])

    return number


def _precedence(text: str) -> tuple[Any, ...]:
    release, _, pre = text.partition("-")
    numbers = tuple(map(int, release.split(".")))
    identifiers = tuple((0, int(each), "") if each.isdecimal() else (1, 0, each) for each in pre.split("."))
    return (numbers, 0, identifiers) if pre else (numbers, 1, ())


# ---- comparing -------------------------------------------------------------------------------------------------------


def _compare(first: CelValue, second: CelValue) -> int:
    if SEMVER in first:
        a, b = (_precedence(unwrapped(each, SEMVER)) for each in (first, second))
        return (a > b) - (a < b)
    return (_nanos(first) > _nanos(second)) - (_nanos(first) < _nanos(second))


NUMBER_FUNCTIONS: Final[tuple[CelFunction, ...]] = (
    function("quantity", ["STRING"], "MAP", _quantity),
    function("isQuantity", ["STRING"], "BOOL", holds(_quantity)),
    member("isInteger", ["MAP"], "BOOL", _is_integer),
    member("asInteger", ["MAP"], "INT", _as_integer),
    member("asApproximateFloat", ["MAP"], "DOUBLE", lambda value: _nanos(value) / NANOS_PER_UNIT),
    member("sign", ["MAP"], "INT", _sign),
    *(member("add", ["MAP", other], "MAP", lambda a, b: _of_nanos(_nanos(a) + _nanos(b))) for other in ("MAP", "INT")),
    *(member("sub", ["MAP", other], "MAP", lambda a, b: _of_nanos(_nanos(a) - _nanos(b))) for other in ("MAP", "INT")),
    function("semver", ["STRING"], "MAP", _semver),
    function("semver", ["STRING", "BOOL"], "MAP", _semver),
    function("isSemver", ["STRING"], "BOOL", holds(_semver)),
    function("isSemver", ["STRING", "BOOL"], "BOOL", holds(_semver)),
    *(member(name, ["MAP"], "INT", _number(place)) for place, name in enumerate(("major", "minor", "patch"))),
    member("isLessThan", ["MAP", "MAP"], "BOOL", lambda a, b: _compare(a, b) < 0),
    member("isGreaterThan", ["MAP", "MAP"], "BOOL", lambda a, b: _compare(a, b) > 0),
    member("compareTo", ["MAP", "MAP"], "INT", _compare),
)
