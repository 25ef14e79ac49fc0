"""A model of a worker and its disks. It knows the cluster by the ProvisionerStatus of its node alone.

A disk remembers whose data it has, so that a test can ask whether it was wiped. The state of a wipe is on the disk, and
survives the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from orlop.foundation.clock import Clock
from orlop.kube.api_errors import AlreadyExists, ApiError, NotFound
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.objects import ObjectName
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import (
    PROVISIONER_STATUS,
    DeleteOperation,
    DeleteStatus,
    LocalVolume,
    ProvisionerSpec,
    ProvisionerStatusStatus,
)
from support.static_volumes.static_objects import GIB, SPACE, local_volume, report_object

HALF_WIPED = "half wiped"


@dataclass
class DiskModel:
    entry: str
    identity: str
    capacity: int = 20 * GIB
    data: str = ""
    """Whose data it has; empty: it is clean."""
    wiped_for: str = ""
    """Uid of the operation that is wiping it."""
    failures: int = 0
    """How often a wipe will fail."""
    wiped: list[str] = field(default_factory=list)
    """Uids of the operations that wiped it."""


@dataclass
class WorkerModel:
    node: str
    client: KubeClient
    clock: Clock
    disks: dict[str, DiskModel]
    """By entry. Shared by all lives of the worker: they are the hardware."""
    may_wipe: Callable[[DiskModel, str], None] = lambda _disk, _uid: None
    """Called before a wipe begins, with the uid; raises if it must not."""
    is_there: Callable[[], bool] = lambda: True
    wipe_seconds: float = 3.0

    async def run(self, every: float = 2.0) -> None:
        while True:
            with suppress(ApiError):
                if self.is_there():
                    await self.reconcile()
            await self.clock.sleep(every)

    async def reconcile(self) -> None:
        name = ObjectName(SPACE, self.node)
        try:
            report = await self.client.get(PROVISIONER_STATUS, name)
        except NotFound:
            with suppress(AlreadyExists):
                await self.client.create(PROVISIONER_STATUS, report_object(self.node))
            return
        operations = part_of(report, "spec", ProvisionerSpec).delete_operations
        before = part_of(report, "status", ProvisionerStatusStatus)
        volumes = tuple(self.listed())
        begun = {each.uid: each for each in before.delete_statuses}
        states = tuple(self.next_status(each, begun.get(each.uid)) for each in operations)
        await self._write(name, before, volumes, states)
        # Only what the status shows as begun is touched, so that the master can rely on it.
        for operation in operations:
            if operation.uid in begun and begun[operation.uid].state != "Complete":
                await self._wipe(operation)

    def listed(self) -> list[LocalVolume]:
        return [
            local_volume(each.entry, self.node, each.capacity, identity=each.identity)
            for each in sorted(self.disks.values(), key=lambda disk: disk.entry)
        ]

    def next_status(self, operation: DeleteOperation, begun: DeleteStatus | None) -> DeleteStatus:
        if begun is None:
            return DeleteStatus(uid=operation.uid, state="InProgress", attempts=1)
        disk = self._disk_of(operation)
        if begun.state == "Complete" or (disk is not None and operation.uid in disk.wiped):
            return DeleteStatus(uid=operation.uid, state="Complete", progress=100, attempts=begun.attempts)
        if disk is None:
            return DeleteStatus(uid=operation.uid, state="Error", attempts=begun.attempts, message="not that disk")
        if disk.failures:
            disk.failures -= 1
            return DeleteStatus(uid=operation.uid, state="Error", attempts=begun.attempts, message="it failed")
        if begun.state == "Error":
            return DeleteStatus(uid=operation.uid, state="InProgress", attempts=begun.attempts + 1)
        return begun

    def _disk_of(self, operation: DeleteOperation) -> DiskModel | None:
        disk = self.disks.get(operation.entry)
        return disk if disk is not None and operation.identity in ("", disk.identity) else None

    async def _wipe(self, operation: DeleteOperation) -> None:
        disk = self._disk_of(operation)
        if disk is None or operation.uid in disk.wiped or disk.failures:
            return
        if disk.wiped_for != operation.uid:
            self.may_wipe(disk, operation.uid)
            disk.wiped_for, disk.data = operation.uid, HALF_WIPED
        await self.clock.sleep(self.wipe_seconds)
        disk.wiped_for, disk.data = "", ""
        disk.wiped.append(operation.uid)

    async def _write(
        self,
        name: ObjectName,
        before: ProvisionerStatusStatus,
        volumes: tuple[LocalVolume, ...],
        states: tuple[DeleteStatus, ...],
    ) -> None:
        forgotten = {each.uid for each in before.delete_statuses} - {each.uid for each in states}
        for disk in self.disks.values():
            disk.wiped = [uid for uid in disk.wiped if uid not in forgotten]
        if (before.local_volumes, before.delete_statuses) == (volumes, states):
            return
        status: dict[str, Any] = {
            "localVolumes": msgspec.to_builtins(volumes),
            "deleteStatuses": msgspec.to_builtins(states),
            "disks": len(volumes),
        }
        await self.client.patch(PROVISIONER_STATUS, name, MergePatch({"status": status}), subresource="status")
