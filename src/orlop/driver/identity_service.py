"""The CSI identity service: name and version of this driver, its capabilities, and whether it is ready.

The capabilities are those of the whole driver, as CSI demands: `orlop node` and `orlop controller` list the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.wrappers_pb2 import BoolValue

from orlop.csi.proto import csi_pb2, services

ServiceType = csi_pb2.PluginCapability.Service.Type


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    name: str
    version: str
    serves: tuple[ServiceType, ...] = ()


class IdentityService(services.Identity):
    """Serves the identity calls. `ready` is called for every Probe, so that the response is never out of date."""

    def __init__(self, identity: DriverIdentity, ready: Callable[[], Awaitable[bool]]) -> None:
        self._identity = identity
        self._ready = ready

    async def GetPluginInfo(self, request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:  # noqa: ARG002
        return csi_pb2.GetPluginInfoResponse(name=self._identity.name, vendor_version=self._identity.version)

    async def GetPluginCapabilities(
        self,
        request: csi_pb2.GetPluginCapabilitiesRequest,  # noqa: ARG002
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        capabilities = [
            csi_pb2.PluginCapability(service=csi_pb2.PluginCapability.Service(type=kind))
            for kind in self._identity.serves
        ]
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=capabilities)

    async def Probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:  # noqa: ARG002
        return csi_pb2.ProbeResponse(ready=BoolValue(value=await self._ready()))
