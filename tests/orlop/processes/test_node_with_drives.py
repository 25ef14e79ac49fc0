"""`orlop node` with scratch folders and volumes on drives behind one socket, as it runs on a node."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.records.drive_record import MIB, DriveRecord, DriveType, encode_drive
from orlop.records.volume_context import VolumeContext, encode_context
from support.drives.node_drives import DRIVE
from support.host import kernel_rooms
from support.host.block_devices import loops_about
from support.processes.orlop_process import Running, run, run_here, running

UID = "6355041d-f9c6-4bd6-9335-f2c8cf1ea0c7"
INLINE = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
VOLUME = "pvc-6a8a0b1c"
NAME = "csi.orlop.dev"
CAPABILITY = {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_MULTI_WRITER"}}
CONTEXT = encode_context(
    VolumeContext(drive=DRIVE, bytes=16 * MIB, backing="image", file_system="ext4", volume_mode="Filesystem")
)


class Machine:
    def __init__(self, room: Path) -> None:
        self.room, self.kubelet, self.folders = room, room / "kubelet", room / "folders"
        for folder in (self.kubelet / "plugins_registry", room / "work", self.folders):
            folder.mkdir(parents=True)
        self.staging = self.kubelet / f"plugins/kubernetes.io/csi/{NAME}/abc/globalmount"
        self.staging.mkdir(parents=True)
        self.target = self._pod("pv1")
        self.scratch = self._pod("scratch")
        record = DriveRecord(
            drive_id=DRIVE,
            type=DriveType.FOLDER,
            file_system="ext4",
            capacity_bytes=32 * MIB,
            node_name="n1",
            created_at=0.0,
        )
        host = LinuxFolderDrives(str(self.folders))
        host.make_folder_drive(str(self.folders / "a"), encode_drive(record), record.capacity_bytes)

    def _pod(self, volume: str) -> Path:
        target = self.kubelet / f"pods/{UID}/volumes/kubernetes.io~csi/{volume}/mount"
        target.parent.mkdir(parents=True)
        return target

    def flags(self, *more: str) -> list[str]:
        flags = ["--nodeid=n1", f"--kubelet-dir={self.kubelet}", f"--adminsocket={self.room}/s"]
        drives = [f"--folder-root={self.folders}", f"--drives-dir={self.room}/drives"]
        return [*flags, *drives, *(more or (f"--workdir={self.room}/work",))]

    @asynccontextmanager
    async def node(self, *more: str) -> AsyncIterator[Running]:
        with running(self.room, "node", *self.flags(*more)) as node:
            await node.says("listening")
            await node.says("volumes of drive read")
            yield node

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        socket = self.kubelet / "plugins" / NAME / "csi.sock"
        ended = run_here("csi", method, "-e", f"unix://{socket}", json.dumps(request))
        assert ended.returncode == 0, ended.stderr
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer

    def stage(self) -> None:
        self.call(
            "NodeStageVolume",
            volumeId=VOLUME,
            stagingTargetPath=str(self.staging),
            volumeCapability=CAPABILITY,
            volumeContext=CONTEXT,
        )

    def publish(self, volume_id: str = VOLUME) -> None:
        is_inline = volume_id == INLINE
        self.call(
            "NodePublishVolume",
            volumeId=volume_id,
            stagingTargetPath="" if is_inline else str(self.staging),
            targetPath=str(self.scratch if is_inline else self.target),
            volumeCapability=CAPABILITY,
            volumeContext={
                **({} if is_inline else CONTEXT),
                "csi.storage.k8s.io/ephemeral": "true" if is_inline else "false",
                "csi.storage.k8s.io/pod.uid": UID,
            },
        )

    def unpublish(self, volume_id: str = VOLUME) -> None:
        target = self.scratch if volume_id == INLINE else self.target
        self.call("NodeUnpublishVolume", volumeId=volume_id, targetPath=str(target))

    def unstage(self) -> None:
        self.call("NodeUnstageVolume", volumeId=VOLUME, stagingTargetPath=str(self.staging))


@pytest.fixture
def machine(short_folder: Path) -> Iterator[Machine]:
    with kernel_rooms.mount_room(short_folder / "r") as room:
        yield Machine(room)


async def test_both_kinds_of_volumes_live_behind_one_socket_and_over_a_kill_of_the_process(machine: Machine):
    async with machine.node() as node:
        info = machine.call("NodeGetInfo")
        services = machine.call("GetPluginCapabilities")["capabilities"]
        capabilities = machine.call("NodeGetCapabilities")["capabilities"]
        machine.publish(INLINE)
        machine.stage()
        machine.publish()
        (machine.target / "data").write_text("hello")
        node.signal(signal.SIGKILL)
        await node.exit_code()
    assert info["accessibleTopology"] == {"segments": {"topology.orlop.dev/node": "n1"}}
    # As `orlop controller` lists them: CSI demands one answer of all instances.
    assert [each["service"]["type"] for each in services] == ["CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"]
    served = {each["rpc"]["type"] for each in capabilities}
    assert served >= {"STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME", "SINGLE_NODE_MULTI_WRITER", "GET_VOLUME_STATS"}
    assert "VOLUME_MOUNT_GROUP" not in served

    async with machine.node() as node:
        machine.stage()
        machine.publish()
        assert (machine.target / "data").read_text() == "hello"
        (size, _) = machine.call("NodeGetVolumeStats", volumeId=VOLUME, volumePath=str(machine.target))["usage"]
        assert int(size["total"]) <= 16 * MIB
        assert machine.call("NodeGetVolumeStats", volumeId=INLINE, volumePath=str(machine.scratch))["usage"]
        assert machine.call("NodeGetVolumeHealth", volumeId=VOLUME)["volumeHealth"] == {"volumeId": VOLUME}
        machine.unpublish(INLINE)
        machine.unpublish()
        machine.unstage()
        node.signal(signal.SIGTERM)
        assert await node.exit_code() == 0

    assert [path.exists() for path in (machine.target, machine.scratch)] == [False, False]
    assert loops_about(machine.folders) == []
    assert [path.name for path in (machine.room / "work" / "retained").iterdir()] != []


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: away
contexts: [{name: away, context: {cluster: away, user: node}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: node, user: {token: "t"}}]
"""


