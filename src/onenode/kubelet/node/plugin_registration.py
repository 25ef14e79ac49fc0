"""One driver becomes registered, or stops being so: what is asked of it, and where it then stands.

Order: ask the driver for its node (NodeGetInfo) → write that on the Node and in the CSINode → the driver is among the
registered ones. What fails undoes what was done before: a driver that already had the name keeps it, with its own
facts. Order for one that goes: it is no longer among the registered ones, its client is closed → its objects in the API
are changed.

What is written and known is so for one at a time of each name: two that claim one never mix what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

from onenode.kubelet.node.csi_node_objects import CsiNodeObjects
from onenode.kubelet.node.csi_node_rules import CannotStand, DriverNodeInfo
from onenode.kubelet.node.plugin_watcher_rules import Accepted, PluginVersion, RegistrationRefused
from onenode.kubelet.node.registered_drivers import RegisteredDriver, RegisteredDrivers
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.transport import ClientTransport
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.runtime import Runtime

CSI_STEP_SECONDS: Final = 120.0

Connect = Callable[[UnixEndpoint], ClientTransport]


def go_text(error: CsiError) -> str:
    """Return kubelet's text for an error of a call."""
    return f"rpc error: code = {error.code.go_name} desc = {error.message}"


class PluginRegistration:
    """`connect` makes a connection to any socket of a plugin, its own or the one it announces itself on."""

    def __init__(self, connect: Connect, objects: CsiNodeObjects, drivers: RegisteredDrivers, runtime: Runtime) -> None:
        self._connect = connect
        self._objects = objects
        self._drivers = drivers
        self._runtime = runtime
        self._log = runtime.log
        self._names = KeyedLock()

    def client(self, endpoint: UnixEndpoint) -> CsiClient:
        runtime = self._runtime
        return CsiClient(
            self._connect(endpoint),
            log=runtime.log,
            metrics=runtime.metrics,
            clock=runtime.clock,
            random=runtime.random,
            timeout=CSI_STEP_SECONDS,
        )

    def versions(self) -> dict[str, PluginVersion]:
        return {name: driver.version for name, driver in self._drivers.items()}

    async def install(self, accepted: Accepted, refuse: Callable[[], None]) -> None:
        """Install an accepted driver. Raises `RegistrationRefused`.

        `refuse` raises it if the name is taken; it is called again under the lock of the name, since another plugin may
        have registered the name while the driver was called.
        """
        client = self.client(accepted.endpoint)
        client.set_driver_name(accepted.name)
        try:
            facts = await self._ask_node(accepted.name, client)
            async with self._one_at_a_time(accepted.name):
                refuse()
                before = self._drivers.get(accepted.name)
                await self._write(accepted.name, facts, before)
                kept = before.client if before is not None and before.endpoint == accepted.endpoint else client
                await self._drivers.put(
                    RegisteredDriver(accepted.name, accepted.endpoint, facts, accepted.version, kept)
                )
        finally:
            if not self._is_in_use(client):
                await client.close()
        self._log.info(
            "CSI driver registered", driver=accepted.name, endpoint=accepted.endpoint.path, node_id=facts.node_id
        )

    async def forget(self, name: str) -> None:
        """Deregister the driver that has this name now, as kubelet does, whichever socket it was registered from."""
        if await self._drivers.drop(name) is not None:
            self._log.info("CSI driver deregistered", driver=name)
        async with self._one_at_a_time(name):
            if name not in self._drivers:  # another may have been registered while its turn was waited for
                await self._objects.uninstall(name)

    async def write_again(self, name: str) -> None:
        """On a Node that is a new one; `RegistrationRefused` where it fails."""
        async with self._one_at_a_time(name):
            driver = self._drivers.get(name)
            if driver is None:
                return
            try:
                await self._objects.install(name, driver.facts)
            except CannotStand as error:
                raise RegistrationRefused(str(error)) from None

    # ---- parts of it -------------------------------------------------------------------------------------------------

    def _one_at_a_time(self, name: str) -> AbstractAsyncContextManager[None]:
        return self._names.hold(name, "registering")

    def _is_in_use(self, client: CsiClient) -> bool:
        return any(driver.client is client for driver in self._drivers.values())

    async def _ask_node(self, name: str, client: CsiClient) -> DriverNodeInfo:
        """Before it is the name's turn: who never answers keeps no other of his name waiting."""
        try:
            info = await client.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest(), within=CSI_STEP_SECONDS)
        except CsiError as error:
            async with self._one_at_a_time(name):
                await self._undo(name, self._drivers.get(name))
            raise _failed(go_text(error)) from None
        if info.max_volumes_per_node < 0:
            self._log.warning("negative volume limit of driver ignored", driver=name, said=info.max_volumes_per_node)
        topology = tuple(sorted(info.accessible_topology.segments.items()))
        return DriverNodeInfo(info.node_id, topology, max(0, info.max_volumes_per_node))

    async def _write(self, name: str, facts: DriverNodeInfo, before: RegisteredDriver | None) -> None:
        try:
            await self._objects.install(name, facts)
        except CannotStand as error:
            await self._undo(name, before)
            raise _failed(str(error)) from None

    async def _undo(self, name: str, before: RegisteredDriver | None) -> None:
        """What stands in the API is then what it was, or nothing: also nothing of what a driver before left there."""
        if before is None:
            await self._objects.uninstall(name)
            return
        with suppress(CannotStand):  # then it stands there as it did
            await self._objects.install(name, before.facts)


def _failed(why: str) -> RegistrationRefused:
    return RegistrationRefused(f"plugin registration failed with err: {why}")
