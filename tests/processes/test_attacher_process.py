"""`orlop attacher` as people run it: beside a driver, with an API server, a lease, flags and signals."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import KubeClient
from orlop.kube.cluster_access import over_unix_socket
from orlop.kube.errors import NotFound
from orlop.kube.kinds import CSI_NODE, LEASE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.kube.transport import HttpTransport
from support.api_objects import attachment, csi_node, volume
from support.kubectl_commands import Kubectl
from support.orlop_process import Running, run, running
from support.waiting import eventually_answered

DRIVER = "mock.example.com"
RIGHTS = Path(__file__).resolve().parents[2] / "deploy" / "manifests" / "attacher" / "rbac.yaml"
LEASE_NAME = ObjectName("default", "external-attacher-leader-mock-example-com")


@dataclass
class Place:
    folder: Path
    client: KubeClient

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "state" / "kubeconfig"

    def driver(self, **script: Any) -> AbstractContextManager[Running]:
        path = self.folder / "script.yaml"
        path.write_text(json.dumps({"volumes": [{"id": "h1", "size": "1Gi"}], **script}))
        endpoint = f"unix://{self.folder}/csi.sock"
        return running(self.folder, "testing", "mock-driver", "--endpoint", endpoint, "--script", str(path))

    def attacher(self, *more: str) -> AbstractContextManager[Running]:
        flags = (f"--csi-address={self.folder}/csi.sock", f"--kubeconfig={self.kubeconfig}", *more)
        return running(self.folder, "attacher", *flags)

    async def make(self) -> None:
        await self.client.create(CSI_NODE, csi_node("n1", {"name": DRIVER, "nodeID": "node-1"}))
        await self.client.create(PERSISTENT_VOLUME, volume("pv1", csi={"driver": DRIVER, "volumeHandle": "h1"}))
        source = {"persistentVolumeName": "pv1"}
        wanted = attachment("va1", attacher=DRIVER, nodeName="n1", source=source)
        await self.client.create(VOLUME_ATTACHMENT, wanted)

    async def is_attached(self) -> bool:
        found = await self.client.get(VOLUME_ATTACHMENT, ObjectName(None, "va1"))
        return bool(found.get("status", {}).get("attached"))

    async def is_gone(self) -> bool:
        try:
            await self.client.get(VOLUME_ATTACHMENT, ObjectName(None, "va1"))
        except NotFound:
            return True
        return False

    async def holder(self) -> str:
        try:
            return str((await self.client.get(LEASE, LEASE_NAME))["spec"].get("holderIdentity") or "")
        except NotFound:
            return ""


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    with running(folder, "apiserver", "--state", str(folder / "state")) as server:
        await server.says("use it with")
        transport = HttpTransport(over_unix_socket(str(folder / "state" / "api.sock")))
        client = KubeClient(transport, clock=SystemClock(), random=Random(1), log=silent_log())
        try:
            yield Place(folder, client)
        finally:
            await client.close()


async def test_a_volume_is_attached_and_detached_and_the_lease_is_free_at_the_end(short_folder: Path):
    async with place(short_folder) as the:
        await the.make()
        with the.driver(), the.attacher("--leader-election") as attacher:
            await eventually_answered(the.is_attached)
            assert await the.holder()
            told = run("explain", "volumeattachment", "va1", f"--kubeconfig={the.kubeconfig}")
            assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "Next: Nothing: it is as it should be.")
            missing = run("explain", "volumeattachment", "none", f"--kubeconfig={the.kubeconfig}")
            assert (missing.returncode, missing.stderr) == (3, "There is no VolumeAttachment none.\n")
            await the.client.delete(VOLUME_ATTACHMENT, ObjectName(None, "va1"))
            await eventually_answered(the.is_gone)
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert await the.holder() == ""


async def test_it_needs_no_right_that_its_role_does_not_give(short_folder: Path):
    async with place(short_folder) as the:
        await the.make()
        kubectl = Kubectl(the.kubeconfig, short_folder / "home")
        kubectl.ok("create", "namespace", "orlop-system")
        kubectl.ok("apply", "-f", str(RIGHTS))
        kubeconfig = short_folder / "limited"
        shutil.copy(the.kubeconfig, kubeconfig)
        token = kubectl.ok("-n", "orlop-system", "create", "token", "orlop-attacher").strip()
        limited = Kubectl(kubeconfig, short_folder / "home")
        limited.ok("config", "set-credentials", "attacher", f"--token={token}")
        limited.ok("config", "set-context", "--current", "--user=attacher", "--namespace=orlop-system")
        with the.driver(), the.attacher("--leader-election", f"--kubeconfig={kubeconfig}") as attacher:
            await eventually_answered(the.is_attached)
            await the.client.delete(VOLUME_ATTACHMENT, ObjectName(None, "va1"))
            await eventually_answered(the.is_gone)
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert "forbidden" not in attacher.logged().lower()


async def test_a_driver_that_comes_late_is_waited_for(short_folder: Path):
    async with place(short_folder) as the:
        await the.make()
        with the.attacher() as attacher:
            await attacher.says("waiting for the driver")
            with the.driver():
                await eventually_answered(the.is_attached)


async def test_a_driver_that_came_back_with_another_name_ends_the_attacher_with_a_sentence(short_folder: Path):
    async with place(short_folder) as the:
        await the.make()
        with the.attacher() as attacher:
            with the.driver():
                await eventually_answered(the.is_attached)
            with the.driver(driver={"name": "other.example.com"}):
                assert await attacher.exit_code() == 1
        assert "came back as 'other.example.com'" in attacher.logged()


async def test_it_ends_at_once_while_it_waits_for_the_driver(short_folder: Path):
    async with place(short_folder) as the:
        with the.attacher("--leader-election") as attacher:
            await attacher.says("waiting for the driver")
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--worker-threads=0"], "--worker-threads"),
        (["--http-endpoint=:1", "--metrics-address=:2"], "Only one of"),
        (["--leader-election-lease-duration=1s"], "--leader-election"),
        (["--retry-interval-max=1ms"], "--retry-interval-max"),
    ],
)
def test_wrong_flags_are_refused_before_anything_begins(flags: list[str], sentence: str):
    ended = run("attacher", *flags)
    assert ended.returncode == 2
    assert sentence in ended.stderr


def test_the_command_line_of_upstreams_manifests_is_taken():
    ended = run(
        *("attacher", "--v=5", "--csi-address=/x", "--timeout=15s", "--leader-election", "--default-fstype=ext4"),
        *("--http-endpoint=:0", "--feature-gates=MutableCSINodeAllocatableCount=true", "--worker-threads=100"),
        *("--kube-api-qps=100", "--kube-api-burst=200", "--reconcile-sync=1m", "--max-entries=10", "--automaxprocs"),
        *("--leader-election-labels=a:b", "--max-grpc-log-length=1024", "--metrics-path=/m", "--version"),
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_line_of_the_seed_is_taken():
    assert run("attacher", "-kubeconfig", "~/.kube/config", "-v", "5", "-csi-address", "/x", "-version").returncode == 0
