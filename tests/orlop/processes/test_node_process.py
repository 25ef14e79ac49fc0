"""`orlop node` and `orlop driver` with scratch folders, as they run on a node: flags, kubelet, a socket, and mounts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.processes import driver, node
from orlop.processes.csi_wiring import CsiSettings, EphemeralSettings
from orlop.processes.daemon import CannotGoOn, folder_exists
from orlop.processes.ephemeral_wiring import serving_ephemeral
from support.host import kernel_rooms
from support.kubelet.kubelet_plugins import Kubelet, RealFolder
from support.processes.orlop_process import Running, run, run_here, running
from support.waiting import eventually

UID = "6355041d-f9c6-4bd6-9335-f2c8cf1ea0c7"
ID = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
DRIVER = "csi.orlop.dev"


class Machine:
    def __init__(self, room: Path) -> None:
        self.room = room
        self.kubelet_dir = room / "kubelet"
        self.workdir = room / "work"
        for folder in (self.kubelet_dir / "plugins_registry", self.workdir):
            folder.mkdir(parents=True)
        self.admin_socket = room / "a" / "s"
        self.socket = self.kubelet_dir / "plugins" / DRIVER / "csi.sock"

    def flags(self, *more: str) -> list[str]:
        return [
            "--nodeid=n1",
            f"--kubelet-dir={self.kubelet_dir}",
            f"--workdir={self.workdir}",
            f"--adminsocket={self.admin_socket}",
            *more,
        ]

    @asynccontextmanager
    async def node(self, *more: str) -> AsyncIterator[Running]:
        with running(self.room, "node", *self.flags(*more)) as node:
            await node.says("listening")
            yield node

    def pod(self) -> Path:
        """Where kubelet wants the volume; it makes the parent, and nothing else."""
        target = self.kubelet_dir / f"pods/{UID}/volumes/kubernetes.io~csi/scratch/mount"
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        ended = run_here("csi", method, "-e", f"unix://{self.socket}", json.dumps(request))
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def publish(self, target: Path) -> None:
        self.call(
            "NodePublishVolume",
            volumeId=ID,
            targetPath=str(target),
            volumeCapability={"mount": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}},
            volumeContext={"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.uid": UID},
        )

    def unpublish(self, target: Path) -> None:
        self.call("NodeUnpublishVolume", volumeId=ID, targetPath=str(target))


@pytest.fixture
def machine(short_folder: Path) -> Iterator[Machine]:
    with kernel_rooms.mount_room(short_folder / "r") as room:
        yield Machine(room)


def http_address(process: Running) -> str:
    return process.logged().partition("serving HTTP")[2].partition("address=")[2].split()[0].strip('"')


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


async def test_a_pods_folder_comes_goes_and_is_kept_over_a_kill_of_the_process(machine: Machine):
    target = machine.pod()
    async with machine.node() as node:
        machine.publish(target)
        (target / "result.csv").write_text("1,2,3")
        node.signal(signal.SIGKILL)
        await node.exit_code()
    async with machine.node() as node:
        written = (target / "result.csv").read_text()
        machine.unpublish(target)
        node.signal(signal.SIGTERM)
        code = await node.exit_code()

    assert (written, code) == ("1,2,3", 0)
    assert not target.exists()
    (kept,) = (machine.workdir / "retained").iterdir()
    assert (kept / "result.csv").read_text() == "1,2,3"


async def test_kubelet_learns_of_the_driver_where_it_looks_for_plugins(machine: Machine):
    registry = machine.kubelet_dir / "plugins_registry"
    kubelet = Kubelet(RealFolder(registry), lambda path: GrpcConnection(UnixEndpoint(path)), SystemClock(), every=0.05)
    watching = asyncio.get_running_loop().create_task(kubelet.run())
    try:
        async with machine.node("--http-endpoint=127.0.0.1:0") as node:
            await node.says("kubelet has registered")
            found = kubelet.drivers[DRIVER]
            ready, checks = get(http_address(node), "/readyz?verbose")
    finally:
        watching.cancel()

    assert found.node_id == "n1"
    assert ready == 200, checks
    assert [
        name for name in ("socket", "workdir", "kubelet-dir", "erasing", "registered") if f"[+]{name}" not in checks
    ] == []


async def test_it_goes_on_serving_while_kubelet_refuses_it_and_is_registered_afterwards(machine: Machine):
    registry = RealFolder(machine.kubelet_dir / "plugins_registry")
    kubelet = Kubelet(registry, lambda path: GrpcConnection(UnixEndpoint(path)), SystemClock(), every=0.05)
    kubelet.refuse[DRIVER] = "the API server is away"
    watching = asyncio.get_running_loop().create_task(kubelet.run())
    try:
        async with machine.node() as node:
            await node.says("kubelet has not registered the driver")
            await eventually(lambda: node.logged().count("announcing the driver to kubelet") > 1 or node.ended())
            assert not node.ended(), node.logged()
            kubelet.refuse.clear()
            await node.says("kubelet has registered")
    finally:
        watching.cancel()


GAUGES = """
orlop_ephemeral_folders_live 1.0
orlop_ephemeral_folders_retained 0.0
orlop_ephemeral_folders_trash 0.0
orlop_ephemeral_retained_bytes 0.0
orlop_ephemeral_oldest_overdue_seconds 0.0
orlop_ephemeral_pressure_factor 1.0
orlop_ephemeral_quota_escapes 0.0
orlop_ephemeral_erase_failures_total 0.0
"""


async def test_what_it_has_and_does_is_shown_as_metrics(machine: Machine):
    async with machine.node("--http-endpoint=127.0.0.1:0", "--headroom=0") as node:
        machine.publish(machine.pod())
        shown = get(http_address(node), "/metrics")[1].splitlines()
        machine.unpublish(machine.pod())
        erased = run_here("afterlife", "erase", ID, "--yes", "--socket", str(machine.admin_socket))
        reason = 'orlop_ephemeral_erased_total{reason="asked"} 1.0'
        await eventually(lambda: reason in get(http_address(node), "/metrics")[1])

    assert [line for line in GAUGES.split("\n") if line and line not in shown] == []
    assert [line for line in shown if line.startswith("orlop_ephemeral_free_") and line.endswith(" nan")] == []
    assert any(
        line.startswith("csi_plugin_operations_seconds_count{") and "NodePublishVolume" in line for line in shown
    )
    assert erased.returncode == 0, erased.stderr


async def test_it_is_not_ready_and_publishes_nothing_while_kubelets_folder_is_no_shared_mount(machine: Machine):
    kernel_rooms.run("mount", "--make-private", machine.room)
    async with machine.node("--http-endpoint=127.0.0.1:0") as node:
        ready, checks = get(http_address(node), "/readyz?verbose")
        live, _ = get(http_address(node), "/healthz")
        probe = machine.call("Identity.Probe")
        with pytest.raises(AssertionError, match=r"FAILED_PRECONDITION|failed precondition"):
            machine.publish(machine.pod())

    assert (ready, live, probe) == (500, 200, {"ready": False})
    assert "no shared mount" in checks
    assert list((machine.workdir / "live").iterdir()) == []


async def test_kubelet_may_make_its_folder_shared_after_the_node_process_has_started(machine: Machine):
    kernel_rooms.run("mount", "--make-private", machine.room)
    async with machine.node():
        kernel_rooms.run("mount", "--bind", machine.kubelet_dir, machine.kubelet_dir)
        kernel_rooms.run("mount", "--make-shared", machine.kubelet_dir)
        machine.publish(machine.pod())
        probe = machine.call("Identity.Probe")

    assert probe == {"ready": True}


async def test_a_second_process_on_the_same_working_directory_ends_with_a_sentence(machine: Machine):
    async with machine.node():
        second = run("driver", *machine.flags(f"--endpoint=unix://{machine.room}/other.sock"))

    assert second.returncode == 1
    assert f"another process uses the working directory {machine.workdir}" in second.stderr
    assert not (machine.room / "other.sock").exists()


async def test_the_upstream_registrar_or_ours_can_stand_beside_the_driver_alone(machine: Machine):
    flags = machine.flags(f"--endpoint=unix://{machine.room}/csi.sock", "--afterLifespan=3h", "--headroom", ".1")
    with running(machine.room, "driver", *flags) as driver:
        await driver.says("listening")
        machine.socket = machine.room / "csi.sock"
        info = machine.call("NodeGetInfo")
        serves = machine.call("GetPluginCapabilities")

    assert info["nodeId"] == "n1"
    assert info["accessibleTopology"] == {"segments": {"topology.orlop.dev/node": "n1"}}
    assert serves == {"capabilities": [{"service": {"type": "VOLUME_ACCESSIBILITY_CONSTRAINTS"}}]}


WRONG = [
    (["--headroom=1.5"], "--headroom"),
    (["--headroom=-0.1"], "--headroom"),
    (["--headroom=a lot"], "--headroom"),
    (["--headroom=1e-999999999"], "--headroom"),
    (["--headroom=1/2"], "--headroom"),
    (["--afterlifespan=2h", "--max-afterlifespan=1h"], "--afterlifespan"),
    (["--afterlifespan=-1h"], "--afterlifespan"),
    (["--pruneinterval=0s"], "--pruneinterval"),
    (["--maxvolumespernode=-1"], "--maxvolumespernode"),
    (["--orphangrace=soon"], "--orphangrace"),
    (["--workdir=relative"], "--workdir"),
    (["--workdir=/no/such/folder"], "--workdir"),
    (["--kubelet-dir=/no/such/folder"], "--kubelet-dir"),
    (["--afterlifespan=12h", "--max-afterlifespan=1h"], "--afterlifespan"),
    (["--kubelet-dir=/tmp/../tmp"], "--kubelet-dir"),
    (["--max-size=1Gi", "--default-size=2Gi"], "--default-size"),
]


@pytest.mark.parametrize(("flags", "named"), WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_a_wrong_flag_is_named_before_anything_starts(flags: list[str], named: str, tmp_path: Path):
    workdir = [] if any("--workdir" in flag for flag in flags) else [f"--workdir={tmp_path}"]
    kubelet = [] if any("--kubelet-dir" in flag for flag in flags) else [f"--kubelet-dir={tmp_path}"]

    ended = run_here("driver", "--nodeid=n1", f"--endpoint=unix://{tmp_path}/s", *workdir, *kubelet, *flags)

    assert ended.returncode == 2
    assert named in ended.stderr
    assert list(tmp_path.iterdir()) == []


async def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    runtime = Runtime(
        clock=SystemClock(), random=Random(1), log=silent_log(), metrics=Metrics("test", of_process=False)
    )

    with pytest.raises(CannotGoOn, match="needs root"):
        async with serving_ephemeral(EphemeralSettings(), runtime, DRIVER, "n1"):
            pass


@pytest.mark.parametrize("main", [node.main, driver.main], ids=["node", "driver"])
@pytest.mark.parametrize("folders", ["seem to be missing", "are there"])
def test_a_process_without_root_says_root_and_nothing_else(main, folders: str, monkeypatch, tmp_path: Path, capsys):
    """Below a folder that only root may enter everything seems to be missing."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    room = tmp_path / "room" if folders == "seem to be missing" else tmp_path
    flags = [f"--kubelet-dir={room}", f"--workdir={room}", f"--endpoint=unix://{tmp_path}/csi.sock"]
    is_node = main is node.main
    if is_node and folders == "are there":
        (room / "plugins_registry").mkdir()
        flags.pop()

    assert main(["--nodeid=n1", *flags]) == 1

    assert capsys.readouterr().err == (
        f"orlop {'node' if is_node else 'driver'}: mounting scratch folders needs root: run it as root, or set "
        "--workdir= to serve no scratch folders\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == (["plugins_registry"] if is_node and room.exists() else [])


def test_a_folder_that_cannot_be_looked_at_is_named_like_one_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    def forbidden(_: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "is_dir", forbidden)

    assert folder_exists(UnixEndpoint("/secret/csi.sock")) == (
        "there is no folder /secret; make it first, or name another"
    )


def test_the_defaults_are_the_documented_ones():
    settings, csi = EphemeralSettings(), CsiSettings(node_id="n1")

    assert (settings.workdir, settings.kubelet_dir) == ("/var/lib/orlop/ephemeral", "/var/lib/kubelet")
    assert (str(settings.afterlifespan), str(settings.prune_interval)) == ("12h0m0s", "5s")
    assert settings.limits.max_afterlifespan == 12 * 3600
    assert (settings.max_volumes_per_node, settings.headroom, str(settings.orphan_grace)) == (0, None, "1h0m0s")
    assert (csi.driver_name, csi.http_endpoint) == (DRIVER, None)


@pytest.mark.parametrize("role", ["driver", "node", "registrar"])
def test_the_flags_of_go_loggers_in_old_manifests_are_taken_with_a_word_of_advice(role: str):
    asked = ["--logtostderr", "--alsologtostderr=true", "--stderrthreshold=INFO", "--vmodule=a=1", "--log_dir=/tmp"]

    ended = run_here(role, *asked, "--help")
    wrong = run_here(role, *asked, "--wrong")

    assert ended.returncode == 0
    assert [flag for flag in asked if flag.partition("=")[0] in wrong.stderr] == []
