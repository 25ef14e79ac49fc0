"""The node's half of the interface for scratch folders: checks the request, asks `folders`, answers.

Serves what it lists as capabilities, and nothing else. Statistics are the volume's own: what its files take, and what
is left to it. A tree so large that it cannot be measured within kubelet's patience is told by its disk alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import NotFound
from orlop.csi.proto import csi_pb2, services
from orlop.driver.ephemeral.folder_work import live_place
from orlop.driver.ephemeral.folders import Folders, Threads
from orlop.driver.ephemeral.publish_request_rules import AdminLimits, checked_volume_id, publish_order, target_below
from orlop.foundation.clock import Clock
from orlop.host.disk_usage import DiskRoom, TreeUsage
from orlop.host.errors import HostError
from orlop.host.node_host import Workdir

Usage = csi_pb2.VolumeUsage
RpcType = csi_pb2.NodeServiceCapability.RPC.Type
CAPABILITIES: Final = (RpcType.GET_VOLUME_STATS,)
LONGEST_MEASUREMENT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: str
    topology_key: str
    max_volumes: int = 0


@dataclass(frozen=True, slots=True)
class NodeRules:
    """What the admin has set."""

    kubelet_dir: str
    limits: AdminLimits


class EphemeralNodeService(services.Node):
    def __init__(
        self,
        folders: Folders,
        workdir: Workdir,
        identity: NodeIdentity,
        rules: NodeRules,
        *,
        threads: Threads,
        clock: Clock,
    ) -> None:
        self._folders = folders
        self._workdir = workdir
        self._identity = identity
        self._rules = rules
        self._threads = threads
        self._clock = clock

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        await self._folders.publish(publish_order(request, self._rules.kubelet_dir, self._rules.limits))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        volume_id = checked_volume_id(request.volume_id)
        await self._folders.unpublish(volume_id, target_below(request.target_path, self._rules.kubelet_dir))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeGetCapabilities(
        self,
        request: csi_pb2.NodeGetCapabilitiesRequest,  # noqa: ARG002 - it asks nothing
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        rpcs = [csi_pb2.NodeServiceCapability.RPC(type=kind) for kind in CAPABILITIES]
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=each) for each in rpcs]
        )

    async def NodeGetInfo(
        self,
        request: csi_pb2.NodeGetInfoRequest,  # noqa: ARG002 - as above
    ) -> csi_pb2.NodeGetInfoResponse:
        identity = self._identity
        return csi_pb2.NodeGetInfoResponse(
            node_id=identity.node_id,
            max_volumes_per_node=identity.max_volumes,
            accessible_topology=csi_pb2.Topology(segments={identity.topology_key: identity.node_id}),
        )

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        volume_id = checked_volume_id(request.volume_id)
        target = target_below(request.volume_path, self._rules.kubelet_dir)
        record = self._folders.book.live.get(volume_id)
        if record is None or target not in record.targets:
            raise NotFound(f"the volume {volume_id} is not published at {request.volume_path}")
        room = await self._threads(self._workdir.room)
        tree = await self._threads(lambda: self._measured(volume_id))
        return csi_pb2.NodeGetVolumeStatsResponse(usage=_usage(room, tree))

    def _measured(self, volume_id: str) -> TreeUsage | None:
        try:
            return self._workdir.measure(live_place(volume_id), self._patience())
        except HostError:  # too large, or changing under our feet: what the disk says is true all the same
            return None

    def _patience(self) -> Callable[[], bool]:
        return self._clock.deadline(LONGEST_MEASUREMENT_SECONDS).passed


def _usage(room: DiskRoom, tree: TreeUsage | None) -> list[csi_pb2.VolumeUsage]:
    """Of the volume: what it takes, and as available what the disk has left. Without that: the disk's."""
    if tree is None:
        bytes_used, inodes_used = room.total_bytes - room.free_bytes, room.total_inodes - room.free_inodes
    else:
        bytes_used, inodes_used = tree.bytes, tree.inodes
    return [
        Usage(unit=Usage.Unit.BYTES, used=bytes_used, available=room.free_bytes, total=bytes_used + room.free_bytes),
        Usage(
            unit=Usage.Unit.INODES, used=inodes_used, available=room.free_inodes, total=inodes_used + room.free_inodes
        ),
    ]
