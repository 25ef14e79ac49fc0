"""The CSI node service for volumes on drives: checks each request, calls `locked_volumes`, builds the response.

Statistics are those of the volume's file system; statvfs on a folder with a project quota reports the quota. A raw
volume has its size alone: what its pods have written is not known. fsGroup is left to kubelet, which changes the group
of the files after the publish: it keeps the policy of the pod (OnRootMismatch) and reports a slow change to the pod.
"""

from __future__ import annotations

from orlop.csi.error_codes import CsiError, NotFound
from orlop.csi.proto import csi_pb2, services
from orlop.driver.kubelet_calls import as_csi_errors, target_below, used_path_below
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.locked_volumes import LockedVolumes
from orlop.driver.persistent.node_request_rules import (
    drive_expand_order,
    drive_publish_order,
    drive_volume_id,
    stage_order,
)
from orlop.driver.persistent.volume_condition import VolumeConditions
from orlop.driver.persistent.volume_index import names_of
from orlop.host.threads import Threads
from orlop.records.volume_record import VolumeRecord

Unit = csi_pb2.VolumeUsage.Unit
CAPABILITIES = (
    csi_pb2.NodeServiceCapability.RPC.Type.STAGE_UNSTAGE_VOLUME,
    csi_pb2.NodeServiceCapability.RPC.Type.GET_VOLUME_STATS,
    csi_pb2.NodeServiceCapability.RPC.Type.EXPAND_VOLUME,
    csi_pb2.NodeServiceCapability.RPC.Type.SINGLE_NODE_MULTI_WRITER,
    csi_pb2.NodeServiceCapability.RPC.Type.GET_VOLUME_HEALTH,
)


class VolumeNodeService(services.Node):
    def __init__(
        self,
        volumes: LockedVolumes,
        table: DriveTable,
        conditions: VolumeConditions,
        kubelet_dirs: tuple[str, ...],
        *,
        timed_threads: Threads,
    ) -> None:
        """Create the service. `kubelet_dirs` are all paths of kubelet's folder; `timed_threads` run reads."""
        self._volumes = volumes
        self._table = table
        self._conditions = conditions
        self._kubelet_dirs = kubelet_dirs
        self._timed_threads = timed_threads

    def knows(self, volume_id: str) -> bool:
        return self._volumes.index.get(volume_id) is not None

    async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
        await self._volumes.stage(stage_order(request, self._kubelet_dirs))
        return csi_pb2.NodeStageVolumeResponse()

    async def NodeUnstageVolume(self, request: csi_pb2.NodeUnstageVolumeRequest) -> csi_pb2.NodeUnstageVolumeResponse:
        volume_id = drive_volume_id(request.volume_id)
        staging = target_below(request.staging_target_path, *self._kubelet_dirs, field="staging_target_path")
        await self._volumes.unstage(volume_id, staging)
        return csi_pb2.NodeUnstageVolumeResponse()

    async def NodePublishVolume(self, request: csi_pb2.NodePublishVolumeRequest) -> csi_pb2.NodePublishVolumeResponse:
        await self._volumes.publish(drive_publish_order(request, self._kubelet_dirs))
        return csi_pb2.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        volume_id = drive_volume_id(request.volume_id)
        await self._volumes.unpublish(volume_id, target_below(request.target_path, *self._kubelet_dirs))
        return csi_pb2.NodeUnpublishVolumeResponse()

    async def NodeExpandVolume(self, request: csi_pb2.NodeExpandVolumeRequest) -> csi_pb2.NodeExpandVolumeResponse:
        size = await self._volumes.expand(drive_expand_order(request, self._kubelet_dirs))
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=size)

    async def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        volume_id = drive_volume_id(request.volume_id)
        path = used_path_below(request.volume_path, *self._kubelet_dirs)
        record = self._volumes.index.get(volume_id)
        if record is None or path not in _paths_of(record):
            raise NotFound(f"the volume {volume_id} is neither staged nor published at {request.volume_path}")
        with self._table.using(record.drive) as drive:
            try:
                with as_csi_errors():
                    usage = await self._timed_threads(lambda: _usage(drive, record, path))
            except CsiError as error:
                self._volumes.report_disk_error(drive.drive_id, error)
                raise
        return csi_pb2.NodeGetVolumeStatsResponse(usage=usage)

    async def NodeGetVolumeHealth(
        self, request: csi_pb2.NodeGetVolumeHealthRequest
    ) -> csi_pb2.NodeGetVolumeHealthResponse:
        volume_id = drive_volume_id(request.volume_id)
        record = self._volumes.index.get(volume_id)
        if record is None:
            raise NotFound(f"this node has no volume {volume_id}")
        path = request.volume_publish_path
        paths = (target_below(path, *self._kubelet_dirs, field="volume_publish_path"),) if path else None
        entries = await self._conditions.of(record, paths)
        return csi_pb2.NodeGetVolumeHealthResponse(
            volume_health=csi_pb2.VolumeHealth(volume_id=volume_id, health_statuses=entries)
        )


def _paths_of(record: VolumeRecord) -> tuple[str, ...]:
    return (record.staged, *(target.path for target in record.published))


def _usage(drive: OpenDrive, record: VolumeRecord, path: str) -> list[csi_pb2.VolumeUsage]:
    if record.is_block:
        size = drive.volumes.image_bytes(record.volume_id)
        return [csi_pb2.VolumeUsage(unit=Unit.BYTES, total=size or record.bytes)]
    room = drive.volumes.room_at(names_of(path))
    return [
        _used(Unit.BYTES, room.total_bytes, room.free_bytes),
        _used(Unit.INODES, room.total_inodes, room.free_inodes),
    ]


def _used(unit: csi_pb2.VolumeUsage.Unit, total: int, free: int) -> csi_pb2.VolumeUsage:
    return csi_pb2.VolumeUsage(unit=unit, total=total, available=free, used=max(0, total - free))
