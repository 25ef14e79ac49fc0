"""Events and metrics of the master, with the names and words of local-static-provisioner where it has them.

What was discovered and wiped is counted by the workers. A warning that stays true is repeated at most every quarter of
an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import Object
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteStatus
from orlop.static_pv.master_view import MasterView, volume_facts
from orlop.static_pv.node_disks_rules import NodeDisks
from orlop.static_pv.static_volume_rules import StaticVolume

REPEAT_SECONDS: Final = 900.0
MOST_REMEMBERED: Final = 20_000
REQUESTS: Final = "local_volume_provisioner_apiserver_requests"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The defaults of Prometheus, as today's product has them."""
TERMINATING: Final = "Terminating"


class MasterReports:
    def __init__(self, view: MasterView, events: EventRecorder, runtime: Runtime) -> None:
        self._view = view
        self._events = events
        self._clock: Clock = runtime.clock
        self._reported: dict[tuple[str, str, str], float] = {}
        """By uid, reason and note: when the warning was last recorded, in elapsed time."""
        metrics, methods = runtime.metrics, ("method",)
        metrics.gauge_from(
            "orlop_static_volumes", "PersistentVolumes of static volumes, by phase.", self._phases, ("phase",)
        )
        self._requests = metrics.counter(f"{REQUESTS}_total", "Requests to the API server.", methods)
        self._requests_failed = metrics.counter(f"{REQUESTS}_failed_total", "Failed requests.", methods)
        self._requests_took = metrics.histogram(
            f"{REQUESTS}_duration_seconds", "How long requests to the API server took.", methods, BUCKETS
        )

    # ---- events --------------------------------------------------------------------------------------------------

    def warn_volume(self, volume: StaticVolume, reason: str, note: str) -> None:
        if self._is_due(volume.uid, reason, note):
            self._events.warning(_reference(volume), reason, note)

    def warn_disk(self, disks: NodeDisks, reason: str, note: str) -> None:
        """Record a warning about a disk without a volume, on the ProvisionerStatus of its node."""
        report = disks.report
        if report is not None and self._is_due(report.uid, reason, note):
            kind = PROVISIONER_STATUS
            self._events.warning(
                ObjectReference(kind.api_version, kind.kind, report.node, self._view.namespace, report.uid),
                reason,
                note,
            )

    def wipe_requested(self, volume: StaticVolume) -> None:
        note = f'Starting cleanup of {volume.volume_mode} PV "{volume.name}", this may take a while'
        self._events.normal(_reference(volume), "VolumeDelete", note)

    def wipe_failed(self, volume: StaticVolume, status: DeleteStatus) -> None:
        note = f'Error cleaning PV "{volume.name}": {status.message}'
        if self._is_due(volume.uid, f"attempt {status.attempts}", ""):
            self._events.warning(_reference(volume), "VolumeFailedDelete", note)

    def forget(self, uid: str) -> None:
        """Forget an object that is gone."""
        for key in [key for key in self._reported if key[0] == uid]:
            del self._reported[key]

    def _is_due(self, uid: str, reason: str, note: str) -> bool:
        key, now = (uid, reason, note), self._clock.elapsed()
        last = self._reported.get(key)
        if last is not None and now - last < REPEAT_SECONDS:
            return False
        if len(self._reported) >= MOST_REMEMBERED:
            self._reported.clear()
        self._reported[key] = now
        return True

    # ---- metrics -------------------------------------------------------------------------------------------------

    async def counted(self, method: str, act: Callable[[], Awaitable[Object]]) -> Object:
        """Count a request, and how long it took."""
        began = self._clock.elapsed()
        self._requests.inc(method)
        try:
            return await act()
        except ApiError:
            self._requests_failed.inc(method)
            raise
        finally:
            self._requests_took.observe(self._clock.elapsed() - began, method)

    def _phases(self) -> Mapping[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for obj in self._view.volumes.informer.cache:
            facts = volume_facts(obj)
            if facts is not None:
                phase = TERMINATING if facts.is_being_deleted else facts.phase
                counts[phase,] = counts.get((phase,), 0.0) + 1
        return counts


def _reference(volume: StaticVolume) -> ObjectReference:
    return ObjectReference(PERSISTENT_VOLUME.api_version, PERSISTENT_VOLUME.kind, volume.name, uid=volume.uid)
