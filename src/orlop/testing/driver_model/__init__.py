"""A small CSI driver in memory that behaves as the interface's specification asks: a model, not a mock.

It checks arguments, is idempotent, refuses incompatible requests, and stores nothing on disk. It mounts nothing.
Each capability can be switched off: the RPCs that need it are then not served, and the responses about capabilities
list exactly those that are on.

    model = DriverModel(DriverFacts(capacity=10 * GIBIBYTE), clock)
    interceptor = CallInterceptor(model.methods(), …)         # behind a socket, or an InProcessConnection
    model.storage.volumes.get("vol-1").attached               # the state of its world

This folder does not know scripts, sockets or Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orlop.csi.interceptor import Methods, methods_of
from orlop.csi.proto import csi_pb2
from orlop.testing.driver_model.attachment_model import AttachmentsModel
from orlop.testing.driver_model.facts import ALL_CAPABILITIES, GIBIBYTE, DriverFacts
from orlop.testing.driver_model.identity_model import IdentityModel
from orlop.testing.driver_model.node_model import NodeModel, TargetPaths
from orlop.testing.driver_model.snapshot_model import GroupControllerModel, SnapshotMetadataModel, SnapshotsModel
from orlop.testing.driver_model.storage import ModelSnapshot, ModelVolume, Storage
from orlop.testing.driver_model.volume_model import VolumesModel

if TYPE_CHECKING:
    from orlop.foundation.clock import Clock

__all__ = [
    "ALL_CAPABILITIES",
    "GIBIBYTE",
    "DriverFacts",
    "DriverModel",
    "ModelSnapshot",
    "ModelVolume",
    "Storage",
    "TargetPaths",
]


class ControllerModel(VolumesModel, AttachmentsModel, SnapshotsModel):
    async def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        self._demand("plugin", "CONTROLLER_SERVICE")
        kind = csi_pb2.ControllerServiceCapability.RPC
        capabilities = [
            csi_pb2.ControllerServiceCapability(rpc=kind(type=name))
            for name in sorted(self.facts.capabilities.controller)
        ]
        return csi_pb2.ControllerGetCapabilitiesResponse(capabilities=capabilities)


class DriverModel:
    """All services of one driver on one node. Drivers of several nodes may share one storage."""

    def __init__(
        self, facts: DriverFacts, clock: Clock, storage: Storage | None = None, targets: TargetPaths | None = None
    ) -> None:
        self.facts = facts
        self.storage = storage or Storage()
        self._services = (
            IdentityModel(facts, self.storage, clock),
            ControllerModel(facts, self.storage, clock),
            GroupControllerModel(facts, self.storage, clock),
            SnapshotMetadataModel(facts, self.storage, clock),
            NodeModel(facts, self.storage, clock, targets),
        )

    def methods(self) -> Methods:
        return methods_of(*self._services)
