"""A whole machine on virtual time: API server, scheduler, kubelet with all its parts, a scripted driver that registers.

Each of them can die and come back, and what is on the fake disk, in its mounts and in the API server's store stays, as
it does on a machine. Everything a kubelet does to others passes `crossings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from onenode.controllers.scheduler import scheduler
from onenode.host.machine_facts import MachineFacts
from onenode.kubelet.node.kubelet_wiring import KubeletMachine, KubeletSettings, RunningKubelet, running_kubelet
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_status_rules import NodeSettings
from onenode.kubelet.node.node_wiring import PluginPlaces
from onenode.kubelet.pods.container_runtime import WantedContainer
from onenode.testing.fake_containers import FakeContainer, FakeContainers
from onenode.testing.fake_plain_volume_host import FakePlainVolumeHost
from onenode.testing.fake_volume_host import FakeVolumeHost
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.proto import csi_pb2, registration_pb2, rpc
from orlop.csi.transport import ClientTransport, Shape
from orlop.foundation.clock import Clock
from orlop.kube.api_errors import ConnectionBroken, NotConnected
from orlop.kube.client import DeleteOptions
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import POD, Kind
from orlop.testing.fake_host.machine import KUBELET_DIR
from orlop.testing.scripted_driver import ScriptedInterceptor
from support.api.api_objects import container, named
from support.api.api_servers import TestServer, api_server_on
from support.host.remains import Remains, remains_of_fake
from support.kubelet.crossings import Crossings
from support.kubelet.kubelet_plugins import VirtualSocket
from support.kubelet.plugin_worlds import TellingFolder
from support.kubelet.volume_worlds import DRIVER, NODE_NAME, TokenIssuer, VolumeWorld
from support.worlds import object_name

T = TypeVar("T")
Object = dict[str, Any]
REGISTRY = f"{KUBELET_DIR}/plugins_registry"
PLUGINS = f"{KUBELET_DIR}/plugins"
FACTS = MachineFacts("h", "192.0.2.7", 2, 2**33, 2**36, "m", "u", "b", "6.1", "Linux", "amd64")
NODE = NodeSettings(NODE_NAME, "v1.37.0+orlop", "orlop://0.1")
UNCOUNTED = ("/leases/", "/events")
"""Heartbeats and what people are told: of no volume's doing."""
GONE = "Gone"


# ---- the driver ------------------------------------------------------------------------------------------------------


@dataclass
class DriverSocket:
    """One life of the driver, announcing itself on the socket it answers on; it stages by a mount of its own."""

    world: VolumeWorld
    crossings: Crossings
    name: str = DRIVER
    interceptor: ScriptedInterceptor | None = None
    """None: the one that the world plays at the time."""
    told: list[tuple[bool, str]] = field(default_factory=list)

    def shape_of(self, _path: str) -> Shape | None:
        return Shape.UNARY

    async def answer(self, path: str, message: bytes) -> bytes:
        return await self.crossings.through(path.rpartition("/")[2], partial(self._answer, path, message))

    async def _answer(self, path: str, message: bytes) -> bytes:
        match path:
            case rpc.GET_INFO.path:
                info = registration_pb2.PluginInfo(type="CSIPlugin", name=self.name, supported_versions=["1.0.0"])
                return info.SerializeToString()
            case rpc.NOTIFY_REGISTRATION_STATUS.path:
                status = registration_pb2.RegistrationStatus.FromString(message)
                self.told.append((status.plugin_registered, status.error))
                return b""
        answer = await (self.interceptor or self.world.interceptor).answer(path, message)
        self._stage(path, message)
        return answer

    def _stage(self, path: str, message: bytes) -> None:
        mounts = self.world.machine.mounts
        if path == rpc.NODE_STAGE_VOLUME.path:
            target = names_of(csi_pb2.NodeStageVolumeRequest.FromString(message).staging_target_path)
            if not mounts.get(target):
                self.world.machine.mount_something_else(target)
        if path == rpc.NODE_UNSTAGE_VOLUME.path:
            mounts.pop(names_of(csi_pb2.NodeUnstageVolumeRequest.FromString(message).staging_target_path), None)

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    async def drain(self, _grace: float) -> list[str]:
        return []


