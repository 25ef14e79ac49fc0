"""The settings of a model of a driver: its name, its node, its capabilities.

Holds no state and decides nothing; `ALL_CAPABILITIES` is every capability the interface names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from orlop.csi.client import DriverCapabilities
from orlop.csi.proto import csi_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

AbilityGroup = Literal["plugin", "controller", "group_controller", "node"]
SERVICE_OF_GROUP: Final = {"controller": "CONTROLLER_SERVICE", "group_controller": "GROUP_CONTROLLER_SERVICE"}
GIBIBYTE: Final = 1 << 30
EXPANSION_PREFIX: Final = "VOLUME_EXPANSION_"


def _names_of(enum: Any) -> frozenset[str]:
    return frozenset(value.name for value in enum.DESCRIPTOR.values if value.number)


SERVICE_NAMES: Final = _names_of(csi_pb2.PluginCapability.Service.Type)
EXPANSION_NAMES: Final = _names_of(csi_pb2.PluginCapability.VolumeExpansion.Type)

ALL_CAPABILITIES: Final = DriverCapabilities(
    plugin=SERVICE_NAMES | {f"{EXPANSION_PREFIX}{name}" for name in EXPANSION_NAMES},
    controller=_names_of(csi_pb2.ControllerServiceCapability.RPC.Type),
    group_controller=_names_of(csi_pb2.GroupControllerServiceCapability.RPC.Type),
    node=_names_of(csi_pb2.NodeServiceCapability.RPC.Type),
)


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """Settings of a model. None means no limit: any node exists, any mutable parameter is allowed."""

    name: str = "mock.example.com"
    version: str = "1.0"
    ready: bool = True
    node_id: str = "node-1"
    max_volumes: int = 0
    topology: Mapping[str, str] = field(default_factory=lambda: {"mock.example.com/node": "node-1"})
    nodes: frozenset[str] | None = None
    mutable_parameters: frozenset[str] | None = None
    capabilities: DriverCapabilities = ALL_CAPABILITIES
    capacity: int = 1024 * GIBIBYTE
    # A driver that cannot create volumes does not know which exist: any id in a request may be a volume.
    knows_any_volume: bool = False

    def can(self, group: AbilityGroup, ability: str) -> bool:
        """Return whether the driver has a capability; one of a service counts only if the service is served."""
        service = SERVICE_OF_GROUP.get(group)
        return ability in getattr(self.capabilities, group) and (service is None or service in self.capabilities.plugin)
