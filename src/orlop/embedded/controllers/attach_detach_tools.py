"""What the parts of the attach/detach controller are given."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.event_recorder import EventRecorder
from orlop.kube.workqueue_metrics import WorkqueueMetrics

BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=122.0, jitter=0.1)
"""Kubernetes' for operations on volumes."""


@dataclass(frozen=True, slots=True)
class Tools:
    clock: Clock
    random: Random
    log: Log
    events: EventRecorder
    metrics: WorkqueueMetrics
