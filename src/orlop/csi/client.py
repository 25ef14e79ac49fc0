"""A client for any CSI driver: typed calls, typed errors, capabilities read once per connection.

The transport connects, and reconnects for ever. Only `Probe` is retried here: the caller decides whether another call
may be repeated, with `error_codes.is_final`. Secrets of a request reach neither the log nor an error, even where the
driver quotes them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from orlop.csi import redacted_messages
from orlop.csi.driver_name import driver_name_problem
from orlop.csi.error_codes import (
    Cancelled,
    Code,
    CsiError,
    DeadlineExceeded,
    Internal,
    Unavailable,
    Unimplemented,
    error_of,
    unanswered,
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

LONGEST_SHOWN_NAME: Final = 100
PROBE_BACKOFF: Final = Backoff(initial=0.1, factor=2.0, cap=5.0, jitter=0.2)
SIDECAR_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True, slots=True)
class DriverCapabilities:
    """The capabilities a driver reports, by their names in CSI; a service that is not served has none."""

    plugin: frozenset[str]
    controller: frozenset[str]
    group_controller: frozenset[str]
    node: frozenset[str]


class CsiClient:
    """Call one driver through one transport."""

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
        self._capabilities: tuple[int, DriverCapabilities] | None = None
        self._controller: tuple[int, frozenset[str]] | None = None
        self._seconds = metrics.histogram(
            "csi_sidecar_operations_seconds",
            "Duration of CSI calls made by this process, by driver, method and gRPC code.",
            ("driver_name", "method_name", "grpc_status_code"),
            SIDECAR_BUCKETS,
        )

    async def call(self, method: Rpc[Request, Response], request: Request, *, within: float | None = None) -> Response:
        """Call an RPC and return its response, or raise the driver's `CsiError`. `within` overrides the timeout."""
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
        """Call a streaming RPC and yield its responses; raise the driver's `CsiError` at any point."""
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

    def set_driver_name(self, driver_name: str) -> None:
        """Set the driver name in metrics and logs, where it is known before the driver reports it."""
        self._name = driver_name

    async def connected(self) -> None:
        """Wait until there is a connection to the driver."""
        await self._transport.connected()

    @property
    def connections(self) -> int:
        """How many connections were made so far. After a change another driver may serve the socket."""
        return self._transport.connections

    @property
    def last_response_at(self) -> float:
        """When, by the clock's `elapsed`, the driver last responded to a call, with a result or an error."""
        return self._answered

    @property
    def calls_in_flight(self) -> int:
        """How many unary calls wait for their response."""
        return self._under_way

    async def ready(self) -> None:
        """Connect and call Probe until the driver is ready; raise errors that do not pass by themselves."""
        failures = 0
        while (why := await self._why_not_ready()) is not None:
            failures += 1
            delay = PROBE_BACKOFF.delay(failures, self._random)
            self._log.info("driver not ready", driver=self._name, why=why, retry_after_seconds=round(delay, 3))
            await self._pause(delay)

    async def _why_not_ready(self) -> str | None:
        try:
            answer = await self.call(rpc.PROBE, csi_pb2.ProbeRequest())
        except (Unavailable, DeadlineExceeded) as error:
            return str(error)
        return "Probe returned ready: false" if answer.HasField("ready") and not answer.ready.value else None

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until a new connection is made: the driver may have been restarted and be ready."""
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
            raise Internal("GetPluginInfo returned no name: CSI requires one")
        # Here, where every component learns the name: it becomes part of paths, finalizers, leases and metric labels.
        if fault := driver_name_problem(info.name):
            shown = repr(info.name[:LONGEST_SHOWN_NAME])
            raise Internal(f"GetPluginInfo returned {shown}, which is not allowed as the name of a driver: {fault}")
        self._name = info.name
        return info

    async def driver_name(self) -> str:
        """Return the driver's name. Read once per connection: another driver may serve a socket that was recreated."""
        while self._introduced is None or self._introduced[0] != self._transport.connections:
            connection = self._transport.connections
            self._introduced = (connection, (await self.plugin_info()).name)
        return self._introduced[1]

    async def capabilities(self) -> DriverCapabilities:
        """Return all capabilities. Read once per connection: a restarted driver may be another version."""
        while self._capabilities is None or self._capabilities[0] != self._transport.connections:
            connection = self._transport.connections
            self._capabilities = (connection, await self._ask_capabilities())
        return self._capabilities[1]

    async def controller_capabilities(self) -> frozenset[str]:
        """Return the capabilities of the plugin and of its Controller service, without calling the Node service.

        On a controller's socket the Node service may be registered and not work.
        """
        while self._controller is None or self._controller[0] != self._transport.connections:
            connection = self._transport.connections
            plugin = await self._plugin_capabilities()
            self._controller = (connection, plugin | await self._controller_of(plugin))
        return self._controller[1]

    async def _controller_of(self, plugin: frozenset[str]) -> frozenset[str]:
        return await self._ask_controller_capabilities() if "CONTROLLER_SERVICE" in plugin else frozenset()

    async def _ask_capabilities(self) -> DriverCapabilities:
        plugin = await self._plugin_capabilities()

        async def none() -> frozenset[str]:
            return frozenset()

        return DriverCapabilities(
            plugin=plugin,
            # A node's instance of a plugin lists the services of the whole plugin, and serves few of them itself.
            controller=await _unless_unimplemented(lambda: self._controller_of(plugin)),
            group_controller=await _unless_unimplemented(
                self._group_capabilities if "GROUP_CONTROLLER_SERVICE" in plugin else none
            ),
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

    async def _ask_controller_capabilities(self) -> frozenset[str]:
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
        # Our own transport raises these codes for a driver that is away, so they prove no response.
        if not isinstance(error, Unavailable | DeadlineExceeded | Cancelled):
            self._answered = self._clock.elapsed()
        message = hide(error.message, redacted_messages.secret_values(request))
        self._ended(method, request, started, error.code, error=message)
        return error_of(error.code, message, error.delivery)

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
            shown = {} if response is None else {"response": redacted_messages.printable_response(response, request)}
            called = f"{method.service}.{method.name}"
            self._log.debug(
                "CSI call",
                method=called,
                code=code.name,
                seconds=round(seconds, 6),
                request=redacted_messages.printable(request),
                **shown,
                **facts,
            )


async def _unless_unimplemented(ask: Callable[[], Awaitable[frozenset[str]]]) -> frozenset[str]:
    """Return no capabilities where the service is not served: a socket may serve Controller alone, or Node alone."""
    try:
        return await ask()
    except Unimplemented:
        return frozenset()


def _named(enum: Any, numbers: list[int]) -> frozenset[str]:
    """Return the names in CSI; a capability newer than our CSI version keeps its number."""
    known = enum.DESCRIPTOR.values_by_number
    return frozenset(known[number].name if number in known else str(number) for number in numbers)


def _parsed(method: Rpc[Any, Response], answer: bytes) -> Response:
    try:
        return method.response.FromString(answer)
    except DecodeError as error:
        problem = f"is no valid {method.response.DESCRIPTOR.name}: {error}"
        raise unanswered(Code.INTERNAL, f"the driver's response to {method.name} {problem}") from None
