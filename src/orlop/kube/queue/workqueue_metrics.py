"""Metrics of the work queues of a process, under client-go's names; the label `name` is the pool.

Create it once per registry. Depth and ages are computed at each scrape, so they cannot drift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from orlop.foundation.metrics import Metrics

LABELS: Final = ("name",)
BUCKETS: Final = tuple(10.0**exponent for exponent in range(-8, 4))  # client-go's


class WatchedPool(Protocol):
    """The figures that a pool reports at each scrape."""

    def depth(self) -> float: ...
    def oldest_seconds(self) -> float: ...
    def unfinished_seconds(self) -> float: ...
    def longest_running_seconds(self) -> float: ...


class WorkqueueMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._pools: dict[str, WatchedPool] = {}
        self.adds = metrics.counter("workqueue_adds_total", "Names added, including those already waiting.", LABELS)
        self.retries = metrics.counter("workqueue_retries_total", "Names added again after a failure.", LABELS)
        self.waited = metrics.histogram(
            "workqueue_queue_duration_seconds", "How long names waited until their work began.", LABELS, BUCKETS
        )
        self.worked = metrics.histogram(
            "workqueue_work_duration_seconds", "How long the work on a name took.", LABELS, BUCKETS
        )
        for name, description, read in LISTED:
            metrics.gauge_from(name, description, self._listing(read), LABELS)

    def watch(self, name: str, pool: WatchedPool) -> None:
        """Report a pool. It replaces an earlier one of the same name, whose work is over."""
        self._pools[name] = pool

    def _listing(self, read: Callable[[WatchedPool], float]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {(name,): read(pool) for name, pool in self._pools.items()}


LISTED: Final[tuple[tuple[str, str, Callable[[WatchedPool], float]], ...]] = (
    ("workqueue_depth", "Names that wait for a worker.", lambda pool: pool.depth()),
    (
        "workqueue_unfinished_work_seconds",
        "Seconds that the work under way has taken so far, added up.",
        lambda pool: pool.unfinished_seconds(),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Seconds that the longest work under way has taken so far.",
        lambda pool: pool.longest_running_seconds(),
    ),
    (
        "orlop_workqueue_oldest_seconds",
        "Seconds that the name waiting longest has waited.",
        lambda pool: pool.oldest_seconds(),
    ),
)
