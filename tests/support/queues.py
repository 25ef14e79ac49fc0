"""Work queues for tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.testing.virtual_clock import VirtualClock

BACKOFF = Backoff(initial=1.0, factor=2.0, cap=60.0)


def queue_of(
    *pools: str, clock: Clock | None = None, backoff: Backoff = BACKOFF, metrics: Metrics | None = None
) -> Workqueue[Any]:
    """Names are whatever the test likes."""
    watched = WorkqueueMetrics(metrics or Metrics("test", of_process=False))
    clock = clock or VirtualClock()
    return Workqueue(pools, clock=clock, random=Random(0), backoff=backoff, metrics=watched)


def scraped(metrics: Metrics, pool: str) -> dict[str, float]:
    """By name, without the buckets of histograms."""
    families = text_string_to_metric_families(metrics.render()[0].decode())
    samples = (sample for family in families for sample in family.samples)
    return {one.name: one.value for one in samples if one.labels == {"name": pool}}


def take_all(queue: Workqueue[Any], pool: str) -> Sequence[Any]:
    """What can be taken at once, each given back only at the end."""
    taken = list(iter(lambda: queue.take_now(pool), None))
    for name in taken:
        queue.done(name)
    return taken
