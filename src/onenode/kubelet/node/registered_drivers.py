"""The drivers that are registered with this kubelet, each with a client of its own, which is closed when it goes.

Who has a driver in his hands when it goes has its calls end with `Cancelled`, which says nothing of what the driver
did: kubelet's own rule for errors that are not final then applies. Nothing here registers anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onenode.kubelet.node.csi_node_rules import DriverNodeInfo
from onenode.kubelet.node.plugin_watcher_rules import PluginVersion
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.proto import csi_pb2, rpc


@dataclass(frozen=True, slots=True)
class _NodeCapabilities:
    """What a driver said it can do, on which connection: one that came back may be another version."""

    connection: int
    names: frozenset[str]


@dataclass(eq=False)
class RegisteredDriver:
    name: str
    endpoint: UnixEndpoint
    facts: DriverNodeInfo
    version: PluginVersion
    client: CsiClient
    _capabilities: _NodeCapabilities | None = field(default=None, repr=False)

    @property
    def node_id(self) -> str:
        return self.facts.node_id

    async def capabilities(self, *, within: float | None = None) -> frozenset[str]:
        """Of its node service, by the interface's own names; asked once per connection. `CsiError` if it fails."""
        cached = self._capabilities
        if cached is None or cached.connection != self.client.connections:
            connection = self.client.connections
            cached = self._capabilities = _NodeCapabilities(connection, await self._ask_capabilities(within))
        return cached.names

    async def _ask_capabilities(self, within: float | None) -> frozenset[str]:
        request = csi_pb2.NodeGetCapabilitiesRequest()
        answer = await self.client.call(rpc.NODE_GET_CAPABILITIES, request, within=within)
        known = csi_pb2.NodeServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
        numbers = [capability.rpc.type for capability in answer.capabilities]
        return frozenset(known[number].name if number in known else str(number) for number in numbers)


class RegisteredDrivers(Mapping[str, RegisteredDriver]):
    """By their names."""

    def __init__(self) -> None:
        self._drivers: dict[str, RegisteredDriver] = {}
        self._changed = asyncio.Event()

    def __getitem__(self, name: str) -> RegisteredDriver:
        return self._drivers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drivers)

    def __len__(self) -> int:
        return len(self._drivers)

    async def wait_for(self, name: str) -> RegisteredDriver:
        """However long that takes."""
        while name not in self._drivers:
            await self._changed.wait()
        return self._drivers[name]

    async def changed(self) -> None:
        """Return when a driver was registered or deregistered."""
        await self._changed.wait()

    async def put(self, driver: RegisteredDriver) -> None:
        """Add a driver, replacing any of the same name."""
        before = self._drivers.get(driver.name)
        self._drivers[driver.name] = driver
        self._tell()
        if before is not None and before.client is not driver.client:
            await before.client.close()

    async def drop(self, name: str) -> RegisteredDriver | None:
        before = self._drivers.pop(name, None)
        if before is not None:
            self._tell()
            await before.client.close()
        return before

    async def close(self) -> None:
        for name in list(self._drivers):
            await self.drop(name)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
