"""What stands beside a machine of the journeys to attach: the attach/detach controller, and the driver's attacher.

Each can die and come back; what they have done is in the API server and in the driver's own books.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from onenode.controllers.attach_detach import attach_detach
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.transport import Shape
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.handler import AttacherSettings
from support.attaching.attacher_worlds import AttacherParts, used_caches
from support.csi.driver_lives import csi_client
from support.kubelet.journey_machines import Machine, UncountedWay
from support.kubelet.volume_worlds import DRIVER, NODE_NAME
from support.worlds import ControllerParts

OURS = finalizer_of(DRIVER)


@dataclass
class DriversController:
    """The driver's controller service, in whichever life it is."""

    machine: Machine

    def shape_of(self, path: str) -> Shape | None:
        return self.machine.world.interceptor.shape_of(path)

    async def answer(self, path: str, message: bytes) -> bytes:
        return await self.machine.world.interceptor.answer(path, message)

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        return self.machine.world.interceptor.answers(path, message)

    async def drain(self, _grace: float) -> list[str]:
        return []


@dataclass
class Beside:
    """The two of them."""

    machine: Machine

    def __post_init__(self) -> None:
        self.controller = self.machine.world.part("attachdetach-controller", self._controller)
        self.attacher = self.machine.world.part("external-attacher", self._attacher)

    async def _controller(self) -> None:
        async with (
            self._parts("attachdetach-controller") as the,
            attach_detach(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
        ):
            await asyncio.Event().wait()

    async def _attacher(self) -> None:
        connection = InProcessConnection(DriversController(self.machine))
        settings = AttacherSettings(DRIVER, OURS, drift_check=0.0)
        async with self._parts("external-attacher") as shared, used_caches(shared.informers) as caches:
            parts = AttacherParts(caches, settings, shared, csi_client(connection, shared.runtime))
            try:
                await parts.run_session(asyncio.Event(), lost_after=1000.0)
            finally:
                await connection.close()

    def _parts(self, name: str) -> AbstractAsyncContextManager[ControllerParts]:
        return self.machine.world.controller_parts(name, UncountedWay(self.machine), NODE_NAME)


@asynccontextmanager
async def attaching_beside(machine: Machine) -> AsyncIterator[Beside]:
    beside = Beside(machine)
    beside.controller.start()
    beside.attacher.start()
    try:
        yield beside
    finally:
        await beside.attacher.kill()
        await beside.controller.kill()


def attached_at_driver(machine: Machine, handle: str = "h1") -> list[str]:
    found: Any = machine.world.storage.volumes.get(handle)
    return sorted(found.attached) if found is not None else []
