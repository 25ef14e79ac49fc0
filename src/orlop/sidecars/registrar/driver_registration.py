"""Register a CSI driver, any driver, with the kubelet of its node, and again when its name or node info changed.

kubelet watches a folder for sockets. Order: wait for the driver, without a limit → call GetPluginInfo → create the
socket `<driver>-reg.sock` → call NodeGetInfo → write the result to the Node, if requested → wait until the driver has a
new connection, and call it again. To announce a change, the socket is removed and created again. A socket that a reboot
or a kill left behind is replaced. On cancellation the socket is removed, and kubelet unregisters the driver.

If kubelet refuses the driver, `run` raises `RegistrationRefused`: a restarted process makes kubelet try again. A
process that is the driver as well calls `keep_running`, which creates the socket again, later each time. Both also end
if another process serves the socket. They wait for a driver that is absent, slow or faulty.

    Exception
      RegistrationRefused     with kubelet's own error
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError, Unimplemented
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.sidecars.registrar import registration_rules as rules
from orlop.sidecars.registrar.registration_rules import NodeInfo, NodeInfoUnimplemented, RegistrationState
from orlop.sidecars.registrar.registration_socket import (
    NO_SOCKET,
    RegistrationFolder,
    RegistrationService,
    RegistrationStatus,
    SocketHealth,
    socket_health,
)

if TYPE_CHECKING:
    from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter

CHECK_SECONDS: Final = 1.0
"""Interval of checks for a new connection to the driver; kubelet itself polls once a second."""
NODE_GET_INFO_SECONDS: Final = 120.0
"""As long as kubelet waits for the same response."""
REFUSED_BACKOFF: Final = Backoff(initial=1.0, factor=2.0, cap=15.0, jitter=0.2)
ASK_BACKOFF: Final = Backoff(initial=0.25, factor=2.0, cap=10.0, jitter=0.2)

Response = TypeVar("Response")


class RegistrationRefused(Exception):
    """kubelet called the driver and refused to register it."""


class WarnOnce:
    """Log a lasting problem once as a warning, and once more when it is over; repetitions go to the debug log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: tuple[str, dict[str, object]] | None = None

    def warn(self, message: str, /, **fields: object) -> None:
        if (message, fields) == self._last:
            self._log.debug(message, **fields)
        else:
            self._log.warning(message, **fields)
        self._last = (message, fields)

    def clear(self, message: str, /, **fields: object) -> None:
        """Log that it is over, if there was a warning."""
        if self._last is not None:
            self._log.info(message, **fields)
        self._last = None


