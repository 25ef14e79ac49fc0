"""Registers a CSI driver, any driver, with the kubelet of its node, and again when what kubelet knows is outdated.

kubelet watches a folder for sockets. Order: wait for the driver, however long → ask its name → make the socket
`<driver>-reg.sock` → ask what it says of the node → have that written on the Node, where it is wanted → wait until the
driver has another connection, and ask again. What has changed is announced by removing the socket and making it anew;
one that was left by a boot or a kill is replaced. Cancelled, it takes the socket away, and kubelet forgets the driver.

kubelet that refuses the driver ends this with `RegistrationRefused`: a new process makes it try again. A socket that
somebody else serves ends it too. Nothing else does: a driver that is away, slow or wrong is waited for.

    Exception
      RegistrationRefused     kubelet's own sentence
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from orlop.csi.client import CsiClient
from orlop.csi.driver_name import fault_of_driver_name
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError, Internal, Unimplemented
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.transport import ClientTransport
from orlop.foundation.backoff import Backoff
from orlop.foundation.task_group import TaskGroup
from orlop.sidecars.registrar import registration_rules as rules
from orlop.sidecars.registrar.registration_health import NO_SOCKET, Health, health_of
from orlop.sidecars.registrar.registration_rules import Known, NodeFacts, NotServed
from orlop.sidecars.registrar.registration_service import Outcome, RegistrationService
from orlop.sidecars.registrar.said_once import SaidOnce
from orlop.sidecars.registrar.tools import Tools

if TYPE_CHECKING:
    from orlop.sidecars.registrar.node_annotation import NodeAnnotation

LOOK_EVERY_SECONDS: Final = 1.0
"""How soon a driver that came back is asked again; kubelet itself looks once a second."""
NODE_INFO_SECONDS: Final = 120.0
"""As long as kubelet waits for the same answer."""
ASK_BACKOFF: Final = Backoff(initial=0.25, factor=2.0, cap=10.0, jitter=0.2)

Serve: TypeAlias = Callable[[UnixEndpoint, CallInterceptor], AbstractAsyncContextManager[Any]]
Answer = TypeVar("Answer")


class RegistrationRefused(Exception):
    """kubelet has looked at the driver and does not take it."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """The folder that kubelet watches, as we see it; the driver's own socket, as kubelet sees it; how both are used."""

    folder: Path
    driver_endpoint: str
    serve: Serve
    connect: Callable[[UnixEndpoint], ClientTransport]

    def path(self, driver_name: str) -> Path:
        return self.folder / f"{driver_name}-reg.sock"


