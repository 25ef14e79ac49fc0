"""A kubelet's server over real containers, without an API server: pods are what a test says there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

from onenode.kubelet.pods.container_logs import ContainerLogs
from onenode.kubelet.pods.container_runtime import RunningContainer
from onenode.kubelet.pods.linux_container_runtime import LinuxContainerRuntime, linux_container_runtime
from onenode.kubelet.server.answers import KubeletParts
from onenode.kubelet.server.kubelet_server import kubelet_server
from orlop.foundation.clock import SystemClock
from orlop.foundation.http_exchange import LONGEST_HEAD, AnswerHead, body_pieces, read_answer
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.threads import OwnThreads
from orlop.kube.objects import ObjectName
from support.host.descriptors import folder_descriptor
from support.kubelet.machine_pods import shell
from support.kubelet.websocket_clients import WebSocketClient, handshake

Object = dict[str, Any]
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"


@dataclass
class ShownPod:
    """A pod of one container, `main`, that runs once."""

    pod: Object
    running: dict[str, RunningContainer] = field(default_factory=dict)
    attempt: int = 0

    def is_running(self, container: str, attempt: int) -> bool:
        return container in self.running and attempt == self.attempt


@dataclass
class ShownPods:
    all: dict[str, ShownPod] = field(default_factory=dict)

    def named(self, name: ObjectName) -> ShownPod | None:
        return self.all.get(str(name))

    def workers(self) -> list[ShownPod]:
        return list(self.all.values())


@dataclass
class KubeletUnderTest:
    socket: Path
    containers: LinuxContainerRuntime
    pods: ShownPods
    told: list[LogEntry]
    endings: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, script: str, name: str = "p", attempt: int = 0) -> ShownPod:
        """A pod whose container runs this; its status is as kubelet would have written it."""
        container = await self.containers.start(shell(script, pod=f"uid-{name}", attempt=attempt))
        status = {"name": "main", "restartCount": attempt, "state": {"running": {}}}
        seen = ShownPod(pod_object(name, status), {"main": container}, attempt)
        self.pods.all[f"default/{name}"] = seen
        self.endings.append(asyncio.create_task(self._watch(seen, container)))
        return seen

    async def _watch(self, seen: ShownPod, container: RunningContainer) -> None:
        code = await container.ended()
        seen.running.pop("main", None)
        seen.pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code}}

    async def get(self, target: str, *headers: str, method: str = "GET") -> tuple[AnswerHead, bytes]:
        client = await self.open(target, *headers, method=method)
        try:
            head = await read_answer(client.reader)
            pieces = [] if method == "HEAD" else [piece async for piece in body_pieces(head, client.reader)]
            return head, b"".join(pieces)
        finally:
            client.close()

    async def open(self, target: str, *headers: str, method: str = "GET") -> WebSocketClient:
        reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=LONGEST_HEAD)
        writer.write("\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
        return WebSocketClient(reader, writer)

    async def exec(self, *command: str, protocol: str = V5, name: str = "p", **more: str) -> WebSocketClient:
        """Upgraded already."""
        client = await self.open(exec_target(*command, name=name, **more), *handshake(protocol))
        status, headers = await client.head()
        assert (status, headers["sec-websocket-protocol"]) == (101, protocol)
        return client

    async def sh(self, script: str, **more: str) -> WebSocketClient:
        return await self.exec("sh", "-c", script, **more)


def exec_target(*command: str, name: str = "p", container: str = "main", **more: str) -> str:
    options = {"input": "1", "output": "1", "error": "1", **more}
    query = urlencode([*(("command", word) for word in command), *options.items()])
    return f"/exec/default/{name}/{container}?{query}"


def pod_object(name: str, status: Mapping[str, Any]) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"containerStatuses": [dict(status)]},
    }


async def plain_summary(of_volumes: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the seam's own
    return {"node": {"nodeName": "n1"}, "pods": [{}] if of_volumes else []}


@asynccontextmanager
async def kubelet_under_test(folder: Path) -> AsyncIterator[KubeletUnderTest]:
    """All its containers end with it."""
    told: list[LogEntry] = []
    with folder_descriptor(folder) as opened:
        async with linux_container_runtime(opened, OwnThreads()) as containers:
            pods = ShownPods()
            parts = KubeletParts(pods, ContainerLogs(opened, OwnThreads(), SystemClock()), plain_summary)
            path = folder / "kubelet.sock"
            runtime = Runtime(
                clock=SystemClock(),
                random=Random(1),
                log=collecting_log(told),
                metrics=Metrics("t", of_process=False),
            )
            async with kubelet_server(path, parts, runtime):
                under_test = KubeletUnderTest(path, containers, pods, told)
                yield under_test
                for seen in pods.workers():
                    for container in seen.running.values():
                        container.kill()
                await asyncio.gather(*under_test.endings)
