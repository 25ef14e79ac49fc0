"""How long ago something was, in kubectl's words: `45s`, `3m20s`, `25h`, `9d`. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orlop.kube.objects import InvalidTime, read_time

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


# Up to so many seconds: the unit that is counted, and the smaller one that still tells something beside it.
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
