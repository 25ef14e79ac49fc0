"""The Node service of the model. It mounts nothing, and only records which volume is staged or published where.

Some orchestrators check the target path itself: `TargetPaths` is called when it would appear or disappear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition, NotFound, OutOfRange
from orlop.csi.proto import csi_pb2, services
from orlop.testing.driver_model import request_checks as checks
from orlop.testing.driver_model.attachment_model import MANY_NODES
from orlop.testing.driver_model.facts import GIBIBYTE, DriverFacts
from orlop.testing.driver_model.request_checks import AccessMode
from orlop.testing.driver_model.service import ModelService
from orlop.testing.driver_model.storage import BLOCK_BYTES, ModelVolume, NodePath, Storage, VolumeUse
from orlop.testing.driver_model.volume_model import health_of, supports

if TYPE_CHECKING:
    from orlop.foundation.clock import Clock

EPHEMERAL_KEY: Final = "csi.storage.k8s.io/ephemeral"
BYTES_PER_INODE: Final = 16 * 1024
MANY_TARGETS: Final = MANY_NODES | {AccessMode.SINGLE_NODE_MULTI_WRITER}


class TargetPaths(Protocol):
    """Creates and removes the target paths of published volumes."""

    def make(self, path: str, *, block: bool) -> None:
        """Create the target of a publish: a folder, or a file for a raw block volume."""

    def remove(self, path: str) -> None:
        """Remove the target of an unpublish; it may be gone already."""


class NoTargetPaths:
    def make(self, path: str, *, block: bool) -> None:
        pass

    def remove(self, path: str) -> None:
        pass


class NodeModel(ModelService, services.Node):
    def __init__(self, facts: DriverFacts, storage: Storage, clock: Clock, targets: TargetPaths | None = None) -> None:
        super().__init__(facts, storage, clock)
        self._targets = targets or NoTargetPaths()

    async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        self._demand("node", "STAGE_UNSTAGE_VOLUME")
        checks.demand_fields(request, "volume_id", "staging_target_path", "volume_capability")
        checks.check_paths(request, "staging_target_path")
        checks.check_node_capability(request.volume_capability, self.facts)
        volume = self._volume(request.volume_id)
        self._check_usable(volume, request.volume_capability)
        place, use = self._place(request.staging_target_path), VolumeUse(request.volume_capability)
        if volume.staged.get(place, use) != use:
            raise AlreadyExists(f"the volume {volume.id} is staged at {place.path} with another capability")
        volume.staged[place] = use
        return csi_pb2.NodeStageVolumeResponse()

    async def NodeUnstageVolume(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        self._demand("node", "STAGE_UNSTAGE_VOLUME")
        checks.demand_fields(request, "volume_id", "staging_target_path")
        checks.check_paths(request, "staging_target_path")
        volume = self._volume(request.volume_id)
        place = self._place(request.staging_target_path)
        published = [target.path for target in volume.published if target.node_id == self.facts.node_id]
        if place in volume.staged and published:
            raise FailedPrecondition(f"the volume {volume.id} is still published at {', '.join(published)}")
        volume.staged.pop(place, None)
        return csi_pb2.NodeUnstageVolumeResponse()

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        checks.demand_fields(request, "volume_id", "target_path", "volume_capability")
        checks.check_paths(request, "target_path", "staging_target_path")
        checks.check_node_capability(request.volume_capability, self.facts)
        if request.volume_context.get(EPHEMERAL_KEY) == "true":
            volume = self._ephemeral(request.volume_id)
        else:
            volume = self._volume(request.volume_id)
            self._check_usable(volume, request.volume_capability)
            self._check_staged(volume, request.staging_target_path)
        self._publish(volume, self._place(request.target_path), VolumeUse(request.volume_capability, request.readonly))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        checks.demand_fields(request, "volume_id", "target_path")
        checks.check_paths(request, "target_path")
        if request.volume_id not in self.storage.ended_ephemeral:
            self._unpublish(self._volume(request.volume_id), self._place(request.target_path))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        self._demand("node", "GET_VOLUME_STATS")
        checks.demand_fields(request, "volume_id", "volume_path")
        volume = self._volume_at(request.volume_id, request.volume_path)
        used = min(volume.size, len(volume.blocks) * BLOCK_BYTES)
        bytes_used = csi_pb2.VolumeUsage(
            unit=csi_pb2.VolumeUsage.BYTES, total=volume.size, used=used, available=volume.size - used
        )
        inodes = max(1, volume.size // BYTES_PER_INODE)
        inodes_used = csi_pb2.VolumeUsage(unit=csi_pb2.VolumeUsage.INODES, total=inodes, used=1, available=inodes - 1)
        return csi_pb2.NodeGetVolumeStatsResponse(usage=[bytes_used, inodes_used])

    async def NodeGetVolumeHealth(
        self, request: csi_pb2.NodeGetVolumeHealthRequest
    ) -> csi_pb2.NodeGetVolumeHealthResponse:
        self._demand("node", "GET_VOLUME_HEALTH")
        checks.demand_fields(request, "volume_id")
        checks.check_paths(request, "volume_publish_path", "staging_target_path")
        return csi_pb2.NodeGetVolumeHealthResponse(volume_health=health_of(self._volume(request.volume_id)))

    async def NodeGetStorageHealth(
        self, request: csi_pb2.NodeGetStorageHealthRequest
    ) -> csi_pb2.NodeGetStorageHealthResponse:
        self._demand("node", "GET_STORAGE_HEALTH")
        return csi_pb2.NodeGetStorageHealthResponse(backend_health=self.storage.backend_health)

    async def NodeExpandVolume(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        self._demand("node", "EXPAND_VOLUME")
        checks.demand_fields(request, "volume_id", "volume_path")
        capacity_range = request.capacity_range
        if request.HasField("capacity_range"):
            checks.check_range(capacity_range)
        volume = self._volume_at(request.volume_id, request.volume_path)
        if 0 < capacity_range.limit_bytes < volume.size:
            raise OutOfRange(
                f"the volume {volume.id} has {volume.size} bytes already: "
                f"it cannot shrink to {capacity_range.limit_bytes}"
            )
        if capacity_range.required_bytes > self.facts.capacity:
            raise OutOfRange(
                f"a volume of {capacity_range.required_bytes} bytes can never fit: "
                f"there are {self.facts.capacity} in all"
            )
        volume.size = max(volume.size, capacity_range.required_bytes)
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=volume.size)

    async def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        kind = csi_pb2.NodeServiceCapability.RPC
        capabilities = [
            csi_pb2.NodeServiceCapability(rpc=kind(type=name)) for name in sorted(self.facts.capabilities.node)
        ]
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=capabilities)

    async def NodeGetInfo(self, request: csi_pb2.NodeGetInfoRequest) -> csi_pb2.NodeGetInfoResponse:
        topology = None
        if "VOLUME_ACCESSIBILITY_CONSTRAINTS" in self.facts.capabilities.plugin:
            topology = csi_pb2.Topology(segments=self.facts.topology)
        return csi_pb2.NodeGetInfoResponse(
            node_id=self.facts.node_id, max_volumes_per_node=self.facts.max_volumes, accessible_topology=topology
        )

    def _place(self, path: str) -> NodePath:
        return NodePath(self.facts.node_id, path.rstrip("/") or "/")

    def _volume_at(self, volume_id: str, path: str) -> ModelVolume:
        volume = self._volume(volume_id)
        if not volume.is_at(self._place(path)):
            raise NotFound(f"the volume {volume_id} is not at {path}")
        return volume

    def _ephemeral(self, volume_id: str) -> ModelVolume:
        volume = self.storage.volumes.get(volume_id)
        if volume is None:
            volume = self.storage.add_volume(volume_id, GIBIBYTE)
            volume.ephemeral = True
            self.storage.ended_ephemeral.discard(volume_id)
        return volume

    def _check_usable(self, volume: ModelVolume, capability: csi_pb2.VolumeCapability) -> None:
        if not supports(volume, capability):
            raise FailedPrecondition(f"the volume {volume.id} was created for another access type")
        attaches = self.facts.can("controller", "PUBLISH_UNPUBLISH_VOLUME")
        if attaches and self.facts.node_id not in volume.attached:
            raise FailedPrecondition(f"the volume {volume.id} is not attached to {self.facts.node_id}")

    def _check_staged(self, volume: ModelVolume, path: str) -> None:
        if "STAGE_UNSTAGE_VOLUME" not in self.facts.capabilities.node:
            return
        if not path:
            raise FailedPrecondition(
                "staging_target_path is missing: this driver stages volumes before it publishes them"
            )
        if self._place(path) not in volume.staged:
            raise FailedPrecondition(f"the volume {volume.id} is not staged at {path}")

    def _publish(self, volume: ModelVolume, place: NodePath, use: VolumeUse) -> None:
        before = volume.published.get(place)
        if before is not None and before != use:
            raise AlreadyExists(
                f"the volume {volume.id} is published at {place.path} with another capability or readonly flag"
            )
        other_paths = [
            target.path for target in volume.published if target != place and target.node_id == place.node_id
        ]
        if other_paths and use.capability.access_mode.mode not in MANY_TARGETS:
            raise FailedPrecondition(
                f"the volume {volume.id} is published at {other_paths[0]}, and its access mode allows one place"
            )
        self._targets.make(place.path, block=use.capability.HasField("block"))
        if before is None and not use.readonly:
            # Assume that a workload that may write does write, so that snapshots differ.
            volume.write(len(volume.blocks))
        volume.published[place] = use

    def _unpublish(self, volume: ModelVolume, place: NodePath) -> None:
        self._targets.remove(place.path)
        volume.published.pop(place, None)
        if volume.ephemeral and not volume.published:
            self.storage.volumes.remove(volume.id)
            self.storage.ended_ephemeral.add(volume.id)
