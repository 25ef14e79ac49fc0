"""How long to wait before the next attempt: longer after each failure, up to a limit, and never all at the same time.

A pure function of the number of failures: it neither counts them, nor sleeps, nor has a random source of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

# As far as floats count; more failures than this change nothing.
MOST_FAILURES = 2**53


@dataclass(frozen=True)
class Backoff:
    """Seconds: `initial` after the first failure, `factor` times more after each, at most `cap`.

    `jitter` is the largest share of it that is added at random, so that many who failed together do not come back
    together. It only ever adds: nobody returns sooner than `initial`, and nobody later than `cap * (1 + jitter)`.
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
            raise ValueError(f"the jitter of a backoff is a share between 0 and 1, not {self.jitter}")

    def delay(self, failures: int, random: Random) -> float:
        """Seconds to wait after so many failures in a row; none after none."""
        if failures <= 0:
            return 0.0
        return self._without_jitter(failures) * (1 + self.jitter * random.random())

    def _without_jitter(self, failures: int) -> float:
        try:
            return min(self.cap, self.initial * self.factor ** min(failures - 1, MOST_FAILURES))
        except OverflowError:
            return self.cap
