"""A process of its own is killed again and again in the middle of its work; kubelet repeats what it had asked for.

Pods come and go side by side; some of their folders have no afterlife, so that erasing goes on meanwhile. The kill
comes after a random number of answers, with calls under way. The next process must serve every repeated call, must
have lost nothing that a running pod wrote, and must not erase what a container has mounted still.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest

from conftest import SOAK
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import rpc
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from support.afterlife.kernel_nodes import KernelNode, made, node, publish, unpublish
from support.host.kernel_rooms import run
from support.processes.orlop_process import Running, running
from support.waiting import eventually

__all__ = ["node"]

KILLS = 100 if SOAK else 6
PODS = 12
LIFESPANS = ("0s", "1ms", "1h")
PROGRAM = [sys.executable, "-W", "error", str(Path(__file__).with_name("node_process.py"))]


class Pod:
    """One pod with its volume, as kubelet and its own containers see it."""

    def __init__(self, node: KernelNode, number: int) -> None:
        self.id = f"csi-{number}"
        self.lifespan = LIFESPANS[number % len(LIFESPANS)]
        self.node = node
        self.target = node.pod(self.id)
        self.wanted = False
        self.file: str | None = None
        """What it wrote into its folder, and must find there."""

    async def ask(self, client: CsiClient) -> None:
        """What kubelet wants now; to be repeated until it is answered."""
        if self.wanted:
            await client.call(rpc.NODE_PUBLISH_VOLUME, publish(self.target, self.id, afterlifespan=self.lifespan))
            self._runs()
        else:
            await client.call(rpc.NODE_UNPUBLISH_VOLUME, unpublish(self.target, self.id))
            assert not self.target.exists()

    def _runs(self) -> None:
        if self.file is not None:
            assert (self.target / self.file).exists(), f"{self.id} lost what it wrote"
        else:
            self.file = "file"
            for name in "abc":
                made(self.target / name / name)
            (self.target / self.file).touch()

    def change_its_mind(self) -> None:
        self.wanted = not self.wanted
        if not self.wanted and self.lifespan != "1h":
            self.file = None


class Kubelet:
    def __init__(self, node: KernelNode, folder: Path, random: Random) -> None:
        self.node = node
        self.folder = folder
        self.random = random
        self.pods = [Pod(node, number) for number in range(PODS)]
        self._answers_left = 0

    @asynccontextmanager
    async def process(self) -> AsyncIterator[tuple[Running, CsiClient]]:
        flags = [
            f"--endpoint=unix://{self.folder}/csi.sock",
            f"--workdir={self.node.workdir}",
            f"--kubelet-dir={self.node.kubelet}",
            "--orphangrace=1s",
            "--pruneinterval=20ms",
        ]
        with running(self.folder, *flags, program=PROGRAM) as process:
            await process.says("listening")
            connection = GrpcConnection(UnixEndpoint(f"{self.folder}/csi.sock"))
            client = CsiClient(
                connection, log=silent_log(), metrics=Metrics("test"), clock=SystemClock(), random=self.random
            )
            try:
                yield process, client
            finally:
                await connection.close()

    async def work_until_it_is_killed(self) -> None:
        async with self.process() as (process, client):
            await asyncio.gather(*(pod.ask(client) for pod in self.pods))
            self._answers_left = self.random.randint(1, 60)
            await asyncio.gather(*(self._drive(pod, process, client) for pod in self.pods))
            await process.exit_code()
            assert "Traceback" not in process.logged()

    async def _drive(self, pod: Pod, process: Running, client: CsiClient) -> None:
        with suppress(CsiError):
            while not process.ended():
                pod.change_its_mind()
                await pod.ask(client)
                self._answers_left -= 1
                if self._answers_left == 0:
                    process.signal(SIGKILL)
        assert self._answers_left <= 0, process.logged()


@pytest.mark.timeout(1200 if SOAK else 300)
async def test_whenever_the_process_is_killed_kubelets_repeats_lead_to_the_right_end(
    node: KernelNode, short_folder: Path
):
    kubelet = Kubelet(node, short_folder, Random(4))
    spot = made(node.kubelet.parent / "container")
    async with kubelet.process() as (_, client):
        held = Pod(node, 99)
        held.wanted = True
        await held.ask(client)
        run("mount", "--bind", held.target / "a", spot)
        held.wanted = False
        await held.ask(client)

    for _ in range(KILLS):
        await kubelet.work_until_it_is_killed()
        assert (spot / "a").is_dir()

    async with kubelet.process() as (_, client):
        for pod in kubelet.pods:
            await pod.ask(client)
            pod.wanted = False
            await pod.ask(client)
        run("umount", spot)
        lasting = sorted(pod.id for pod in kubelet.pods if pod.lifespan == "1h")
        await eventually(lambda: node.names("live") + node.names("trash") == [])
        await eventually(lambda: node.volumes("retained") == lasting)

    assert node.mounts() == []
