"""When an operation on a volume may be tried again: by its key and its name, as kubelet counts it. Pure.

A key names a volume, and perhaps one pod; one without a pod matches every pod. A failed operation holds back those of
the same name that match its key; any other one clears the delay and runs, so that a pod that goes is unmounted at once
though its mount kept failing. What fails before anything was begun is looked at again soon, and never doubled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_DELAY: Final = 0.5
FACTOR: Final = 2.0
LONGEST_DELAY: Final = 122.0
LOOK_AGAIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Attempt:
    """`pod_uid` is empty for an operation on the volume as a whole."""

    name: str
    pod_uid: str = ""

    def matches(self, other: Attempt) -> bool:
        return not self.pod_uid or not other.pod_uid or self.pod_uid == other.pod_uid


@dataclass(frozen=True, slots=True)
class Failed:
    attempt: Attempt
    delay: float
    until: float


Failures = tuple[Failed, ...]
"""Of one volume."""


def held_until(failures: Failures, attempt: Attempt) -> float:
    """The instant from which it may run; 0 if nothing holds it back."""
    held = _matching(failures, attempt)
    return held.until if held is not None and held.attempt.name == attempt.name else 0.0


def after_start(failures: Failures, attempt: Attempt, now: float) -> Failures:
    """Another operation during the delay clears it; once it has passed, the record stays as it is."""
    held = _matching(failures, attempt)
    if held is None or held.attempt.name == attempt.name or now >= held.until:
        return failures
    return _without(failures, held)


def after_failure(failures: Failures, attempt: Attempt, now: float) -> Failures:
    held = _matching(failures, attempt)
    delay = FIRST_DELAY if held is None or not held.delay else min(LONGEST_DELAY, held.delay * FACTOR)
    return (*_without(failures, held), Failed(attempt, delay, now + delay))


def after_unprepared(failures: Failures, attempt: Attempt, now: float) -> Failures:
    held = _matching(failures, attempt)
    return (*_without(failures, held), Failed(attempt, 0.0, now + LOOK_AGAIN))


def after_success(failures: Failures, attempt: Attempt) -> Failures:
    return _without(failures, _matching(failures, attempt))


def _matching(failures: Failures, attempt: Attempt) -> Failed | None:
    return next((failed for failed in failures if failed.attempt.matches(attempt)), None)


def _without(failures: Failures, gone: Failed | None) -> Failures:
    return tuple(failed for failed in failures if failed is not gone)
