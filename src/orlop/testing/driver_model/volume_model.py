"""Create, expand, list and delete volumes: one part of the model's Controller service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.wrappers_pb2 import Int64Value

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition, InvalidArgument, OutOfRange, ResourceExhausted
from orlop.csi.proto import csi_pb2, services
from orlop.testing.driver_model import request_checks as checks
from orlop.testing.driver_model.facts import GIBIBYTE
from orlop.testing.driver_model.service import ModelService, page_of
from orlop.testing.driver_model.storage import Block, ModelVolume, WriteNumber

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME_KEY = "mock.orlop.dev/name"


class VolumesModel(ModelService, services.Controller):
    async def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        self._demand("controller", "CREATE_DELETE_VOLUME")
        self._check_creation(request)
        existing = self.storage.volumes.named(request.name)
        if existing is None:
            existing = self._make(request)
        elif (difference := _difference(existing, request)) is not None:
            raise AlreadyExists(f"the volume named {request.name} exists as {existing.id}, with another {difference}")
        return csi_pb2.CreateVolumeResponse(volume=described(existing))

    async def DeleteVolume(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        self._demand("controller", "CREATE_DELETE_VOLUME")
        checks.demand_fields(request, "volume_id")
        volume = self.storage.volumes.get(request.volume_id)
        if volume is not None and volume.nodes_using():
            raise FailedPrecondition(f"the volume {volume.id} is in use on {', '.join(volume.nodes_using())}")
        self.storage.volumes.remove(request.volume_id)
        return csi_pb2.DeleteVolumeResponse()

    async def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        self._demand("plugin", "CONTROLLER_SERVICE")
        checks.demand_fields(request, "volume_id", "volume_capabilities")
        volume = self._volume(request.volume_id)
        try:
            checks.check_capabilities(request.volume_capabilities, self.facts.capabilities.controller)
        except InvalidArgument as error:
            return csi_pb2.ValidateVolumeCapabilitiesResponse(message=error.message)
        if not all(supports(volume, capability) for capability in request.volume_capabilities):
            return csi_pb2.ValidateVolumeCapabilitiesResponse(
                message=f"the volume {volume.id} was created for another access type"
            )
        return csi_pb2.ValidateVolumeCapabilitiesResponse(confirmed=_confirmed(request))

    async def ListVolumes(self, request: csi_pb2.ListVolumesRequest) -> csi_pb2.ListVolumesResponse:
        self._demand("controller", "LIST_VOLUMES")
        page, token = page_of(self.storage.volumes, list(self.storage.volumes), request)
        entries = [
            csi_pb2.ListVolumesResponse.Entry(
                volume=described(volume),
                status=csi_pb2.ListVolumesResponse.VolumeStatus(published_node_ids=self._shown_nodes(volume)),
            )
            for volume in page
        ]
        return csi_pb2.ListVolumesResponse(entries=entries, next_token=token)

    async def ControllerGetVolume(
        self, request: csi_pb2.ControllerGetVolumeRequest
    ) -> csi_pb2.ControllerGetVolumeResponse:
        self._demand("controller", "GET_VOLUME")
        checks.demand_fields(request, "volume_id")
        volume = self._volume(request.volume_id)
        status = csi_pb2.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=self._shown_nodes(volume))
        return csi_pb2.ControllerGetVolumeResponse(volume=described(volume), status=status)

    async def ControllerGetVolumeHealth(
        self, request: csi_pb2.ControllerGetVolumeHealthRequest
    ) -> csi_pb2.ControllerGetVolumeHealthResponse:
        self._demand("controller", "GET_VOLUME_HEALTH")
        checks.demand_fields(request, "volume_id")
        return csi_pb2.ControllerGetVolumeHealthResponse(volume_health=health_of(self._volume(request.volume_id)))

    async def ControllerListVolumeHealth(
        self, request: csi_pb2.ControllerListVolumeHealthRequest
    ) -> csi_pb2.ControllerListVolumeHealthResponse:
        self._demand("controller", "LIST_VOLUME_HEALTH")
        ill = [volume for volume in self.storage.volumes if volume.health]
        page, token = page_of(self.storage.volumes, ill, request)
        return csi_pb2.ControllerListVolumeHealthResponse(entries=map(health_of, page), next_token=token)

    async def GetCapacity(self, request: csi_pb2.GetCapacityRequest) -> csi_pb2.GetCapacityResponse:
        self._demand("controller", "GET_CAPACITY")
        checks.check_capabilities(request.volume_capabilities, self.facts.capabilities.controller)
        free = max(0, self.facts.capacity - self.storage.used())
        return csi_pb2.GetCapacityResponse(
            available_capacity=free,
            maximum_volume_size=Int64Value(value=self.facts.capacity),
            minimum_volume_size=Int64Value(value=1),
        )

    async def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        self._demand("controller", "EXPAND_VOLUME")
        checks.demand_fields(request, "volume_id", "capacity_range")
        checks.check_range(request.capacity_range)
        volume = self._volume(request.volume_id)
        self._grow(volume, request.capacity_range)
        on_node = "EXPAND_VOLUME" in self.facts.capabilities.node
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=volume.size, node_expansion_required=on_node)

    async def ControllerModifyVolume(
        self, request: csi_pb2.ControllerModifyVolumeRequest
    ) -> csi_pb2.ControllerModifyVolumeResponse:
        self._demand("controller", "MODIFY_VOLUME")
        checks.demand_fields(request, "volume_id")
        volume = self._volume(request.volume_id)
        checks.demand_fields(request, "mutable_parameters")
        checks.check_mutable_parameters(request.mutable_parameters, self.facts)
        volume.mutable_parameters.update(request.mutable_parameters)
        return csi_pb2.ControllerModifyVolumeResponse()

    def _check_creation(self, request: csi_pb2.CreateVolumeRequest) -> None:
        checks.demand_fields(request, "name", "volume_capabilities")
        checks.check_name(request.name)
        checks.check_capabilities(request.volume_capabilities, self.facts.capabilities.controller)
        if request.HasField("capacity_range"):
            checks.check_range(request.capacity_range)
        checks.check_mutable_parameters(request.mutable_parameters, self.facts)
        checks.check_topology(request.accessibility_requirements, "VOLUME_ACCESSIBILITY_CONSTRAINTS", self.facts)
        if request.HasField("volume_content_source"):
            self._check_source(request.volume_content_source)

    def _check_source(self, source: csi_pb2.VolumeContentSource) -> None:
        kind = source.WhichOneof("type")
        if kind is None:
            raise InvalidArgument("volume_content_source names no source: a snapshot or a volume is required")
        needed = "CREATE_DELETE_SNAPSHOT" if kind == "snapshot" else "CLONE_VOLUME"
        if needed not in self.facts.capabilities.controller:
            raise InvalidArgument(f"a volume from a {kind} needs the capability {needed}")

    def _make(self, request: csi_pb2.CreateVolumeRequest) -> ModelVolume:
        source_size, blocks = self._content(request)
        size = self._size(request.capacity_range, source_size)
        serial = self.storage.volumes.next_serial()
        return self.storage.volumes.put(
            ModelVolume(
                id=self.storage.volumes.id_of(serial),
                serial=serial,
                name=request.name,
                size=size,
                made_from=_without_secrets(request),
                topology=_chosen_place(request.accessibility_requirements),
                mutable_parameters=dict(request.mutable_parameters),
                blocks=dict(blocks),
                writes=max(blocks.values(), default=0),
            )
        )

    def _content(self, request: csi_pb2.CreateVolumeRequest) -> tuple[int, Mapping[Block, WriteNumber]]:
        """Return the size of the source, and its blocks."""
        source = request.volume_content_source
        match source.WhichOneof("type"):
            case "snapshot":
                snapshot = self._snapshot(source.snapshot.snapshot_id)
                return snapshot.size, snapshot.blocks
            case "volume":
                volume = self._volume(source.volume.volume_id)
                return volume.size, volume.blocks
            case _:
                return 0, {}

    def _size(self, capacity_range: csi_pb2.CapacityRange, source_size: int) -> int:
        size = capacity_range.required_bytes or source_size or GIBIBYTE
        if capacity_range.limit_bytes:
            size = min(size, capacity_range.limit_bytes)
        if size < source_size:
            raise OutOfRange(f"the source has {source_size} bytes: a volume of {size} cannot hold it")
        self._check_room(size, size)
        return size

    def _grow(self, volume: ModelVolume, capacity_range: csi_pb2.CapacityRange) -> None:
        if capacity_range.limit_bytes and capacity_range.limit_bytes < volume.size:
            raise OutOfRange(
                f"the volume {volume.id} has {volume.size} bytes already: "
                f"it cannot shrink to {capacity_range.limit_bytes}"
            )
        if capacity_range.required_bytes <= volume.size:
            return
        if "VOLUME_EXPANSION_ONLINE" not in self.facts.capabilities.plugin and volume.nodes_using():
            raise FailedPrecondition(
                f"the volume {volume.id} is in use on {', '.join(volume.nodes_using())}: it grows offline only"
            )
        self._check_room(capacity_range.required_bytes, capacity_range.required_bytes - volume.size)
        volume.size = capacity_range.required_bytes

    def _check_room(self, size: int, more: int) -> None:
        if size > self.facts.capacity:
            raise OutOfRange(f"a volume of {size} bytes can never fit: there are {self.facts.capacity} in all")
        free = self.facts.capacity - self.storage.used()
        if more > free:
            raise ResourceExhausted(f"{more} bytes are needed and {free} are free")

    def _shown_nodes(self, volume: ModelVolume) -> list[str]:
        return sorted(volume.attached) if "LIST_VOLUMES_PUBLISHED_NODES" in self.facts.capabilities.controller else []


def described(volume: ModelVolume) -> csi_pb2.Volume:
    made_from = volume.made_from
    return csi_pb2.Volume(
        volume_id=volume.id,
        capacity_bytes=volume.size,
        volume_context={NAME_KEY: volume.name},
        content_source=made_from.volume_content_source
        if made_from and made_from.HasField("volume_content_source")
        else None,
        accessible_topology=[csi_pb2.Topology(segments=place) for place in volume.topology],
    )


def health_of(volume: ModelVolume) -> csi_pb2.VolumeHealth:
    return csi_pb2.VolumeHealth(volume_id=volume.id, health_statuses=volume.health)


def supports(volume: ModelVolume, capability: csi_pb2.VolumeCapability) -> bool:
    """Return whether the volume supports the capability: one created as mount is not block, and vice versa."""
    if volume.made_from is None:
        return True
    made_for = {each.WhichOneof("access_type") for each in volume.made_from.volume_capabilities}
    return capability.WhichOneof("access_type") in made_for


def _difference(volume: ModelVolume, request: csi_pb2.CreateVolumeRequest) -> str | None:
    """Return in what the existing volume differs from the requested one; None if it is the same."""
    creation_request = volume.made_from
    if creation_request is None:
        return "origin: it was there from the start"
    capacity_range = request.capacity_range
    if volume.size < capacity_range.required_bytes or 0 < capacity_range.limit_bytes < volume.size:
        return "size"
    for field in ("parameters", "mutable_parameters", "volume_content_source"):
        if getattr(creation_request, field) != getattr(request, field):
            return field
    if not all(supports(volume, capability) for capability in request.volume_capabilities):
        return "access type"
    return None if _reachable(volume, request.accessibility_requirements) else "topology"


def _reachable(volume: ModelVolume, requirement: csi_pb2.TopologyRequirement) -> bool:
    requisite = [dict(place.segments) for place in requirement.requisite]
    return not requisite or not volume.topology or any(dict(place) in requisite for place in volume.topology)


def _chosen_place(requirement: csi_pb2.TopologyRequirement) -> tuple[Mapping[str, str], ...]:
    places = [*requirement.preferred, *requirement.requisite]
    return (dict(places[0].segments),) if places else ()


def _without_secrets(request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeRequest:
    copy = csi_pb2.CreateVolumeRequest()
    copy.CopyFrom(request)
    copy.ClearField("secrets")
    return copy


def _confirmed(
    request: csi_pb2.ValidateVolumeCapabilitiesRequest,
) -> csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed:
    return csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
        volume_context=request.volume_context,
        volume_capabilities=request.volume_capabilities,
        parameters=request.parameters,
        mutable_parameters=request.mutable_parameters,
    )
