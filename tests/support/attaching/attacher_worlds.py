"""A cluster on virtual time for attachers: an API server, a scripted driver, an attacher that dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from onenode.apiserver.access.access_rules import ADMIN, User
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.csi.client import CsiClient
from orlop.csi.driver_session import DriverSession, SessionTimes
from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import CSI_NODE, EVENT, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.sidecars.attacher.attachment_controller import AttachmentController, attachment_controller
from orlop.sidecars.attacher.driver_request_rules import CAN_ATTACH
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.handler import AttacherCaches, AttacherSettings
from orlop.testing.driver_model import Storage
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_objects import attachment, csi_node, volume
from support.api.api_servers import TestServer, api_server
from support.api.api_wires import Wire
from support.csi.indiscreet_drivers import IndiscreetDriver

DRIVER = "mock.example.com"
OURS = finalizer_of(DRIVER)
Object = dict[str, Any]
PUBLISH, UNPUBLISH = "ControllerPublishVolume", "ControllerUnpublishVolume"
KINDS = (VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE)


@dataclass(frozen=True)
class AttacherParts:
    """What an attacher is made of, and its connection to the driver."""

    caches: AttacherCaches
    settings: AttacherSettings
    runtime: Runtime
    kube: KubeClient
    csi: CsiClient
    events: EventRecorder
    queue_metrics: WorkqueueMetrics
    connection: InProcessConnection

    def controller(self, *, trivial: bool = False, may_act: Callable[[], None] = lambda: None) -> AttachmentController:
        return attachment_controller(
            self.caches,
            self.settings,
            runtime=self.runtime,
            kube=self.kube,
            csi=self.csi,
            events=self.events,
            queue_metrics=self.queue_metrics,
            may_act=may_act,
            trivial=trivial,
        )

    def session(self, lost_after: float = 10.0) -> DriverSession:
        times = SessionTimes(lost_after=lost_after, call_timeout=self.settings.timeout, grace=20.0)
        return DriverSession(self.csi, DRIVER, times, clock=self.runtime.clock, log=self.runtime.log)

    async def run_session(self, stop: asyncio.Event, lost_after: float = 10.0) -> None:
        """As the process does it: the handler that fits the driver, until it is lost."""
        session = self.session(lost_after)
        async with session.open():
            await session.run_workers(lambda can: self.controller(trivial=CAN_ATTACH not in can), stop)


@dataclass
class AttacherWorld:
    on: TestServer
    clock: Clock
    storage: Storage
    log: list[LogEntry] = field(default_factory=list)
    drivers: list[ScriptedDriver] = field(default_factory=list)
    interceptors: list[ScriptedInterceptor] = field(default_factory=list)
    user: User = ADMIN
    wire: Wire = field(default_factory=Wire)
    """The attacher's way to the API server; those of the tests are others."""

    def __post_init__(self) -> None:
        self.client = self.on.client()
        self.scrape: Callable[[str], tuple[bytes, str]] = lambda _accept: (b"", "")
        self.play({})

    def play(self, script: Mapping[str, Any], **rest: Any) -> None:
        """The driver begins anew, on the same storage, with this script."""
        driver = ScriptedDriver(read_script({"script": script, **rest}), self.clock, storage=self.storage)
        self.drivers.append(driver)
        self.interceptor = ScriptedInterceptor(
            driver, log=collecting_log(self.log), metrics=Metrics("t"), clock=self.clock
        )
        self.interceptors.append(self.interceptor)

    # ---- the attacher --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def attacher(
        self, *, trivial: bool = False, reconcile: float = 0.0, **settings: Any
    ) -> AsyncIterator[AttachmentController]:
        async with self.parts(drift_check=reconcile, page=3, **settings) as parts:
            controller = parts.controller(trivial=trivial)
            tasks = [asyncio.ensure_future(controller.run()), asyncio.ensure_future(parts.events.run())]
            try:
                yield controller
                await parts.events.drain(60.0)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    @asynccontextmanager
    async def parts(self, **settings: Any) -> AsyncIterator[AttacherParts]:
        log, clock, metrics = collecting_log(self.log), self.clock, Metrics("t", of_process=False)
        self.scrape = metrics.render
        transport = self.wire.around(self.on.transport(self.user))
        kube = KubeClient(transport, clock=clock, random=Random(2), log=log, name="attacher")
        connection = InProcessConnection(IndiscreetDriver(self.interceptor))
        csi = CsiClient(connection, log=log, metrics=metrics, clock=clock, random=Random(3))
        events = EventRecorder(kube, Reporter("a", "a-0"), clock=clock, random=Random(4), log=log, metrics=metrics)
        runtime = Runtime(clock=clock, random=Random(6), log=log, metrics=metrics)
        async with (
            Informers(kube, clock=clock, random=Random(5), log=log) as informers,
            used_caches(informers) as caches,
        ):
            queues = WorkqueueMetrics(metrics)
            made = AttacherSettings(DRIVER, OURS, **settings)
            try:
                yield AttacherParts(caches, made, runtime, kube, csi, events, queues, connection)
            finally:
                await connection.close()

    # ---- objects -------------------------------------------------------------------------------------------------

    async def node(self, name: str = "n1", node_id: str = "id-1") -> None:
        await self.client.create(CSI_NODE, csi_node(name, {"name": DRIVER, "nodeID": node_id}))

    async def volume(self, name: str = "pv1", handle: str = "h1", **csi: Any) -> None:
        if self.storage.volumes.get(handle) is None:
            self.storage.add_volume(handle, 1 << 30)
        source = {"driver": DRIVER, "volumeHandle": handle, **csi}
        await self.client.create(PERSISTENT_VOLUME, volume(name, csi=source))

    async def wanted(self, name: str = "va1", volume_name: str = "pv1", node_name: str = "n1") -> Object:
        source = {"persistentVolumeName": volume_name}
        body = attachment(name, attacher=DRIVER, nodeName=node_name, source=source)
        return await self.client.create(VOLUME_ATTACHMENT, body)

    async def put(self, kind: Kind, body: Object) -> None:
        """As it is, whatever the API server would say to it."""
        name, kept = body["metadata"]["name"], KindInStore(kind, kind)
        about = {"apiVersion": kind.api_version, "kind": kind.kind}
        whole = {**about, **body, "metadata": {"uid": f"uid-{name}", **body["metadata"]}}
        await self.on.store.create(kept.key("", name), lambda revision: kept.encoded(whole, revision))

    async def delete(self, kind: Kind, name: str) -> None:
        with suppress(NotFound):
            await self.client.delete(kind, ObjectName(None, name))

    async def get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self.client.get(kind, ObjectName(None, name))
        except NotFound:
            return None

    async def attachment(self, name: str = "va1") -> Object:
        found = await self.get(VOLUME_ATTACHMENT, name)
        assert found is not None
        return found

    async def events(self) -> list[str]:
        return [f"{event['reason']}: {event['note']}" for event in (await self.client.list(EVENT)).items]

    # ---- what the driver has -------------------------------------------------------------------------------------

    def published(self, handle: str = "h1") -> list[str]:
        found = self.storage.volumes.get(handle)
        return sorted(found.attached) if found is not None else []

    def calls(self, *methods: str) -> list[str]:
        wanted = methods or (PUBLISH, UNPUBLISH)
        return [call.method for driver in self.drivers for call in driver.calls if call.method in wanted]

    def requests(self, method: str) -> list[Any]:
        return [call.request for driver in self.drivers for call in driver.calls if call.method == method]

    def metrics(self) -> dict[str, float]:
        """Of the attacher that was made last."""
        lines = (line.rpartition(" ") for line in self.scrape("")[0].decode().splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in lines}

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float = 600.0) -> None:
        end = self.clock.elapsed() + within
        while not await condition():
            assert self.clock.elapsed() < end, f"not within {within} seconds"
            await self.clock.sleep(0.05)

    async def until_told(self, field: str = "attachError", name: str = "va1") -> Object:
        """The error that stands on a VolumeAttachment."""

        async def is_so() -> bool:
            return field in (await self.attachment(name)).get("status", {})

        await self.until(is_so)
        found: Object = (await self.attachment(name))["status"][field]
        return found

    async def until_attached(self, name: str = "va1") -> Object:
        async def is_so() -> bool:
            return (await self.attachment(name)).get("status", {}).get("attached") is True

        await self.until(is_so)
        return await self.attachment(name)

    async def until_detached(self, name: str = "va1") -> None:
        """Told so on an object that others keep."""

        async def is_so() -> bool:
            return not (await self.attachment(name))["status"]["attached"]

        await self.until(is_so)

    async def until_released(self, volume_name: str) -> None:
        """Our finalizer is on the PersistentVolume no more; that others keep it is no matter."""

        async def is_so() -> bool:
            found = await self.get(PERSISTENT_VOLUME, volume_name)
            return found is None or not objects.has_finalizer(found, OURS)

        await self.until(is_so)

    async def until_gone(self, kind: Kind, name: str) -> None:
        async def is_so() -> bool:
            return await self.get(kind, name) is None

        await self.until(is_so)


@asynccontextmanager
async def used_caches(informers: Informers) -> AsyncIterator[AttacherCaches]:
    attachments, volumes, csi_nodes = (Watched(kind, transform=without_managed_fields) for kind in KINDS)
    async with (
        informers.using(attachments) as all_attachments,
        informers.using(volumes) as all_volumes,
        informers.using(csi_nodes) as all_csi_nodes,
    ):
        yield AttacherCaches(all_attachments, all_volumes, all_csi_nodes)


@asynccontextmanager
async def attacher_world() -> AsyncIterator[AttacherWorld]:
    clock = VirtualClock()
    async with api_server(clock) as on:
        world = AttacherWorld(on, clock, Storage())
        yield world
        for driver, interceptor in zip(world.drivers, world.interceptors, strict=True):
            driver.stop_hanging()
            await interceptor.drain(10_000.0)
