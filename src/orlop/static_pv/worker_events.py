"""Record Events, and count, what a write of the status has changed: so a restart repeats nothing.

The reasons VolumeDelete and VolumeFailedDelete are those of local-static-provisioner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from orlop.kube import objects
from orlop.kube.objects import InvalidTime, read_time
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import (
    CONFIGURATION_VALID,
    DeleteOperation,
    DeleteStatus,
    ProvisionerStatusStatus,
)

if TYPE_CHECKING:
    from orlop.foundation.clock import Clock
    from orlop.kube.events.event_recorder import EventRecorder
    from orlop.static_pv.worker_metrics import WorkerMetrics

ApiObject = Mapping[str, Any]
MOST_PROBLEMS: Final = 20
"""Of one write: a folder full of files would flood the API server."""


class WorkerEvents:
    """`command_of` returns the cleaner command of a class, for the label of a metric."""

    def __init__(
        self, events: EventRecorder, metrics: WorkerMetrics, clock: Clock, command_of: Callable[[str], str]
    ) -> None:
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._command_of = command_of

    def written(self, before: ApiObject, after: ApiObject, operations: Sequence[DeleteOperation]) -> None:
        was, now = (part_of(obj, "status", ProvisionerStatusStatus) for obj in (before, after))
        self._configuration_changed(before, after)
        old = {each.uid: each for each in was.delete_statuses}
        by_uid = {each.uid: each for each in operations}
        for status in now.delete_statuses:
            operation = by_uid.get(status.uid)
            if operation is not None and _is_news(old.get(status.uid), status):
                self._deletion_changed(after, operation, status)
        for problem in [each for each in now.problems if each not in was.problems][:MOST_PROBLEMS]:
            entry = f" {problem.entry!r}" if problem.entry else ""
            self._events.warning(after, f"Disk{problem.reason}", f"{problem.storage_class}{entry}: {problem.message}")

    def _configuration_changed(self, before: ApiObject, after: ApiObject) -> None:
        was, now = (objects.condition(obj, CONFIGURATION_VALID) or {} for obj in (before, after))
        if now.get("status") == "False" and now.get("message") != was.get("message"):
            self._events.warning(after, "ConfigurationInvalid", str(now.get("message", "")))
        elif now.get("status") == "True" and was.get("status") == "False":
            self._events.normal(after, "ConfigurationValid", "The configuration is in use.")

    def _deletion_changed(self, obj: ApiObject, operation: DeleteOperation, status: DeleteStatus) -> None:
        what = f"the disk {operation.entry!r} of {operation.persistent_volume} (class {operation.storage_class})"
        match status.state:
            case "InProgress":
                note = f"Wiping {what}, attempt {status.attempts}. This may take a while."
                self._events.normal(obj, "VolumeDelete", note)
            case "Error":
                self._metrics.failed(operation.volume)
                note = f"Cannot wipe {what}: {status.message} The next attempt is at {status.next_attempt_time}."
                self._events.warning(obj, "VolumeFailedDelete", note)
            case "Complete":
                seconds = _seconds_since(status.start_time, self._clock.now())
                self._metrics.wiped(operation.volume, self._command_of(operation.storage_class), seconds)
                self._events.normal(obj, "VolumeWiped", f"Wiped {what}.")


def _is_news(before: DeleteStatus | None, status: DeleteStatus) -> bool:
    return before is None or (before.state, before.attempts) != (status.state, status.attempts)


def _seconds_since(moment: str, now: datetime) -> float:
    try:
        return max(0.0, (now - read_time(moment)).total_seconds())
    except InvalidTime:
        return 0.0
