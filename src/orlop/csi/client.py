"""A client of any CSI driver: typed calls, typed errors, its abilities asked once per connection.

Connecting and connecting again is the transport's, for ever. Nothing is repeated here but `Probe`: whether a call may
be repeated is for the caller to decide, who has `is_final` to ask. Secrets of a request reach neither the log nor an
error, even where the driver quotes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from orlop.csi import messages
from orlop.csi.error_codes import (
    Cancelled,
    Code,
    CsiError,
    DeadlineExceeded,
    Internal,
    Unavailable,
    Unimplemented,
    error_of,
)
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Rpc
from orlop.csi.transport import ClientTransport
from orlop.foundation.backoff import Backoff
from orlop.foundation.clock import Clock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Level, Log, hide

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

PROBE_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=5.0, jitter=0.2)
SIDECAR_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a driver says it can do, by the interface's own names; of a service it lacks: nothing."""

    plugin: frozenset[str]
    controller: frozenset[str]
    group_controller: frozenset[str]
    node: frozenset[str]


class CsiClient:
    """Calls one driver through one transport."""

    def __init__(
        self,
        transport: ClientTransport,
        *,
        log: Log,
        metrics: Metrics,
        clock: Clock,
        random: Random,
        timeout: float = 15.0,
    ) -> None:
        self._transport = transport
        self._log = log
        self._clock = clock
        self._random = random
        self._timeout = timeout
        self._name = "unknown"
        self._introduced: tuple[int, str] | None = None
        self._answered = clock.elapsed()
        self._under_way = 0
        self._abilities: tuple[int, Abilities] | None = None
        self._controller: tuple[int, frozenset[str]] | None = None
        self._seconds = metrics.histogram(
            "csi_sidecar_operations_seconds",
            "How long the CSI calls made here took, by driver, method and gRPC code.",
            ("driver_name", "method_name", "grpc_status_code"),
            SIDECAR_BUCKETS,
        )

    async def call(self, method: Rpc[Request, Response], request: Request, *, within: float | None = None) -> Response:
        """The driver's answer, or the `CsiError` it gave; `within` overrides the client's own timeout."""
        started = self._clock.elapsed()
        self._under_way += 1
        try:
            answer = await self._transport.call(method.path, request.SerializeToString(), self._patience(within))
            response = _parsed(method, answer)
        except CsiError as error:
            raise self._failed(method, request, started, error) from None
        finally:
            self._under_way -= 1
        self._ended(method, request, started, Code.OK, response=response)
        self._answered = self._clock.elapsed()
        return response

    async def stream(
        self, method: Rpc[Request, Response], request: Request, *, within: float | None = None
    ) -> AsyncGenerator[Response, None]:
        """The driver's answers one by one, or the `CsiError` it gave, at any point."""
        started = self._clock.elapsed()
        stream = self._transport.stream(method.path, request.SerializeToString(), self._patience(within))
        try:
            async with aclosing(stream) as answers:
                async for answer in answers:
                    yield _parsed(method, answer)
        except CsiError as error:
            raise self._failed(method, request, started, error) from None
        self._ended(method, request, started, Code.OK)

    def _patience(self, within: float | None) -> float:
        return self._timeout if within is None else within

    def count_as(self, driver_name: str) -> None:
        """What its calls are counted under from now on, where the name is known without asking."""
        self._name = driver_name

    async def connected(self) -> None:
        """Returns when there is a connection to the driver, however long that takes."""
        await self._transport.connected()

    @property
    def connections(self) -> int:
        """How many connections were made so far: after a change the driver may be another one."""
        return self._transport.connections

    @property
    def answered(self) -> float:
        """When, by the clock's `elapsed`, the driver last answered a call, with whatever; at first: when we began."""
        return self._answered

    @property
    def under_way(self) -> int:
        """How many calls wait for their one answer."""
        return self._under_way

    async def ready(self) -> None:
        """Connects and probes until the driver says that it is ready; raises what it says against ever being so."""
        failures = 0
        while (why := await self._why_not_ready()) is not None:
            failures += 1
            delay = PROBE_BACKOFF.delay(failures, self._random)
            self._log.info("the driver is not ready yet", driver=self._name, why=why, again_in_seconds=round(delay, 3))
            await self._pause(delay)

    async def _why_not_ready(self) -> str | None:
        try:
            answer = await self.call(rpc.PROBE, csi_pb2.ProbeRequest())
        except (Unavailable, DeadlineExceeded) as error:
            return str(error)
        return "it says so" if answer.HasField("ready") and not answer.ready.value else None

    async def _pause(self, seconds: float) -> None:
        """Shorter where a connection is made meanwhile."""
        connections, end = self.connections, self._clock.elapsed() + seconds
        try:
            async with self._clock.timeout(seconds):
                await self.connected()
        except TimeoutError:
            return
        if self.connections == connections:
            await self._clock.sleep(end - self._clock.elapsed())

    async def plugin_info(self) -> csi_pb2.GetPluginInfoResponse:
        info = await self.call(rpc.GET_PLUGIN_INFO, csi_pb2.GetPluginInfoRequest())
        if not info.name:
            raise Internal("the driver gave no name in GetPluginInfo: the interface demands one")
        self._name = info.name
        return info

    async def driver_name(self) -> str:
        """Asked once per connection, since on a socket that came back another driver may answer."""
        while self._introduced is None or self._introduced[0] != self._transport.connections:
            connection = self._transport.connections
            self._introduced = (connection, (await self.plugin_info()).name)
        return self._introduced[1]

    async def abilities(self) -> Abilities:
        """What the driver can do: asked once per connection, since a driver that came back may be another version."""
        while self._abilities is None or self._abilities[0] != self._transport.connections:
            connection = self._transport.connections
            self._abilities = (connection, await self._ask_abilities())
        return self._abilities[1]

    async def controller_abilities(self) -> frozenset[str]:
        """Only those, and nobody else asked: on a controller's socket the node's half may be there and not work."""
        while self._controller is None or self._controller[0] != self._transport.connections:
            connection = self._transport.connections
            self._controller = (connection, await self._controller_of(await self._plugin_capabilities()))
        return self._controller[1]

    async def _controller_of(self, plugin: frozenset[str]) -> frozenset[str]:
        return await self._controller_capabilities() if "CONTROLLER_SERVICE" in plugin else frozenset()

    async def _ask_abilities(self) -> Abilities:
        plugin = await self._plugin_capabilities()
        nothing: frozenset[str] = frozenset()
        return Abilities(
            plugin=plugin,
            controller=await self._controller_of(plugin),
            group_controller=await self._group_capabilities() if "GROUP_CONTROLLER_SERVICE" in plugin else nothing,
            node=await _unless_unimplemented(self._node_capabilities),
        )

    async def _plugin_capabilities(self) -> frozenset[str]:
        answer = await self.call(rpc.GET_PLUGIN_CAPABILITIES, csi_pb2.GetPluginCapabilitiesRequest())
        services = csi_pb2.PluginCapability.Service.Type
        expansions = csi_pb2.PluginCapability.VolumeExpansion.Type
        return _named(services, [c.service.type for c in answer.capabilities if c.HasField("service")]) | frozenset(
            f"VOLUME_EXPANSION_{name}"
            for name in _named(
                expansions, [c.volume_expansion.type for c in answer.capabilities if c.HasField("volume_expansion")]
            )
        )

    async def _controller_capabilities(self) -> frozenset[str]:
        answer = await self.call(rpc.CONTROLLER_GET_CAPABILITIES, csi_pb2.ControllerGetCapabilitiesRequest())
        return _named(csi_pb2.ControllerServiceCapability.RPC.Type, [c.rpc.type for c in answer.capabilities])

    async def _group_capabilities(self) -> frozenset[str]:
        answer = await self.call(rpc.GROUP_CONTROLLER_GET_CAPABILITIES, csi_pb2.GroupControllerGetCapabilitiesRequest())
        return _named(csi_pb2.GroupControllerServiceCapability.RPC.Type, [c.rpc.type for c in answer.capabilities])

    async def _node_capabilities(self) -> frozenset[str]:
        answer = await self.call(rpc.NODE_GET_CAPABILITIES, csi_pb2.NodeGetCapabilitiesRequest())
        return _named(csi_pb2.NodeServiceCapability.RPC.Type, [c.rpc.type for c in answer.capabilities])

    async def close(self) -> None:
        await self._transport.close()

    def _failed(self, method: Rpc[Any, Any], request: Message, started: float, error: CsiError) -> CsiError:
        if not isinstance(error, Unavailable | DeadlineExceeded | Cancelled):  # these are said of drivers that are away
            self._answered = self._clock.elapsed()
        message = hide(error.message, messages.secret_values(request))
        self._ended(method, request, started, error.code, error=message)
        return error_of(error.code, message)

    def _ended(
        self,
        method: Rpc[Any, Any],
        request: Message,
        started: float,
        code: Code,
        response: Message | None = None,
        **facts: str,
    ) -> None:
        seconds = self._clock.elapsed() - started
        self._seconds.observe(seconds, self._name, method.path, code.go_name)
        if self._log.enabled(Level.DEBUG):
            shown = {} if response is None else {"response": messages.printable_answer(response, request)}
            called = f"{method.service}.{method.name}"
            self._log.debug(
                "called",
                method=called,
                code=code.name,
                seconds=round(seconds, 6),
                request=messages.printable(request),
                **shown,
                **facts,
            )


async def _unless_unimplemented(ask: Callable[[], Awaitable[frozenset[str]]]) -> frozenset[str]:
    """A controller's socket need not serve the node's half."""
    try:
        return await ask()
    except Unimplemented:
        return frozenset()


def _named(enum: Any, numbers: list[int]) -> frozenset[str]:
    """Names of the interface; a number newer than ours keeps itself as its name."""
    known = enum.DESCRIPTOR.values_by_number
    return frozenset(known[number].name if number in known else str(number) for number in numbers)


def _parsed(method: Rpc[Any, Response], answer: bytes) -> Response:
    try:
        return method.response.FromString(answer)
    except DecodeError as error:
        raise Internal(
            f"the driver's answer to {method.name} is no valid {method.response.DESCRIPTOR.name}: {error}"
        ) from None
