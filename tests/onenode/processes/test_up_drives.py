"""`orlop up` with its own drive: a claim works with nothing prepared, and every trace goes with the folder."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onenode.processes import up_folder
from onenode.processes.up import UpSettings, child_words
from onenode.processes.up_folder import FIRST_DRIVE, make_first_drive
from orlop.admin.up_state import UpState
from orlop.foundation.clock import SystemClock
from orlop.foundation.go_flags import parse_flags
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.block.device_rules import DeviceLimits
from orlop.host.block.loop_devices import held_below
from orlop.processes.drive_settings import DriveSettings
from orlop.records.drive_record import MIB, DriveRecord, decode_drive
from support.host.kernel_rooms import mount_points_of
from support.places import REPOSITORY
from support.processes.orlop_process import run_here
from support.processes.up_process import Up
from support.processes.up_process import up_folder as orlop_up
from support.waiting import eventually_there

CLAIMS = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 32Mi}}
  storageClassName: small
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  resources: {requests: {storage: 32Mi}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: small}
provisioner: csi.orlop.dev
volumeBindingMode: WaitForFirstConsumer
parameters: {csi.storage.k8s.io/fstype: ext4}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "echo precious > /data/x && sleep 100000"]
      volumeMounts: [{name: data, mountPath: /data}]
      volumeDevices: [{name: raw, devicePath: /dev/raw1}]
  volumes:
    - {name: data, persistentVolumeClaim: {claimName: data}}
    - {name: raw, persistentVolumeClaim: {claimName: raw}}
"""


def items(up: Up, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(up.kubectl.ok("get", *words, "-o", "json"))["items"]
    return found


def drive(up: Up) -> dict[str, Any]:
    (found,) = items(up, "drives")
    return found


def phases(up: Up) -> set[str]:
    return {(each.get("status") or {}).get("phase", "") for each in items(up, "volumes.orlop.dev")}


def test_the_devices_that_can_become_drives_are_those_that_the_user_allows(tmp_path: Path):
    settings: UpSettings = parse_flags(UpSettings, ["--allow-devices=sd*, loop7"], program="orlop up", warn=print)
    role, *words = child_words(settings, UpState(tmp_path), "n1")
    assert role == "node"
    about_devices = [word for word in words if word.startswith("--allow-devices=")]
    node: DriveSettings = parse_flags(DriveSettings, about_devices, program="orlop node", warn=print)
    assert node.device_limits == DeviceLimits(allowed=("sd*", "loop7"), allow_loop_devices=True)


def test_a_claim_works_with_nothing_prepared_and_its_space_returns():
    with orlop_up() as up:
        up.start("--drive-capacity=128Mi")
        eventually_there(lambda: [(each.get("status") or {}).get("state") for each in items(up, "drives")] == ["Ready"])
        assert drive(up)["status"]["capacityBytes"] == 128 * MIB
        up.kubectl.ok("apply", "-f", "-", stdin=CLAIMS)
        up.runs("p")
        eventually_there(
            lambda: {each["status"].get("phase") for each in items(up, "volumes.orlop.dev")} == {"Published"}
        )
        assert drive(up)["status"]["free"] == "64Mi"
        up.kubectl.ok("delete", "pod", "p")
        up.kubectl.ok("delete", "pvc", "data", "raw")
        eventually_there(lambda: items(up, "volumes.orlop.dev") == [])
        eventually_there(lambda: drive(up)["status"]["free"] == "128Mi")


SPREAD = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: apart}
provisioner: csi.orlop.dev
volumeBindingMode: WaitForFirstConsumer
parameters:
  csi.storage.k8s.io/fstype: ext4
  orlop.dev/volume-claim-id: 2b1c7f5e-6a55-4a38-9c3d-5a0e1c7f9b10
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: busybox
          command: [sh, -c, "sleep 100000"]
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 16Mi}}
        storageClassName: apart
