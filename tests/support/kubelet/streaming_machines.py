"""One machine: an API server that listens, a kubelet that runs pods and has its socket, and kubectl for both."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.edge.http_upgrade import ServerAnswer
from onenode.apiserver.edge.state_folder import kubeconfig_text
from onenode.containers.container_request import WindowSize
from onenode.containers.terminals import set_window
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.pods.container_logs import ContainerLogs
from onenode.kubelet.pods.container_rules import Names, SubPathWish, VolumeSources
from onenode.kubelet.pods.exec_session import read_pipe, write_pipe
from onenode.kubelet.pods.linux_container_runtime import linux_container_runtime
from onenode.kubelet.pods.pod_manager import pod_manager
from onenode.kubelet.pods.pod_seams import PodSettings, SubPathNotReady
from onenode.kubelet.server.answers import KubeletParts, Summary
from onenode.kubelet.server.kubelet_server import kubelet_server
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.threads import OwnThreads
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import NODE, POD, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, uid
from support.api.api_edge import Edge, RawClient, edge, tls_client
from support.api.api_objects import container, pod
from support.api.api_servers import TestServer, api_server
from support.host.descriptors import folder_descriptor
from support.kubelet.kubelet_servers import plain_summary
from support.kubelet.websocket_clients import WebSocketClient
from support.processes.kubectl_commands import KUBECTL
from support.waiting import eventually_answered

Object = dict[str, Any]
NODE_NAME = "n1"
TOKEN = "admins-token"


@dataclass(frozen=True)
class TokenDoor:
    """Whoever has the token is admin; others are whom they say they are."""

    server: Any

    def admit(self, head: HttpRequest, *, local: bool) -> User | HttpResponse:
        _ = local
        name = head.headers.get("authorization", "").removeprefix("Bearer ")
        return ADMIN if name == TOKEN else User(name, ("system:authenticated",))

    async def answer(self, request: HttpRequest, user: User) -> ServerAnswer:
        return await self.server.answer(request, user)


@dataclass(frozen=True)
class FolderVolumes:
    """Each volume, of whatever kind, is an empty folder below the kubelet's."""

    folder: Path

    async def ready(self, of: Mapping[str, Any]) -> VolumeSources:
        names = [volume["name"] for volume in of["spec"].get("volumes") or ()]
        for name in names:
            (self.folder / "pods" / uid(of) / name).mkdir(parents=True, exist_ok=True)
        return VolumeSources({name: ("pods", uid(of), name) for name in names})

    async def let_go(self, of: Mapping[str, Any]) -> None:
        _ = of

    def all_known(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Nothing waits for it."""

    async def sub_path(self, pod: Mapping[str, Any], container: str, wish: SubPathWish) -> Names:
        raise SubPathNotReady("none here")


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: str


@dataclass
class KubectlTerminal:
    """kubectl on a terminal whose outer end is the test's."""

    process: asyncio.subprocess.Process
    outer: int
    seen: bytes = b""

    async def types(self, text: str) -> None:
        await write_pipe(self.outer, text.encode())

    async def shows(self, text: str) -> None:
        """Until it has printed this since the last time."""
        while text.encode() not in self.seen:
            piece = await asyncio.wait_for(read_pipe(self.outer), 60)
            assert piece, self.seen
            self.seen += piece
        self.seen = self.seen.partition(text.encode())[2]

    def resize(self, width: int, height: int) -> None:
        set_window(self.outer, WindowSize(width, height))
        # The kernel tells only processes of the terminal's session, of which kubectl's is another.
        self.process.send_signal(signal.SIGWINCH)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


@dataclass
class StreamingMachine:
    on: TestServer
    client: KubeClient
    edge: Edge
    folder: Path

    async def make(self, script: str, name: str = "p", **spec: Any) -> Object:
        """A pod that runs, or has ended."""
        one = container(command=["sh", "-c", script])
        spec = {"nodeName": NODE_NAME, "containers": [one], "restartPolicy": "Never", **spec}
        await self.client.create(POD, pod(name, **spec), namespace="default")
        return await self.in_phase(name, "Running", "Succeeded", "Failed")

    async def in_phase(self, name: str, *phases: str) -> Object:
        async def look() -> Object | None:
            found = await self.client.get(POD, ObjectName("default", name))
            return found if found["status"].get("phase") in phases else None

        found = await eventually_answered(look)
        assert found is not None
        return found

    async def kubectl(self, *arguments: str, stdin: bytes | None = None, **env: str) -> Ran:
        process = await self.begin(*arguments, **env)
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        return Ran(process.returncode or 0, out, err.decode())

    async def begin(self, *arguments: str, **env: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = [str(KUBECTL), "--kubeconfig", str(self.folder / "kubeconfig"), *arguments]
        surroundings = {"HOME": str(self.folder / "home"), "PATH": os.environ["PATH"], **env}
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=surroundings)

    @asynccontextmanager
    async def kubectl_on_terminal(self, *arguments: str) -> AsyncIterator[KubectlTerminal]:
        outer, inner = os.openpty()
        command = [str(KUBECTL), "--kubeconfig", str(self.folder / "kubeconfig"), *arguments]
        surroundings = {"HOME": str(self.folder / "home"), "PATH": os.environ["PATH"]}
        set_window(outer, WindowSize(100, 24))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=inner, stdout=inner, stderr=inner, env=surroundings, start_new_session=True
        )
        os.close(inner)
        os.set_blocking(outer, False)
        terminal = KubectlTerminal(process, outer)
        try:
            yield terminal
        finally:
            terminal.kill()
            await process.wait()
            os.close(outer)

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[RawClient]:
        async with tls_client(self.edge) as client:
            yield client

    @asynccontextmanager
    async def websocket(self, target: str, *headers: str, token: str = TOKEN) -> AsyncIterator[WebSocketClient]:
        """A connection with its request sent; the answer is not read."""
        async with tls_client(self.edge) as client:
            lines = [f"GET {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers, "", ""]
            await client.send("\r\n".join(lines).encode())
            yield WebSocketClient(client.reader, client.writer)


@asynccontextmanager
async def streaming_machine(folder: Path, summary: Summary = plain_summary) -> AsyncIterator[StreamingMachine]:
    kubelets = {NODE_NAME: str(folder / "kubelet.sock"), "gone": str(folder / "nobody.sock")}
    async with api_server(SystemClock(), kubelets=kubelets.get) as on, edge(folder, TokenDoor(on.server)) as listening:
        client = on.client()
        await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, namespace="default")
        for name in (*kubelets, "unknown"):
            await client.create(NODE, {"metadata": {"name": name}})
        _write_kubeconfig(folder, listening)
        async with _kubelet(folder, on, summary):
            machine = StreamingMachine(on, client, listening, folder)
            yield machine
            await _end_pods(machine)


