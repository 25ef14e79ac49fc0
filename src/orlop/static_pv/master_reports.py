"""Events of the master, with the reasons and words of local-static-provisioner where it has them.

A warning that stays true is repeated at most every quarter of an hour.
"""

from __future__ import annotations

from typing import Final

from orlop.foundation.clock import Clock
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteStatus
from orlop.static_pv.node_disks_rules import NodeDisks
from orlop.static_pv.static_volume_rules import StaticVolume

REPEAT_SECONDS: Final = 900.0
MOST_REMEMBERED: Final = 20_000


class MasterReports:
    def __init__(self, namespace: str, events: EventRecorder, clock: Clock) -> None:
        self._namespace = namespace
        self._events = events
        self._clock = clock
        self._reported: dict[tuple[str, str, str], float] = {}
        """By uid, reason and note: when the warning was last recorded, in elapsed time."""

    def warn_volume(self, volume: StaticVolume, reason: str, note: str) -> None:
        if self._is_due(volume.uid, reason, note):
            self._events.warning(_reference(volume), reason, note)

    def warn_disk(self, disks: NodeDisks, reason: str, note: str) -> None:
        """Record a warning about a disk without a volume, on the ProvisionerStatus of its node."""
        report = disks.report
        if report is not None and self._is_due(report.uid, reason, note):
            kind = PROVISIONER_STATUS
            self._events.warning(
                ObjectReference(kind.api_version, kind.kind, report.node, self._namespace, report.uid),
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


def _reference(volume: StaticVolume) -> ObjectReference:
    return ObjectReference(PERSISTENT_VOLUME.api_version, PERSISTENT_VOLUME.kind, volume.name, uid=volume.uid)
