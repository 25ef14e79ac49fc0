"""`orlop up --static-dir`: a disk that is put into a folder becomes a volume, and comes back wiped."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onenode.processes.up_static import prepare_static_dir
from orlop.admin.up_state import UpState
from orlop.processes.daemon import CannotGoOn
from support.host.block_devices import block_device
from support.host.kernel_rooms import run
from support.places import REPOSITORY
from support.processes.orlop_process import run_here
from support.processes.up_process import Up
from support.processes.up_process import up_folder as orlop_up
from support.waiting import eventually_there

MIB = 1 << 20
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: {mode}
  storageClassName: {storage_class}
  resources: {{requests: {{storage: {size}}}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "{script}; sleep 100000"]
      {use}
  volumes:
    - {{name: data, persistentVolumeClaim: {{claimName: {name}}}}}
"""
FILES = "volumeMounts: [{name: data, mountPath: /data}]"
DEVICE = "volumeDevices: [{name: data, devicePath: /dev/raw1}]"
RAW_VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: by-hand}}
spec:
  capacity: {{storage: 16Mi}}
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: by-hand
  persistentVolumeReclaimPolicy: Retain
  local: {{path: {path}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{node}]}}]
"""


def uses(up: Up, name: str, script: str, use: str = FILES, **claim: str) -> None:
    """A claim and a pod of one name."""
    asked = {"mode": "Filesystem", "storage_class": "local-disks", "size": "16Mi", **claim}
    up.kubectl.ok("apply", "-f", "-", stdin=CLAIM.format(name=name, **asked))
    up.kubectl.ok("apply", "-f", "-", stdin=POD.format(name=name, script=script, use=use))


def volumes(up: Up) -> dict[str, dict[str, Any]]:
    """What `orlop static list` shows, by the name of the disk."""
    listed = run_here("static", "list", f"--state={up.state}", "-o", "json")
    return {each["entry"]: each for each in json.loads(listed.stdout or "[]")}


def is_in_state(up: Up, disk: str, state: str) -> bool:
    return volumes(up).get(disk, {}).get("state") == state


def output(up: Up, pod: str) -> list[str]:
    return up.kubectl.ok("logs", pod).split()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with block_device(tmp_path / "image", 64 * MIB) as device:
        yield device


def test_a_linked_disk_keeps_its_data_across_restarts_and_is_wiped_when_its_claim_goes(disk: Path, tmp_path: Path):
    folder = tmp_path / "disks"
    with orlop_up() as up:
        up.start(f"--static-dir={folder}", "--static-wipe-rate=1Mi")
        (folder / "disk1").symlink_to(disk)
        eventually_there(lambda: is_in_state(up, "disk1", "Available"))
        uses(up, "p", "echo precious >> /data/x; cat /data/x")
        up.runs("p")
        assert output(up, "p") == ["precious"]

        up.end(signal.SIGKILL)
        up.start(f"--static-dir={folder}", "--static-wipe-rate=1Mi")
        eventually_there(lambda: output(up, "p") == ["precious", "precious"])
        assert sum(str(disk) in line for line in Path("/proc/mounts").read_text().splitlines()) == 2

        up.kubectl.ok("delete", "pod/p", "pvc/p")
        eventually_there(lambda: 0 < (volumes(up)["disk1"].get("wipe") or {}).get("progress", 0) < 100)
        volume = volumes(up)["disk1"]
        assert volume["state"] == "Wiping"
        assert up.kubectl.ok("get", "pv", volume["name"], "-o", "jsonpath={.metadata.deletionTimestamp}")
        assert up.end() == 0
        up.start(f"--static-dir={folder}")
        eventually_there(lambda: is_in_state(up, "disk1", "Available"))
        assert not any(disk.read_bytes())


def test_a_mounted_disk_and_a_folder_serve_pods_and_come_back_empty(disk: Path, tmp_path: Path):
    folder = tmp_path / "disks"
    (folder / "disk1").mkdir(parents=True)
    run("mkfs.ext4", "-q", disk)
    # Before the start: a folder without a mount would be offered as it is within a second.
    run("mount", disk, folder / "disk1")
    with orlop_up() as up:
        try:
            up.start(f"--static-dir={folder}")
            (folder / "plain").mkdir()
            # The folder is the larger one: its size is the configured one.
            eventually_there(
                lambda: (
                    {name: each["state"] for name, each in volumes(up).items()}
                    == {"disk1": "Available", "plain": "Available"}
                )
            )
            uses(up, "small", "echo small > /data/x")
            up.runs("small")
            uses(up, "large", "echo large > /data/x", size="1Gi")
            up.runs("large")
            assert (folder / "disk1" / "x").read_text() == "small\n"
            assert (folder / "plain" / "x").read_text() == "large\n"

            up.kubectl.ok("delete", "pod/small", "pvc/small", "pod/large", "pvc/large")
            eventually_there(lambda: not (folder / "disk1" / "x").exists() and not (folder / "plain" / "x").exists())
            eventually_there(lambda: all(is_in_state(up, name, "Available") for name in ("disk1", "plain")))
        finally:
            up.end()
            run("umount", folder / "disk1")


def test_the_example_of_a_local_disk_runs_as_it_is(tmp_path: Path):
    folder = tmp_path / "disks"
    with block_device(tmp_path / "image", 256 * MIB) as disk, orlop_up() as up:
        up.start(f"--static-dir={folder}")
        (folder / "disk1").symlink_to(disk)
        up.kubectl.ok("apply", "-f", str(REPOSITORY / "examples/claim-on-a-local-disk.yaml"))
        up.runs("writer")
        eventually_there(lambda: up.kubectl.run("exec", "writer", "--", "cat", "/data/greeting").stdout == "hello\n")


def test_a_raw_volume_that_is_made_by_hand_is_a_device_in_its_pod_after_a_restart_too(disk: Path):
    with orlop_up() as up:
        up.start()
        node = up.kubectl.ok("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
        up.kubectl.ok("apply", "-f", "-", stdin=RAW_VOLUME.format(path=disk, node=node))
        script = "echo precious | dd of=/dev/raw1 conv=fsync"
        uses(up, "p", script, DEVICE, mode="Block", storage_class="by-hand")
        up.runs("p")
        eventually_there(lambda: disk.read_bytes().startswith(b"precious"))

        assert up.end() == 0
        up.start()
        up.runs("p")
        up.kubectl.ok("delete", "pod/p", "pvc/p")
        eventually_there(lambda: not any("volumeDevices" in mount for mount in up.mounts()))
        assert disk.read_bytes().startswith(b"precious")


@pytest.mark.parametrize("kind", ["folder", "state in it", "in the state"])
def test_a_folder_with_files_of_somebody_is_refused_before_anything_is_offered(tmp_path: Path, kind: str):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    (tmp_path / "disks" / "photos").mkdir(parents=True)
    (tmp_path / "disks" / "photos" / "one").write_text("mine")
    folder = {"folder": tmp_path / "disks", "state in it": tmp_path, "in the state": state.folder / "disks"}[kind]

    with pytest.raises(CannotGoOn, match=r"holds files|one in the other"):
        prepare_static_dir(folder, state)
    assert not state.static.exists()


def test_a_folder_that_was_accepted_once_is_accepted_with_the_files_of_its_volumes(tmp_path: Path):
    state, folder = UpState(tmp_path / "state"), tmp_path / "disks"
    state.folder.mkdir()
    (folder / "empty" / "lost+found").mkdir(parents=True)
    (folder / "lost+found" / "x").mkdir(parents=True)
    prepare_static_dir(folder, state)
    (folder / "empty" / "x").write_text("of a pod")

    prepare_static_dir(folder, state)
    assert json.loads((state.static / "storageClassMap").read_text())["local-disks"]["hostDir"] == str(folder)
