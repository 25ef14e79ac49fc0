"""Commands about drives, typed against an API server in memory with the definitions of drives and a model of nodes.

The server, the nodes and the commands share one event loop, which runs while a command or `Bench.do` runs. Time passes
when somebody waits for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import msgspec
from click import Command
from click.testing import CliRunner

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.testing.api_server import RunningServer, api_server
from orlop.cli import adopt, drives, static, volumes
from orlop.cli.in_cluster import ConnectedCluster, ServerChoice, Work
from orlop.foundation.clock import SystemClock
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.api_record import new_object, part_of
from orlop.records.definitions import definitions
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.volume import ERASE_FINALIZER, VOLUME, DriveVolumeSpec, VolumeClaim

GIB = 1 << 30
COMMANDS: dict[str, Command] = {
    "drives": drives.command,
    "volumes": volumes.command,
    "adopt": adopt.command,
    "static": static.command,
}
START = datetime(2126, 1, 2, 3, 4, 5, tzinfo=UTC)
"""Long after everything was created: the server has the clock of the machine."""


class PassingClock(SystemClock):
    """Whoever sleeps makes the time pass at once, after the other tasks had their turn."""

    def __init__(self) -> None:
        self.passed, self.began = 0.0, START

    def now(self) -> datetime:
        return self.began + timedelta(seconds=self.passed)

    def elapsed(self) -> float:
        return self.passed

    async def sleep_until(self, elapsed_instant: float) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        self.passed = max(self.passed, elapsed_instant)


def drive_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Typed:
    code: int
    out: str
    err: str
    shown: str = ""
    """Both, in the order in which a terminal shows them."""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Bench:
    """One cluster; `nodes` answer requests by name."""

    runner: asyncio.Runner
    server: RunningServer
    clock: PassingClock = field(default_factory=PassingClock)

    @property
    def client(self) -> KubeClient:
        return self.server.client()

    def typed(self, *words: str, answer: str | None = None, user: User = ADMIN) -> Typed:
        """Run a command as on a terminal, if there is an answer to its question."""

        def run(_choice: ServerChoice, work: Work[Any]) -> Any:
            return self.runner.run(self._work(work, user))

        with mock.patch("orlop.cli.options.is_terminal", return_value=answer is not None):
            ended = CliRunner().invoke(COMMANDS[words[0]], words[1:], obj=run, input=answer)
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Typed(ended.exit_code, ended.stdout, ended.stderr, ended.output)

    async def _work(self, work: Work[Any], user: User) -> Any:
        client = self.server.client(user)
        return await work(ConnectedCluster(client, "default", self.clock.now(), self.clock, Random(1)))

    def do(self, act: Callable[[KubeClient], Awaitable[Any]]) -> Any:
        async def acting() -> Any:
            return await act(self.client)

        return self.runner.run(acting())

    def create(self, kind: Kind, obj: Object, **status: Any) -> Object:
        async def create(client: KubeClient) -> Object:
            made = await client.create(kind, obj)
            if not status:
                return made
            name = ObjectName(made["metadata"].get("namespace"), made["metadata"]["name"])
            return await client.patch(kind, name, MergePatch({"status": status}), subresource="status")

        made: Object = self.do(create)
        return made

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        found: Object = self.do(lambda client: client.get(kind, ObjectName(namespace, name)))
        return found

    def all(self, kind: Kind) -> list[Object]:
        async def listed(client: KubeClient) -> list[Object]:
            return (await client.list(kind)).items

        items: list[Object] = self.do(listed)
        return items

    def drive(self, number: int = 1, node: str = "n1", capacity: int = 10 * GIB, **more: Any) -> str:
        """Create a drive; `more`: `spec`, `labels`, `finalizers`, and fields of the status."""
        device = f"sd{'abcdefghij'[number % 10]}"
        spec, labels, finalizers = more.pop("spec", {}), more.pop("labels", {}), more.pop("finalizers", ())
        whole = DriveSpec(node_name=node, type=DriveType.DISK, **spec)
        obj = new_object("Drive", drive_id(number), whole, finalizers=finalizers)
        obj["metadata"]["labels"] = labels
        status = {
            "state": "Ready",
            "capacityBytes": capacity,
            "fileSystem": "xfs",
            "backings": ["directory", "image"],
            "allocationsRestored": True,
            "device": {"name": device, "path": f"/dev/{device}"},
            **more,
        }
        self.create(DRIVE, obj, **status)
        return drive_id(number)

    def volume(self, name: str, drive: int = 1, node: str = "n1", *, claim: str = "team/data", **more: Any) -> Object:
        """Create a Volume; `more`: `spec`, and fields of the status."""
        namespace, _, claim_name = claim.partition("/")
        spec = DriveVolumeSpec(
            drive=drive_id(drive),
            node_name=node,
            bytes=GIB,
            backing="image",
            file_system="xfs",
            volume_mode="Filesystem",
            persistent_volume=name,
            claim=VolumeClaim(namespace=namespace, name=claim_name) if claim else None,
        )
        spec = msgspec.structs.replace(spec, **more.pop("spec", {}))
        return self.create(VOLUME, new_object("Volume", name, spec, finalizers=[ERASE_FINALIZER]), **more)

    def persistent_volume(self, name: str, *, handle: str = "", phase: str = "Bound", **spec: Any) -> Object:
        whole = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "csi.orlop.dev", "volumeHandle": handle or name},
            **spec,
        }
        return self.create(PERSISTENT_VOLUME, {"metadata": {"name": name}, "spec": whole}, phase=phase)

    def claim(self, name: str = "data", *, volume: str = "", phase: str = "Bound", **more: Any) -> Object:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            **({"volumeName": volume} if volume else {}),
            **more.pop("spec", {}),
        }
        metadata = {"name": name, "namespace": "team", **more}
        return self.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec}, phase=phase)

    def devices(self, node: str, *devices: Object) -> None:
        self.create(NODE_DEVICES, new_object("NodeDevices", node, NodeDevicesSpec(node_name=node)), devices=devices)

    @contextmanager
    def node(self, name: str, act: Callable[[DriveRequestSpec], Awaitable[Object] | Object]) -> Iterator[list[Object]]:
        """While it is there, a node writes what `act` returns as the status of each request to it."""
        seen: list[Object] = []
        task = self.runner.run(_started(_answer(self.client, name, act, seen)))
        yield seen
        task.cancel()
        self.runner.run(_ended(task))


async def _started(work: Any) -> asyncio.Task[None]:
    return asyncio.create_task(work)


async def _ended(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        await task


async def _answer(client: KubeClient, node: str, act: Callable[[Any], Any], seen: list[Object]) -> None:
    async for event in client.watch(DRIVE_REQUEST):
        obj = event.object
        if event.type != "ADDED" or obj["spec"]["nodeName"] != node:
            continue
        seen.append(obj)
        status = act(part_of(obj, "spec", DriveRequestSpec))
        if asyncio.iscoroutine(status):
            status = await status
        name = ObjectName(None, obj["metadata"]["name"])
        await client.patch(DRIVE_REQUEST, name, MergePatch({"status": status}), subresource="status")


@contextmanager
def bench() -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        ready: asyncio.Future[RunningServer] = runner.get_loop().create_future()
        ends = asyncio.Event()
        keeper = runner.get_loop().create_task(_keep(ready, ends))
        try:
            yield Bench(runner, runner.run(_value(ready)))
        finally:
            ends.set()
            runner.run(_value(keeper))


async def _value(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@cache
def kinds_of_drives() -> list[Object]:
    """Make the definitions once: a test has many servers."""
    return definitions()


async def _keep(ready: asyncio.Future[RunningServer], ends: asyncio.Event) -> None:
    """Keep the server running in one task, from before the first command until after the last."""
    async with api_server(SystemClock()) as server:
        client = server.client()
        for definition in kinds_of_drives():
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        for namespace in ("default", "team"):
            with suppress(Exception):
                await client.create(NAMESPACE, {"metadata": {"name": namespace}})
        ready.set_result(server)
        await ends.wait()
