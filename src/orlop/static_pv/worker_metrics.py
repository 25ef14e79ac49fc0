"""The metrics of a worker: local-static-provisioner's names, so that dashboards stay, and a few of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from orlop.static_pv.discovery_rules import BLOCK, FILE_SYSTEM

if TYPE_CHECKING:
    from orlop.foundation.metrics import LabelValues, Metrics
    from orlop.records.provisioner_status import LocalVolume
    from orlop.static_pv.discovery_rules import Discovery

PREFIX: Final = "local_volume_provisioner_"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The defaults of Prometheus, as today's product has them."""
OWN_PROCESS: Final = "process"
"""The `type` of a deletion that no Job does."""
CAPACITY_STEP: Final = 500 << 30
STEP_NAME: Final = 500


class WorkerMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._discoveries = metrics.counter(
            f"{PREFIX}persistentvolume_discovery_total", "Disks that were discovered, by mode.", ("mode",)
        )
        self._discovery_seconds = metrics.histogram(
            f"{PREFIX}persistentvolume_discovery_duration_seconds",
            "Seconds of a pass that discovered disks, by mode.",
            ("mode",),
            BUCKETS,
        )
        self._deletions = metrics.counter(
            f"{PREFIX}persistentvolume_delete_total", "Disks that were wiped, by mode and type.", ("mode", "type")
        )
        self._failures = metrics.counter(
            f"{PREFIX}persistentvolume_delete_failed_total",
            "Attempts to wipe a disk that failed, by mode and type.",
            ("mode", "type"),
        )
        self._deletion_seconds = metrics.histogram(
            f"{PREFIX}persistentvolume_delete_duration_seconds",
            "Seconds from the first attempt to wipe a disk until it was clean.",
            ("mode", "type", "capacity", "cleanup_command"),
            BUCKETS,
        )
        self._valid = metrics.gauge(
            "orlop_static_configuration_valid", "Whether the configuration files that are there could be used."
        )
        self._problems = metrics.gauge("orlop_static_problems", "Entries of the class folders that are not offered.")
        self._bytes = metrics.counter("orlop_static_wiped_bytes_total", "Bytes of block devices that were overwritten.")
        self._metrics = metrics
        self._volumes: tuple[LocalVolume, ...] = ()
        metrics.gauge_from(
            f"{PREFIX}persistentvolume_capacity_bytes", "Capacity of all disks, by mode.", self._capacities, ("mode",)
        )

    def register_runs(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Register the gauges of wipes: `counts` returns how many there are, by `running`, `succeeded`, `failed`."""
        for state in ("running", "succeeded", "failed"):
            name = f"{PREFIX}proctable_{state}"
            self._metrics.gauge_from(name, f"Wipes that are {state}.", _reading(counts, state))

    def configuration_valid(self, is_valid: bool) -> None:  # noqa: FBT001 - its only argument
        self._valid.set(1 if is_valid else 0)

    def discovered(self, found: Discovery, seconds: float) -> None:
        before = {each.name for each in self._volumes}
        new = [each for each in found.volumes if each.name not in before]
        for each in new:
            self._discoveries.inc(mode_of(device=each.device))
        for mode in {mode_of(device=each.device) for each in new}:
            self._discovery_seconds.observe(seconds, mode)
        self._volumes = found.volumes
        self._problems.set(len(found.problems))

    def wiped_bytes(self, count: int) -> None:
        self._bytes.inc(by=count)

    def wiped(self, volume: str, command: str, seconds: float) -> None:
        mode, capacity = self._mode(volume), self._capacity(volume)
        self._deletions.inc(mode, OWN_PROCESS)
        self._deletion_seconds.observe(seconds, mode, OWN_PROCESS, capacity, command)

    def failed(self, volume: str) -> None:
        self._failures.inc(self._mode(volume), OWN_PROCESS)

    def _capacities(self) -> Mapping[LabelValues, float]:
        sums: Counter[LabelValues] = Counter({(FILE_SYSTEM,): 0, (BLOCK,): 0})
        for each in self._volumes:
            sums[mode_of(device=each.device),] += each.capacity_bytes
        return dict(sums)

    def _mode(self, volume: str) -> str:
        listed = next((each for each in self._volumes if each.name == volume), None)
        return mode_of(device=listed.device) if listed is not None else "unknown"

    def _capacity(self, volume: str) -> str:
        """Return the capacity in steps of 500 GiB, as today's product labels it."""
        listed = next((each for each in self._volumes if each.name == volume), None)
        steps = -(-listed.capacity_bytes // CAPACITY_STEP) if listed is not None else 0
        return f"{steps * STEP_NAME}G"


def mode_of(*, device: bool) -> str:
    """Return the label `mode`: what the entry is, whatever pods see of it."""
    return BLOCK if device else FILE_SYSTEM


def _reading(counts: Callable[[], Mapping[str, int]], state: str) -> Callable[[], float]:
    return lambda: float(counts().get(state, 0))
