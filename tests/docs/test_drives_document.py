"""docs/drives.md: each command that it shows prints what is written below it, and those that uninstall do so."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from orlop.kube.kinds import NODE, PERSISTENT_VOLUME_CLAIM, POD, SERVICE_ACCOUNT
from orlop.kube.objects import Object
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE, Allocation, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import DriveRequestSpec
from orlop.records.volume import VOLUME, DriveVolumeSpec, VolumeClaim
from support.drives.typed_commands import GIB, Bench, bench
from support.places import REPOSITORY
from support.processes.kubectl_commands import KUBECTL
from support.processes.orlop_process import run_here
from support.processes.up_process import Up, up_folder
from support.waiting import HANGS_AFTER, eventually_there

DOCUMENT = REPOSITORY / "docs" / "drives.md"
D1, D2 = "6d7f3c1e-0a0b-4c1d-8e2f-91b7584a2265", "0f1e2d3c-1111-4222-8333-444455556666"
V1, V2 = "pvc-8f1c8aa0-77aa-4a50-9df1-3b6a2f6f1c11", "pvc-02b7e5d1-3c1f-4b8e-8f0e-5d6c7b8a9f00"
SIZE = 1_920_383_410_176
NVME = {
    "name": "nvme0n1",
    "bytes": 480_103_981_056,
    "model": "SAMSUNG MZQL2480",
    "serial": "S64A1",
    "unusable": ["it is partitioned: nvme0n1p1, nvme0n1p2"],
}
SDB = {"name": "sdb", "bytes": SIZE, "model": "SAMSUNG MZ7L31T9", "serial": "S6KJ1", "fingerprint": "f"}
SDC = {"name": "sdc", "bytes": SIZE, "model": "SAMSUNG MZ7L31T9", "serial": "S6KJ2", "fileSystem": "ext4"}


def examples() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return each command of the document that has output, with its output."""
    for block in re.findall(r"(?:^ {4,}\S.*\n)+", DOCUMENT.read_text(), re.MULTILINE):
        commands = re.split(r"^ +\$ ", block, flags=re.MULTILINE)
        indent = len(block) - len(block.lstrip())
        for each in commands[1:]:
            command, _, output = each.partition("\n")
            lines = tuple(line[indent:] for line in output.splitlines())
            if lines and command.startswith("orlop"):
                yield command, lines


EXAMPLES = tuple(examples())


# ---- the clusters that the document shows ----------------------------------------------------------------------------


def drive(here: Bench, name: str, node: str, device: str, **more: Any) -> None:
    allocations = tuple(Allocation(volume=each, bytes=GIB) for each in more.pop("volumes", ()))
    spec = DriveSpec(node_name=node, type=DriveType.DISK, allocations=allocations, **more.pop("spec", {}))
    status = {
        "state": "Ready",
        "capacityBytes": SIZE,
        "backings": ["image"],
        "allocationsRestored": True,
        "device": {"name": device, "path": f"/dev/{device}"},
        **more,
    }
    here.create(DRIVE, new_object("Drive", name, spec), **status)


def volume(here: Bench, name: str, place: tuple[str, str], claim: str, size: int, **status: Any) -> None:
    of_drive, node = place
    namespace, _, claim_name = claim.partition("/")
    spec = DriveVolumeSpec(
        drive=of_drive,
        node_name=node,
        bytes=size * GIB,
        backing="image",
        file_system="xfs",
        volume_mode="Filesystem",
        persistent_volume=name,
        claim=VolumeClaim(namespace=namespace, name=claim_name),
    )
    here.create(VOLUME, new_object("Volume", name, spec), **status)


def disks(here: Bench) -> None:
    here.devices("n1", NVME, SDB, SDC)


def two_drives(here: Bench) -> None:
    drive(here, D1, "n1", "sdb", volumes=(V1,), spec={"tier": "hot"})
    drive(here, D2, "n2", "sdc", spec={"unschedulable": True}, state="Lost", capacityBytes=100 * GIB)


