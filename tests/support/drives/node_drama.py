"""A run of a node's reports for the explorer: an API server, a node process that dies, an admin and a controller.

What must always hold: no data are moved or erased before the Volume orders it; a Volume is reported as Erased only when
its data are gone; a Drive is reported as Ready only while its disk is there and its allocations are complete. At the
end every object says what the machine has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orlop.driver.persistent.reports.reporting import reporting
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.api_record import new_object
from orlop.records.definitions import DEFINITIONS, definition_object
from orlop.records.drive import DRIVE
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec, RequestedFolder
from orlop.records.volume import ERASE_FINALIZER, VOLUME
from orlop.testing.explorer import Act, ExploredTransport, Life, Stage
from orlop.testing.fake_host import FakeDisk, FakeDrive, FakeDriveHost, FakeMachine
from support.api.api_servers import TestServer, api_server
from support.drives.drive_worlds import all_of
from support.drives.reporting_nodes import VOLUME_ID, put_volume, volume_on_disk, volume_spec
from support.drives.watched_nodes import GIB, ID, NODE, ROOT, drive_disk, machine_with, right_here

METRICS = Metrics("explored", of_process=False)
QUEUE_METRICS = WorkqueueMetrics(METRICS)
KEPT = "pvc-kept"
FOLDER = f"{ROOT}/a"


@dataclass
class NodeDrama:
    stage: Stage
    on: TestServer
    machine: FakeMachine = field(default_factory=lambda: machine_with(sdb=drive_disk()))
    log: list[LogEntry] = field(default_factory=list)
    pulled: FakeDisk | None = None
    is_ordered: bool = False

    def __post_init__(self) -> None:
        drive = self.machine.disks["sdb"].drive
        assert drive is not None
        self.drive: FakeDrive = drive
        self.machine.drives[FOLDER] = FakeDrive()
        for name in (VOLUME_ID, KEPT):
            put_volume(self.drive, volume_on_disk(name))
        self.stage.always(self.check)
        self.allocated = Act("its allocations are restored", self._allocate)
        self.ordered = Act("the volume is deleted", self._order)
        self.lost = Act("the disk is pulled out", self._pull)
        self.back = Act("the disk is plugged in again", self._plug)
        self.deleted = Act("the object of the drive is deleted", self._delete_drive)
        self.requested = Act("a folder is to become a drive", self._request)

    def begin(self) -> None:
        self.stage.run("node", self._live)

    async def _live(self, life: Life) -> None:
        log, clock = collecting_log(self.log), self.stage.clock
        kube = KubeClient(ExploredTransport(life, self.on.transport()), clock=clock, random=Random(2), log=log)
        events = EventRecorder(kube, Reporter("n", NODE), clock=clock, random=Random(4), log=log, metrics=METRICS)
        runtime = Runtime(clock=clock, random=Random(3), log=log, metrics=METRICS)
        host = FakeDriveHost(self.machine, ROOT)
        drives = NodeDrives(
            host, host.volumes_of, node_name=NODE, kubelet_dir="/k", threads=right_here, runtime=runtime
        )
        async with Informers(kube, clock=clock, random=Random(5), log=log) as informers, TaskGroup() as tasks:
            tasks.start(events.run(), name="events")
            async with drives.running(), reporting(drives, kube, informers, events, runtime, QUEUE_METRICS):
                await clock.sleep(1e6)

    # ---- what others do ------------------------------------------------------------------------------------------

    async def _allocate(self) -> None:
        gone = VOLUME_ID not in self.drive.volumes
        listed = [{"volume": name, "bytes": GIB} for name in ((KEPT,) if gone else (VOLUME_ID, KEPT))]
        for _ in self._objects(DRIVE, ID):
            patch = MergePatch({"spec": {"allocations": listed}})
            await self.on.client().patch(DRIVE, ObjectName(None, ID), patch)

    async def _order(self) -> None:
        self.is_ordered = True
        patch = MergePatch({"spec": {"erase": True}})
        await self.on.client().patch(VOLUME, ObjectName(None, VOLUME_ID), patch)

    async def _pull(self) -> None:
        self.pulled = self.machine.pull_disk("sdb")

    async def _plug(self) -> None:
        if self.pulled is not None:
            self.machine.plug_disk("sdb", self.pulled)
            self.pulled = None

    async def _delete_drive(self) -> None:
        for _ in self._objects(DRIVE, ID):
            await self.on.client().delete(DRIVE, ObjectName(None, ID))

    async def _request(self) -> None:
        folder = RequestedFolder(path=FOLDER, capacity_bytes=GIB)
        await self.on.client().create(
            DRIVE_REQUEST, new_object("DriveRequest", "r", DriveRequestSpec(node_name=NODE, folder=folder))
        )

    # ---- what must hold ------------------------------------------------------------------------------------------

    def _objects(self, kind: Any, name: str) -> list[dict[str, Any]]:
        return [each for each in all_of(self.on, kind) if each["metadata"]["name"] == name]

    def _status(self, kind: Any, name: str) -> dict[str, Any]:
        return next(((each.get("status") or {}) for each in self._objects(kind, name)), {})

    def check(self) -> None:
        assert KEPT in self.drive.volumes, "another volume was touched"
        assert self.is_ordered or VOLUME_ID in self.drive.volumes, "erased without an order"
        if self._status(VOLUME, VOLUME_ID).get("phase") == "Erased":
            left = [*self.drive.volumes, *self.drive.trash]
            assert VOLUME_ID not in left, "reported as erased, and the data are there"

    def check_ready(self) -> None:
        status = self._status(DRIVE, ID)
        assert (status.get("state"), status.get("allocationsRestored")) == ("Ready", True), status

    def check_lost(self) -> None:
        assert self._status(DRIVE, ID).get("state") == "Lost"

    def check_missing(self) -> None:
        status = self._status(DRIVE, ID)
        assert status.get("state") == "Error", status
        assert [each["volume"] for each in status["unrecordedVolumes"]] == sorted(self.drive.volumes)

    def check_erased(self) -> None:
        assert self._status(VOLUME, VOLUME_ID).get("phase") == "Erased"
        assert self.drive.trash == {}

    def check_made(self) -> None:
        results = self._status(DRIVE_REQUEST, "r")["results"]
        assert len(results) == 1
        assert "error" not in results[0], results
        assert self.machine.drives[FOLDER].reserve == GIB
        assert self._status(DRIVE, results[0]["drive"]).get("state") == "Ready"


@asynccontextmanager
async def node_drama(stage: Stage) -> AsyncIterator[NodeDrama]:
    async with api_server(stage.clock) as on:
        client = on.client()
        for definition in DEFINITIONS:
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition_object(definition))
        await client.create(VOLUME, new_object("Volume", VOLUME_ID, volume_spec(), finalizers=[ERASE_FINALIZER]))
        drama = NodeDrama(stage, on)
        drama.begin()
        yield drama


async def a_volume_is_erased_while_its_disk_comes_and_goes(stage: Stage) -> None:
    async with node_drama(stage) as drama:
        await stage.acts(drama.allocated, drama.ordered, drama.lost, drama.back)
        await stage.rest()
        drama.check_erased()


async def a_drive_whose_object_was_lost_is_ready_when_its_allocations_are_back(stage: Stage) -> None:
    async with node_drama(stage) as drama:
        await stage.acts(drama.deleted)
        drama.check_missing()
        await stage.acts(drama.allocated)
        drama.check_ready()


async def a_request_is_carried_out_once(stage: Stage) -> None:
    async with node_drama(stage) as drama:
        await stage.acts(drama.requested)
        drama.check_made()


SCENARIOS = (
    a_volume_is_erased_while_its_disk_comes_and_goes,
    a_drive_whose_object_was_lost_is_ready_when_its_allocations_are_back,
    a_request_is_carried_out_once,
)
