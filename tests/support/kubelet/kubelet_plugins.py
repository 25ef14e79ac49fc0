"""A small model of kubelet's plugin watcher: looks into its folder, forgets what is gone, registers what is there.

As kubelet: a socket that was made anew is another one, also on the same path; what is gone is forgotten before what is
there is registered, and forgetting goes by the driver's name; a path that failed is left alone for a while, whatever
happens to its socket; labels that are there with another value refuse a driver, and stay when it goes.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError, Unavailable
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.proto import csi_pb2, registration_pb2, rpc
from orlop.foundation.unix_socket import SocketInUse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orlop.csi.rpc_type import Rpc
    from orlop.csi.transport import CallHandler, ClientTransport
    from orlop.foundation.clock import Clock

FIRST_WAIT = 0.5
LONGEST_WAIT = 122.0


# ---- the folder that is watched --------------------------------------------------------------------------------------


class Folder(Protocol):
    def sockets(self) -> Mapping[str, Hashable]:
        """Paths, and what tells a socket from the one that was there before."""

    def dial(self, path: str) -> ClientTransport: ...


@dataclass(frozen=True)
class RealFolder:
    path: Path

    def sockets(self) -> Mapping[str, Hashable]:
        found = {str(one): one.lstat() for one in sorted(self.path.iterdir())}
        return {path: (one.st_ino, one.st_ctime_ns) for path, one in found.items() if stat.S_ISSOCK(one.st_mode)}

    def dial(self, path: str) -> ClientTransport:
        return GrpcConnection(UnixEndpoint(path))


@dataclass(eq=False)
class VirtualSocket:
    handler: CallHandler | None
    """None: the process that served it is dead."""


@dataclass
class VirtualFolder:
    """Sockets without a file system, for virtual time; `serve` is what a registrar is given."""

    there: dict[str, VirtualSocket] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    def sockets(self) -> Mapping[str, Hashable]:
        return dict(self.there)

    def dial(self, path: str) -> ClientTransport:
        found = self.there.get(path)
        if found is None or found.handler is None:
            return _nobody()
        return InProcessConnection(found.handler)

    @asynccontextmanager
    async def serve(self, endpoint: UnixEndpoint, handler: CallHandler) -> AsyncIterator[None]:
        found = self.there.get(endpoint.path)
        if found is not None and found.handler is not None:
            raise SocketInUse(f"Another server listens on the socket {endpoint.path}.")
        mine = self.there[endpoint.path] = VirtualSocket(handler)
        self.made.append(endpoint.path)
        try:
            yield
        finally:
            if self.there.get(endpoint.path) is mine and mine.handler is not None:
                del self.there[endpoint.path]

    def kill(self) -> None:
        """Whoever served here is gone without a word, and his sockets are stale."""
        for socket in self.there.values():
            socket.handler = None


def _nobody() -> ClientTransport:
    connection = InProcessConnection(None)  # type: ignore[arg-type]
    connection.cut()
    return connection


# ---- kubelet ---------------------------------------------------------------------------------------------------------


class Refused(Exception):
    pass


@dataclass(frozen=True)
class Registered:
    path: str
    identity: Hashable
    endpoint: str
    node_id: str
    topology: Mapping[str, str]
    max_volumes: int


@dataclass
class Kubelet:
    """`driver_at` connects to a driver's own socket; `refuse` says why a name is not taken.

    `gives_up` is kubelet before 1.36: it never tries a socket again whose driver it has refused.
    """

    folder: Folder
    driver_at: Callable[[str], ClientTransport]
    clock: Clock
    refuse: dict[str, str] = field(default_factory=dict)
    drivers: dict[str, Registered] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    registrations: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    every: float = 1.0
    gives_up: bool = False
    given_up: dict[str, Hashable] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            await self.look()
            await self.clock.sleep(self.every)

    async def look(self) -> None:
        sockets = self.folder.sockets()
        for name, known in list(self.drivers.items()):
            if sockets.get(known.path) != known.identity:
                del self.drivers[name]
                self.forgotten.append(name)
        known_paths = {known.path for known in self.drivers.values()}
        for path, identity in sockets.items():
            if self.given_up.get(path) == identity:
                continue
            if path not in known_paths and self.clock.elapsed() >= self.waits.get(path, (0.0, 0.0))[0]:
                await self._try(path, identity)

    async def _try(self, path: str, identity: Hashable) -> None:
        try:
            await self._register(path, identity)
            self.waits.pop(path, None)
        except (CsiError, Refused):
            wait = min(LONGEST_WAIT, 2 * self.waits.get(path, (0.0, FIRST_WAIT / 2))[1])
            if self.gives_up:
                self.given_up[path] = identity
                return
            self.waits[path] = (self.clock.elapsed() + wait, wait)

    async def _register(self, path: str, identity: Hashable) -> None:
        socket = self.folder.dial(path)
        try:
            info = await _call(socket, rpc.GET_INFO, registration_pb2.InfoRequest(), 1.0)
            try:
                await self._take(info, path, identity)
            except (CsiError, Refused) as error:
                await self._notify(socket, f"RegisterPlugin error -- plugin registration failed with err: {error}")
                raise
            await self._notify(socket, "")
        finally:
            await socket.close()

    async def _notify(self, socket: ClientTransport, error: str) -> None:
        outcome = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        await _call(socket, rpc.NOTIFY_REGISTRATION_STATUS, outcome, 5.0)

    async def _take(self, info: registration_pb2.PluginInfo, path: str, identity: Hashable) -> None:
        assert (info.type, list(info.supported_versions)) == ("CSIPlugin", ["1.0.0"])
        if info.name in self.drivers:
            raise Refused("Another driver with the same name is already registered with a higher supported version")
        if reason := self.refuse.get(info.name):
            raise Refused(reason)
        said = await self._ask_driver(info.endpoint)
        topology = dict(said.accessible_topology.segments)
        for key, value in topology.items():
            if self.labels.get(key, value) != value:
                raise Refused(f"detected topology value collision: driver reported {key}:{value}")
        self.labels |= topology
        self.drivers[info.name] = Registered(
            path, identity, info.endpoint, said.node_id, topology, said.max_volumes_per_node
        )
        self.registrations.append(info.name)

    async def _ask_driver(self, endpoint: str) -> csi_pb2.NodeGetInfoResponse:
        driver = self.driver_at(endpoint)
        try:
            return await _call(driver, rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest(), 120.0)
        finally:
            if isinstance(driver, GrpcConnection):
                await driver.close()


async def _call(transport: ClientTransport, method: Rpc[Any, Any], request: Any, within: float) -> Any:
    answer = await transport.call(method.path, request.SerializeToString(), within)
    if answer is None:
        raise Unavailable("no answer")
    return method.response.FromString(answer)
