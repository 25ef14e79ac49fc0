"""A node with volumes on the drives of a fake machine, as a process finds it that has just started; and its requests.

A `Ground` outlives processes: `ground.start()` is one more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_errors import DriveFailure, disk_error_behind
from orlop.driver.persistent.drive_table import DriveTable
from orlop.driver.persistent.locked_volumes import LockedVolumes
from orlop.driver.persistent.volume_condition import VolumeConditions
from orlop.driver.persistent.volume_index import VolumeIndex
from orlop.driver.persistent.volume_node_service import VolumeNodeService
from orlop.foundation.structured_log import silent_log
from orlop.host.batched_work import BatchedWork, run_alone
from orlop.host.node_host import KubeletDir, Names
from orlop.records.drive_record import MIB, DriveRecord, DriveType
from orlop.records.volume_context import VolumeContext, encode_context
from orlop.testing.fake_host import FakeDrive, FakeMachine
from orlop.testing.fake_host.acts import Acts
from orlop.testing.fake_host.kubelet_dir import FakeKubeletDir
from orlop.testing.fake_host.machine import KUBELET_DIR
from orlop.testing.kill_points import KillPoints
from orlop.testing.virtual_clock import VirtualClock
from support.drives.node_drives import DRIVE, ID, ROOT, drive_record, make_drive, open_drive, right_here, table_of

T = TypeVar("T")
Mode = csi_pb2.VolumeCapability.AccessMode.Mode
SIZE = 64 * MIB
STAGING: Names = ("plugins", "kubernetes.io", "csi", "csi.orlop.dev", "abc", "globalmount")
TARGET: Names = ("pods", "u1", "volumes", "kubernetes.io~csi", "pv1", "mount")
OTHER_TARGET: Names = ("pods", "u2", "volumes", "kubernetes.io~csi", "pv1", "mount")
DEVICE: Names = ("plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "pv1", "u1")
OTHER_DEVICE: Names = (*DEVICE[:-1], "u2")


async def alone(work: BatchedWork[T], /) -> T:
    return run_alone(work)


@dataclass
class Ground:
    """What stays when a process dies."""

    machine: FakeMachine
    records: tuple[DriveRecord, ...]

    def start(self, points: KillPoints | None = None) -> FakeNode:
        drives = [open_drive(self.machine, record, points) for record in self.records]
        for record in self.records:
            if record.type is DriveType.FOLDER:  # as the watch of drives does
                open_drive(self.machine, record).place.fit_reserve(record.capacity_bytes)
        kubelet_dir = FakeKubeletDir(Acts(self.machine, points or KillPoints()))
        return FakeNode(self, table_of(*drives), kubelet_dir)

    def drive(self, drive_id: str = DRIVE) -> FakeDrive:
        return self.machine.drives[f"{ROOT}/{drive_id}"]


def new_ground(*records: DriveRecord) -> Ground:
    machine = FakeMachine(total_bytes=1 << 40)
    for record in records or (drive_record(),):
        make_drive(machine, record.drive_id)
    machine.kubelet_makes(STAGING)
    for target in (TARGET, OTHER_TARGET, DEVICE):
        machine.kubelet_makes(target[:-1])
    return Ground(machine, records or (drive_record(),))


class Node:
    """One process. Requests have the paths of its kubelet."""

    def __init__(self, table: DriveTable, kubelet_dir: KubeletDir, *, kubelet: str = KUBELET_DIR) -> None:
        self.table, self.kubelet_dir = table, kubelet_dir
        self.paths = Paths(kubelet)
        self.failed_drives: list[str] = []
        self.certain_failures: list[str] = []
        """The errors that count against their drive at once."""
        self.failed_calls: list[tuple[str, str, str]] = []
        self.is_opening = False
        self.index = VolumeIndex(self.table, threads=right_here, log=silent_log())
        self.volumes = LockedVolumes(
            self.table,
            self.index,
            self.kubelet_dir,
            batched=alone,
            threads=right_here,
            clock=VirtualClock(),
            log=silent_log(),
            drive_failed=self._note_failed_drive,
            is_opening=lambda: self.is_opening,
            detach_lost=self.detach_lost,
            call_failed=lambda *failure: self.failed_calls.append(failure),
        )
        conditions = VolumeConditions(self.table, self.index, self.kubelet_dir, timed_threads=right_here)
        self.service = VolumeNodeService(
            self.volumes, self.table, conditions, self.kubelet_dir.paths, timed_threads=right_here
        )

    def detach_lost(self, volume_id: str) -> None:
        """As the process does it."""

    def _note_failed_drive(self, drive_id: str, error: BaseException) -> None:
        self.failed_drives.append(drive_id)
        if isinstance(failure := disk_error_behind(error), DriveFailure):
            self.certain_failures.append(str(failure))

    async def stage(self, **options: Any) -> None:
        await self.service.NodeStageVolume(self.paths.staging(**options))

    async def publish(self, **options: Any) -> None:
        await self.service.NodePublishVolume(self.paths.publishing(**options))

    async def unpublish(self, target: Names = TARGET, volume_id: str = ID) -> None:
        request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=self.paths.of(target))
        await self.service.NodeUnpublishVolume(request)

    async def unstage(self, volume_id: str = ID) -> None:
        request = csi_pb2.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=self.paths.of(STAGING))
        await self.service.NodeUnstageVolume(request)

    async def expand(self, size: int, *, path: Names = STAGING, volume_id: str = ID, limit: int = 0) -> int:
        request = csi_pb2.NodeExpandVolumeRequest(
            volume_id=volume_id,
            volume_path=self.paths.of(path),
            capacity_range=csi_pb2.CapacityRange(required_bytes=size, limit_bytes=limit),
        )
        return (await self.service.NodeExpandVolume(request)).capacity_bytes

    async def stats(self, path: Names = TARGET, volume_id: str = ID) -> list[csi_pb2.VolumeUsage]:
        request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=self.paths.of(path))
        return list((await self.service.NodeGetVolumeStats(request)).usage)

    async def health(self, path: Names | None = None, volume_id: str = ID) -> list[str]:
        request = csi_pb2.NodeGetVolumeHealthRequest(
            volume_id=volume_id, volume_publish_path=self.paths.of(path) if path else ""
        )
        response = await self.service.NodeGetVolumeHealth(request)
        return [entry.reason for entry in response.volume_health.health_statuses]


class FakeNode(Node):
    def __init__(self, ground: Ground, table: DriveTable, kubelet_dir: KubeletDir) -> None:
        super().__init__(table, kubelet_dir)
        self.ground = ground

    def detach_lost(self, volume_id: str) -> None:
        for drive in self.ground.machine.drives.values():
            if volume_id in drive.volumes:
                drive.volumes[volume_id].devices.clear()


# ---- requests --------------------------------------------------------------------------------------------------------


def context(**facts: Any) -> VolumeContext:
    made: dict[str, Any] = {
        "drive": DRIVE,
        "bytes": SIZE,
        "backing": "image",
        "file_system": "xfs",
        "volume_mode": "Filesystem",
    }
    return VolumeContext(**(made | facts))


def form(
    *, block: bool = False, fs_type: str = "", flags: Sequence[str] = (), mode: Mode = Mode.SINGLE_NODE_MULTI_WRITER
) -> csi_pb2.VolumeCapability:
    access_mode = csi_pb2.VolumeCapability.AccessMode(mode=mode)
    if block:
        return csi_pb2.VolumeCapability(block=csi_pb2.VolumeCapability.BlockVolume(), access_mode=access_mode)
    mount = csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=flags)
    return csi_pb2.VolumeCapability(mount=mount, access_mode=access_mode)


@dataclass(frozen=True)
class Paths:
    """Requests with paths below one kubelet's folder."""

    kubelet: str = KUBELET_DIR

    def of(self, names: Names) -> str:
        return "/".join((self.kubelet, *names))

    def staging(
        self,
        volume_id: str = ID,
        *,
        path: Names = STAGING,
        changed: dict[str, str] | None = None,
        block: bool = False,
        backing: str = "image",
        facts: dict[str, Any] | None = None,
        **options: Any,
    ) -> csi_pb2.NodeStageVolumeRequest:
        """A request to stage a volume. `facts` are of its context, `changed` are keys of it that were tampered with."""
        kind = {"volume_mode": "Block", "file_system": ""} if block else {}
        made = context(**{"backing": backing, **kind, **(facts or {})})
        return csi_pb2.NodeStageVolumeRequest(
            volume_id=volume_id,
            staging_target_path=self.of(path),
            volume_capability=form(block=block, **options),
            volume_context={**encode_context(made), **(changed or {})},
        )

    def publishing(
        self,
        target: Names | None = None,
        volume_id: str = ID,
        *,
        read_only: bool = False,
        block: bool = False,
        path: Names | None = STAGING,
        pod: str = "web-0",
        **options: Any,
    ) -> csi_pb2.NodePublishVolumeRequest:
        target = target or (DEVICE if block else TARGET)
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=volume_id,
            staging_target_path=self.of(path) if path else "",
            target_path=self.of(target),
            readonly=read_only,
            volume_capability=form(block=block, **options),
            volume_context={
                "csi.storage.k8s.io/pod.name": pod,
                "csi.storage.k8s.io/pod.namespace": "shop",
                "csi.storage.k8s.io/pod.uid": "u1",
                "csi.storage.k8s.io/ephemeral": "false",
            },
        )
