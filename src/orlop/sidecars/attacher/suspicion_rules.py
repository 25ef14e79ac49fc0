"""When a difference between what a driver lists and what an object says is acted upon. Pure.

Not at the first look: the object may have changed while the driver made its list. Where that does not help, what the
driver has and nobody says is attached is acted upon at every look from then on. What it lacks waits for twice as many
looks each time: a list that is wrong for good would have all volumes attached anew every minute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

FIRST_LOOKS: Final = 2
MOST_LOOKS: Final = 8


@dataclass(frozen=True, slots=True)
class Suspect:
    uid: str
    said: bool
    """Whether the driver says that it is published; the object says otherwise."""
    looks: int = 1
    """In a row at which it was so, since it was acted upon."""
    enough: int = FIRST_LOOKS

    @property
    def is_due(self) -> bool:
        return self.looks == self.enough


def suspected(before: Suspect | None, uid: str, *, said: bool) -> Suspect:
    """`before` is how it was at the look before, where it differed then."""
    if before is None or (before.uid, before.said) != (uid, said):
        return Suspect(uid, said)
    if before.is_due:
        return Suspect(uid, said, enough=1 if said else min(2 * before.enough, MOST_LOOKS))
    return replace(before, looks=before.looks + 1)
