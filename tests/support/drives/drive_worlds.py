"""A cluster on virtual time whose API server enforces the definitions of Drives and Volumes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.controller_service import DriveControllerService
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.drive_reservations import DriveReservations
from orlop.driver.persistent.reservation_rules import slim_volume
from orlop.driver.persistent.space_return import SpaceReturn
from orlop.driver.persistent.volume_register import VolumeRegister
from orlop.foundation.keyed_lock import KeyedLock
from orlop.kube.cache.informer import Watched
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, EVENT, Kind
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import new_object, part_of
from orlop.records.definitions import DEFINITIONS, definition_object
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.volume import VOLUME, DriveVolumeSpec
from support.api.api_servers import TestServer
from support.drives.drive_facts import GIB, creation
from support.worlds import ClusterWorld, ControllerParts, running

Object = dict[str, Any]


def drive_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def drive_object(number: int, node: str = "n1", **spec: Any) -> Object:
    return new_object("Drive", drive_id(number), DriveSpec(node_name=node, type=DriveType.DISK, **spec))


def drive_status(capacity: int = 10 * GIB, **status: Any) -> Object:
    offered = {"fileSystem": "xfs", "backings": ["directory", "image"]}
    return {"state": "Ready", "capacityBytes": capacity, "allocationsRestored": True, **offered, **status}


def all_of(on: TestServer, kind: Kind) -> list[Object]:
    """Read the store itself: no request, so no choice of the explorer."""
    kept = KindInStore(kind, kind)
    return [kept.kept_object(found) for found in on.store.list(kept.resource).items]


def allocated(drive: Object) -> dict[str, int]:
    return {each.volume: each.bytes for each in part_of(drive, "spec", DriveSpec).allocations}


def check_no_overcommit(on: TestServer) -> None:
    """I2: the volumes on a drive never add up to more than the drive."""
    for drive in all_of(on, DRIVE):
        total, capacity = sum(allocated(drive).values()), (drive.get("status") or {}).get("capacityBytes", 0)
        assert total <= capacity or not capacity, f"{drive['metadata']['name']} has {capacity}, allocated are {total}"


async def create_definitions(client: KubeClient) -> None:
    for definition in DEFINITIONS:
        if definition.kind in (DRIVE, VOLUME):
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition_object(definition))


async def accept_any_field(client: KubeClient, kind: Kind) -> None:
    """Let the server store objects that our definitions refuse, as a definition of another version may have done."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {**anything, "properties": {"nodeName": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": anything}}
    patch = JsonPatch().replace("spec", "versions", 0, "schema", "openAPIV3Schema", value=schema)
    await client.patch(CUSTOM_RESOURCE_DEFINITION, ObjectName(None, f"{kind.plural}.{kind.group}"), patch)


@dataclass(frozen=True)
class DriveController:
    """The controller of drives, as one process runs it."""

    parts: ControllerParts
    catalog: DriveCatalog
    service: DriveControllerService
    space: SpaceReturn
    handles: set[str]
    """Volumes that a PersistentVolume names."""

    async def create(self, name: str = "pvc-1", size: int = GIB, **options: Any) -> csi_pb2.Volume:
        return (await self.service.CreateVolume(creation(name, size, **options))).volume

    async def delete(self, volume_id: str = "pvc-1") -> None:
        await self.service.DeleteVolume(csi_pb2.DeleteVolumeRequest(volume_id=volume_id))

    async def expand(self, volume_id: str, required: int, limit: int = 0) -> int:
        capacity = csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit)
        request = csi_pb2.ControllerExpandVolumeRequest(volume_id=volume_id, capacity_range=capacity)
        return (await self.service.ControllerExpandVolume(request)).capacity_bytes


@dataclass(frozen=True)
class Allocator:
    """What one controller process has to reserve space with."""

    parts: ControllerParts
    catalog: DriveCatalog
    reservations: DriveReservations


class DriveWorld(ClusterWorld):
    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        await create_definitions(self.client)

    async def events(self) -> set[tuple[str, str, str]]:
        """Return the kind, the name and the reason of each Event."""
        found = (await self.client.list(EVENT)).items
        return {(each["regarding"]["kind"], each["regarding"]["name"], each["reason"]) for each in found}

    async def add_drive(self, number: int, node: str = "n1", capacity: int = 10 * GIB, **status: Any) -> str:
        """Create a Drive as its node does. `status` are fields of its status, or spec={…} and labels={…}."""
        spec, labels = status.pop("spec", {}), status.pop("labels", {})
        body = drive_object(number, node, **spec)
        body["metadata"]["labels"] = labels
        await self.client.create(DRIVE, body)
        await self.set_drive_status(number, **drive_status(capacity, **status))
        return drive_id(number)

    async def set_drive_status(self, number: int, **status: Any) -> None:
        name = ObjectName(None, drive_id(number))
        await self.client.patch(DRIVE, name, MergePatch({"status": status}), subresource="status")

    async def set_volume_status(self, name: str, **status: Any) -> None:
        patch = MergePatch({"status": status})
        await self.client.patch(VOLUME, ObjectName(None, name), patch, subresource="status")

    async def drive(self, number: int) -> Object:
        return await self.client.get(DRIVE, ObjectName(None, drive_id(number)))

    async def allocations(self, number: int) -> dict[str, int]:
        return allocated(await self.drive(number))

    async def volume(self, name: str) -> DriveVolumeSpec | None:
        obj = await self.find(VOLUME, name)
        return part_of(obj, "spec", DriveVolumeSpec) if obj is not None else None

    @asynccontextmanager
    async def allocator(self, name: str = "c", transport: Transport | None = None) -> AsyncIterator[Allocator]:
        async with self.controller_parts(name, transport) as the, synced_catalog(the) as catalog:
            yield Allocator(the, catalog, DriveReservations(the.kube, catalog, the.runtime))

    @asynccontextmanager
    async def controller(self, name: str = "c", transport: Transport | None = None) -> AsyncIterator[DriveController]:
        """Run the controller of drives; it is killed when the block is left."""
        async with (
            self.controller_parts(name, transport) as the,
            drive_controller(the) as controller,
            running(controller.space.run()),
        ):
            yield controller


@asynccontextmanager
async def drive_controller(
    the: ControllerParts, may_act: Callable[[], None] = lambda: None
) -> AsyncIterator[DriveController]:
    async with synced_catalog(the) as catalog:
        keys, handles = KeyedLock(), set[str]()
        reservations = DriveReservations(the.kube, catalog, the.runtime, may_act)
        volumes = VolumeRegister(the.kube, catalog, may_act)
        space = SpaceReturn(
            catalog,
            reservations,
            volumes,
            is_used=lambda volume: volume in handles or keys.holder(volume) is not None,
            runtime=the.runtime,
            events=the.events,
            queue_metrics=the.queue_metrics,
        )
        service = DriveControllerService(catalog, reservations, volumes, keys, the.runtime, the.events)
        yield DriveController(the, catalog, service, space, handles)


@asynccontextmanager
async def synced_catalog(the: ControllerParts) -> AsyncIterator[DriveCatalog]:
    async with (
        the.informers.using(Watched(DRIVE)) as drives,
        the.informers.using(Watched(VOLUME, transform=slim_volume)) as volumes,
    ):
        await drives.wait_synced()
        await volumes.wait_synced()
        catalog = DriveCatalog(drives, volumes, the.runtime.log, the.events)
        try:
            yield catalog
        finally:
            catalog.close()
