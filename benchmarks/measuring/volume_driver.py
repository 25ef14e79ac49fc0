"""`orlop driver` with one drive, called over its socket as kubelet does it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from measuring.processes import as_installed
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.host.drives import drive_files
from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.records.drive_record import DriveRecord, DriveType, encode_drive
from orlop.records.volume_context import VolumeContext, encode_context

DRIVE = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
MIB = 1 << 20
CAPABILITY = csi_pb2.VolumeCapability(
    mount=csi_pb2.VolumeCapability.MountVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(
        mode=csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_MULTI_WRITER
    ),
)


class Driver:
    """`orlop driver` below `folder`."""

    def __init__(self, folder: Path, context: VolumeContext, drives: Path | None = None) -> None:
        """Create it. `drives` is the folder where its disks are mounted."""
        self.folder, self.kubelet, self.folders = folder, folder / "kubelet", folder / "folders"
        self._drives = drives or folder / "drives"
        for path in (self.kubelet, self.folders):
            path.mkdir(exist_ok=True)
        self.set_context(context)

    def set_context(self, context: VolumeContext) -> None:
        """Set what the volumes are that are made from now on."""
        self._context = encode_context(context)

    def make_folder_drive(self, capacity: int) -> None:
        record = encode_drive(_record(DriveType.FOLDER, capacity))
        LinuxFolderDrives(str(self.folders)).make_folder_drive(str(self.folders / "a"), record, capacity)

    def make_drive_of_mount(self, mounted: Path) -> None:
        """Make a drive of a file system that is mounted where the driver mounts its disks."""
        root = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY)
        try:
            capacity = drive_files.space_of(root).free // MIB * MIB
            drive_files.begin(root, encode_drive(_record(DriveType.DISK, capacity)))
            drive_files.make_shelves(root)
            drive_files.complete(root)
        finally:
            os.close(root)

    @contextmanager
    def running(self, role: str = "driver", **more: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run `orlop driver`, or another role that has its flags, with some more."""
        flags = {
            "nodeid": "n",
            "endpoint": f"unix://{self.folder}/csi.sock",
            "workdir": "",
            "kubelet-dir": self.kubelet,
            "drives-dir": self._drives,
            "folder-root": self.folders,
            "log-level": "warning",
            **more,
        }
        words = [sys.executable, "-m", "orlop", role, *(f"--{name}={value}" for name, value in flags.items())]
        with subprocess.Popen(words, env=as_installed(self.folder)) as process:
            try:
                yield process
            finally:
                process.terminate()

    def paths(self, name: str) -> tuple[str, str]:
        staging = self.kubelet / f"plugins/kubernetes.io/csi/csi.orlop.dev/{name}/globalmount"
        target = self.kubelet / f"pods/{name}/volumes/kubernetes.io~csi/{name}/mount"
        staging.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(staging), str(target)

    async def use(self, connection: GrpcConnection, name: str) -> None:
        staging, target = self.paths(name)
        stage = csi_pb2.NodeStageVolumeRequest(
            volume_id=name, staging_target_path=staging, volume_capability=CAPABILITY, volume_context=self._context
        )
        publish = csi_pb2.NodePublishVolumeRequest(
            volume_id=name, staging_target_path=staging, target_path=target, volume_capability=CAPABILITY
        )
        await connection.call(rpc.NODE_STAGE_VOLUME.path, stage.SerializeToString(), 60.0)
        await connection.call(rpc.NODE_PUBLISH_VOLUME.path, publish.SerializeToString(), 60.0)

    async def leave(self, connection: GrpcConnection, name: str) -> None:
        staging, target = self.paths(name)
        unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id=name, target_path=target)
        unstage = csi_pb2.NodeUnstageVolumeRequest(volume_id=name, staging_target_path=staging)
        await connection.call(rpc.NODE_UNPUBLISH_VOLUME.path, unpublish.SerializeToString(), 60.0)
        await connection.call(rpc.NODE_UNSTAGE_VOLUME.path, unstage.SerializeToString(), 60.0)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[GrpcConnection]:
        connection = GrpcConnection(UnixEndpoint(f"{self.folder}/csi.sock"))
        await connection.connected()
        try:
            yield connection
        finally:
            await connection.close()

    async def use_one(self) -> None:
        """Make, publish and take apart a volume, as soon as calls are served."""
        async with self.connected() as connection:  # which dials until it is served
            await self.use_first(connection, "first")
            await self.leave(connection, "first")

    async def use_first(self, connection: GrpcConnection, name: str) -> None:
        """Use a volume when the drive is open."""
        for _ in range(300):
            try:
                await self.use(connection, name)
            except Exception as error:  # noqa: BLE001 - of the last try it is shown
                last = error
                await asyncio.sleep(0.1)
            else:
                return
        raise last


def run(*words: str | Path) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


def _record(type_: DriveType, capacity: int) -> DriveRecord:
    return DriveRecord(
        drive_id=DRIVE, type=type_, file_system="xfs", capacity_bytes=capacity, node_name="n", created_at=0.0
    )
