"""A cluster of many nodes with drives, whose claims come and go for days while controllers and nodes are lost.

Every change of an object is checked as it happens: no drive promises more than it has (I2), it goes on listing every
volume that was acknowledged and not deleted, it has our finalizer as long as it lists any, and no such volume is
erased. Data are checked where they are written, by `NodeModel.stage`. In the end everything is deleted, and nothing may
be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.space_return_rules import UNKNOWN_SECONDS
from orlop.foundation.keyed_lock import KeyHeld
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.client import MergePatch
from orlop.kube.objects import ObjectName
from orlop.records.drive import ALLOCATIONS_FINALIZER, DRIVE
from orlop.records.volume import VOLUME
from orlop.records.volume_context import DRIVE_KEY, TOPOLOGY_NODE
from support.drives.drive_facts import GIB, creation
from support.drives.drive_worlds import DriveController, DriveWorld, all_of, allocated, drive_controller
from support.drives.node_models import NodeModel
from support.worlds import Part, end_task, running

HOUR = 3600.0
MINUTE = 60.0


@dataclass(frozen=True)
class Scale:
    nodes: int
    drives: int
    """Of each node."""
    claims: int
    hours: float
    hours_of_use: float
    """How long a volume is used, on average; a third of it passes until the claim has the next one."""


@dataclass
class RunningController:
    """One process: calls that it serves end with it, wherever they are."""

    controller: DriveController
    calls: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the response; None for a failure of any kind, after which nothing is known."""
        task = asyncio.ensure_future(call)
        self.calls.add(task)
        await asyncio.wait([task])
        self.calls.discard(task)
        if task.cancelled():
            return None
        if isinstance(error := task.exception(), CsiError | KeyHeld):
            return None
        return task.result() if error is None else _raise(error)

    async def end(self) -> None:
        for task in tuple(self.calls):
            await end_task(task)


def _raise(error: BaseException) -> None:
    raise error


