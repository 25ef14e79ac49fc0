"""Report the state of this node in its objects: NodeDevices, Drives, and the status of Volumes.

The caches, the survey, the table of drives and the index of volumes queue names; each is reconciled from the current
state. A failed write is retried with growing delays, so that all objects are current some time after the API server was
away. A missing Drive object is made again, without allocations.

This module must not write a spec, and must not keep anything on the node waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.reports.device_report import drive_device, node_devices_status
from orlop.driver.persistent.reports.drive_status_rules import (
    DriveObservation,
    OpenDriveFacts,
    drive_status,
    unlisted,
)
from orlop.driver.persistent.reports.report_events import ReportEvents
from orlop.driver.persistent.reports.volume_status_rules import VolumeObservation, volume_status
from orlop.driver.persistent.upkeep.drive_sightings import ExpectedDrive
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.driver.persistent.upkeep.volume_erasure_rules import DataIsGone, ErasureStep, ErasureWaits
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.kube.status_writing import REPORT_BACKOFF, ObjectsOfNode
from orlop.records.api_record import new_object, part_of, why_unreadable
from orlop.records.drive import DriveSpec, DriveStatus
from orlop.records.drive_record import DriveState
from orlop.records.node_devices import NodeDevicesSpec, NodeDevicesStatus
from orlop.records.volume import DriveVolumeSpec, DriveVolumeStatus

ApiObject = Mapping[str, Any]
DEVICES, DRIVES, VOLUMES = "node-devices", "node-drives", "node-volumes"
WORKERS: Final = 4
DELETION_SECONDS: Final = 30.0
"""How often a deletion is tried again while something on the node prevents it."""


@dataclass(frozen=True, slots=True)
class ReportKey:
    """The name of an object; kinds differ by their pool."""

    pool: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class NodeObjects:
    """The objects of this node, by kind."""

    devices: ObjectsOfNode
    drives: ObjectsOfNode
    volumes: ObjectsOfNode

    def allocated(self, drive_id: str) -> int:
        """Return the sum of the allocations of a drive, as its object lists them."""
        obj = self.drives.get(drive_id)
        try:
            return sum(each.bytes for each in part_of(obj, "spec", DriveSpec).allocations) if obj is not None else 0
        except ValueError:
            return 0


class NodeReports:
    def __init__(
        self,
        drives: NodeDrives,
        objects_: NodeObjects,
        events: ReportEvents,
        *,
        runtime: Runtime,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._node = drives
        self._objects = objects_
        self._events = events
        self._clock, self._log = runtime.clock, runtime.log
        self._queue: Workqueue[ReportKey] = Workqueue(
            (DEVICES, DRIVES, VOLUMES),
            clock=runtime.clock,
            random=runtime.random,
            backoff=REPORT_BACKOFF,
            metrics=queue_metrics,
        )
        pools = (
            WorkerPool(DEVICES, 1, self._reconcile_devices),
            WorkerPool(DRIVES, WORKERS, self._reconcile_drive),
            WorkerPool(VOLUMES, WORKERS, self._reconcile_volume),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        """Report the state of this node, until cancelled."""
        node = self._node
        node.watch.listen(self._surveyed)
        node.trash.listen(self._erased)
        node.usage.listen(self.volume_changed)
        removers: tuple[Callable[[], None], ...] = (
            node.table.listen(self._drive_changed),
            node.index.listen(self.volume_changed),
            self._objects.devices.listen(self._devices_changed),
            self._objects.drives.listen(self._drive_object_changed),
            self._objects.volumes.listen(self.volume_changed),
        )
        try:
            await self._loop.run()
        finally:
            for remove in removers:
                remove()

    # ---- names ---------------------------------------------------------------------------------------------------

    def volume_changed(self, name: str) -> None:
        self._queue.add(VOLUMES, ReportKey(VOLUMES, name))
        record = self._node.index.get(name)
        if record is not None:
            self._queue.add(DRIVES, ReportKey(DRIVES, record.drive))

    def _surveyed(self) -> None:
        self._devices_changed(self._node.node_name)
        for drive_id in self._node.table.standings():
            self._queue.add(DRIVES, ReportKey(DRIVES, drive_id))

    def _devices_changed(self, _name: str) -> None:
        self._queue.add(DEVICES, ReportKey(DEVICES, self._node.node_name))

    def _drive_changed(self, drive_id: str) -> None:
        self._queue.add(DRIVES, ReportKey(DRIVES, drive_id))
        for name in self._objects.volumes.names():
            obj = self._objects.volumes.get(name)
            if obj is not None and (obj.get("spec") or {}).get("drive") == drive_id:
                self._queue.add(VOLUMES, ReportKey(VOLUMES, name))

    def _drive_object_changed(self, name: str) -> None:
        self._queue.add(DRIVES, ReportKey(DRIVES, name))
        if self._objects.drives.is_synced:
            self._node.watch.expect(expected_drives(self._objects.drives, self._node.node_name))

    def _erased(self) -> None:
        for name in self._objects.volumes.names():
            obj = self._objects.volumes.get(name)
            if obj is not None and (obj.get("spec") or {}).get("erase"):
                self._queue.add(VOLUMES, ReportKey(VOLUMES, name))

    # ---- NodeDevices ---------------------------------------------------------------------------------------------

    async def _reconcile_devices(self, key: ReportKey) -> Outcome:
        node, objects_ = self._node, self._objects.devices
        survey = node.watch.survey
        if survey is None or not objects_.is_synced:
            return RetryAfter(1.0)
        obj = objects_.get(key.name)
        if obj is None:
            obj = await self._created(
                objects_, new_object("NodeDevices", key.name, NodeDevicesSpec(node_name=key.name))
            )
        paths = [drive.path for drive in node.table.open_drives()]
        status = node_devices_status(survey, node.watch.drives.foreign, paths)
        await objects_.write_status(obj, status, NodeDevicesStatus)
        return Done()

    async def _created(self, objects_: ObjectsOfNode, body: ApiObject) -> ApiObject:
        """Create an object, or read the existing one: our own after a lost response, or another node's."""
        try:
            return await objects_.create(body)
        except AlreadyExists:
            return await objects_.read(body["metadata"]["name"])

    # ---- drives --------------------------------------------------------------------------------------------------

    async def _reconcile_drive(self, key: ReportKey) -> Outcome:
        objects_ = self._objects.drives
        if not objects_.is_synced or self._node.watch.survey is None:
            return RetryAfter(1.0)
        obj = objects_.get(key.name)
        if obj is None:
            obj = await self._made_drive(key.name)
        standing = self._node.table.standings().get(key.name)
        if obj is not None and (unread := why_unreadable(obj, DriveSpec, DriveStatus)):
            return self._left_unread(obj, unread)
        if obj is None or standing is None:
            return Done()
        if (named := part_of(obj, "spec", DriveSpec).node_name) != self._node.node_name:
            why = f"the Drive {key.name} is of the node {named}: delete it there, then adopt it here"
            self._events.foreign_drive(obj, f"The node {self._node.node_name} has this drive, and {why}.")
            return Failed(ValueError(why))
        drive = self._node.table.open_drive(key.name)
        if standing.state is DriveState.READY and drive is not None and not self._node.index.is_read(drive):
            # Before its volumes are read, it is unknown which allocations the object lacks: a new drive would be Error.
            return RetryAfter(1.0)
        obj = await self._current(obj)
        status = drive_status(obj, self._observe(key.name), self._clock.now())
        written = await objects_.write_status(obj, status, DriveStatus)
        if written is not None:
            self._events.drive_changed(obj, written, self._volumes_on(key.name))
        return Done()

    async def _made_drive(self, drive_id: str) -> ApiObject | None:
        """Create the object of an open drive; None for a drive that is not open here or was removed."""
        drive = self._node.table.open_drive(drive_id)
        if drive is None or drive.record.removed:
            return None
        spec = DriveSpec(node_name=self._node.node_name, type=drive.record.type)
        self._log.info("creating the object of a drive", drive=drive_id)
        return await self._created(self._objects.drives, new_object("Drive", drive_id, spec))

    async def _current(self, obj: ApiObject) -> ApiObject:
        """Return the object, read again if it seems to lack volumes: the cache may not have their allocations yet.

        An allocation is added before its volume can be staged, and removed after its data is gone. So read the object
        first, and the drive after it.
        """
        drive_id = obj["metadata"]["name"]
        volumes = self._node.index.on_drive(drive_id)
        if not unlisted(part_of(obj, "spec", DriveSpec), volumes):
            return obj
        return await self._objects.drives.read(drive_id)

    def _observe(self, drive_id: str) -> DriveObservation:
        node = self._node
        standing, drive = node.table.standings()[drive_id], node.table.open_drive(drive_id)
        opened = self._open_facts(drive) if drive is not None and node.index.is_read(drive) else None
        released = node.watch.has_released(drive_id)
        return DriveObservation(state=standing.state, why=standing.why, opened=opened, is_released=released)

    def _open_facts(self, drive: OpenDrive) -> OpenDriveFacts:
        node, survey = self._node, self._node.watch.survey
        return OpenDriveFacts(
            capacity=drive.record.capacity_bytes,
            file_system=drive.features.file_system,
            has_quota=drive.features.why_no_quota is None and not drive.is_folder,
            has_reflinks=drive.features.has_reflinks,
            device=drive_device(survey, drive.drive_id) if survey is not None and not drive.is_folder else None,
            folder=drive.path if drive.is_folder else "",
            volumes=node.index.on_drive(drive.drive_id),
            unreadable=tuple(sorted(node.index.unusable_entries(drive.drive_id))),
            described=self._described_on(drive.drive_id),
        )

    def _described_on(self, drive_id: str) -> frozenset[str]:
        on_drive = [obj for obj in self._volumes_on(drive_id) if not obj["spec"].get("reservationOnly")]
        return frozenset(objects.name(obj) for obj in on_drive)

    def _left_unread(self, obj: ApiObject, why: str) -> Outcome:
        self._events.unreadable(obj, why)
        return Failed(ValueError(f"the object has an invalid field: {why}"))

    def _volumes_on(self, drive_id: str) -> list[ApiObject]:
        volumes = (self._objects.volumes.get(name) for name in self._objects.volumes.names())
        return [obj for obj in volumes if obj is not None and (obj.get("spec") or {}).get("drive") == drive_id]

    # ---- volumes -------------------------------------------------------------------------------------------------

    async def _reconcile_volume(self, key: ReportKey) -> Outcome:
        node, objects_ = self._node, self._objects.volumes
        obj = objects_.get(key.name)
        if obj is None or node.watch.survey is None:
            return Done() if obj is None else RetryAfter(1.0)
        if unread := why_unreadable(obj, DriveVolumeSpec, DriveVolumeStatus):
            return self._left_unread(obj, unread)
        spec = part_of(obj, "spec", DriveVolumeSpec)
        drive, standing = node.table.open_drive(spec.drive), node.table.standings().get(spec.drive)
        is_being_opened = standing is None and spec.drive in node.watch.drives.sightings
        if is_being_opened or (drive is not None and not node.index.is_read(drive)):
            return RetryAfter(1.0)
        deletion = await self._deletion(key.name, spec)
        record = node.index.get(key.name)
        observed = VolumeObservation(
            kubelet_dir=node.kubelet_dir,
            record=record if record is not None and record.drive == spec.drive else None,
            drive_state=standing.state if standing is not None else None,
            drive_why=standing.why if standing is not None else "",
            trouble=self._trouble_of(key.name, spec.drive),
            used=node.usage.used(key.name),
            deletion=deletion,
        )
        written = await objects_.write_status(obj, volume_status(obj, observed), DriveVolumeStatus)
        if written is not None:
            self._events.volume_changed(obj, written)
        is_over = deletion is None or isinstance(deletion, DataIsGone)
        return Done() if is_over else RetryAfter(DELETION_SECONDS)

    def _trouble_of(self, name: str, drive_id: str) -> str:
        why = self._node.index.unusable_entries(drive_id).get(name)
        unusable = f"Its folder on the drive cannot be used: {why.rstrip('.')}." if why is not None else ""
        return self._node.index.trouble_of(name) or unusable

    async def _deletion(self, name: str, spec: DriveVolumeSpec) -> ErasureStep | None:
        if not spec.erase and not spec.reservation_only:
            return None
        try:
            return await self._node.deletion.delete(name, spec)
        except HostError as error:
            return ErasureWaits(str(error))


def expected_drives(drives: ObjectsOfNode, node_name: str) -> dict[str, ExpectedDrive]:
    """Return the drives that have an object naming this node. Objects with an invalid field are left out."""
    expected: dict[str, ExpectedDrive] = {}
    for name in drives.names():
        obj = drives.get(name)
        if obj is None:
            continue
        try:
            spec, status = part_of(obj, "spec", DriveSpec), part_of(obj, "status", DriveStatus)
        except ValueError:
            continue
        if spec.node_name == node_name:
            expected[name] = ExpectedDrive(spec.type, spec.removing, status.path, status.capacity_bytes)
    return expected