async def test_volumes_are_staged_and_taken_apart_while_the_api_server_is_away(machine: Machine):
    kubeconfig = machine.room / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    flags = (f"--kubeconfig={kubeconfig}", "--workdir=")
    async with machine.node(*flags) as node:
        machine.stage()
        machine.publish()
        (machine.target / "data").write_text("hello")
        node.signal(signal.SIGKILL)
        await node.exit_code()
    async with machine.node(*flags) as node:
        assert (machine.target / "data").read_text() == "hello"
        machine.publish()
        machine.unpublish()
        machine.unstage()
        assert "127.0.0.1:1" in node.logged()
        node.signal(signal.SIGTERM)
        assert await node.exit_code() == 0

    assert not machine.target.exists()
    assert loops_about(machine.folders) == []


async def test_without_a_working_directory_it_serves_volumes_on_drives_alone(machine: Machine):
    async with machine.node("--workdir=") as node:
        machine.stage()
        machine.publish()
        machine.unpublish()
        machine.unstage()
        failed = run_here(
            "csi", "NodePublishVolume", "-e", f"unix://{machine.kubelet}/plugins/{NAME}/csi.sock", *inline(machine)
        )
        node.signal(signal.SIGTERM)
        assert await node.exit_code() == 0
    assert "serves no inline volumes" in failed.stderr


def inline(machine: Machine) -> list[str]:
    request = {
        "volumeId": INLINE,
        "targetPath": str(machine.scratch),
        "volumeCapability": CAPABILITY,
        "volumeContext": {"csi.storage.k8s.io/ephemeral": "true"},
    }
    return [json.dumps(request)]


def test_a_relative_folder_of_drives_is_refused_before_anything_starts(tmp_path: Path):
    ended = run("node", "--nodeid=n1", f"--kubelet-dir={tmp_path}", "--workdir=", "--drives-dir=drives")
    assert ended.returncode == 2
    assert "--drives-dir" in ended.stderr
    assert list(tmp_path.iterdir()) == []
