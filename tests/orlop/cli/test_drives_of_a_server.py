"""`orlop drives`, `volumes` and `adopt` as processes run them: against a real API server, over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orlop.records.api_record import new_object
from orlop.records.definitions import definitions
from orlop.records.drive import DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.node_devices import NodeDevicesSpec
from support.api.api_variants import embedded_process
from support.drives.typed_commands import drive_id
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import run_here

D1 = drive_id(1)


@pytest.fixture
def kubeconfig(short_folder: Path) -> Iterator[str]:
    """The kubeconfig of a server with the kinds of drives, one drive, and a node that answers nothing."""
    with embedded_process(short_folder) as state:
        kubectl = Kubectl(state / "kubeconfig", short_folder / "home")
        made = [
            new_object("Drive", D1, DriveSpec(node_name="n1", type=DriveType.DISK)),
            new_object("NodeDevices", "n1", NodeDevicesSpec(node_name="n1")),
        ]
        for some in (definitions(), made):
            kubectl.ok("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": some}))
        status = {"state": "Ready", "capacityBytes": 1 << 30, "allocationsRestored": True, "device": {"name": "sdb"}}
        patch = json.dumps({"status": status})
        kubectl.ok("patch", "drive", D1, "--subresource=status", "--type=merge", "-p", patch)
        yield f"--kubeconfig={state / 'kubeconfig'}"


def test_a_drive_is_listed_cordoned_and_removed_and_a_request_is_withdrawn(kubeconfig: str):
    listed = run_here("drives", "list", kubeconfig)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split() == ["00000001", "n1", "sdb", "1.0Gi", "1.0Gi", "0", "default", "Ready"]

    assert run_here("drives", "cordon", "n1/sdb", kubeconfig).returncode == 0
    assert "Ready,Cordoned" in run_here("drives", "list", kubeconfig).stdout

    folder = run_here("drives", "add-folder", "/srv/a", "--capacity=1Gi", "--timeout=1s", kubeconfig)
    assert folder.returncode == 1
    assert "the node did not begin in time, and the request was withdrawn" in folder.stderr

    assert run_here("drives", "remove", D1[:8], kubeconfig).returncode == 0
    assert json.loads(run_here("drives", "info", D1, "-o", "json", kubeconfig).stdout)["removing"] is True
    assert run_here("volumes", "list", kubeconfig).stderr == "There are no volumes on drives.\n"
    assert run_here("adopt", "--volumes-only", kubeconfig).stderr == "No volume lacks an object.\n"
