"""What stands beside a machine of the journeys to attach: the attach/detach controller, and the driver's attacher.

Each can die and come back; what they have done is in the API server and in the driver's own books.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onenode.controllers.attach_detach import attach_detach
from orlop.csi.client import CsiClient
from orlop.csi.driver_session import Capabilities, DriverSession, SessionTimes
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.transport import Shape
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.sidecars.attacher.attachment_controller import AttachmentController, attachment_controller
from orlop.sidecars.attacher.driver_request_rules import CAN_ATTACH
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.handler import AttacherSettings
from support.attaching.attacher_worlds import used_caches
from support.kubelet.journey_machines import Machine, UncountedWay, telling_events
from support.kubelet.volume_worlds import DRIVER

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
class Part:
    """Something that lives beside the machine."""

    life: Callable[[], AbstractAsyncContextManager[None]]
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        async def live() -> None:
            async with self.life():
                await asyncio.Event().wait()

        self._task = asyncio.get_running_loop().create_task(live())

    async def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                raise error
        self._task = None

    async def restart(self) -> None:
        await self.kill()
        await self.start()


@dataclass
class Beside:
    """The two of them."""

    machine: Machine
    controller: Part = field(init=False)
    attacher: Part = field(init=False)

    def __post_init__(self) -> None:
        self.controller = Part(lambda: _controller(self.machine))
        self.attacher = Part(lambda: _attacher(self.machine))


@asynccontextmanager
async def attaching_beside(machine: Machine) -> AsyncIterator[Beside]:
    beside = Beside(machine)
    for part in (beside.controller, beside.attacher):
        await part.start()
    try:
        yield beside
    finally:
        for part in (beside.attacher, beside.controller):
            await part.kill()


def _client(machine: Machine, name: str) -> KubeClient:
    return KubeClient(UncountedWay(machine), clock=machine.clock, random=Random(11), log=machine.log, name=name)


@asynccontextmanager
async def _controller(machine: Machine) -> AsyncIterator[None]:
    client, clock, log = _client(machine, "adc"), machine.clock, machine.log
    metrics = Metrics("t", of_process=False)
    runtime = Runtime(clock=clock, random=Random(13), log=log, metrics=metrics)
    async with (
        telling_events(client, "attachdetach-controller", clock, log) as events,
        Informers(client, clock=clock, random=Random(12), log=log) as informers,
        attach_detach(client, informers, runtime, events, WorkqueueMetrics(metrics)),
    ):
        yield


@asynccontextmanager
async def _attacher(machine: Machine) -> AsyncIterator[None]:
    client, clock, log = _client(machine, "attacher"), machine.clock, machine.log
    metrics, connection = Metrics("t", of_process=False), InProcessConnection(DriversController(machine))
    csi = CsiClient(connection, log=log, metrics=metrics, clock=clock, random=Random(14))
    settings = AttacherSettings(DRIVER, OURS, drift_check=0.0)
    times = SessionTimes(lost_after=1000.0, call_timeout=15.0, grace=20.0)
    session = DriverSession(csi, DRIVER, times, clock=clock, log=log)
    runtime = Runtime(clock=clock, random=Random(16), log=log, metrics=metrics)
    async with (
        telling_events(client, "external-attacher", clock, log) as events,
        Informers(client, clock=clock, random=Random(15), log=log) as informers,
        used_caches(informers) as caches,
    ):

        def controller_for(capabilities: Capabilities) -> AttachmentController:
            return attachment_controller(
                caches,
                settings,
                runtime=runtime,
                kube=client,
                csi=csi,
                events=events,
                queue_metrics=WorkqueueMetrics(metrics),
                may_act=lambda: None,
                trivial=CAN_ATTACH not in capabilities,
            )

        async def run() -> None:
            async with session.open():
                await session.run_workers(controller_for, asyncio.Event())

        task = asyncio.get_running_loop().create_task(run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await connection.close()
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error


def attached_at_driver(machine: Machine, handle: str = "h1") -> list[str]:
    found: Any = machine.world.storage.volumes.get(handle)
    return sorted(found.attached) if found is not None else []
