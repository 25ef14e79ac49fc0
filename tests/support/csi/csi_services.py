"""Small services with which tests try both ends of CSI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from orlop.csi.proto import csi_pb2, services


class Identity(services.Identity):
    """A driver whose answers the test sets."""

    def __init__(self, name: str = "test.example.com") -> None:
        self.name = name
        self.not_ready_for = 0
        self.capabilities: list[csi_pb2.PluginCapability.Service.Type] = []
        self.asked: list[str] = []

    async def GetPluginInfo(self, request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=self.name, vendor_version="1", manifest={"greeting": "grüß dich"})

    async def GetPluginCapabilities(self, request):  # type: ignore[no-untyped-def]
        self.asked.append("GetPluginCapabilities")
        kinds = [csi_pb2.PluginCapability.Service(type=kind) for kind in self.capabilities]
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=[csi_pb2.PluginCapability(service=k) for k in kinds])

    async def Probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        self.asked.append("Probe")
        self.not_ready_for -= 1
        return csi_pb2.ProbeResponse(ready={"value": self.not_ready_for < 0})


class SlowNode(services.Node):
    """A node whose publish waits for the test to let it go on."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.finished: list[str] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        self.begun.append(request.volume_id)
        self.began.set()
        await self.go_on.wait()
        self.finished.append(request.volume_id)
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(self, request):  # type: ignore[no-untyped-def]
        return csi_pb2.NodeUnpublishVolumeResponse()


class FailingNode(services.Node):
    """A node whose unpublish raises what the test made."""

    def __init__(self, error: Callable[[csi_pb2.NodeUnpublishVolumeRequest], BaseException]) -> None:
        self.error = error

    async def NodeUnpublishVolume(self, request):  # type: ignore[no-untyped-def]
        raise self.error(request)


class Blocks(services.SnapshotMetadata):
    """Answers many times, then fails if told to, then waits if told to."""

    def __init__(self, count: int, error: BaseException | None = None, hold: asyncio.Event | None = None) -> None:
        self.count = count
        self.error = error
        self.hold = hold

    async def GetMetadataAllocated(
        self, request: csi_pb2.GetMetadataAllocatedRequest
    ) -> AsyncIterator[csi_pb2.GetMetadataAllocatedResponse]:
        for number in range(self.count):
            yield csi_pb2.GetMetadataAllocatedResponse(volume_capacity_bytes=number)
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
