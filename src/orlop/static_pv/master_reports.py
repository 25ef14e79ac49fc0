"""Events and metrics of the master, with the names and words of local-static-provisioner where it has them.

A warning that stays true is repeated at most every quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from orlop.foundation.clock import Clock
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import InvalidTime, Object, read_time
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteStatus
from orlop.static_pv.master_view import MasterView, report_facts
from orlop.static_pv.node_disks_rules import NodeDisks
from orlop.static_pv.static_volume_rules import StaticVolume

REPEAT_SECONDS: Final = 900.0
MOST_REMEMBERED: Final = 20_000
PREFIX: Final = "local_volume_provisioner"
DISCOVERY, DELETION = f"{PREFIX}_persistentvolume_discovery", f"{PREFIX}_persistentvolume_delete"
REQUESTS: Final = f"{PREFIX}_apiserver_requests"
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PROCESS: Final = "process"
"""How a disk was wiped: today's product also has `job`."""
GIB: Final = 1 << 30
BREAKDOWN_GIB: Final = 500


class MasterReports:
    def __init__(self, view: MasterView, events: EventRecorder, runtime: Runtime) -> None:
        self._view = view
        self._events = events
        self._clock: Clock = runtime.clock
        self._reported: dict[tuple[str, str, str], float] = {}
        """By uid, reason and note: when the warning was last recorded, in elapsed time."""
        metrics, modes, kinds = runtime.metrics, ("mode",), ("mode", "type")
        metrics.gauge_from(
            f"{PREFIX}_persistentvolume_capacity_bytes", "Capacity of the listed disks.", self._capacity, modes
        )
        self._discovered = metrics.counter(f"{DISCOVERY}_total", "PersistentVolumes created.", modes)
        self._discovery = metrics.histogram(
            f"{DISCOVERY}_duration_seconds", "How long the creation of a PersistentVolume took.", modes, BUCKETS
        )
        self._deleted = metrics.counter(f"{DELETION}_total", "PersistentVolumes deleted after their wipe.", kinds)
        self._deletion_failed = metrics.counter(f"{DELETION}_failed_total", "Attempts of wipes that failed.", kinds)
        self._deletion = metrics.histogram(
            f"{DELETION}_duration_seconds",
            "How long the wipe of a released volume took.",
            (*kinds, "capacity", "cleanup_command"),
            BUCKETS,
        )
        methods = ("method",)
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
            self._deletion_failed.inc(volume.volume_mode, PROCESS)
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

    def offered(self, volume: Object, seconds: float) -> None:
        mode = volume["spec"]["volumeMode"]
        self._discovered.inc(mode)
        self._discovery.observe(seconds, mode)

    def wiped(self, disks: NodeDisks, name: str, status: DeleteStatus) -> None:
        """Count a volume that goes after its wipe."""
        volume = disks.volumes[name].facts
        of_class = disks.configuration.of_class(volume.storage_class)
        command = of_class.cleaner_command[0] if of_class is not None and of_class.cleaner_command else ""
        self._deleted.inc(volume.volume_mode, PROCESS)
        with suppress(InvalidTime):
            seconds = (read_time(status.end_time) - read_time(status.start_time)).total_seconds()
            self._deletion.observe(max(0.0, seconds), volume.volume_mode, PROCESS, _breakdown(volume.capacity), command)

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

    def _capacity(self) -> Mapping[tuple[str, ...], float]:
        sums: dict[tuple[str, ...], float] = {("Filesystem",): 0.0, ("Block",): 0.0}
        for obj in self._view.reports.informer.cache:
            facts = report_facts(obj)
            for volume in (facts.volumes or ()) if facts is not None else ():
                sums[volume.volume_mode,] += volume.capacity_bytes
        return sums


def _reference(volume: StaticVolume) -> ObjectReference:
    return ObjectReference(PERSISTENT_VOLUME.api_version, PERSISTENT_VOLUME.kind, volume.name, uid=volume.uid)


def _breakdown(capacity: int) -> str:
    """Return the capacity in steps of 500 GiB, as today's label has it."""
    steps = -(-capacity // (BREAKDOWN_GIB * GIB))
    return f"{steps * BREAKDOWN_GIB}G"
