"""A node on virtual time: an API server, a folder for registration sockets, plugins of any behaviour, and our kubelet's
watcher, which comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from onenode.kubelet.node.csi_node_objects import CsiNodeObjects
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.plugin_registration import PluginRegistration
from onenode.kubelet.node.plugin_watcher import PluginWatcher
from onenode.kubelet.node.registered_drivers import RegisteredDrivers
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.proto import csi_pb2, registration_pb2, rpc
from orlop.csi.transport import ClientTransport, Shape
from orlop.foundation.clock import Clock
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CSI_NODE, EVENT, NODE, Kind
from orlop.kube.objects import ObjectName
from support.kubelet.kubelet_plugins import VirtualFolder, VirtualSocket
from support.worlds import ClusterWorld, ControllerParts, Object, running

REGISTRY = "/kubelet/plugins_registry"
PLUGINS = "/kubelet/plugins"
NODE_NAME = "node-1"


@dataclass
class Plugin:
    """A registration socket and the driver behind it, in one; `behaviour` says, by RPC, what goes wrong."""

    name: str = "a.example.com"
    node_id: str = "id-1"
    topology: Mapping[str, str] = field(default_factory=dict)
    max_volumes: int = 0
    kind: str = "CSIPlugin"
    versions: tuple[str, ...] = ("1.0.0",)
    endpoint: str | None = None
    clock: Clock | None = None
    behaviour: dict[str, CsiError | float | bytes | None] = field(default_factory=dict)
    """An error, seconds before the answer, an answer's bytes, or None for never."""
    told: list[tuple[bool, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def shape_of(self, _path: str) -> Shape | None:
        return Shape.UNARY

    async def answer(self, path: str, message: bytes) -> bytes:
        method = path.rpartition("/")[2]
        self.asked.append(method)
        match self.behaviour.get(method, 0.0):
            case CsiError() as error:
                raise error
            case bytes() as answer:
                return answer
            case None:
                await asyncio.get_running_loop().create_future()
            case float() as seconds if seconds:
                assert self.clock is not None, "only a plugin of a world has a clock"
                await self.clock.sleep(seconds)
        return self._answer(path, message)

    def _answer(self, path: str, message: bytes) -> bytes:
        match path:
            case rpc.GET_INFO.path:
                return self._info().SerializeToString()
            case rpc.NOTIFY_REGISTRATION_STATUS.path:
                status = registration_pb2.RegistrationStatus.FromString(message)
                self.told.append((status.plugin_registered, status.error))
                return b""
            case rpc.NODE_GET_INFO.path:
                return self._node().SerializeToString()
            case rpc.GET_PLUGIN_INFO.path:
                return csi_pb2.GetPluginInfoResponse(name=self.name).SerializeToString()
        capability = csi_pb2.NodeServiceCapability(rpc={"type": "STAGE_UNSTAGE_VOLUME"})
        return csi_pb2.NodeGetCapabilitiesResponse(capabilities=[capability]).SerializeToString()

    def _info(self) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type=self.kind, name=self.name, endpoint=self.endpoint or "", supported_versions=self.versions
        )

    def _node(self) -> csi_pb2.NodeGetInfoResponse:
        return csi_pb2.NodeGetInfoResponse(
            node_id=self.node_id,
            max_volumes_per_node=self.max_volumes,
            accessible_topology={"segments": dict(self.topology)},
        )

    def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    async def drain(self, _grace: float) -> list[str]:
        return []


class _TellingDict(dict[str, VirtualSocket]):
    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()

    def __setitem__(self, key: str, value: VirtualSocket) -> None:
        super().__setitem__(key, value)
        self.news.set()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.news.set()


class TellingFolder(VirtualFolder):
    """Sockets without a file system that tell when they come and go."""

    def __init__(self) -> None:
        super().__init__(there=_TellingDict())

    async def changed(self) -> None:
        assert isinstance(self.there, _TellingDict)
        await self.there.news.wait()
        self.there.news.clear()

    def is_socket(self, path: str) -> bool:
        return path in self.there


class PluginWorld(ClusterWorld):
    """`node` is the metadata of the Node, beside its name."""

    def __init__(self, **node: Any) -> None:
        super().__init__()
        self.folder = TellingFolder()
        self.elsewhere = TellingFolder()
        """Sockets that are in no registry: drivers' own."""
        self.connections: list[ClientTransport] = []
        self._node = {"metadata": {"name": NODE_NAME, **node}}

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        await self.create(NODE, self._node)

    # ---- plugins -----------------------------------------------------------------------------------------------------

    def path(self, socket: str) -> str:
        return f"{REGISTRY}/{socket}.sock"

    def make(self, socket: str, plugin: Plugin) -> Plugin:
        """A socket of this name; one that was there is replaced."""
        plugin.clock = self.clock
        self.folder.there[self.path(socket)] = VirtualSocket(plugin)
        return plugin

    def remove(self, socket: str) -> None:
        del self.folder.there[self.path(socket)]

    def put_driver(self, path: str, plugin: Plugin) -> Plugin:
        self.elsewhere.there[path] = VirtualSocket(plugin)
        return plugin

    def connect(self, endpoint: UnixEndpoint) -> ClientTransport:
        place = self.folder if endpoint.path in self.folder.there else self.elsewhere
        made = place.dial(endpoint.path)
        self.connections.append(made)
        return made

    def is_socket(self, path: str) -> bool:
        return path in self.elsewhere.there

    # ---- the watcher -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def api(self, server: Any = None) -> AsyncIterator[tuple[NodeApi, ControllerParts]]:
        """`server` stands between the API server and whoever uses this."""
        async with self.controller_parts("kubelet", self.transport(server), NODE_NAME) as parts:
            yield NodeApi(NODE_NAME, parts.kube, parts.events), parts

    @asynccontextmanager
    async def watcher(self, server: Any = None) -> AsyncIterator[PluginWatcher]:
        self.folder.is_socket = self.is_socket  # type: ignore[method-assign]
        async with self.api(server) as (api, parts):
            objects, drivers = CsiNodeObjects(api, parts.runtime), RegisteredDrivers()
            registration = PluginRegistration(self.connect, objects, drivers, parts.runtime)
            watcher = PluginWatcher(self.folder, PLUGINS, registration, drivers, api, parts.runtime)
            async with running(objects.begin(), watcher.run()):
                yield watcher

    # ---- the API -----------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind) -> Object:
        return await self.client.get(kind, ObjectName(None, NODE_NAME))

    async def csi_drivers(self) -> list[Object]:
        return (await self.get(CSI_NODE))["spec"].get("drivers") or []

    async def labels(self) -> Mapping[str, str]:
        return (await self.get(NODE))["metadata"].get("labels") or {}

    async def annotations(self) -> Mapping[str, str]:
        return (await self.get(NODE))["metadata"].get("annotations") or {}

    async def events(self) -> list[Object]:
        return (await self.client.list(EVENT)).items


class SlowWrites:
    """Stands between the watcher and the API server: each write takes a second."""

    def __init__(self, the: PluginWorld) -> None:
        self.the = the

    async def answer(self, request: HttpRequest, user: Any) -> Any:
        if request.method != "GET":
            await self.the.clock.sleep(1.0)
        return await self.the.on.server.answer(request, user)


def is_closed(connection: ClientTransport) -> bool:
    assert isinstance(connection, InProcessConnection)
    return connection._closed