async def _end_pods(machine: StreamingMachine) -> None:
    for one in (await machine.client.list(POD)).items:
        await machine.client.delete(POD, ObjectName("default", one["metadata"]["name"]), DeleteOptions(grace_seconds=0))


def _write_kubeconfig(folder: Path, listening: Edge) -> None:
    server = f"https://127.0.0.1:{listening.port}"
    (folder / "kubeconfig").write_text(kubeconfig_text(server, folder / "ca.crt", "admin", f"token: {TOKEN}"))


@asynccontextmanager
async def _kubelet(folder: Path, on: TestServer, summary: Summary) -> AsyncIterator[None]:
    log, clock, client = on.log, SystemClock(), on.client()
    metrics = Metrics("test", of_process=False)
    events = EventRecorder(
        client, Reporter("kubelet", NODE_NAME), clock=clock, random=Random(1), log=log, metrics=metrics
    )
    with folder_descriptor(folder) as opened:
        async with (
            linux_container_runtime(opened, OwnThreads()) as containers,
            Informers(client, clock=clock, random=Random(2), log=log) as informers,
            TaskGroup() as tasks,
        ):
            telling = tasks.start(events.run(), name="events")
            settings = PodSettings(NODE_NAME, hidden=(str(folder),))
            api, volumes = NodeApi(NODE_NAME, client, events), FolderVolumes(folder)
            runtime = Runtime(clock=clock, random=Random(3), log=log, metrics=metrics)
            async with pod_manager(informers, api, containers, volumes, settings, runtime) as pods:
                parts = KubeletParts(pods, ContainerLogs(opened, OwnThreads(), clock), summary)
                async with kubelet_server(folder / "kubelet.sock", parts, runtime):
                    yield
            telling.cancel()
