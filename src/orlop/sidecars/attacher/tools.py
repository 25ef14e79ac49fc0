"""What every part of an attacher is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.csi.client import CsiClient
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.kube.client import KubeClient
from orlop.kube.event_recorder import EventRecorder
from orlop.kube.workqueue_metrics import WorkqueueMetrics

JITTER: Final = 0.1
SHORTEST_RETRY_SECONDS: Final = 0.001
"""What fails at once and for ever, and is tried again at once, would leave nobody else a turn."""


@dataclass(frozen=True, slots=True)
class AttacherSettings:
    driver: str
    finalizer: str
    default_fs_type: str = ""
    timeout: float = 15.0
    workers: int = 10
    """Of each pool."""
    retry_start: float = 1.0
    retry_most: float = 300.0
    resync: float = 600.0

    @property
    def backoff(self) -> Backoff:
        """As upstream's: where the most is less than the first, it is the first too."""
        most = max(self.retry_most, SHORTEST_RETRY_SECONDS)
        first = max(self.retry_start, SHORTEST_RETRY_SECONDS)
        return Backoff(initial=min(first, most), factor=2.0, cap=most, jitter=JITTER)


@dataclass(frozen=True, slots=True)
class Tools:
    """`may_act` raises where this process must do nothing more: it is asked before each effect."""

    kube: KubeClient
    csi: CsiClient
    events: EventRecorder
    clock: Clock
    random: Random
    log: Log
    metrics: WorkqueueMetrics
    """The process's own: one attacher after another is counted there."""
    may_act: Callable[[], None] = lambda: None