class DriveSimulation(DriveWorld):
    def __init__(self, scale: Scale, seed: int) -> None:
        super().__init__()
        self.scale = scale
        self.random = Random(seed)
        self.nodes: dict[str, NodeModel] = {}
        self.leaders: list[RunningController] = []
        self.nodes_of: dict[str, NodeModel] = {}
        """By drive."""
        self.acknowledged: dict[str, tuple[str, int]] = {}
        """Volumes that were acknowledged and not deleted, with their drives and sizes."""
        self.promised: dict[str, dict[str, int]] = {}
        """The same by drive: the sizes of its volumes."""
        self.listed: dict[str, set[str]] = {}
        """By the uid of a Drive: the volumes that it listed last."""
        self.lives = 0
        """Of claims: each with a volume of its own."""
        self.changes = 0

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        number = 0
        for index in range(self.scale.nodes):
            node = self.nodes[f"n{index}"] = NodeModel(f"n{index}", self.on, self.client, self.clock)
            for _ in range(self.scale.drives):
                number += 1
                self.nodes_of[node.add_disk(number, self.random.choice((3, 4, 8)) * GIB).id] = node
            for disk in node.disks.values():
                await node.report(disk, None)
        informers = await ends.enter_async_context(
            Informers(self.client, clock=self.clock, random=Random(1), log=self.runtime("i").log)
        )
        drives = await ends.enter_async_context(informers.using(Watched(DRIVE)))
        volumes = await ends.enter_async_context(informers.using(Watched(VOLUME)))
        self.start(self._follow_drives(drives), "nodes: drives")
        self.start(self._follow_volumes(volumes), "nodes: volumes")

    # ---- nodes ---------------------------------------------------------------------------------------------------

    async def _follow_drives(self, drives: Informer) -> None:
        names: asyncio.Queue[ObjectName] = asyncio.Queue()
        drives.add_listener(names.put_nowait)
        while True:
            name = await names.get()
            drive = drives.get(name)
            self.check_drive(name.name, dict(drive) if drive is not None else None)
            node = self.nodes_of[name.name]
            if not node.is_away:
                with suppress(ApiError):
                    await node.report(node.disks[name.name], dict(drive) if drive is not None else None)

    async def _follow_volumes(self, volumes: Informer) -> None:
        names: asyncio.Queue[ObjectName] = asyncio.Queue()
        volumes.add_listener(names.put_nowait)
        while True:
            name = await names.get()
            volume = volumes.get(name)
            self.changes += 1
            if volume is None:
                assert name.name not in self.acknowledged, f"the Volume {name} is gone, and was not deleted"
                continue
            assert not volume["spec"].get("erase") or name.name not in self.acknowledged, f"{name} was not deleted"
            if not (node := self.nodes[volume["spec"]["nodeName"]]).is_away:
                await node.follow(dict(volume))

    async def _reported(self, node: NodeModel, volume: str) -> None:
        if not node.is_away and (obj := await self.find(VOLUME, volume)) is not None:
            await node.follow(obj)

    async def catch_up(self, *nodes: NodeModel) -> None:
        """Report everything, as a node does that is back."""
        drives = {objects.name(each): each for each in all_of(self.on, DRIVE)}
        for node in nodes:
            for disk in node.disks.values():
                with suppress(ApiError):
                    await node.report(disk, drives.get(disk.id))
        back = {node.name: node for node in nodes}
        for volume in all_of(self.on, VOLUME):
            if (node_of := back.get(volume["spec"]["nodeName"])) is not None:
                await node_of.follow(volume)

    # ---- what must hold ------------------------------------------------------------------------------------------

    def check_drive(self, name: str, drive: dict[str, Any] | None) -> None:
        self.changes += 1
        if drive is None:
            return
        listed, status = allocated(drive), drive.get("status") or {}
        total, capacity = sum(listed.values()), status.get("capacityBytes", 0)
        assert total <= capacity or not capacity, f"{name} has {capacity}, and lists {total}"
        assert bool(listed) == (ALLOCATIONS_FINALIZER in objects.finalizers(drive)), f"the finalizer of {name}"
        mine = self.promised.get(name, {})
        gone = self.listed.get(objects.uid(drive), set()) & mine.keys() - listed.keys()
        assert not gone, f"{name} does not list {gone} any more"
        # An object that was made anew lists its volumes a moment later, and nothing else may take their space.
        promised = total + sum(size for volume, size in mine.items() if volume not in listed)
        assert promised <= capacity or not capacity, f"{name} has {capacity}, promised are {promised}"
        self.listed[objects.uid(drive)] = set(listed)

    # ---- controllers ---------------------------------------------------------------------------------------------

    def controller_part(self, name: str) -> Part:
        async def live() -> None:
            async with (
                self.controller_parts(name) as the,
                drive_controller(the) as controller,
                running(controller.space.run()),
            ):
                leader = RunningController(controller)
                self.leaders.append(leader)
                try:
                    await asyncio.Event().wait()
                finally:
                    self.leaders.remove(leader)
                    await leader.end()

        return self.part(name, live)

    # ---- claims --------------------------------------------------------------------------------------------------

    async def claim(self, number: int, until: float) -> None:
        """One claim after another, each with a volume that is used for a while."""
        await self.clock.sleep(self.random.uniform(0.0, self.scale.hours * HOUR / 2))
        while self.clock.elapsed() < until:
            self.lives += 1
            await self._life(f"pvc-{number}-{self.lives}", until)
            await self.clock.sleep(self.random.expovariate(3 / (self.scale.hours_of_use * HOUR)))

    async def _life(self, name: str, until: float) -> None:
        size = self.random.choice((1, 1, 2, 3)) * GIB
        node = self.random.choice(list(self.nodes))
        where = {"requisite": (node,)} if self.random.random() < 0.7 else {}
        volume = await self._created(name, size, until, **where)
        if volume is None:
            return
        placed = self.nodes[volume.accessible_topology[0].segments[TOPOLOGY_NODE]]
        if not placed.is_away:
            placed.stage(name, volume.volume_context)
            await self._reported(placed, name)
        await self.clock.sleep(self.random.expovariate(1 / (self.scale.hours_of_use * HOUR)))
        if self.random.random() < 0.2:
            await self._attempt(lambda controller: controller.expand(name, size + GIB))
        placed.unstage(name)
        await self._reported(placed, name)
        # From here on nothing of it has to be there, whether the call succeeds or not.
        drive, _ = self.acknowledged.pop(name)
        del self.promised[drive][name]
        await self._until(lambda controller: _true(controller.delete(name)))

    async def _created(self, name: str, size: int, until: float, **where: Any) -> csi_pb2.Volume | None:
        """Return the volume; None if there was no space until the end, and whatever was made is deleted."""
        request = creation(name, size, **where)
        while self.clock.elapsed() < until:
            response = await self._attempt(lambda controller: controller.service.CreateVolume(request))
            if response is not None:
                volume: csi_pb2.Volume = response.volume
                drive, size = volume.volume_context[DRIVE_KEY], volume.capacity_bytes
                self.acknowledged[name] = drive, size
                self.promised.setdefault(drive, {})[name] = size
                return volume
            await self.clock.sleep(self.random.uniform(1.0, 10 * MINUTE))
        await self._until(lambda controller: _true(controller.delete(name)))
        return None

    async def _attempt(self, make: Any) -> Any:
        if not self.leaders:
            return None
        leader = self.random.choice(self.leaders)
        return await leader.serve(make(leader.controller))

    async def _until(self, make: Any) -> None:
        while await self._attempt(make) is None:
            await self.clock.sleep(self.random.uniform(1.0, MINUTE))

    # ---- losses --------------------------------------------------------------------------------------------------

    async def lose_controllers(self) -> None:
        """Kill the leader now and then; its successor comes later, or was there before."""
        number = 1
        while True:
            current = self.controller_part(f"c{number}")
            current.start()
            await self.clock.sleep(self.random.expovariate(1 / (6 * HOUR)))
            if self.random.random() < 0.5:
                overlapping = self.controller_part(f"d{number}")
                overlapping.start()
                await self.clock.sleep(self.random.uniform(1.0, MINUTE))
                await overlapping.kill()
            await current.kill()
            await self.clock.sleep(self.random.uniform(1.0, 30.0))
            number += 1

    async def lose_nodes(self) -> None:
        while True:
            await self.clock.sleep(self.random.expovariate(max(0.5, self.scale.nodes / 100) / HOUR))
            node = self.random.choice(list(self.nodes.values()))
            if not node.is_away:
                self.start(self._lose_node(node), f"loss of {node.name}")

    async def _lose_node(self, node: NodeModel) -> None:
        node.is_away = True
        if self.random.random() < 0.5:
            await self._lose_object_of(self.random.choice(list(node.disks)))
        await self.clock.sleep(self.random.uniform(MINUTE, 6 * HOUR))
        node.is_away = False
        await self.catch_up(node)

    async def _lose_object_of(self, drive: str) -> None:
        name = ObjectName(None, drive)
        with suppress(NotFound):
            await self.client.delete(DRIVE, name)
            await self.client.patch(DRIVE, name, MergePatch({"metadata": {"finalizers": None}}))

    # ---- the whole of it -----------------------------------------------------------------------------------------

    async def play(self) -> None:
        until = self.clock.elapsed() + self.scale.hours * HOUR
        losing = [
            self.start(self.lose_controllers(), "loss of controllers"),
            self.start(self.lose_nodes(), "loss of nodes"),
        ]
        claims = [self.start(self.claim(number, until), f"claim {number}") for number in range(self.scale.claims)]
        await asyncio.wait(claims)
        for claim in claims:
            claim.result()
        await end_task(losing[1])
        for node in self.nodes.values():
            node.is_away = False
        await self.catch_up(*self.nodes.values())
        await self.clock.sleep(3 * UNKNOWN_SECONDS)
        await self.catch_up(*self.nodes.values())
        await self.clock.sleep(UNKNOWN_SECONDS)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        assert self.acknowledged == {}
        assert [objects.name(each) for each in all_of(self.on, VOLUME)] == []
        drives = all_of(self.on, DRIVE)
        assert len(drives) == self.scale.nodes * self.scale.drives
        assert {objects.name(each): allocated(each) for each in drives if allocated(each)} == {}
        assert not any(disk.volumes for node in self.nodes.values() for disk in node.disks.values())


async def _true(call: Coroutine[Any, Any, None]) -> bool:
    await call
    return True
