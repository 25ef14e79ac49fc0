"""The CSI node service for scratch folders: checks each request, calls `locked_folders`, builds the response.

It serves the methods it lists as capabilities, and no others. Statistics are those of the volume: the space its files
use, and the space still available to it. For a volume with limits, they come from the quota, or from the file system in
its image. For any other, the tree is measured; if that takes longer than LONGEST_MEASUREMENT_SECONDS, the usage of the
whole disk is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from orlop.csi.error_codes import NotFound
from orlop.csi.proto import csi_pb2, services
from orlop.driver.ephemeral.folder_index import live_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.publish_request_rules import AdminLimits, publish_order
from orlop.driver.ephemeral.upkeep.volume_health import Filling, VolumeHealth, volume_usage
from orlop.driver.kubelet_calls import as_csi_errors, checked_volume_id, target_below, used_path_below
from orlop.foundation.clock import Clock
from orlop.host.folders.project_quota import NO_LIMITS, ProjectUsage
from orlop.host.host_errors import HostError
from orlop.host.kernel.disk_usage import TreeUsage
from orlop.host.node_host import NodeHost
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import FolderRecord, objection_to_volume_id

T = TypeVar("T")
RpcType = csi_pb2.NodeServiceCapability.RPC.Type
LONGEST_MEASUREMENT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: str
    topology_key: str
    max_volumes: int = 0

    @property
    def info(self) -> csi_pb2.NodeGetInfoResponse:
        return csi_pb2.NodeGetInfoResponse(
            node_id=self.node_id,
            max_volumes_per_node=self.max_volumes,
            accessible_topology=csi_pb2.Topology(segments={self.topology_key: self.node_id}),
        )


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The admin's settings for requests."""

    kubelet_dirs: tuple[str, ...]
    """All paths of kubelet's folder: as in the flag, and with symbolic links resolved."""
    limits: AdminLimits


class EphemeralNodeService(services.Node):
    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        folders: Folders,
        host: NodeHost,
        identity: NodeIdentity,
        rules: NodeRules,
        *,
        timed_threads: Threads,
        clock: Clock,
        health: VolumeHealth | None = None,
    ) -> None:
        """Create the service. `timed_threads` run calls that only read. `health` None: no NodeGetVolumeHealth."""
        self._folders = folders
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._identity = identity
        self._rules = rules
        self._timed_threads = timed_threads
        self._clock = clock
        self._health = health

    def knows(self, volume_id: str) -> bool:
        return self._folders.book.record_of(volume_id) is not None or volume_id in self._folders.in_doubt

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        await self._folders.publish(publish_order(request, self._rules.kubelet_dirs, self._rules.limits))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        volume_id = checked_volume_id(request.volume_id, objection_to_volume_id)
        await self._folders.unpublish(volume_id, target_below(request.target_path, *self._rules.kubelet_dirs))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetCapabilities(
        self,
        request: csi_pb2.NodeGetCapabilitiesRequest,  # noqa: ARG002 - it has no fields
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        kinds = [RpcType.GET_VOLUME_STATS, *([RpcType.GET_VOLUME_HEALTH] if self._health is not None else [])]
        rpcs = [csi_pb2.NodeServiceCapability.RPC(type=kind) for kind in kinds]
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=each) for each in rpcs]
        )

    async def NodeGetInfo(
        self,
        request: csi_pb2.NodeGetInfoRequest,  # noqa: ARG002 - as above
    ) -> csi_pb2.NodeGetInfoResponse:
        return self._identity.info

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        volume_id = checked_volume_id(request.volume_id, objection_to_volume_id)
        target = used_path_below(request.volume_path, *self._rules.kubelet_dirs)
        record = self._folders.book.live.get(volume_id)
        if record is None or target not in record.targets:
            raise NotFound(f"the volume {volume_id} is not published at {request.volume_path}")
        if record.image:
            room = await self._read(lambda: self._kubelet_dir.room_at(tuple(target.split("/"))))
            return csi_pb2.NodeGetVolumeStatsResponse(
                usage=volume_usage(
                    Filling(None, room.total_bytes, room.total_bytes, room.free_bytes),
                    Filling(None, room.total_inodes, room.total_inodes, room.free_inodes),
                )
            )
        room = await self._read(self._workdir.room)
        used = await self._read(lambda: self._counted(record) or self._measured(volume_id))
        limits = used.limits if isinstance(used, ProjectUsage) else NO_LIMITS
        bytes_used, inodes_used = (used.bytes, used.inodes) if used is not None else (None, None)
        return csi_pb2.NodeGetVolumeStatsResponse(
            usage=volume_usage(
                Filling(bytes_used, limits.bytes, room.total_bytes, room.free_bytes),
                Filling(inodes_used, limits.inodes, room.total_inodes, room.free_inodes),
            )
        )

    async def _read(self, read: Callable[[], T]) -> T:
        with as_csi_errors():
            return await self._timed_threads(read)

    def _counted(self, record: FolderRecord) -> ProjectUsage | None:
        """Return the usage that the quota counts; None for a volume without limits, or if the quota was turned off."""
        if not record.project or self._workdir.why_no_quota() is not None:
            return None
        try:
            return self._workdir.quota_usage(record.project)
        except HostError:
            return None

    def _measured(self, volume_id: str) -> TreeUsage | None:
        try:
            return self._workdir.measure(
                live_place(volume_id), self._clock.deadline(LONGEST_MEASUREMENT_SECONDS).passed
            )
        except HostError:  # too large, or changing meanwhile: report the usage of the disk instead
            return None

    async def NodeGetVolumeHealth(
        self, request: csi_pb2.NodeGetVolumeHealthRequest
    ) -> csi_pb2.NodeGetVolumeHealthResponse:
        health = self._health
        if health is None:
            return await super().NodeGetVolumeHealth(request)
        volume_id = checked_volume_id(request.volume_id, objection_to_volume_id)
        record = self._folders.book.live.get(volume_id)
        if record is None:
            raise NotFound(f"the volume {volume_id} is not published on this node")
        path = request.volume_publish_path
        targets = (target_below(path, *self._rules.kubelet_dirs),) if path else record.targets
        troubles = await self._read(lambda: health.troubles(record, targets))
        return csi_pb2.NodeGetVolumeHealthResponse(
            volume_health=csi_pb2.VolumeHealth(volume_id=volume_id, health_statuses=troubles)
        )