def volumes_of_a_team(here: Bench, *, drive_name: str = D1, node: str = "n1", device: str = "sdb", **more: Any) -> None:
    drive(here, drive_name, node, device, volumes=(V1, V2), **more)
    pods = [{"path": "/p", "podNamespace": "team", "podName": "web-0", "podUID": "u"}]
    volume(here, V1, (drive_name, node), "team/data", 10, phase="Published", usedBytes=3 * GIB, published=pods)
    volume(here, V2, (drive_name, node), "team/old", 5, phase="Pending")
    here.persistent_volume(V1, claimRef={"namespace": "team", "name": "data"})
    here.create(
        PERSISTENT_VOLUME_CLAIM,
        {
            "metadata": {"name": "data", "namespace": "team"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
                "volumeName": V1,
            },
        },
        phase="Bound",
    )


def dead_disk(here: Bench) -> None:
    here.create(NODE, {"metadata": {"name": "n2"}})
    here.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "team"}})
    volumes_of_a_team(here, drive_name=D2, node="n2", device="sdc", state="Lost")
    claims = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"nodeName": "n2", "containers": [{"name": "c", "image": "i"}], "volumes": claims}
    here.create(POD, {"metadata": {"name": "web-0", "namespace": "team"}, "spec": spec}, phase="Running")


def lost_cluster(here: Bench) -> None:
    here.create(NODE, {"metadata": {"name": "n1"}})
    here.devices("n1", SDB)
    volumes = [("pvc-8f1c", 10, "data"), ("pvc-02b7", 5, "logs")]
    unrecorded = [
        {
            "volume": name,
            "bytes": size * GIB,
            "persistentVolume": name,
            "claimNamespace": "team",
            "claimName": claim,
            "backing": "image",
            "fileSystem": "xfs",
            "volumeMode": "Filesystem",
        }
        for name, size, claim in volumes
    ]
    drive(here, D1, "n1", "sdb", unrecordedVolumes=unrecorded)
    here.claim("data", volume="pvc-8f1c", phase="Lost")


CLUSTERS: dict[str, Callable[[Bench], None]] = {
    "orlop drives discover": disks,
    "orlop drives init": disks,
    "orlop drives add-folder": disks,
    "orlop drives list": two_drives,
    "orlop volumes list": volumes_of_a_team,
    "orlop volumes clean": volumes_of_a_team,
    "orlop drives forget": dead_disk,
    "orlop drives adopt": lost_cluster,
    "orlop adopt": lost_cluster,
}
NOT_HERE = {"orlop explain pvc team/data": "tests/orlop/cli/test_explained_drives.py has its texts"}


def done(spec: DriveRequestSpec) -> Object:
    """What a node writes about a request that succeeds."""
    results = [
        {"target": each.name, "drive": D1, "message": f"{each.name} was formatted with xfs."} for each in spec.devices
    ]
    if (folder := spec.folder) is not None:
        message = f"{folder.path} was made a drive of {folder.capacity_bytes // GIB}Gi."
        results.append({"target": folder.path, "drive": D2, "message": message})
    if spec.adopt and not spec.dry_run:
        results.append({"target": "sdb", "drive": D1, "message": "sdb was taken over."})
    message = "" if results else "There is no drive to take over."
    return {"state": "Done", "results": results, "message": message}


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_a_command_prints_what_is_written_below_it(command: str, output: tuple[str, ...]):
    if command in NOT_HERE:
        assert (REPOSITORY / NOT_HERE[command].split()[0]).exists()
        return
    verb, *words = shlex.split(command)[1:]
    with bench() as here, ExitStack() as stack:
        next(make for beginning, make in CLUSTERS.items() if command.startswith(beginning))(here)
        stack.enter_context(here.node("n1", done))
        typed = here.typed(verb, *words, answer="y\n")

        assert tuple(line.rstrip() for line in typed.shown.splitlines()) == output
        assert typed.code == 0


def test_every_kind_of_command_has_an_example():
    shown = {" ".join(shlex.split(command)[:3]) for command, _ in EXAMPLES}

    assert {beginning for beginning in CLUSTERS if not any(each.startswith(beginning) for each in shown)} == set()


# ---- uninstalling ----------------------------------------------------------------------------------------------------

IN_USE = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}, storageClassName: kept}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: kept}
provisioner: csi.orlop.dev
reclaimPolicy: Retain
volumeBindingMode: WaitForFirstConsumer
parameters: {csi.storage.k8s.io/fstype: ext4}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "echo precious >> /data/x; cat /data/x; sleep 100000"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""
DEFINITIONS = "drives.orlop.dev", "volumes.orlop.dev"


