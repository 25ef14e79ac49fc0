"""Report a node's drives to the API server and carry out its requests, in a context.

Only objects of this node are watched. While the API server is away the node goes on without it: what was read last
stays, and failed writes are retried.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from orlop.driver.persistent.reports.node_reports import NodeObjects, NodeReports
from orlop.driver.persistent.reports.report_events import ReportEvents
from orlop.driver.persistent.reports.request_execution import RequestExecution
from orlop.driver.persistent.upkeep.drive_making import DriveMaking
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, Selection
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import Kind
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.kube.status_writing import ObjectsOfNode
from orlop.records.api_record import part_of
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_request import DRIVE_REQUEST
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.volume import VOLUME


@asynccontextmanager
async def reporting(
    drives: NodeDrives,
    client: KubeClient,
    informers: Informers,
    events: EventRecorder,
    runtime: Runtime,
    queue_metrics: WorkqueueMetrics,
) -> AsyncIterator[NodeReports]:
    """Watch the objects of this node, report its state and carry out its requests, in this context."""
    async with AsyncExitStack() as stack:

        async def of_node(kind: Kind) -> ObjectsOfNode:
            selection = Selection(fields=f"spec.nodeName={drives.node_name}")
            watched = Watched(kind, selection, without_managed_fields)
            return ObjectsOfNode(kind, client, await stack.enter_async_context(informers.using(watched)))

        objects = NodeObjects(await of_node(NODE_DEVICES), await of_node(DRIVE), await of_node(VOLUME))
        requests = await of_node(DRIVE_REQUEST)
        report_events = ReportEvents(events, node_devices=lambda: objects.devices.get(drives.node_name))
        drives.allocated = objects.allocated

        def call_failed(volume_id: str, call: str, why: str) -> None:
            if (volume := objects.volumes.get(volume_id)) is not None:
                report_events.call_failed(volume, call, why)

        drives.call_failed = call_failed
        reports = NodeReports(drives, objects, report_events, runtime=runtime, queue_metrics=queue_metrics)
        common: Any = {"events": report_events, "runtime": runtime, "queue_metrics": queue_metrics}
        execution = RequestExecution(_making(drives, objects.drives, runtime), drives.watch, requests, **common)
        async with TaskGroup() as tasks:
            running = [tasks.start(part.run(), name=type(part).__name__) for part in (reports, execution)]
            try:
                yield reports
            finally:
                for task in running:
                    task.cancel()


def _making(drives: NodeDrives, objects: ObjectsOfNode, runtime: Runtime) -> DriveMaking:
    return DriveMaking(
        drives.opening,
        drives.watch,
        owner_of=lambda drive_id: _owner_of(drive_id, objects),
        threads=drives.threads,
        clock=runtime.clock,
    )


async def _owner_of(drive_id: str, drives: ObjectsOfNode) -> str:
    try:
        return part_of(await drives.read(drive_id), "spec", DriveSpec).node_name
    except NotFound:
        return ""
