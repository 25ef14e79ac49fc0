"""Pods of an API server run on the real kernel: what kubectl would see, and what is left afterwards."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.pods.container_log_rules import LogOptions
from onenode.kubelet.pods.container_logs import ContainerLogs
from onenode.kubelet.pods.container_rules import Names, SubPathWish, VolumeSources
from onenode.kubelet.pods.linux_container_runtime import linux_container_runtime
from onenode.kubelet.pods.pod_manager import pod_manager
from onenode.kubelet.pods.pod_seams import PodSettings, SubPathNotReady
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.threads import OwnThreads
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informers import Informers
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import POD, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, uid
from support.api.api_objects import container, pod
from support.api.api_servers import TestServer, api_server
from support.kubelet.machine_pods import nothing_left
from support.waiting import eventually_answered

Object = dict[str, Any]
NODE = "n1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with nothing_left(tmp_path):
        yield tmp_path


@dataclass(frozen=True)
class FolderVolumes:
    """Each volume is a folder below the kubelet's."""

    folder: Path

    async def ready(self, of: Mapping[str, Any]) -> VolumeSources:
        names = [volume["name"] for volume in of["spec"].get("volumes") or ()]
        for name in names:
            (self.folder / "pods" / uid(of) / name).mkdir(parents=True, exist_ok=True)
        return VolumeSources({name: ("pods", uid(of), name) for name in names})

    def all_known(self, pods: Iterable[Mapping[str, Any]]) -> None:
        return

    async def sub_path(self, pod: Mapping[str, Any], container: str, wish: SubPathWish) -> Names:
        raise SubPathNotReady("none here")

    async def let_go(self, of: Mapping[str, Any]) -> None:
        return


@dataclass(frozen=True)
class Machine:
    client: KubeClient
    logs: ContainerLogs

    async def make(self, script: str, name: str = "p", **spec: Any) -> Object:
        one = container(command=["sh", "-c", script], **spec.pop("container", {}))
        body = pod(name, **{"nodeName": NODE, "containers": [one], "restartPolicy": "Never", **spec})
        return await self.client.create(POD, body, namespace="default")

    async def in_phase(self, phase: str, name: str = "p") -> Object:
        async def look() -> Object | None:
            found = await self.client.get(POD, ObjectName("default", name))
            return found if found["status"].get("phase") == phase else None

        found = await eventually_answered(look)
        assert found is not None
        return found

    async def delete(self, name: str = "p", grace: int | None = None) -> None:
        await self.client.delete(POD, ObjectName("default", name), DeleteOptions(grace_seconds=grace))

    async def gone(self, name: str = "p") -> None:
        async def look() -> bool:
            try:
                await self.client.get(POD, ObjectName("default", name))
            except NotFound:
                return True
            return False

        await eventually_answered(look)

    async def printed(self, of: Object, attempt: int = 0) -> str:
        return b"".join([piece async for piece in self.logs.read(uid(of), "main", attempt, LogOptions())]).decode()


@asynccontextmanager
async def machine(folder: Path, on: TestServer) -> AsyncIterator[Machine]:
    log, clock = on.log, SystemClock()
    client, metrics = on.client(), Metrics("test", of_process=False)
    events = EventRecorder(client, Reporter("kubelet", NODE), clock=clock, random=Random(1), log=log, metrics=metrics)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    settings = PodSettings(NODE, hidden=(str(folder),))
    try:
        async with (
            linux_container_runtime(opened, OwnThreads()) as containers,
            Informers(client, clock=clock, random=Random(2), log=log) as informers,
            TaskGroup() as tasks,
        ):
            telling = tasks.start(events.run(), name="events")
            api, volumes = NodeApi(NODE, client, events), FolderVolumes(folder)
            runtime = Runtime(clock=clock, random=Random(3), log=log, metrics=metrics)
            async with pod_manager(informers, api, containers, volumes, settings, runtime):
                yield Machine(client, ContainerLogs(opened, OwnThreads(), clock))
            telling.cancel()
    finally:
        os.close(opened)


@asynccontextmanager
async def one_machine(folder: Path) -> AsyncIterator[Machine]:
    async with server() as on, machine(folder, on) as m:
        yield m


@asynccontextmanager
async def server() -> AsyncIterator[TestServer]:
    async with api_server(SystemClock()) as on:
        await on.client().create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, namespace="default")
        yield on


async def test_a_pod_runs_to_its_end_and_its_output_can_be_read(folder: Path):
    async with one_machine(folder) as m:
        env = [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        made = await m.make("echo hello from $WHO, $(id -u):$(id -G); exit 3", container={"env": env})
        ended = await m.in_phase("Failed")
        printed = await m.printed(made)

    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    assert printed == "hello from p, 0:0\n"


async def test_a_volume_outlives_the_container_and_is_shared_by_the_pods_containers(folder: Path):
    async with one_machine(folder) as m:
        mounts = [{"name": "v", "mountPath": "/data"}]
        init = container("init", command=["sh", "-c", "echo from init > /data/x"], volumeMounts=mounts)
        volumes = [{"name": "v", "emptyDir": {}}]
        spec = {"volumes": volumes, "initContainers": [init], "securityContext": {"fsGroup": 77}}
        made = await m.make("cat /data/x; id -G", container={"volumeMounts": mounts}, **spec)
        await m.in_phase("Succeeded")
        printed = await m.printed(made)

    assert printed == "from init\n0 77\n"
    assert (folder / "pods" / uid(made) / "v/x").read_text() == "from init\n"


async def test_a_deleted_pod_leaves_no_process_and_no_log(folder: Path):
    async with one_machine(folder) as m:
        made = await m.make("trap '' TERM; sleep 1000 & wait; sleep 1000", terminationGracePeriodSeconds=1)
        await m.in_phase("Running")
        await m.delete()
        await m.gone()

        assert not (folder / "logs" / uid(made)).exists()


async def test_after_a_restart_of_ours_the_pod_runs_again(folder: Path):
    async with server() as on:
        async with machine(folder, on) as m:
            await m.make("echo run; sleep 1000", restartPolicy="Always")
            first = await m.in_phase("Running")
        async with machine(folder, on) as m:

            async def restarted() -> Object | None:
                found = await m.client.get(POD, ObjectName("default", "p"))
                status = found["status"]["containerStatuses"][0]
                return status if status["restartCount"] == 1 and status["ready"] else None

            status = await eventually_answered(restarted)
            await m.delete(grace=0)

    assert first["status"]["containerStatuses"][0]["restartCount"] == 0
    assert status is not None
    assert status["lastState"]["terminated"]["reason"] == "Unknown"
