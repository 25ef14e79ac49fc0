"""What may go wrong with a controller that runs alone, for `testing/explorer`'s `Bounds.only`."""

from __future__ import annotations

from collections.abc import Iterable

from conftest import SOAK
from orlop.testing.explorer.api_seam import CONFLICT, EVENT_FAULTS, NEVER, SERVER_ERROR
from orlop.testing.explorer.effects import DIES_AFTER, DIES_AND_LATE, DIES_BEFORE, LATE, LOST_AND_LATE, REPLY_LOST

WORST = (NEVER, LOST_AND_LATE, DIES_AFTER, DIES_AND_LATE)
"""The rest are milder forms of these: an event that comes twice or late, a reply lost after the effect, and so on."""
ALL = (*EVENT_FAULTS, REPLY_LOST, LATE, LOST_AND_LATE, DIES_BEFORE, DIES_AFTER, DIES_AND_LATE)


def faults_without_leases(acts: Iterable[str]) -> frozenset[str]:
    """Return the faults of a controller that needs no lease, and each act happening early.

    `make test` takes the worst faults, `make soak` all.
    """
    faults = {CONFLICT, *((fault.name for fault in ALL) if SOAK else (fault.name for fault in WORST))}
    return frozenset(faults | ({SERVER_ERROR} if SOAK else set()) | {f"before it: {act}" for act in acts})