def names_of(path: str) -> tuple[str, ...]:
    return tuple(path.removeprefix(f"{KUBELET_DIR}/").split("/"))


# ---- the way to the API server ---------------------------------------------------------------------------------------


class WayToApi:
    """Of one life of a kubelet; the server may be away, and may die before its answer is heard."""

    is_remote = False

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        act = partial(self._exchange, request, within)
        if any(part in request.path for part in UNCOUNTED):
            return await act()
        return await self._machine.crossings.through(f"{request.method} {request.path}", act)

    async def _exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        inner = self._inner()
        answer = await inner.exchange(request, within)
        if inner is not self._machine.transport:
            raise ConnectionBroken("the API server died before it was heard")
        return answer

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        async with self._inner().open(request, within) as stream:
            yield stream

    async def renew_credentials(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def _inner(self) -> Any:
        if self._machine.transport is None:
            raise NotConnected("the API server is away")
        return self._machine.transport


class CrossingContainers(FakeContainers):
    def __init__(self, clock: Clock, crossings: Crossings) -> None:
        super().__init__(clock)
        self._crossings = crossings

    async def start(self, wanted: WantedContainer) -> FakeContainer:
        """Given up while it starts, it does not run on: as on a machine."""
        begun: list[FakeContainer] = []

        async def act() -> FakeContainer:
            begun.append(await super(CrossingContainers, self).start(wanted))
            return begun[0]

        try:
            return await self._crossings.through("start of a container", act)
        except BaseException:
            for container in begun:
                container.kill()
            raise


# ---- the machine -----------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    world: VolumeWorld
    crossings: Crossings = field(default_factory=Crossings)
    registry: TellingFolder = field(default_factory=TellingFolder)

    def __post_init__(self) -> None:
        self.clock = self.world.clock
        self.containers = CrossingContainers(self.clock, self.crossings)
        self.transport: Any = self.world.on.transport()
        self._connections: dict[str, list[InProcessConnection]] = {}
        self._kubelet = self.world.part("kubelet", self._live)
        self._parts: asyncio.Future[RunningKubelet] | None = None
        self.registry.is_socket = lambda path: path in self.registry.there  # type: ignore[method-assign]

    # ---- the kubelet ---------------------------------------------------------------------------------------------

    async def start_kubelet(self) -> None:
        self._parts = asyncio.get_running_loop().create_future()
        self._kubelet.start()

    async def parts(self) -> RunningKubelet:
        assert self._parts is not None
        return await self._parts

    async def kill_kubelet(self) -> None:
        """Its containers die with it."""
        await self._kubelet.kill()
        self.containers.die()

    async def _live(self) -> None:
        assert self._parts is not None
        plugins = PluginPlaces(self.registry, PLUGINS, self._connect)
        host, plain = FakeVolumeHost(self.world.machine), FakePlainVolumeHost(self.world.machine)
        machine = KubeletMachine(_facts, plugins, host, plain, self.containers, self._in_thread, self._in_thread)
        async with self.world.controller_parts("kubelet", WayToApi(self), NODE_NAME) as the:
            api = NodeApi(NODE_NAME, the.kube, the.events)
            async with running_kubelet(KubeletSettings(NODE), machine, the.informers, api, the.runtime) as kubelet:
                self._parts.set_result(kubelet)
                await asyncio.Event().wait()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async def act() -> T:
            await asyncio.sleep(0)
            return work()

        done = getattr(work, "func", work)
        return await self.crossings.through(f"disk: {getattr(done, '__name__', 'something')}", act)

    def _connect(self, endpoint: UnixEndpoint) -> ClientTransport:
        made = self.registry.dial(endpoint.path)
        assert isinstance(made, InProcessConnection)
        self._connections.setdefault(endpoint.path, []).append(made)
        return made

    # ---- drivers -------------------------------------------------------------------------------------------------

    def start_driver(self, socket: str = "d", other: str = "", **script: Any) -> DriverSocket:
        """A socket that was there is replaced; another driver has a name, volumes and a script of its own."""
        interceptor = self.world.start_driver(other, script, storage=None) if other else None
        driver = DriverSocket(self.world, self.crossings, other or DRIVER, interceptor)
        self.registry.there[f"{REGISTRY}/{socket}.sock"] = VirtualSocket(driver)
        return driver

    def kill_driver(self, socket: str = "d") -> None:
        """Without a word: the socket's file stays."""
        path = f"{REGISTRY}/{socket}.sock"
        self.registry.there[path].handler = None
        for connection in self._connections.pop(path, []):
            connection.cut()

    def remove_driver(self, socket: str = "d") -> None:
        """Its socket's file."""
        del self.registry.there[f"{REGISTRY}/{socket}.sock"]

    # ---- the API server ------------------------------------------------------------------------------------------

    async def kill_api_server(self) -> None:
        transport, self.transport = self.transport, None
        await transport.close()

    async def start_api_server(self) -> None:
        """Another one, on what the last one had stored."""
        started: asyncio.Future[TestServer] = asyncio.get_running_loop().create_future()

        async def live() -> None:
            async with api_server_on(self.world.on.store, self.clock, reviews=TokenIssuer(self.clock)) as on:
                started.set_result(on)
                await asyncio.Event().wait()

        self.world.start(live(), "API server")
        on = await started
        self.world.on, self.world.client, self.transport = on, on.client(), on.transport()

    # ---- all of it -----------------------------------------------------------------------------------------------

    async def reboot(self) -> None:
        """Nothing is mounted afterwards, and the driver has staged and published nothing; files stay."""
        await self.kill_kubelet()
        self.kill_driver()
        await self.kill_api_server()
        self.world.machine.reboot()
        for volume in self.world.volumes_of_driver():
            volume.published.clear()
            volume.staged.clear()
        await self.start_api_server()
        self.start_driver()
        await self.start_kubelet()

    async def end(self) -> None:
        self.crossings.is_counting = False
        self.crossings.go_on()
        await self.kill_kubelet()
        for connections in self._connections.values():
            for connection in connections:
                await connection.close()

    # ---- pods ----------------------------------------------------------------------------------------------------

    async def make_pod(self, name: str = "p", *volumes: Object, **spec: Any) -> Object:
        """Nobody has a node for it yet."""
        mounts = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
        one = container(command=["sleep", "1000000"], volumeMounts=mounts)
        body = named(name, spec={"containers": [one], "volumes": list(volumes), **spec})
        return await self.world.create(POD, body)

    async def get(self, kind: Kind, name: str) -> Object:
        return await self.world.client.get(kind, object_name(kind, name))

    async def delete_pod(self, name: str = "p", grace: int = 1) -> None:
        await self.world.delete(POD, name, DeleteOptions(grace_seconds=grace))

    async def phase(self, name: str = "p") -> str:
        found = await self.world.find(POD, name)
        return GONE if found is None else str(found["status"].get("phase", ""))

    async def settle(self, seconds: float = 1.0) -> None:
        await self.world.settle(seconds)

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float = 600.0) -> None:
        await self.world.until(condition, within)

    async def until_phase(self, phase: str, name: str = "p") -> None:
        async def is_so() -> bool:
            return await self.phase(name) == phase

        await self.until(is_so)

    def remains(self) -> Remains:
        return remains_of_fake(self.world, [one.wanted.name for one in self.containers.running()])


async def _facts() -> MachineFacts:
    return FACTS


@asynccontextmanager
async def _scheduling(machine: Machine) -> AsyncIterator[None]:
    async with (
        machine.world.controller_parts("default-scheduler", UncountedWay(machine), NODE_NAME) as the,
        scheduler(the.kube, the.informers, the.runtime, the.events, the.queue_metrics),
    ):
        yield


class UncountedWay(WayToApi):
    """Of others than the kubelet, whose steps are counted. Answers take a moment, or two would tell events at once."""

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        answer = await self._exchange(request, within)
        await self._machine.clock.sleep(0.001)
        return answer


@asynccontextmanager
async def journey_machine(**capabilities: Any) -> AsyncIterator[Machine]:
    """With an API server and a scheduler; drivers and the kubelet are the test's to start."""
    async with VolumeWorld(**capabilities) as world:
        machine = Machine(world)
        try:
            async with _scheduling(machine):
                yield machine
        finally:
            await machine.end()
