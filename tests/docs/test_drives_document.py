"""docs/drives.md: each command that it shows prints what is written below it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
