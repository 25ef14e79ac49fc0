"""The CSI controller service of volumes on drives.

CreateVolume is acknowledged when the reservation and the Volume object are stored, and waits for no node: the volume
context has all that the first staging needs. DeleteVolume is acknowledged when the Volume is marked to be erased;
`space_return` does the rest. A repeated call finds what an earlier one stored, whichever process that was.

The Volume object decides which drive has a volume: its name exists once, while after a change of the leader two drives
may have space reserved for one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from google.protobuf.wrappers_pb2 import Int64Value

from orlop.csi.error_codes import (
    Aborted,
    AlreadyExists,
    CsiError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from orlop.csi.interceptor import Methods, methods_of
from orlop.csi.proto import csi_pb2, services
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.drive_choice_rules import BLOCK, capacity_of, volume_bytes
from orlop.driver.persistent.drive_reservations import DriveReservations
from orlop.driver.persistent.reservation_rules import PlacedVolume, volume_object, volume_to_erase
from orlop.driver.persistent.volume_answer_rules import csi_volume, health_of, is_listed, page_of, why_not_confirmed
from orlop.driver.persistent.volume_register import VolumeRegister
from orlop.driver.persistent.volume_request_rules import (
    WantedTopology,
    WantedVolume,
    incompatibility,
    size_range,
    wanted_storage,
    wanted_volume,
)
from orlop.foundation.clock import Deadline
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.leader_election import LeadershipLost
from orlop.records.volume import VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE, is_volume_id

REPORT_SECONDS: Final = 3.0
"""How long a deletion waits for the report of the node. The calls of a provisioner have ten seconds by default."""
LOOK_SECONDS: Final = 0.1
ControllerRpc = csi_pb2.ControllerServiceCapability.RPC.Type
CAPABILITIES: Final = (
    ControllerRpc.CREATE_DELETE_VOLUME,
    ControllerRpc.EXPAND_VOLUME,
    ControllerRpc.GET_CAPACITY,
    ControllerRpc.LIST_VOLUMES,
    ControllerRpc.GET_VOLUME,
    ControllerRpc.GET_VOLUME_HEALTH,
    ControllerRpc.LIST_VOLUME_HEALTH,
    ControllerRpc.SINGLE_NODE_MULTI_WRITER,
)


class DriveControllerService(services.Controller):
    """`keys` are the volumes that a call is working on, by id."""

    def __init__(
        self,
        catalog: DriveCatalog,
        reservations: DriveReservations,
        volumes: VolumeRegister,
        keys: KeyedLock,
        runtime: Runtime,
        events: EventRecorder,
    ) -> None:
        self._catalog = catalog
        self._reservations = reservations
        self._volumes = volumes
        self._keys = keys
        self._clock, self._log = runtime.clock, runtime.log
        self._events = events

    async def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        wanted = wanted_volume(request)
        # CreateVolume has the name and DeleteVolume the id, which the interceptor locks apart: lock the id here.
        with self._keys.try_hold(wanted.volume_id, "CreateVolume"), api_errors_as_csi():
            return csi_pb2.CreateVolumeResponse(volume=csi_volume(await self._created(wanted)))

    async def _created(self, wanted: WantedVolume) -> PlacedVolume:
        known = self._catalog.volume(wanted.volume_id)
        volume = await self._volumes.read(wanted.volume_id) if known is not None else None
        if volume is None:
            volume = await self._placed(wanted)
        if volume.spec.erase or volume.spec.reservation_only:
            raise Aborted(f"an earlier volume {wanted.name} is being deleted: try again when its space is free")
        why_not = incompatibility(wanted, volume.spec, {TOPOLOGY_NODE: volume.spec.node_name})
        if why_not is not None:
            raise AlreadyExists(f"the volume {wanted.name} exists already: {why_not}")
        await self._check_space(volume)
        return volume

    async def _placed(self, wanted: WantedVolume) -> PlacedVolume:
        reserved = await self._reservations.reserve(wanted)
        volume = await self._volumes.create(volume_object(wanted, reserved.drive, reserved.placement))
        if reserved.is_new and volume.spec.drive != reserved.drive.name:
            # The cache lacked the Volume. No response has named this reservation, so it has no data.
            await self._reservations.release(reserved.drive.name, wanted.volume_id)
        return volume

    async def _check_space(self, volume: PlacedVolume) -> None:
        """Raise ABORTED if the drive does not list the volume: the Drive object was lost and made again without it."""
        for _ in range(2):
            drive = self._catalog.get(volume.spec.drive)
            if drive is not None and volume.name in drive.allocations:
                return
            await self._reservations.refresh(volume.spec.drive)
        raise Aborted(f"the drive {volume.spec.drive} does not list the volume {volume.name} yet: try again")

    async def DeleteVolume(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        volume_id = _required_id(request.volume_id)
        if is_volume_id(volume_id):
            with self._keys.try_hold(volume_id, "DeleteVolume"), api_errors_as_csi():
                await self._delete(volume_id)
        return csi_pb2.DeleteVolumeResponse()

    async def _delete(self, volume_id: str) -> None:
        """Mark a volume to be erased, and wait a moment for the report that it is not staged any more.

        Kubernetes deletes a pod when its volumes are unpublished, and then its claim. Kubelet unstages meanwhile, and
        the node reports that after it: the deletion of a volume often comes in between.
        """
        patience = self._clock.deadline(REPORT_SECONDS)
        while True:
            try:
                return await self._mark_to_erase(volume_id)
            except FailedPrecondition as error:
                if patience.passed():
                    self._note_refusal(volume_id, "DeletionRefused", error)
                    raise
                await self._until_unstaged(volume_id, patience)

    def _note_refusal(self, volume_id: str, reason: str, error: CsiError) -> None:
        if (volume := self._catalog.volume(volume_id)) is not None:
            reference = ObjectReference(VOLUME.api_version, VOLUME.kind, volume.name, uid=volume.uid)
            self._events.warning(reference, reason, str(error))

    async def _until_unstaged(self, volume_id: str, patience: Deadline) -> None:
        while not patience.passed():
            await self._clock.sleep(LOOK_SECONDS)
            known = self._catalog.volume(volume_id)
            if known is None or not known.is_in_use:
                return

    async def _mark_to_erase(self, volume_id: str) -> None:
        volume = await self._volumes.read(volume_id)
        if volume is None:
            for drive in self._catalog.holders(volume_id):
                # Space was reserved, and either the Volume was not stored, or it was removed by force: its node
                # knows whether there is data.
                body = volume_to_erase(drive, drive.allocations[volume_id])
                volume = await self._volumes.create(body)
                break
        if volume is not None:
            await self._volumes.mark_to_erase(volume)
            self._log.info("volume marked to be erased", volume=volume_id, drive=volume.spec.drive)

    async def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        volume_id = _required_id(request.volume_id)
        if not request.HasField("capacity_range"):
            raise InvalidArgument("capacity_range is missing")
        sizes = size_range(request.capacity_range)
        with api_errors_as_csi():
            volume = await self._existing(volume_id)
            with self._keys.try_hold(volume_id, "ControllerExpandVolume"):
                if sizes.limit and sizes.limit < volume.spec.bytes:
                    raise OutOfRange(f"the volume {volume_id} has {volume.spec.bytes} bytes: it cannot shrink")
                size = volume_bytes(sizes) if sizes.required > volume.spec.bytes else volume.spec.bytes
                if not size:
                    raise OutOfRange(f"no size in whole blocks is within {sizes.required} to {sizes.limit} bytes")
                # The space first: a volume may be smaller than its reservation, and never larger.
                try:
                    await self._reservations.grow(volume.spec.drive, volume_id, size)
                except (OutOfRange, ResourceExhausted) as error:
                    self._note_refusal(volume_id, "ExpansionRefused", error)
                    raise
                volume = await self._volumes.grow(volume, size)
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=volume.spec.bytes, node_expansion_required=True)

    async def GetCapacity(self, request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        storage = wanted_storage(request.volume_capabilities, request.parameters)
        place = request.accessible_topology
        topology = WantedTopology((dict(place.segments),) if request.HasField("accessible_topology") else ())
        capacity = capacity_of(storage, topology, self._catalog.drives())
        return csi_pb2.GetCapacityResponse(
            available_capacity=capacity.available,
            maximum_volume_size=Int64Value(value=capacity.largest),
            minimum_volume_size=Int64Value(value=BLOCK),
        )

    async def ListVolumes(self, request: csi_pb2.ListVolumesRequest) -> csi_pb2.ListVolumesResponse:
        page, token = page_of(self._listed(), request.starting_token, request.max_entries)
        entries = [csi_pb2.ListVolumesResponse.Entry(volume=csi_volume(volume)) for volume in page]
        return csi_pb2.ListVolumesResponse(entries=entries, next_token=token)

    async def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest
    ) -> csi_pb2.ControllerGetVolumeResponse:
        with api_errors_as_csi():
            volume = await self._existing(_required_id(request.volume_id))
        return csi_pb2.ControllerGetVolumeResponse(volume=csi_volume(volume))

    async def ControllerGetVolumeHealth(
        self, request: csi_pb2.ControllerGetVolumeHealthRequest
    ) -> csi_pb2.ControllerGetVolumeHealthResponse:
        with api_errors_as_csi():
            volume = await self._existing(_required_id(request.volume_id))
        return csi_pb2.ControllerGetVolumeHealthResponse(volume_health=self._health(volume))

    async def ControllerListVolumeHealth(
        self, request: csi_pb2.ControllerListVolumeHealthRequest
    ) -> csi_pb2.ControllerListVolumeHealthResponse:
        unhealthy = [volume for volume in self._listed() if self._health(volume).health_statuses]
        page, token = page_of(unhealthy, request.starting_token, request.max_entries)
        return csi_pb2.ControllerListVolumeHealthResponse(entries=map(self._health, page), next_token=token)

    async def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        volume_id = _required_id(request.volume_id)
        if not request.volume_capabilities:
            raise InvalidArgument("volume_capabilities are missing")
        with api_errors_as_csi():
            volume = await self._existing(volume_id)
        why_not = why_not_confirmed(volume, request)
        if why_not is not None:
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=why_not)
        confirmed = csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return csi_pb2.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def ControllerGetCapabilities(
        self,
        request: csi_pb2.ControllerGetCapabilitiesRequest,  # noqa: ARG002 - it has no fields
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        return capabilities_response()

    def _listed(self) -> list[PlacedVolume]:
        return [volume for volume in self._catalog.volumes() if is_listed(volume)]

    def _health(self, volume: PlacedVolume) -> csi_pb2.VolumeHealth:
        return health_of(volume, self._catalog.get(volume.spec.drive))

    async def _existing(self, volume_id: str) -> PlacedVolume:
        volume = await self._volumes.read(volume_id) if is_volume_id(volume_id) else None
        if volume is None or not is_listed(volume):
            raise NotFound(f"there is no volume {volume_id[:128]!r}")
        return volume


def capabilities_response() -> csi_pb2.ControllerGetCapabilitiesResponse:
    kinds = [csi_pb2.ControllerServiceCapability.RPC(type=kind) for kind in CAPABILITIES]
    return csi_pb2.ControllerGetCapabilitiesResponse(
        capabilities=[csi_pb2.ControllerServiceCapability(rpc=kind) for kind in kinds]
    )


@contextmanager
def api_errors_as_csi() -> Iterator[None]:
    """Turn errors of the API server into UNAVAILABLE, which is not final: a write may have taken effect."""
    try:
        yield
    except ApiError as error:
        raise Unavailable(f"the API server: {error.message}") from error
    except LeadershipLost as error:
        raise Unavailable(f"{error}: another process creates volumes now") from error


def _required_id(volume_id: str) -> str:
    if not volume_id:
        raise InvalidArgument("volume_id is missing")
    return volume_id


class LeaderService:
    """Serves the calls of the controller service while this process leads; UNAVAILABLE otherwise."""

    def __init__(self) -> None:
        self._service: DriveControllerService | None = None

    @contextmanager
    def leading(self, service: DriveControllerService) -> Iterator[None]:
        self._service = service
        try:
            yield
        finally:
            self._service = None

    def methods(self) -> Methods:
        return {path: (rpc, self._method(rpc.name)) for path, (rpc, _) in methods_of(services.Controller()).items()}

    def _method(self, name: str) -> Callable[..., object]:
        async def serve(request: object) -> object:
            # Callers read the capabilities before a process leads; they are the same in all processes.
            if name == "ControllerGetCapabilities":
                return capabilities_response()
            if self._service is None:
                raise Unavailable(
                    "this process does not lead: another one creates volumes, or the caches are not filled yet"
                )
            return await getattr(self._service, name)(request)

        return serve
