"""The Identity service of the model: returns what the facts contain."""

from __future__ import annotations

from google.protobuf.wrappers_pb2 import BoolValue

from orlop.csi.proto import csi_pb2, services
from orlop.testing.driver_model.facts import EXPANSION_NAMES, EXPANSION_PREFIX, SERVICE_NAMES
from orlop.testing.driver_model.service import ModelService


class IdentityModel(ModelService, services.Identity):
    async def GetPluginInfo(self, request: csi_pb2.GetPluginInfoRequest) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=self.facts.name, vendor_version=self.facts.version)

    async def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        capabilities = self.facts.capabilities.plugin
        services_ = [_service(name) for name in sorted(SERVICE_NAMES & capabilities)]
        expansions = [
            _expansion(name) for name in sorted(EXPANSION_NAMES) if f"{EXPANSION_PREFIX}{name}" in capabilities
        ]
        return csi_pb2.GetPluginCapabilitiesResponse(capabilities=[*services_, *expansions])

    async def Probe(self, request: csi_pb2.ProbeRequest) -> csi_pb2.ProbeResponse:
        return csi_pb2.ProbeResponse(ready=BoolValue(value=self.facts.ready))


def _service(name: str) -> csi_pb2.PluginCapability:
    return csi_pb2.PluginCapability(service=csi_pb2.PluginCapability.Service(type=name))


def _expansion(name: str) -> csi_pb2.PluginCapability:
    return csi_pb2.PluginCapability(volume_expansion=csi_pb2.PluginCapability.VolumeExpansion(type=name))
