"""A cluster on virtual time for attachers: an API server, a scripted driver, an attacher that dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from orlop.csi.client import CsiClient
from orlop.csi.driver_session import DriverSession, SessionTimes
from orlop.csi.in_process_transport import InProcessConnection
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions
from orlop.kube.kinds import CSI_NODE, EVENT, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.sidecars.attacher.attachment_controller import AttachmentController, attachment_controller
from orlop.sidecars.attacher.driver_request_rules import CAN_ATTACH
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.handler import AttacherCaches, AttacherSettings
from orlop.testing.scripted_driver import ScriptedDriver
from support.api.api_objects import attachment, csi_node, volume
from support.api.api_wires import Wire
from support.csi.driver_lives import DriverLives, csi_client
from support.csi.indiscreet_drivers import IndiscreetDriver
from support.worlds import AT_ONCE, ClusterWorld, ControllerParts, Object, running

DRIVER = "mock.example.com"
OURS = finalizer_of(DRIVER)
PUBLISH, UNPUBLISH = "ControllerPublishVolume", "ControllerUnpublishVolume"
KINDS = (VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE)


@dataclass(frozen=True)
class AttacherParts:
    """What an attacher is made of."""

    caches: AttacherCaches
    settings: AttacherSettings
    shared: ControllerParts
    csi: CsiClient

    def controller(self, *, trivial: bool = False, may_act: Callable[[], None] = lambda: None) -> AttachmentController:
        return attachment_controller(
            self.caches,
            self.settings,
            runtime=self.shared.runtime,
            kube=self.shared.kube,
            csi=self.csi,
            events=self.shared.events,
            queue_metrics=self.shared.queue_metrics,
            may_act=may_act,
            trivial=trivial,
        )

    def session(self, lost_after: float = 10.0) -> DriverSession:
        times = SessionTimes(lost_after=lost_after, call_timeout=self.settings.timeout, grace=20.0)
        runtime = self.shared.runtime
        return DriverSession(self.csi, self.settings.driver, times, clock=runtime.clock, log=runtime.log)

    async def run_session(self, stop: asyncio.Event, lost_after: float = 10.0) -> None:
        """As the process does it: the handler that fits the driver, until it is lost."""
        session = self.session(lost_after)
        async with session.open():
            await session.run_workers(lambda can: self.controller(trivial=CAN_ATTACH not in can), stop)


class AttacherWorld(ClusterWorld):
    def __init__(self) -> None:
        super().__init__()
        self.user: User = ADMIN
        self.wire = Wire()
        """The attacher's way to the API server; those of the tests are others."""
        self.scrape: Callable[[str], tuple[bytes, str]] = lambda _accept: (b"", "")
        self.lives = DriverLives(self.runtime("driver"))
        self.storage = self.lives.storage
        self.connection: InProcessConnection
        """To the driver, of the attacher that was made last."""
        self.play({})

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        ends.push_async_callback(self.lives.end)

    def play(self, script: Mapping[str, Any], **rest: Any) -> None:
        """The driver begins anew, on the same storage, with this script."""
        self.interceptor = self.lives.start({"script": script, **rest})

    # ---- the attacher --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def attacher(
        self, *, trivial: bool = False, reconcile: float = 0.0, **settings: Any
    ) -> AsyncIterator[AttachmentController]:
        async with self.parts(drift_check=reconcile, page=3, **settings) as parts:
            controller = parts.controller(trivial=trivial)
            async with running(controller.run()):
                yield controller

    @asynccontextmanager
    async def parts(self, **settings: Any) -> AsyncIterator[AttacherParts]:
        transport = self.wire.around(self.on.transport(self.user))
        connection = self.connection = InProcessConnection(IndiscreetDriver(self.interceptor))
        async with self.controller_parts("attacher", transport) as shared:
            self.scrape = shared.runtime.metrics.render
            made = AttacherSettings(DRIVER, OURS, **settings)
            async with used_caches(shared.informers) as caches:
                try:
                    yield AttacherParts(caches, made, shared, csi_client(connection, shared.runtime))
                finally:
                    await connection.close()

    # ---- objects -------------------------------------------------------------------------------------------------

    async def node(self, name: str = "n1", node_id: str = "id-1") -> None:
        await self.create(CSI_NODE, csi_node(name, {"name": DRIVER, "nodeID": node_id}))

    async def volume(self, name: str = "pv1", handle: str = "h1", **csi: Any) -> None:
        if self.storage.volumes.get(handle) is None:
            self.storage.add_volume(handle, 1 << 30)
        source = {"driver": DRIVER, "volumeHandle": handle, **csi}
        await self.create(PERSISTENT_VOLUME, volume(name, csi=source))

    async def wanted(self, name: str = "va1", volume_name: str = "pv1", node_name: str = "n1") -> Object:
        source = {"persistentVolumeName": volume_name}
        body = attachment(name, attacher=DRIVER, nodeName=node_name, source=source)
        return await self.create(VOLUME_ATTACHMENT, body)

    async def delete(self, kind: Kind, name: str, options: DeleteOptions = AT_ONCE) -> None:
        """Also what is gone already."""
        with suppress(NotFound):
            await super().delete(kind, name, options)

    async def attachment(self, name: str = "va1") -> Object:
        found = await self.find(VOLUME_ATTACHMENT, name)
        assert found is not None
        return found

    async def events(self) -> list[str]:
        return [f"{event['reason']}: {event['note']}" for event in (await self.client.list(EVENT)).items]

    # ---- what the driver has -------------------------------------------------------------------------------------

    def published(self, handle: str = "h1") -> list[str]:
        found = self.storage.volumes.get(handle)
        return sorted(found.attached) if found is not None else []

    @property
    def drivers(self) -> list[ScriptedDriver]:
        return self.lives.drivers

    def calls(self, *methods: str) -> list[str]:
        return self.lives.calls(*(methods or (PUBLISH, UNPUBLISH)))

    def requests(self, method: str) -> list[Any]:
        return self.lives.requests(method)

    def metrics(self) -> dict[str, float]:
        """Of the attacher that was made last."""
        lines = (line.rpartition(" ") for line in self.scrape("")[0].decode().splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in lines}

    async def until_told(self, field: str = "attachError", name: str = "va1") -> Object:
        """The error that stands on a VolumeAttachment."""

        async def error() -> Any:
            return (await self.attachment(name)).get("status", {}).get(field)

        found: Object = await self.until(error)
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
            found = await self.find(PERSISTENT_VOLUME, volume_name)
            return found is None or not objects.has_finalizer(found, OURS)

        await self.until(is_so)

    async def until_gone(self, kind: Kind, name: str) -> None:
        async def is_so() -> bool:
            return await self.find(kind, name) is None

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