"""


def test_the_three_claims_of_a_stateful_set_are_on_three_drives_as_its_class_asks():
    with orlop_up() as up:
        up.start("--drive-capacity=64Mi")
        eventually_there(lambda: items(up, "nodedevices"))
        for name in ("a", "b"):
            path = f"{up.state}/folders/{name}"
            added = run_here("drives", "add-folder", path, "--capacity=32Mi", f"--state={up.state}")
            assert added.returncode == 0, added.stderr
        up.kubectl.ok("apply", "-f", "-", stdin=SPREAD)
        up.kubectl.ok("rollout", "status", "statefulset/db", "--timeout=150s")
        volumes = items(up, "volumes.orlop.dev")

        # Without the id, the first drive would have the most free space for two of them.
        assert {each["spec"]["claim"]["name"] for each in volumes} == {"data-db-0", "data-db-1", "data-db-2"}
        assert len({each["spec"]["drive"] for each in volumes}) == 3


def story() -> list[tuple[str, list[str]]]:
    """Return the commands of README's story, each with its output."""
    section = (REPOSITORY / "README.md").read_text().partition("## Persistent volumes on drives\n")[2]
    lines = [line[4:] for line in section.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    commands: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    return commands


def shape(line: str) -> list[str]:
    """Return the words of a line. Those with a digit or a path differ, and what is used may not be measured yet."""
    return ["…" if re.search(r"[0-9/]", word) or word == "-" else word for word in line.split()]


def test_the_story_of_the_readme_works_as_it_is_typed():
    with orlop_up() as up:
        up.start("--drive-capacity=2Gi")
        eventually_there(lambda: [(each.get("status") or {}).get("state") for each in items(up, "drives")] == ["Ready"])
        for command, output in story():
            words = ["bash", "-c", f". .venv/bin/activate; exec 2>&1; {command}"]
            ran = subprocess.run(words, cwd=REPOSITORY, check=False, capture_output=True, text=True)

            assert (ran.returncode == 0) == (not command.endswith("dd if=/dev/zero of=/data/big bs=1M")), ran.stdout
            assert [shape(line) for line in ran.stdout.splitlines()][: len(output)] == [shape(line) for line in output]
            if command.endswith("df -h /data"):
                # The file system keeps a part of the volume for itself.
                assert ran.stdout.splitlines()[1].split()[1] == "960M"


def test_what_a_killed_orlop_up_left_of_its_volumes_is_erased():
    with orlop_up() as up:
        up.start("--drive-capacity=128Mi")
        up.kubectl.ok("apply", "-f", "-", stdin=CLAIMS)
        up.runs("p")
        assert len(held_below(str(up.state / "folders"))) == 2
        up.end()

        erased = run_here("down", "--erase", "--yes", f"--state={up.state}")

        assert erased.returncode == 0, erased.stdout
        assert not up.state.exists()
        assert held_below(str(up.state)) == []
        assert [each for each in mount_points_of("self") if each.startswith(str(up.state))] == []


# ---- the drive in the state folder -----------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> UpState:
    made = UpState(tmp_path)
    made.folders.mkdir()
    return made


def make(state: UpState, capacity: int | None, log: list[LogEntry] | None = None) -> DriveRecord | None:
    runtime = Runtime(
        clock=SystemClock(),
        random=Random(1),
        log=collecting_log([] if log is None else log),
        metrics=Metrics("test", of_process=False),
    )
    make_first_drive(state, capacity, "n1", runtime)
    file = state.folders / FIRST_DRIVE / "drive.json"
    return decode_drive(file.read_bytes()) if file.exists() else None


def test_the_drive_is_made_once_and_keeps_its_identity(state: UpState):
    made = make(state, 8 * MIB + 5)

    assert made is not None
    assert (made.capacity_bytes, made.node_name) == (8 * MIB, "n1")
    assert make(state, 16 * MIB) == made
    assert make(state, None) == made


def test_none_is_made_where_the_user_wants_none(state: UpState):
    assert make(state, 0) is None


def test_by_default_it_has_a_fifth_of_what_is_free(state: UpState, monkeypatch: pytest.MonkeyPatch):
    free = 100 * MIB
    monkeypatch.setattr(up_folder, "SMALLEST_FIRST_DRIVE", MIB)
    monkeypatch.setattr(up_folder, "free_bytes", lambda _path: free)
    made = make(state, None)

    assert made is not None
    assert made.capacity_bytes == 20 * MIB
    free = 1 << 50
    assert up_folder.default_capacity(state.folders) == 20 << 30


def test_a_drive_that_the_user_removed_is_not_made_again_unless_asked_for(state: UpState):
    (state.folders / FIRST_DRIVE).mkdir()

    assert make(state, None) is None
    assert make(state, 8 * MIB) is not None


def test_without_space_there_is_no_drive_and_a_warning(state: UpState):
    log: list[LogEntry] = []

    assert make(state, 1 << 60, log) is None
    assert [entry.message for entry in log] == ["no drive was made in the state folder"]
