"""Snapshots in the model: one part of the Controller service, the GroupController and SnapshotMetadata services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.timestamp_pb2 import Timestamp

from orlop.csi.error_codes import AlreadyExists, InvalidArgument, NotFound, OutOfRange
from orlop.csi.proto import csi_pb2, services
from orlop.testing.driver_model import request_checks as checks
from orlop.testing.driver_model.service import ModelService, page_of
from orlop.testing.driver_model.storage import (
    BLOCK_BYTES,
    Block,
    ModelGroupSnapshot,
    ModelSnapshot,
    ModelVolume,
    Storage,
    WriteNumber,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from datetime import datetime

GROUP_ABILITY: Final = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
BLOCKS_PER_MESSAGE: Final = 256


class SnapshotsModel(ModelService, services.Controller):
    async def CreateSnapshot(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
        self._demand("controller", "CREATE_DELETE_SNAPSHOT")
        checks.demand_fields(request, "name", "source_volume_id")
        checks.check_name(request.name)
        checks.check_topology(request.accessibility_requirements, "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", self.facts)
        snapshot = self.storage.snapshots.named(request.name)
        if snapshot is None:
            snapshot = take(self.storage, self._volume(request.source_volume_id), request.name, self._clock.now())
        elif snapshot.source_volume_id != request.source_volume_id:
            raise AlreadyExists(f"the snapshot named {request.name} exists, of the volume {snapshot.source_volume_id}")
        return csi_pb2.CreateSnapshotResponse(snapshot=described(snapshot))

    async def DeleteSnapshot(self, request: csi_pb2.DeleteSnapshotRequest) -> csi_pb2.DeleteSnapshotResponse:
        self._demand("controller", "CREATE_DELETE_SNAPSHOT")
        checks.demand_fields(request, "snapshot_id")
        snapshot = self.storage.snapshots.get(request.snapshot_id)
        if snapshot is not None and snapshot.group_id:
            raise InvalidArgument(
                f"the snapshot {snapshot.id} can be deleted only with its group snapshot {snapshot.group_id}"
            )
        self.storage.snapshots.remove(request.snapshot_id)
        return csi_pb2.DeleteSnapshotResponse()

    async def ListSnapshots(self, request: csi_pb2.ListSnapshotsRequest) -> csi_pb2.ListSnapshotsResponse:
        self._demand("controller", "LIST_SNAPSHOTS")
        matching = [snapshot for snapshot in self.storage.snapshots if _is_requested(snapshot, request)]
        page, token = page_of(self.storage.snapshots, matching, request)
        entries = [csi_pb2.ListSnapshotsResponse.Entry(snapshot=described(snapshot)) for snapshot in page]
        return csi_pb2.ListSnapshotsResponse(entries=entries, next_token=token)

    async def GetSnapshot(self, request: csi_pb2.GetSnapshotRequest) -> csi_pb2.GetSnapshotResponse:
        self._demand("controller", "GET_SNAPSHOT")
        checks.demand_fields(request, "snapshot_id")
        return csi_pb2.GetSnapshotResponse(snapshot=described(self._snapshot(request.snapshot_id)))


class GroupControllerModel(ModelService, services.GroupController):
    async def GroupControllerGetCapabilities(
        self, request: csi_pb2.GroupControllerGetCapabilitiesRequest
    ) -> csi_pb2.GroupControllerGetCapabilitiesResponse:
        self._demand("plugin", "GROUP_CONTROLLER_SERVICE")
        kind = csi_pb2.GroupControllerServiceCapability.RPC
        capabilities = [
            csi_pb2.GroupControllerServiceCapability(rpc=kind(type=name))
            for name in sorted(self.facts.capabilities.group_controller)
        ]
        return csi_pb2.GroupControllerGetCapabilitiesResponse(capabilities=capabilities)

    async def CreateVolumeGroupSnapshot(
        self, request: csi_pb2.CreateVolumeGroupSnapshotRequest
    ) -> csi_pb2.CreateVolumeGroupSnapshotResponse:
        self._demand("group_controller", GROUP_ABILITY)
        checks.demand_fields(request, "name", "source_volume_ids")
        checks.check_name(request.name)
        group = self.storage.groups.named(request.name)
        if group is None:
            group = self._take_group(request)
        elif not self._is_the_same(group, request):
            raise AlreadyExists(
                f"the group snapshot named {request.name} exists, of other volumes or with other parameters"
            )
        return csi_pb2.CreateVolumeGroupSnapshotResponse(group_snapshot=self._described(group))

    async def DeleteVolumeGroupSnapshot(
        self, request: csi_pb2.DeleteVolumeGroupSnapshotRequest
    ) -> csi_pb2.DeleteVolumeGroupSnapshotResponse:
        self._demand("group_controller", GROUP_ABILITY)
        checks.demand_fields(request, "group_snapshot_id")
        group = self.storage.groups.get(request.group_snapshot_id)
        if group is not None:
            self._check_members(group, request.snapshot_ids)
            for snapshot in self.storage.members_of(group.id):
                self.storage.snapshots.remove(snapshot.id)
            self.storage.groups.remove(group.id)
        return csi_pb2.DeleteVolumeGroupSnapshotResponse()

    async def GetVolumeGroupSnapshot(
        self, request: csi_pb2.GetVolumeGroupSnapshotRequest
    ) -> csi_pb2.GetVolumeGroupSnapshotResponse:
        self._demand("group_controller", GROUP_ABILITY)
        checks.demand_fields(request, "group_snapshot_id")
        group = self.storage.groups.get(request.group_snapshot_id)
        if group is None:
            raise NotFound(f"there is no group snapshot {request.group_snapshot_id}")
        self._check_members(group, request.snapshot_ids)
        return csi_pb2.GetVolumeGroupSnapshotResponse(group_snapshot=self._described(group))

    def _take_group(self, request: csi_pb2.CreateVolumeGroupSnapshotRequest) -> ModelGroupSnapshot:
        # Look up all volumes first, so that a group with a missing volume creates no snapshot.
        volumes = [self._volume(volume_id) for volume_id in dict.fromkeys(request.source_volume_ids)]
        serial = self.storage.groups.next_serial()
        taken_at = self._clock.now()
        group = ModelGroupSnapshot(
            self.storage.groups.id_of(serial), serial, request.name, dict(request.parameters), taken_at
        )
        for volume in volumes:
            take(self.storage, volume, f"{request.name} of {volume.id}", taken_at, group.id)
        return self.storage.groups.put(group)

    def _is_the_same(self, group: ModelGroupSnapshot, request: csi_pb2.CreateVolumeGroupSnapshotRequest) -> bool:
        sources = {snapshot.source_volume_id for snapshot in self.storage.members_of(group.id)}
        return sources == set(request.source_volume_ids) and group.parameters == dict(request.parameters)

    def _check_members(self, group: ModelGroupSnapshot, snapshot_ids: Sequence[str]) -> None:
        members = {snapshot.id for snapshot in self.storage.members_of(group.id)}
        if members != set(snapshot_ids):
            raise InvalidArgument(f"snapshot_ids must list the snapshots in {group.id}: {', '.join(sorted(members))}")

    def _described(self, group: ModelGroupSnapshot) -> csi_pb2.VolumeGroupSnapshot:
        members = [described(snapshot) for snapshot in self.storage.members_of(group.id)]
        return csi_pb2.VolumeGroupSnapshot(
            group_snapshot_id=group.id, snapshots=members, creation_time=_timestamp(group.taken), ready_to_use=True
        )


class SnapshotMetadataModel(ModelService, services.SnapshotMetadata):
    async def GetMetadataAllocated(
        self, request: csi_pb2.GetMetadataAllocatedRequest
    ) -> AsyncIterator[csi_pb2.GetMetadataAllocatedResponse]:
        self._demand("plugin", "SNAPSHOT_METADATA_SERVICE")
        checks.demand_fields(request, "snapshot_id")
        snapshot = self._snapshot(request.snapshot_id)
        for blocks in _pages(sorted(snapshot.blocks), snapshot.size, request):
            yield csi_pb2.GetMetadataAllocatedResponse(
                block_metadata_type=csi_pb2.FIXED_LENGTH, volume_capacity_bytes=snapshot.size, block_metadata=blocks
            )

    async def GetMetadataDelta(
        self, request: csi_pb2.GetMetadataDeltaRequest
    ) -> AsyncIterator[csi_pb2.GetMetadataDeltaResponse]:
        self._demand("plugin", "SNAPSHOT_METADATA_SERVICE")
        checks.demand_fields(request, "base_snapshot_id", "target_snapshot_id")
        base, target = self._snapshot(request.base_snapshot_id), self._snapshot(request.target_snapshot_id)
        if base.source_volume_id != target.source_volume_id or base.serial > target.serial:
            raise InvalidArgument(f"{target.id} is no later snapshot of the same volume as {base.id}")
        for blocks in _pages(_changed(base.blocks, target.blocks), target.size, request):
            yield csi_pb2.GetMetadataDeltaResponse(
                block_metadata_type=csi_pb2.FIXED_LENGTH, volume_capacity_bytes=target.size, block_metadata=blocks
            )


def take(storage: Storage, volume: ModelVolume, name: str, taken_at: datetime, group_id: str = "") -> ModelSnapshot:
    """Take a snapshot of a volume, and store it."""
    serial = storage.snapshots.next_serial()
    return storage.snapshots.put(
        ModelSnapshot(
            id=storage.snapshots.id_of(serial),
            serial=serial,
            name=name,
            source_volume_id=volume.id,
            size=volume.size,
            taken=taken_at,
            blocks=dict(volume.blocks),
            group_id=group_id,
        )
    )


def described(snapshot: ModelSnapshot) -> csi_pb2.Snapshot:
    return csi_pb2.Snapshot(
        snapshot_id=snapshot.id,
        source_volume_id=snapshot.source_volume_id,
        size_bytes=snapshot.size,
        creation_time=_timestamp(snapshot.taken),
        ready_to_use=True,
        group_snapshot_id=snapshot.group_id,
    )


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _is_requested(snapshot: ModelSnapshot, request: csi_pb2.ListSnapshotsRequest) -> bool:
    return request.snapshot_id in {"", snapshot.id} and request.source_volume_id in {"", snapshot.source_volume_id}


def _changed(base: Mapping[Block, WriteNumber], target: Mapping[Block, WriteNumber]) -> list[Block]:
    return sorted(block for block, version in target.items() if base.get(block) != version)


def _pages(
    blocks: Sequence[Block],
    size: int,
    request: csi_pb2.GetMetadataAllocatedRequest | csi_pb2.GetMetadataDeltaRequest,
) -> Iterator[list[csi_pb2.BlockMetadata]]:
    """Yield the ranges from the starting offset on, in messages; none if there is no range."""
    if not 0 <= request.starting_offset <= size:
        raise OutOfRange(f"starting_offset is {request.starting_offset}: the volume goes from 0 to {size}")
    if request.max_results < 0:
        raise InvalidArgument(f"max_results is {request.max_results}: it must be 0 (the driver's choice) or more")
    remaining = [block for block in blocks if (block + 1) * BLOCK_BYTES > request.starting_offset]
    length = min(request.max_results or BLOCKS_PER_MESSAGE, BLOCKS_PER_MESSAGE)
    for first in range(0, len(remaining), length):
        yield [
            csi_pb2.BlockMetadata(byte_offset=block * BLOCK_BYTES, size_bytes=BLOCK_BYTES)
            for block in remaining[first : first + length]
        ]