def uninstall_commands() -> tuple[str, str]:
    """The commands that delete everything, and those that keep the data."""
    section = DOCUMENT.read_text().split("## Uninstall\n")[1].split("\n## ")[0]
    deleting, keeping = re.findall(r"(?:^ {4,}\S.*\n)+", section, re.MULTILINE)
    return textwrap.dedent(deleting), textwrap.dedent(keeping)


def type_commands(up: Up, script: str) -> None:
    """Run commands in a shell at the root of the repository, until the first one that fails."""
    programs = f"{KUBECTL.parent}:{os.environ['PATH']}"
    environment = {"PATH": programs, "HOME": str(up.folder), "KUBECONFIG": str(up.state / "kubeconfig")}
    typed = subprocess.run(
        ["bash", "-ec", script],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=REPOSITORY,
        timeout=HANGS_AFTER,
    )
    assert typed.returncode == 0, f"{script}\n{typed.stdout}\n{typed.stderr}"


@contextmanager
def installed_and_used() -> Iterator[Up]:
    """`orlop up` with the manifests applied, and a pod that uses a claim.

    Its children serve the drives. The processes of the manifests never run here, and end without an effect.
    """
    with up_folder() as up:
        up.start("--drive-capacity=128Mi")
        eventually_there(lambda: "Ready" in up.kubectl.ok("get", "drives", "-o", "jsonpath={.items[*].status.state}"))
        up.kubectl.ok("apply", "-k", str(REPOSITORY / "deploy" / "manifests" / "drives"))
        up.kubectl.ok("apply", "-f", "-", stdin=IN_USE)
        up.runs("web-0")
        yield up


def definitions_left(up: Up) -> set[str]:
    return set(up.kubectl.ok("get", "crds", "-o", "jsonpath={.items[*].metadata.name}").split()) & set(DEFINITIONS)


def test_the_commands_that_uninstall_erase_every_volume_and_leave_no_object():
    deleting, _ = uninstall_commands()
    with installed_and_used() as up:
        drive_name = up.kubectl.ok("get", "drives", "-o", "jsonpath={.items[0].metadata.name}")
        names = {"NAMESPACE": "default", "POD": "web-0", "CLAIM": "data", "n1/sdb": drive_name}
        for shown, real in names.items():
            assert shown in deleting
            deleting = deleting.replace(shown, real)

        type_commands(up, deleting)

        assert definitions_left(up) == set()
        assert up.kubectl.ok("get", "pv", "-o", "name") == ""
        assert not list(up.state.glob("**/image"))


@pytest.mark.parametrize("is_too_late", [False, True])
def test_the_commands_that_uninstall_and_keep_the_data_keep_it_for_the_next_installation(is_too_late: bool) -> None:  # noqa: FBT001
    """`is_too_late`: everything was deleted while volumes were left, so the definitions are never deleted."""
    _, keeping = uninstall_commands()
    with installed_and_used() as up:
        up.kubectl.ok("delete", "pod", "web-0")
        eventually_there(lambda: "Staged" not in up.kubectl.ok("get", "volumes.orlop.dev"))
        if is_too_late:
            hanging = keeping.splitlines()[-1]
            assert hanging.startswith("kubectl delete -k")
            type_commands(up, f"{hanging} --wait=false")
            assert definitions_left(up) == set(DEFINITIONS)
            keeping = keeping[keeping.index("for kind") :]

        type_commands(up, keeping)
        assert definitions_left(up) == set()

        # Its children had accounts in the namespace that is gone.
        up.end()
        up.start("--drive-capacity=128Mi")
        eventually_there(lambda: adopted(up))
        up.kubectl.ok("apply", "-f", "-", stdin=IN_USE)
        up.runs("web-0")
        eventually_there(lambda: up.kubectl.ok("logs", "web-0").split() == ["precious", "precious"])


def adopted(up: Up) -> bool:
    """Take over what the node has reported; return whether the volume has its object again."""
    run_here("adopt", "--yes", env={"KUBECONFIG": str(up.state / "kubeconfig")})
    return up.kubectl.ok("get", "volumes.orlop.dev", "-o", "name") != ""
