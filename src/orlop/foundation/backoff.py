"""Compute the delay before the next attempt: exponential, with a cap and random jitter. Pure.

It neither counts failures, nor sleeps, nor has its own random source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

# Floats count exactly up to this; more failures change nothing.
MOST_FAILURES = 2**53


@dataclass(frozen=True)
class Backoff:
    """In seconds: `initial` after the first failure, `factor` times as long after each further one, at most `cap`.

    `jitter` is the largest part of the delay that is added at random, so that clients that failed together do not retry
    together. It only adds: a delay is never shorter than `initial`, nor longer than `cap * (1 + jitter)`.
    """

    initial: float
    factor: float
    cap: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.cap < math.inf:
            raise ValueError(f"the first delay ({self.initial}) must be above 0 and at most the cap ({self.cap})")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"the factor of a backoff must be a number of at least 1, not {self.factor}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"the jitter of a backoff must be between 0 and 1, not {self.jitter}")

    def delay(self, failures: int, random: Random) -> float:
        """Return the seconds to wait after `failures` in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        return self._without_jitter(failures) * (1 + self.jitter * random.random())

    def _without_jitter(self, failures: int) -> float:
        try:
            return min(self.cap, self.initial * self.factor ** min(failures - 1, MOST_FAILURES))
        except OverflowError:
            return self.cap
