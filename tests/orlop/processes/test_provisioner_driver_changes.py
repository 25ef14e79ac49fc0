"""`orlop provisioner` beside a driver that comes back with other capabilities, and asked to stop."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from support.processes.orlop_process import running
from support.waiting import eventually

AT_WORK = "resumed_orders=0"
"""Logged when the journal is taken over: everything of the start is behind it."""
NO_TOPOLOGY: dict[str, Any] = {"plugin": ["CONTROLLER_SERVICE"], "controller": ["CREATE_DELETE_VOLUME"]}
TOPOLOGY: dict[str, Any] = {**NO_TOPOLOGY, "plugin": ["CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS"]}


def driver_flags(folder: Path, capabilities: dict[str, Any]) -> list[str]:
    script = folder / f"script-{len(capabilities['plugin'])}-{len(capabilities['controller'])}.yaml"
    name = f"caps-{folder.name[-6:].replace('_', 'x')}.example.com"
    script.write_text(json.dumps({"driver": {"name": name}, "capabilities": capabilities}))
    return ["testing", "mock-driver", "--endpoint", f"unix://{folder}/csi.sock", "--script", str(script)]


def provisioner_flags(folder: Path, kubeconfig: Path) -> list[str]:
    # A driver that is away for longer than the renew deadline is lost, and then everything is built anew for the next
    # one. On a busy machine a driver needs longer than the default to start.
    patient = ["--leader-election-renew-deadline=100s", "--leader-election-lease-duration=150s"]
    return ["provisioner", f"--csi-address=unix://{folder}/csi.sock", f"--kubeconfig={kubeconfig}", *patient]


async def test_a_driver_that_gains_topology_ends_a_provisioner_that_watches_no_nodes(
    short_folder: Path, api_kubeconfig: Path
):
    with running(short_folder, *provisioner_flags(short_folder, api_kubeconfig)) as provisioner:
        with running(short_folder, *driver_flags(short_folder, NO_TOPOLOGY)):
            await provisioner.says(AT_WORK)
        with running(short_folder, *driver_flags(short_folder, TOPOLOGY)):
            assert await provisioner.exit_code() == 1

        assert "need a watch of Node, CSINode: restart this process" in provisioner.logged()


async def test_a_driver_that_gains_clones_is_served_on_by_the_same_process(short_folder: Path, api_kubeconfig: Path):
    clones = {**NO_TOPOLOGY, "controller": [*NO_TOPOLOGY["controller"], "CLONE_VOLUME"]}
    with running(short_folder, *provisioner_flags(short_folder, api_kubeconfig)) as provisioner:
        with running(short_folder, *driver_flags(short_folder, NO_TOPOLOGY)):
            await provisioner.says(AT_WORK)
        with running(short_folder, *driver_flags(short_folder, clones)):
            await eventually(lambda: provisioner.logged().count(AT_WORK) == 2 or provisioner.ended())
        provisioner.signal(signal.SIGTERM)

        assert await provisioner.exit_code() == 0
        assert "Traceback" not in provisioner.logged()


async def test_a_provisioner_that_is_asked_to_stop_ends_well(short_folder: Path, api_kubeconfig: Path):
    with (
        running(short_folder, *driver_flags(short_folder, NO_TOPOLOGY)),
        running(short_folder, *provisioner_flags(short_folder, api_kubeconfig)) as provisioner,
    ):
        await provisioner.says(AT_WORK)
        provisioner.signal(signal.SIGTERM)

        assert await provisioner.exit_code() == 0
        assert "Traceback" not in provisioner.logged()