class Registrar:
    """Register one driver. `new_id` names each call that kubelet makes; `node_writer` is None if not requested."""

    def __init__(
        self,
        driver: CsiClient,
        folder: RegistrationFolder,
        runtime: Runtime,
        *,
        new_id: Callable[[], str],
        node_writer: NodeMetadataWriter | None = None,
    ) -> None:
        self._driver = driver
        self._folder = folder
        self._runtime = runtime
        self._log = runtime.log
        self._new_id = new_id
        self._node_writer = node_writer
        self._warnings = WarnOnce(runtime.log)
        self._failures = 0
        self._serving: str | None = None
        self._registered = False
        self._refusal: asyncio.Future[str] | None = None
        self._refusals = 0
        """Since kubelet last registered the driver."""
        self._announcements = runtime.metrics.counter(
            "orlop_registrar_announcements_total", "Registration sockets created for kubelet.", ("driver_name",)
        )
        self._is_registered = runtime.metrics.gauge(
            "orlop_registrar_registered", "Whether kubelet has registered the driver: 1 or 0.", ("driver_name",)
        )

    async def run(self) -> None:
        """Run until cancelled. Raise `RegistrationRefused`, `SocketInUse` or `SocketUnusable` if it cannot continue."""
        self._refusal = asyncio.get_running_loop().create_future()
        async with TaskGroup() as tasks:
            if self._node_writer is not None:
                tasks.start(self._node_writer.run(), name="write to the Node")
            tasks.start(self._follow_driver(), name="follow the driver")
            raise RegistrationRefused(f"kubelet did not register the driver: {await self._refusal}")

    async def keep_running(self) -> None:
        """Run until cancelled, also if kubelet refuses the driver; raise the other errors of `run`.

        For a process that serves volumes of running pods: kubelet refuses every driver while the API server is away.
        """
        while True:
            try:
                await self.run()
            except RegistrationRefused:
                self._refusals += 1
            # A new socket is needed: kubelet before 1.36 never tries again one whose driver it has refused.
            await self._runtime.clock.sleep(REFUSED_BACKOFF.delay(self._refusals, self._runtime.random))

    async def health(self, seconds: float) -> SocketHealth:
        """Return whether kubelet could register the driver now, by a call over the socket of at most `seconds`."""
        if self._serving is None:
            return NO_SOCKET
        path = self._folder.socket_path(self._serving)
        return await socket_health(path, self._serving, connect=self._folder.connect, seconds=seconds)

    async def why_not_registered(self) -> str | None:
        """Return None once kubelet has registered the driver as currently announced, otherwise the reason."""
        if self._registered:
            return None
        if self._serving is None:
            return "the driver has not responded yet"
        return f"kubelet has not registered {self._serving} yet"

    # ---- the driver --------------------------------------------------------------------------------------------------

    async def _follow_driver(self) -> None:
        state = RegistrationState()
        async with AsyncExitStack() as socket:
            while True:
                await self._driver.connected()
                # Check the connection before every step, also between the calls on one connection: the driver may have
                # been restarted, and its responses must not be combined with those of the former process.
                state = rules.on_connection(state, self._driver.connections)
                state = await self._take_step(state, socket)

    async def _take_step(self, state: RegistrationState, socket: AsyncExitStack) -> RegistrationState:
        match rules.next_step(state):
            case rules.AskName():
                return replace(state, name=await self._response("GetPluginInfo", self._get_name))
            case rules.AskNode():
                return replace(state, node=await self._response("NodeGetInfo", self._get_node))
            case rules.Announce(name, reason):
                await self._announce(name, reason, socket)
                return rules.after_announcing(state, name)
            case rules.Remember(name):
                return rules.after_announcing(state, name)
            case rules.UpToDate():
                if self._node_writer is not None and state.name and isinstance(state.node, NodeInfo):
                    self._node_writer.set_desired(state.name, state.node)
                await self._runtime.clock.sleep(CHECK_SECONDS)
                return state

    async def _response(self, method: str, call: Callable[[], Awaitable[Response]]) -> Response | None:
        """Return the driver's response; None after an error and a pause, in which the driver may have recovered."""
        try:
            response = await call()
        except CsiError as error:
            self._failures += 1
            reason = f"{error.code.name}: {error.message}"
            self._warnings.warn("call to the driver failed", method=method, error=reason)
            await self._runtime.clock.sleep(ASK_BACKOFF.delay(self._failures, self._runtime.random))
            return None
        self._failures = 0
        self._warnings.clear("driver answers again")
        return response

    async def _get_name(self) -> str:
        return (await self._driver.plugin_info()).name

    async def _get_node(self) -> NodeInfo | NodeInfoUnimplemented:
        try:
            info = await self._driver.call(
                rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest(), within=NODE_GET_INFO_SECONDS
            )
        except Unimplemented:
            self._log.warning("driver does not implement NodeGetInfo; kubelet will refuse it")
            return NodeInfoUnimplemented()
        topology = tuple(sorted(info.accessible_topology.segments.items()))
        return NodeInfo(info.node_id, topology, info.max_volumes_per_node)

    # ---- kubelet -----------------------------------------------------------------------------------------------------

    async def _announce(self, name: str, reason: str, socket: AsyncExitStack) -> None:
        await socket.aclose()
        # Reset it after the old socket is closed: until then kubelet may still report that it registered the old one.
        self._set_not_registered()
        self._log.info("announcing the driver to kubelet", driver=name, reason=reason)
        endpoint = UnixEndpoint(str(self._folder.socket_path(name)))
        self._serving = name
        await socket.enter_async_context(self._folder.serve(endpoint, self._interceptor(name)))
        self._announcements.inc(name)

    def _interceptor(self, name: str) -> CallInterceptor:
        service = RegistrationService(name, self._folder.driver_endpoint, partial(self._on_outcome, name))
        return CallInterceptor(
            methods_of(service),
            driver_name=name,
            log=self._log.bind(driver=name),
            metrics=self._runtime.metrics,
            clock=self._runtime.clock,
            new_id=self._new_id,
        )

    def _on_outcome(self, name: str, outcome: RegistrationStatus) -> None:
        if outcome.registered:
            self._registered = True
            self._refusals = 0
            self._is_registered.set(1, name)
            self._log.info("kubelet has registered the driver", driver=name)
            # kubelet may have rewritten the annotation.
            if self._node_writer is not None:
                self._node_writer.check_again()
            return
        self._set_not_registered()
        self._log.error("kubelet has not registered the driver", driver=name, error=outcome.error)
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(outcome.error or "no reason was reported")

    def _set_not_registered(self) -> None:
        self._registered = False
        if self._serving is not None:
            self._is_registered.set(0, self._serving)
