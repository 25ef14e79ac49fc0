"""Attach volumes to nodes: one part of the model's Controller service."""

from __future__ import annotations

from typing import Final

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from orlop.csi.proto import csi_pb2, services
from orlop.testing.driver_model import request_checks as checks
from orlop.testing.driver_model.request_checks import AccessMode
from orlop.testing.driver_model.service import ModelService
from orlop.testing.driver_model.storage import ModelVolume, VolumeUse
from orlop.testing.driver_model.volume_model import supports

DEVICE_KEY: Final = "mock.orlop.dev/device"
MANY_NODES: Final = frozenset(
    {AccessMode.MULTI_NODE_READER_ONLY, AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER}
)


class AttachmentsModel(ModelService, services.Controller):
    async def ControllerPublishVolume(
        self, request: csi_pb2.ControllerPublishVolumeRequest
    ) -> csi_pb2.ControllerPublishVolumeResponse:
        self._demand("controller", "PUBLISH_UNPUBLISH_VOLUME")
        self._check_publishing(request)
        volume = self._volume(request.volume_id)
        if not self._node_exists(request.node_id):
            raise NotFound(f"there is no node {request.node_id}")
        self._attach(volume, request.node_id, VolumeUse(request.volume_capability, request.readonly))
        return csi_pb2.ControllerPublishVolumeResponse(publish_context={DEVICE_KEY: f"/dev/{volume.id}"})

    async def ControllerUnpublishVolume(
        self, request: csi_pb2.ControllerUnpublishVolumeRequest
    ) -> csi_pb2.ControllerUnpublishVolumeResponse:
        self._demand("controller", "PUBLISH_UNPUBLISH_VOLUME")
        checks.demand_fields(request, "volume_id")
        volume = self.storage.volumes.get(request.volume_id)
        if volume is not None:
            for node_id in [request.node_id] if request.node_id else list(volume.attached):
                _detach(volume, node_id)
        return csi_pb2.ControllerUnpublishVolumeResponse()

    def _check_publishing(self, request: csi_pb2.ControllerPublishVolumeRequest) -> None:
        checks.demand_fields(request, "volume_id", "node_id", "volume_capability")
        checks.check_capability(request.volume_capability, self.facts.capabilities.controller)
        if request.readonly and "PUBLISH_READONLY" not in self.facts.capabilities.controller:
            raise InvalidArgument("readonly needs the capability PUBLISH_READONLY")

    def _node_exists(self, node_id: str) -> bool:
        return self.facts.nodes is None or node_id in self.facts.nodes

    def _attach(self, volume: ModelVolume, node_id: str, use: VolumeUse) -> None:
        if not supports(volume, use.capability):
            raise InvalidArgument(f"the volume {volume.id} was created for another access type")
        before = volume.attached.get(node_id)
        if before is not None and before != use:
            raise AlreadyExists(
                f"the volume {volume.id} is attached to {node_id} with another capability or readonly flag"
            )
        if before is not None:
            return
        elsewhere = [node for node, attached_use in volume.attached.items() if not _may_share(attached_use, use)]
        if elsewhere:
            raise FailedPrecondition(f"the volume {volume.id} is attached to {', '.join(sorted(elsewhere))}")
        if 0 < self.facts.max_volumes <= self.storage.attached_to(node_id):
            raise ResourceExhausted(
                f"{node_id} has all of the {self.facts.max_volumes} volumes that can be attached to it"
            )
        volume.attached[node_id] = use


def _may_share(use: VolumeUse, new_use: VolumeUse) -> bool:
    """Return whether two nodes may use a volume in these ways at the same time."""
    return {use.capability.access_mode.mode, new_use.capability.access_mode.mode} <= MANY_NODES


def _detach(volume: ModelVolume, node_id: str) -> None:
    paths = [place.path for place in (*volume.published, *volume.staged) if place.node_id == node_id]
    if node_id in volume.attached and paths:
        raise FailedPrecondition(f"the volume {volume.id} is still in use on {node_id}, at {', '.join(paths)}")
    volume.attached.pop(node_id, None)
