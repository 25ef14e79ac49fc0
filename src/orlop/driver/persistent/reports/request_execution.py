"""Carry out the DriveRequests for this node, one at a time.

Order: write `Pending` → for each disk or folder: act, then write its result → write `Done` or `Error`. The first write
ends the time in which the request can be withdrawn: its author deletes it only while it has no status. After a kill the
next process continues: a task with a result is not repeated, and every other task is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orlop.driver.persistent.reports.report_events import ReportEvents
from orlop.driver.persistent.upkeep.drive_making import DriveMaking
from orlop.driver.persistent.upkeep.drive_task_rules import (
    AdoptDrive,
    DriveTask,
    FormatDevice,
    MakeFolder,
    derived_drive_id,
    reason_of,
    target_of,
)
from orlop.driver.persistent.upkeep.drive_watch import DriveWatch
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.kube.status_writing import REPORT_BACKOFF, ApiObject, ObjectsOfNode
from orlop.records.api_record import part_of, why_unreadable
from orlop.records.drive import FileSystem
from orlop.records.drive_record import whole_mebibytes
from orlop.records.drive_request import MOST_DEVICES, DriveRequestSpec, DriveRequestStatus, RequestResult

POOL: Final = "drive-requests"
ENDED: Final = frozenset({"Done", "Error"})
DEFAULT_FILE_SYSTEM: Final[FileSystem] = "xfs"


class RequestExecution:
    def __init__(
        self,
        making: DriveMaking,
        watch: DriveWatch,
        requests: ObjectsOfNode,
        *,
        events: ReportEvents,
        runtime: Runtime,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._making = making
        self._watch = watch
        self._requests = requests
        self._events = events
        self._clock, self._log = runtime.clock, runtime.log
        common: Any = {"clock": runtime.clock, "random": runtime.random}
        self._queue: Workqueue[str] = Workqueue((POOL,), backoff=REPORT_BACKOFF, metrics=queue_metrics, **common)
        # One worker: two requests for one disk are carried out one after the other.
        pools = (WorkerPool(POOL, 1, self._reconcile),)
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        stop = self._requests.listen(lambda name: self._queue.add(POOL, name))
        try:
            await self._loop.run()
        finally:
            stop()

    async def _reconcile(self, name: str) -> Outcome:
        request = self._requests.get(name)
        if request is not None and (unread := why_unreadable(request, DriveRequestSpec, DriveRequestStatus)):
            self._events.unreadable(request, unread)
            return Failed(ValueError(f"the request has an invalid field: {unread}"))
        if request is None or is_ended(request):
            return Done()
        if self._watch.survey is None:
            return RetryAfter(1.0)
        try:
            await self._carry_out(request)
        except NotFound:
            self._log.info("request withdrawn", request=name)
        return Done()

    async def _carry_out(self, request: ApiObject) -> None:
        spec = part_of(request, "spec", DriveRequestSpec)
        request = await self._write(request, pending_status(request))
        for task in tasks_left(request, self._watch.drives.foreign, self._watch.damaged()):
            result = await self._making.make(task, dry_run=spec.dry_run)
            about = {"request": request["metadata"]["name"], "target": result.target, "dry_run": spec.dry_run}
            self._log.info("request carried out", **about, drive=result.drive, error=result.error or None)
            request = await self._write(request, with_result(request, result))
            self._events.task_ended(request, result, reason_of(task, result))
        status = ended_status(request)
        request = await self._write(request, status)
        self._events.request_ended(request, status["state"], status["message"])

    async def _write(self, request: ApiObject, status: dict[str, Any]) -> ApiObject:
        return await self._requests.write_status(request, status, DriveRequestStatus) or request


# ---- what is left to do, and what is reported ------------------------------------------------------------------------


def is_ended(request: ApiObject) -> bool:
    return part_of(request, "status", DriveRequestStatus).state in ENDED


def tasks_left(
    request: ApiObject, foreign: Mapping[str, Sequence[str]], damaged: Mapping[str, Sequence[str]]
) -> list[DriveTask]:
    """Return the tasks without a result.

    `foreign` are the drives that could be adopted, `damaged` disks of this node without a readable record, with their
    places.
    """
    spec = part_of(request, "spec", DriveRequestSpec)
    done = {result.target for result in part_of(request, "status", DriveRequestStatus).results}
    uid = objects.uid(request)
    tasks: list[DriveTask] = [
        FormatDevice(device, derived_drive_id(uid, device.name), spec.file_system or DEFAULT_FILE_SYSTEM)
        for device in spec.devices
    ]
    if (folder := spec.folder) is not None:
        capacity = whole_mebibytes(folder.capacity_bytes)
        tasks.append(MakeFolder(folder, derived_drive_id(uid, folder.path), capacity))
    if spec.adopt:
        adopted = [AdoptDrive(drive_id, tuple(places)) for drive_id, places in sorted(foreign.items())]
        adopted += [AdoptDrive(drive_id, tuple(places), is_ours=True) for drive_id, places in sorted(damaged.items())]
        tasks += adopted[:MOST_DEVICES]
    return [task for task in tasks if target_of(task) not in done]


def pending_status(request: ApiObject) -> dict[str, Any]:
    """Return the status of a request that is being carried out: it keeps the results that it has."""
    before = part_of(request, "status", DriveRequestStatus)
    return _built(msgspec.structs.replace(before, state="Pending", message="The node is at work on it."))


def with_result(request: ApiObject, result: RequestResult) -> dict[str, Any]:
    before = part_of(request, "status", DriveRequestStatus)
    return _built(msgspec.structs.replace(before, results=(*before.results, result)))


def ended_status(request: ApiObject) -> dict[str, Any]:
    before = part_of(request, "status", DriveRequestStatus)
    failed = sum(bool(result.error) for result in before.results)
    spec = part_of(request, "spec", DriveRequestSpec)
    done = f"{len(before.results) - failed} {'would be done' if spec.dry_run else 'done'}, {failed} failed."
    nothing = "There is no drive to take over." if spec.adopt else "There was nothing to do."
    message = done if before.results else nothing
    return _built(msgspec.structs.replace(before, state="Error" if failed else "Done", message=message))


def _built(status: DriveRequestStatus) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(status)
    return built
