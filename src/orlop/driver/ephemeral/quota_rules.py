"""Why a folder with limits may not be had, and which volumes may have left their quota. Pure.

A tenant can give its own files another number and write on uncounted. Whoever does that makes another number grow, by
the file at least: so a volume is looked through only when some number besides its own has grown since the last look.
On a quiet node that is never. A number that shrank just as much meanwhile would hide it, so now and then all are looked
through whatever the numbers say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LOOK_SECONDS: Final = 25.0
"""What left right after one look is found by the end of the next: well within a minute."""
ALL_EVERY_LOOKS: Final = 12


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts by one number."""

    bytes: int
    inodes: int


Counts = Mapping[int, Counted]
"""By number; what is not in it has nothing."""
NOTHING: Final = Counted(0, 0)


def why_refused(limited_by: Sequence[str], reason: str) -> str:
    """`limited_by` are the attributes and flags that the limits come from."""
    what = " and ".join(limited_by) or "the limits of the volume"
    return f"{what} cannot be held here, and nobody is left without a limit instead. {reason}"


def suspects(numbers: Mapping[str, int], before: Counts | None, now: Counts) -> frozenset[str]:
    """`numbers` are those of the volumes that have limits; `before` is None at the first look: then all are."""
    if before is None:
        return frozenset(numbers)
    grown = grown_numbers(before, now)
    return frozenset(volume_id for volume_id, number in numbers.items() if grown - {number})


def grown_numbers(before: Counts, now: Counts) -> frozenset[int]:
    """Those by which more bytes or more inodes count than before."""
    return frozenset(number for number, counted in now.items() if _is_more(counted, before.get(number, NOTHING)))


def _is_more(now: Counted, before: Counted) -> bool:
    return now.bytes > before.bytes or now.inodes > before.inodes
