"""When a container that has ended may be started again: kubelet's back-off. Pure.

The first restart is immediate; after it 10 seconds must pass from each end to the next start, doubled each time, at
most five minutes. Who ran for more than ten minutes since the last restart begins anew. Whether a container may be
started again at all is asked elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 300.0
FORGOTTEN_AFTER: Final = 2 * LONGEST_SECONDS


@dataclass(frozen=True, slots=True)
class CrashBackoff:
    """`seconds` must pass from an end to the next start; `since` is when the last restart was allowed."""

    seconds: float
    since: float


@dataclass(frozen=True, slots=True)
class RestartNow:
    """And remember this for the next time."""

    backoff: CrashBackoff


@dataclass(frozen=True, slots=True)
class RestartLater:
    until: float
    backoff_seconds: float


def restart_decision(backoff: CrashBackoff | None, ended: float, now: float) -> RestartNow | RestartLater:
    """Instants are those of a clock that never goes back."""
    if backoff is None or ended - backoff.since > FORGOTTEN_AFTER:
        return RestartNow(CrashBackoff(FIRST_SECONDS, now))
    if now < ended + backoff.seconds:
        return RestartLater(ended + backoff.seconds, backoff.seconds)
    return RestartNow(CrashBackoff(min(LONGEST_SECONDS, backoff.seconds * 2), now))
