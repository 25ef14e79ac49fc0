"""The provisioner's metrics, named as upstream's."""

from __future__ import annotations

from typing import Final

from orlop.foundation.metrics import Metrics

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NO_SOURCE: Final = ""
"""Value of the label `source`, where upstream has the kind of a data source; we do not distinguish them."""


class ProvisionerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        claim, volume = "controller_persistentvolumeclaim_provision", "controller_persistentvolume_delete"
        labels = ("class", "source")
        self._provisioned = metrics.counter(f"{claim}_total", "Provisioned volumes.", labels)
        self._provision_failures = metrics.counter(f"{claim}_failed_total", "Failed attempts to provision.", labels)
        self._provision_seconds = metrics.histogram(
            f"{claim}_duration_seconds", "Duration of provisioning, failed attempts included.", labels, BUCKETS
        )
        self._deleted = metrics.counter(f"{volume}_total", "Deleted volumes.", ("class",))
        self._deletion_failures = metrics.counter(f"{volume}_failed_total", "Failed attempts to delete.", ("class",))
        self._deletion_seconds = metrics.histogram(
            f"{volume}_duration_seconds", "Duration of deletions.", ("class",), BUCKETS
        )
        self._uncertain_orders = metrics.gauge(
            "orlop_provisioner_uncertain_orders",
            "Orders of which a call may have created a volume that is neither saved nor deleted.",
        )
        self._uncertain_orders.set(0)
        self._uncertain: set[str] = set()
        self._began: dict[str, float] = {}

    def begin(self, uid: str, now: float) -> None:
        """Start measuring the provisioning of a claim; retries do not start it again."""
        self._began.setdefault(uid, now)

    def end(self, uid: str) -> None:
        """Stop measuring, whatever the outcome."""
        self._began.pop(uid, None)

    def provisioned(self, uid: str, class_name: str, now: float) -> None:
        self._provisioned.inc(class_name, NO_SOURCE)
        self._provision_seconds.observe(now - self._began.get(uid, now), class_name, NO_SOURCE)

    def failed(self, class_name: str) -> None:
        self._provision_failures.inc(class_name, NO_SOURCE)

    def uncertain(self, uid: str, *, is_uncertain: bool) -> None:
        """Count the claim's order, or stop counting it."""
        (self._uncertain.add if is_uncertain else self._uncertain.discard)(uid)
        self._uncertain_orders.set(len(self._uncertain))

    def deleted(self, class_name: str, seconds: float) -> None:
        self._deleted.inc(class_name)
        self._deletion_seconds.observe(seconds, class_name)

    def deletion_failed(self, class_name: str) -> None:
        self._deletion_failures.inc(class_name)
