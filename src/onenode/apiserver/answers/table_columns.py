"""The columns and cells that all tables share, with ages as kubectl writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from orlop.kube.objects import InvalidTime, metadata, read_time

UNKNOWN: Final = "<unknown>"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
YEAR: Final = 365 * DAY


def age_text(when: object, now: datetime) -> str:
    if not isinstance(when, str) or not when:
        return UNKNOWN
    try:
        seconds = int((now - read_time(when)).total_seconds())
    except InvalidTime:
        return UNKNOWN
    # Clocks of two machines differ a little; more than that is no age.
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    return duration_text(seconds)


# For durations up to this many seconds: the unit to print, and the smaller unit that is printed beside it, if any.
_WORDING: Final = (
    (2 * MINUTE, (1, "s"), None),
    (10 * MINUTE, (MINUTE, "m"), (1, "s")),
    (3 * HOUR, (MINUTE, "m"), None),
    (8 * HOUR, (HOUR, "h"), (MINUTE, "m")),
    (2 * DAY, (HOUR, "h"), None),
    (8 * DAY, (DAY, "d"), (HOUR, "h")),
    (2 * YEAR, (DAY, "d"), None),
    (8 * YEAR, (YEAR, "y"), (DAY, "d")),
)


def duration_text(seconds: int) -> str:
    for limit, (length, unit), smaller in _WORDING:
        if seconds < limit:
            rest = seconds % length // smaller[0] if smaller else 0
            return f"{seconds // length}{unit}" + (f"{rest}{smaller[1]}" if smaller and rest else "")
    return f"{seconds // YEAR}y"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of priority 1 is shown by `kubectl get -o wide` alone."""

    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


def column(name: str) -> Column:
    return Column(name)


def wide(name: str) -> Column:
    return Column(name, priority=1)


def integer(name: str, priority: int = 0) -> Column:
    return Column(name, "integer", priority=priority)


def bool_column(name: str) -> Column:
    return Column(name, "boolean")


def date_column(name: str) -> Column:
    return Column(name, "date")


NAME: Final = Column("Name", format="name")
AGE: Final = column("Age")
UNSET: Final = "<unset>"


def name_cell(obj: Mapping[str, Any]) -> str:
    return str(metadata(obj).get("name", ""))


def age_cell(obj: Mapping[str, Any], now: datetime) -> str:
    return age_text(metadata(obj).get("creationTimestamp"), now)


def value_at(obj: Mapping[str, Any], *path: str) -> Any:
    found: Any = obj
    for part in path:
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


def text_at(obj: Mapping[str, Any], *path: str, empty: str = "") -> str:
    found = value_at(obj, *path)
    return empty if found in (None, "") else str(found)
