"""What every part of a registrar is given, made once by its process or its test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log


@dataclass(frozen=True, slots=True)
class Tools:
    """`new_id` gives each call that is answered a name of its own."""

    clock: Clock
    random: Random
    log: Log
    metrics: Metrics
    new_id: Callable[[], str]
