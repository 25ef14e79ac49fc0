"""A model of a node with drives: it creates and reports its Drives, stages volumes, and erases those that were deleted.

It knows the cluster by objects alone, as the real one does. Its disks are dicts; they survive the loss of every object.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, ApiError, NotFound
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName
from orlop.records.api_record import part_of
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.volume import VOLUME, DriveVolumeSpec
from orlop.records.volume_context import decode_context
from support.api.api_servers import TestServer
from support.drives.drive_worlds import all_of, drive_id, drive_object, drive_status

Object = dict[str, Any]


@dataclass
class DiskModel:
    number: int
    capacity: int
    state: str = "Ready"
    volumes: dict[str, int] = field(default_factory=dict)
    """Bytes of each volume that has data."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the spec of its Drive."""

    @property
    def id(self) -> str:
        return drive_id(self.number)


@dataclass
class NodeModel:
    name: str
    on: TestServer
    client: KubeClient
    clock: Clock
    disks: dict[str, DiskModel] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    is_away: bool = False
    reports_undescribed: bool = False
    """Report a volume that no Volume object places on its drive, though the drive lists it."""

    def add_disk(self, number: int, capacity: int, **fields: Any) -> DiskModel:
        disk = DiskModel(number, capacity, fields=fields)
        self.disks[disk.id] = disk
        return disk

    # ---- what kubelet asks for -----------------------------------------------------------------------------------

    def stage(self, volume_id: str, context: Mapping[str, str]) -> None:
        """Without an API server: by the volume context alone."""
        placed = decode_context(context)
        disk = self.disks[placed.drive]
        disk.volumes[volume_id] = max(placed.bytes, disk.volumes.get(volume_id, 0))
        assert sum(disk.volumes.values()) <= disk.capacity, f"the data on {disk.id} are more than it has"
        self.staged.add(volume_id)

    def unstage(self, volume_id: str) -> None:
        self.staged.discard(volume_id)

    # ---- what it does by itself ----------------------------------------------------------------------------------

    async def run(self, every: float = 1.0) -> None:
        while True:
            with suppress(ApiError):
                if not self.is_away:
                    await self.reconcile()
            await self.clock.sleep(every)

    async def reconcile(self) -> None:
        drives = {objects.name(each): each for each in all_of(self.on, DRIVE)}
        for disk in self.disks.values():
            await self.report(disk, drives.get(disk.id))
        for volume in all_of(self.on, VOLUME):
            if volume["spec"]["nodeName"] == self.name:
                await self.follow(volume)

    async def report(self, disk: DiskModel, drive: Object | None) -> None:
        if drive is None:
            with suppress(AlreadyExists):
                drive = await self.client.create(DRIVE, drive_object(disk.number, self.name, **disk.fields))
        if drive is None:
            return
        listed = {each.volume for each in part_of(drive, "spec", DriveSpec).allocations}
        lacking = {*disk.volumes} - (listed & self._described(disk) if self.reports_undescribed else listed)
        lost = [{"volume": name, "bytes": size} for name, size in disk.volumes.items() if name in lacking]
        before = drive.get("status") or {}
        restored = bool(before.get("allocationsRestored")) or listed >= {*disk.volumes}
        status = drive_status(
            disk.capacity, state=disk.state, allocationsRestored=restored, unrecordedVolumes=lost, volumes=len(listed)
        )
        if any(before.get(key) != value for key, value in status.items()):
            await self._write(DRIVE, disk.id, status)

    def _described(self, disk: DiskModel) -> set[str]:
        return {objects.name(each) for each in all_of(self.on, VOLUME) if each["spec"]["drive"] == disk.id}

    async def follow(self, volume: Object) -> None:
        name, spec = objects.name(volume), part_of(volume, "spec", DriveVolumeSpec)
        disk = self.disks.get(spec.drive)
        if disk is None:
            return
        phase = self._phase(name, spec, disk)
        if (volume.get("status") or {}).get("phase") != phase:
            await self._write(VOLUME, name, {"phase": phase})

    def _phase(self, name: str, spec: DriveVolumeSpec, disk: DiskModel) -> str:
        if name in self.staged:
            return "Staged"
        if spec.erase:
            disk.volumes.pop(name, None)
            return "Erased"
        return "Erased" if spec.reservation_only and name not in disk.volumes else "Pending"

    async def _write(self, kind: Kind, name: str, status: Object) -> None:
        with suppress(NotFound):
            await self.client.patch(kind, ObjectName(None, name), MergePatch({"status": status}), subresource="status")