class Registrar:
    """`node` writes on the Node object what the driver says of it; None where nobody asked for that."""

    def __init__(
        self, driver: CsiClient, sockets: Sockets, tools: Tools, *, node: NodeAnnotation | None = None
    ) -> None:
        self._driver = driver
        self._sockets = sockets
        self._tools = tools
        self._clock = tools.clock
        self._log = tools.log
        self._node = node
        self._complaints = SaidOnce(tools.log)
        self._failures = 0
        self._serving: str | None = None
        self._registered = False
        self._refusal: asyncio.Future[str] | None = None
        self._announcements = tools.metrics.counter(
            "orlop_registrar_announcements_total", "Registration sockets made for kubelet.", ("driver_name",)
        )
        self._is_registered = tools.metrics.gauge(
            "orlop_registrar_registered", "Whether kubelet has registered the driver: 1 or 0.", ("driver_name",)
        )

    async def run(self) -> None:
        """Until it is cancelled; `RegistrationRefused`, `SocketInUse` and `SocketUnusable` end it too."""
        self._refusal = asyncio.get_running_loop().create_future()
        async with TaskGroup() as tasks:
            if self._node is not None:
                tasks.start(self._node.run(), name="write on the Node")
            tasks.start(self._follow_driver(), name="follow the driver")
            raise RegistrationRefused(f"kubelet did not register the driver: {await self._refusal}")

    async def health(self, within: float) -> Health:
        if self._serving is None:
            return NO_SOCKET
        path = self._sockets.path(self._serving)
        return await health_of(path, self._serving, connect=self._sockets.connect, within=within)

    async def why_not_registered(self) -> str | None:
        """None once kubelet has said that it took the driver as it is announced now."""
        if self._registered:
            return None
        return f"kubelet has not registered {self._serving} yet" if self._serving else "the driver has not answered yet"

    # ---- the driver --------------------------------------------------------------------------------------------------

    async def _follow_driver(self) -> None:
        known = Known()
        async with AsyncExitStack() as socket:
            while True:
                await self._driver.connected()
                known = rules.on_connection(known, self._driver.connections)
                known = await self._take_step(known, socket)

    async def _take_step(self, known: Known, socket: AsyncExitStack) -> Known:
        match rules.next_step(known):
            case rules.AskName():
                return replace(known, name=await self._answer("its name", self._ask_name))
            case rules.AskNode():
                return replace(known, node=await self._answer("its node", self._ask_node))
            case rules.Announce(name, why):
                await self._announce(name, why, socket)
                return rules.after_announcing(known, name)
            case rules.Remember(name):
                return rules.after_announcing(known, name)
            case rules.Settled():
                self._want_on_node(known)
                await self._clock.sleep(LOOK_EVERY_SECONDS)
                return known

    async def _answer(self, what: str, ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """None where the driver gave none, after a while in which it may have come to."""
        try:
            answer = await ask()
        except CsiError as error:
            self._failures += 1
            self._complaints.complain(f"the driver does not say {what}", f"{error.code.name}: {error.message}")
            await self._clock.sleep(ASK_BACKOFF.delay(self._failures, self._tools.random))
            return None
        self._failures = 0
        self._complaints.over("the driver answers")
        return answer

    async def _ask_name(self) -> str:
        name = (await self._driver.plugin_info()).name
        if fault := fault_of_driver_name(name):
            raise Internal(f"the driver calls itself {name!r}: {fault}")
        return name

    async def _ask_node(self) -> NodeFacts | NotServed:
        try:
            info = await self._driver.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest(), within=NODE_INFO_SECONDS)
        except Unimplemented:
            self._log.warning("the driver does not serve NodeGetInfo here: kubelet will not take it")
            return NotServed()
        topology = tuple(sorted(info.accessible_topology.segments.items()))
        return NodeFacts(info.node_id, topology, info.max_volumes_per_node)

    # ---- kubelet -----------------------------------------------------------------------------------------------------

    async def _announce(self, name: str, why: str, socket: AsyncExitStack) -> None:
        await socket.aclose()
        self._not_registered()
        self._log.info("announcing the driver to kubelet", driver=name, because=why)
        endpoint = UnixEndpoint(str(self._sockets.path(name)))
        self._serving = name
        await socket.enter_async_context(self._sockets.serve(endpoint, self._interceptor(name)))
        self._announcements.inc(name)

    def _interceptor(self, name: str) -> CallInterceptor:
        service = RegistrationService(name, self._sockets.driver_endpoint, partial(self._when_told, name))
        return CallInterceptor(
            methods_of(service),
            driver_name=name,
            log=self._log.bind(driver=name),
            metrics=self._tools.metrics,
            clock=self._clock,
            new_id=self._tools.new_id,
        )

    def _when_told(self, name: str, outcome: Outcome) -> None:
        if outcome.registered:
            self._registered = True
            self._is_registered.set(1, name)
            self._log.info("kubelet has registered the driver", driver=name)
            if self._node is not None:
                self._node.look_again()
            return
        self._not_registered()
        self._log.error("kubelet has not registered the driver", driver=name, error=outcome.error)
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(outcome.error or "it did not say why")

    def _not_registered(self) -> None:
        self._registered = False
        if self._serving is not None:
            self._is_registered.set(0, self._serving)

    def _want_on_node(self, known: Known) -> None:
        if self._node is not None and known.name is not None and isinstance(known.node, NodeFacts):
            self._node.want(known.name, known.node)
