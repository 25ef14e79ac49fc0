"""Metrics of the master, once for each process. What was discovered and wiped is counted by the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from orlop.kube.api_errors import ApiError
from orlop.static_pv.master_view import MasterView, volume_facts

if TYPE_CHECKING:
    from orlop.foundation.clock import Clock
    from orlop.foundation.metrics import Metrics
    from orlop.kube.objects import Object

REQUESTS: Final = "local_volume_provisioner_apiserver_requests"
CLAIMS: Final = "local_volume_node_cleanup_persistentvolumeclaim_delete"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The defaults of Prometheus, as today's product has them."""
TERMINATING: Final = "Terminating"


class MasterMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self.view: MasterView | None = None
        """The view of the master that runs in this process, while one does."""
        methods = ("method",)
        metrics.gauge_from(
            "orlop_static_volumes", "PersistentVolumes of static volumes, by phase.", self._phases, ("phase",)
        )
        self._requests = metrics.counter(f"{REQUESTS}_total", "Requests to the API server.", methods)
        self._requests_failed = metrics.counter(f"{REQUESTS}_failed_total", "Failed requests.", methods)
        self._requests_took = metrics.histogram(
            f"{REQUESTS}_duration_seconds", "How long requests to the API server took.", methods, BUCKETS
        )
        self._deleted = metrics.counter(f"{CLAIMS}_total", "Claims deleted because their node is gone.")
        self._delete_failed = metrics.counter(f"{CLAIMS}_failed_total", "Deletions of such claims that failed.")

    async def counted(self, clock: Clock, method: str, act: Callable[[], Awaitable[Object]]) -> Object:
        """Count a request, and how long it took."""
        began = clock.elapsed()
        self._requests.inc(method)
        try:
            return await act()
        except ApiError:
            self._requests_failed.inc(method)
            raise
        finally:
            self._requests_took.observe(clock.elapsed() - began, method)

    def claim_deleted(self) -> None:
        self._deleted.inc()

    def claim_not_deleted(self) -> None:
        self._delete_failed.inc()

    def _phases(self) -> Mapping[tuple[str, ...], float]:
        counts: Counter[tuple[str, ...]] = Counter()
        for obj in self.view.volumes.informer.cache if self.view is not None else ():
            if (facts := volume_facts(obj)) is not None:
                counts[TERMINATING if facts.is_being_deleted else facts.phase,] += 1
        return dict(counts)
