"""The node service of a driver with scratch folders and volumes on drives: passes each call to the right one.

Scratch folders are published without staging, by requests whose context has the key for ephemeral volumes. Every other
call names a volume by its id alone. For an id that neither service knows, its form decides: kubelet derives the ids of
inline volumes itself, and all others come from CreateVolume.
"""

from __future__ import annotations

import re
from typing import Final

from orlop.csi.error_codes import InvalidArgument
from orlop.csi.proto import csi_pb2, services
from orlop.driver.ephemeral.node_service import EphemeralNodeService
from orlop.driver.kubelet_calls import EPHEMERAL
from orlop.driver.persistent.volume_node_service import CAPABILITIES, VolumeNodeService

_INLINE_ID: Final = re.compile(r"csi-[0-9a-f]{64}")
_NO_SCRATCH: Final = "this node serves no inline volumes: its --workdir is empty"


class CombinedNodeService(services.Node):
    """`scratch` is None if the node serves no scratch folders."""

    def __init__(
        self, scratch: EphemeralNodeService | None, volumes: VolumeNodeService, info: csi_pb2.NodeGetInfoResponse
    ) -> None:
        self._scratch = scratch
        self._volumes = volumes
        self._info = info

    async def NodeGetInfo(self, request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:  # noqa: ARG002
        return self._info

    async def NodeGetCapabilities(
        self,
        request: csi_pb2.NodeGetCapabilitiesRequest,  # noqa: ARG002 - it has no fields
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        rpcs = [csi_pb2.NodeServiceCapability.RPC(type=kind) for kind in CAPABILITIES]
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=each) for each in rpcs]
        )

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        # Kubelet sets the key for every publish, and no pod can change it.
        if request.volume_context.get(EPHEMERAL) != "true":
            return await self._volumes.NodePublishVolume(request)
        if self._scratch is None:
            raise InvalidArgument(_NO_SCRATCH)
        return await self._scratch.NodePublishVolume(request)

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        return await self._service_of(request.volume_id).NodeUnpublishVolume(request)

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        return await self._service_of(request.volume_id).NodeGetVolumeStats(request)

    async def NodeGetVolumeHealth(
        self, request: csi_pb2.NodeGetVolumeHealthRequest
    ) -> csi_pb2.NodeGetVolumeHealthResponse:
        return await self._service_of(request.volume_id).NodeGetVolumeHealth(request)

    async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        return await self._volumes.NodeStageVolume(request)

    async def NodeUnstageVolume(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        return await self._volumes.NodeUnstageVolume(request)

    async def NodeExpandVolume(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        return await self._volumes.NodeExpandVolume(request)

    def _service_of(self, volume_id: str) -> EphemeralNodeService | VolumeNodeService:
        if self._scratch is None or self._volumes.knows(volume_id):
            return self._volumes
        if self._scratch.knows(volume_id) or _INLINE_ID.fullmatch(volume_id):
            return self._scratch
        return self._volumes
