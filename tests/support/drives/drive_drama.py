"""A run of the controller of drives for the explorer: an API server, a node, a controller that dies, and a caller.

The caller stands for a provisioner: it repeats CreateVolume and DeleteVolume until they succeed, in whichever life of
the controller. What must always hold: neither allocations nor data of a drive are more than it has (I2); data are on
the drive that the Volume names; a volume that was acknowledged has its Volume and its space until it is deleted. At the
end nothing is left of what was deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.space_return_rules import UNKNOWN_SECONDS
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME
from orlop.testing.explorer import Act, ExploredTransport, Life, Stage
from support.api.api_servers import TestServer, api_server
from support.drives.drive_facts import GIB, creation
from support.drives.drive_worlds import (
    DriveController,
    all_of,
    allocated,
    check_no_overcommit,
    create_definitions,
    drive_controller,
)
from support.drives.node_models import NodeModel
from support.worlds import ControllerParts

METRICS = Metrics("explored", of_process=False)
QUEUE_METRICS = WorkqueueMetrics(METRICS)
RETRY_SECONDS = 5.0
VOLUME_ID = "pvc-1"


@dataclass
class DriveDrama:
    stage: Stage
    on: TestServer
    nodes: list[NodeModel]
    is_wanted: bool = False
    acknowledged: csi_pb2.Volume | None = None
    is_deleted: bool = False
    """DeleteVolume was acknowledged."""
    log: list[LogEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stage.always(self.check)
        self.created = Act("a volume is wanted", self._want)
        self.used = Act("a pod uses it", self._use, expects=self.is_there)
        self.unused = Act("the pod is gone", self._unuse)
        self.deleted = Act("the volume is not wanted any more", self._unwant)
        self.drive_lost = Act("the object of its drive is lost", self._lose_drive)

    def begin(self) -> None:
        self.stage.run("controller", self._live)

    async def _live(self, life: Life) -> None:
        log, clock = collecting_log(self.log), self.stage.clock
        transport = ExploredTransport(life, self.on.transport(), is_spared=lambda request: "/events" in request.path)
        kube = KubeClient(transport, clock=clock, random=Random(2), log=log)
        events = EventRecorder(kube, Reporter("c", "c-0"), clock=clock, random=Random(4), log=log, metrics=METRICS)
        runtime = Runtime(clock=clock, random=Random(int(clock.elapsed() * 1000)), log=log, metrics=METRICS)
        async with Informers(kube, clock=clock, random=Random(5), log=log) as informers, TaskGroup() as tasks:
            parts = ControllerParts(kube, informers, events, runtime, QUEUE_METRICS)
            tasks.start(events.run(), name="events")
            async with drive_controller(parts, life.guard) as controller:
                tasks.start(controller.space.run(), name="space")
                await self._call(controller)

    async def _call(self, controller: DriveController) -> None:
        while True:
            try:
                if self.is_wanted and self.acknowledged is None:
                    request = creation(VOLUME_ID, GIB, requisite=("n1",))
                    self.acknowledged = (await controller.service.CreateVolume(request)).volume
                elif not self.is_wanted and not self.is_deleted:
                    await controller.delete(VOLUME_ID)
                    self.is_deleted, self.acknowledged = True, None
            except (CsiError, KeyHeld):
                pass
            await self.stage.clock.sleep(RETRY_SECONDS)

    # ---- what others do ------------------------------------------------------------------------------------------

    async def _want(self) -> None:
        self.is_wanted, self.is_deleted = True, False

    async def _unwant(self) -> None:
        self.is_wanted = False

    async def _use(self) -> None:
        if self.acknowledged is not None:
            self.nodes[0].stage(VOLUME_ID, self.acknowledged.volume_context)

    async def _unuse(self) -> None:
        self.nodes[0].unstage(VOLUME_ID)

    async def _lose_drive(self) -> None:
        client = self.on.client()
        for drive in all_of(self.on, DRIVE):
            if VOLUME_ID in allocated(drive):
                name = objects.name_of(drive)
                await client.delete(DRIVE, name)
                await client.patch(DRIVE, name, MergePatch({"metadata": {"finalizers": None}}))

    # ---- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        check_no_overcommit(self.on)
        placed = {objects.name(each): each["spec"]["drive"] for each in all_of(self.on, VOLUME)}
        for node in self.nodes:
            for disk in node.disks.values():
                assert sum(disk.volumes.values()) <= disk.capacity
                for name in disk.volumes:
                    assert placed.get(name) == disk.id, f"{name} has data on {disk.id}, its Volume is on {placed}"

    def is_there(self) -> None:
        assert self.acknowledged is not None, "never acknowledged"
        self.has_space()

    def has_space(self) -> None:
        (volume,) = all_of(self.on, VOLUME)
        (drive,) = [each for each in all_of(self.on, DRIVE) if objects.name(each) == volume["spec"]["drive"]]
        assert allocated(drive) == {VOLUME_ID: GIB}
        assert drive["metadata"]["finalizers"]

    async def until_nothing_is_left(self) -> None:
        """Space that nothing knows returns after a while; usually nothing waits for that."""
        if any(map(allocated, all_of(self.on, DRIVE))):
            await self.stage.rest(UNKNOWN_SECONDS + 30.0)
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        assert self.is_deleted
        left = [objects.name(each) for each in all_of(self.on, VOLUME)]
        assert left == [], f"left are {left}"
        for drive in all_of(self.on, DRIVE):
            assert allocated(drive) == {}, f"{objects.name(drive)} still lists {allocated(drive)}"
        assert not any(disk.volumes for node in self.nodes for disk in node.disks.values())


@asynccontextmanager
async def drive_drama(stage: Stage) -> AsyncIterator[DriveDrama]:
    async with api_server(stage.clock) as on:
        client = on.client()
        await create_definitions(client)
        node = NodeModel("n1", on, client, stage.clock)
        for number in (1, 2):
            node.add_disk(number, 2 * GIB)
        await node.reconcile()
        running = asyncio.ensure_future(node.run(every=5.0))
        try:
            yield DriveDrama(stage, on, [node])
        finally:
            running.cancel()


async def created_and_deleted(stage: Stage) -> None:
    """A volume is created, and deleted before anybody used it."""
    async with drive_drama(stage) as play:
        play.begin()
        await stage.acts(play.created, play.deleted)
        await play.until_nothing_is_left()


async def used_and_deleted(stage: Stage) -> None:
    """A volume is created, staged, unstaged and deleted."""
    async with drive_drama(stage) as play:
        play.begin()
        await stage.acts(play.created, play.used, play.unused, play.deleted)
        await play.until_nothing_is_left()


async def drive_lost(stage: Stage) -> None:
    """The object of the drive is lost while a pod uses its volume, and comes back with everything it listed."""
    async with drive_drama(stage) as play:
        play.begin()
        await stage.acts(play.created, play.used, play.drive_lost)
        play.is_there()


DRIVE_SCENARIOS = (created_and_deleted, used_and_deleted, drive_lost)
