"""The four things every part of a process needs: clock, random source, log and metrics.

`processes/` and tests create one; nothing else reads a clock or draws a random number by itself. All other needs of a
class (clients, hosts, settings) are passed to its constructor by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    clock: Clock
    random: Random
    log: Log
    metrics: Metrics
