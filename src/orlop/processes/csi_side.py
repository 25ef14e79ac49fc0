"""The CSI services of a node as a part of a process: built from its flags, answering while it is entered.

Order, up: the scratch folders are there, with their book read → health and metrics are served → the socket answers.
Down: the other way round, so that no call is answered by a process that has let go of its folders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from orlop import __version__
from orlop.csi.driver_name import fault_of_driver_name
from orlop.csi.endpoint import Endpoint, TcpEndpoint, UnixEndpoint, parse_optional_http_address
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import services
from orlop.csi.server import serving
from orlop.driver.identity_service import DriverIdentity, IdentityService, ServiceType
from orlop.foundation.clock import Clock
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, text
from orlop.processes.daemon import Surroundings, is_not_negative, request_ids, tell_how_to_call
from orlop.processes.ephemeral_settings import EphemeralSettings

LONGEST_NODE_ID: Final = 256
LONGEST_CHECKS_SECONDS: Final = 0.8
"""Who probes us waits for a second, as a rule."""
Checks = Mapping[str, Callable[[], Awaitable[str | None]]]
"""By name: None when all is well, else the reason."""


def is_node_id(node_id: str) -> str | None:
    try:
        size = len(node_id.encode())
    except UnicodeEncodeError:
        return "it is no text in UTF-8, and the interface allows no other"
    return None if size <= LONGEST_NODE_ID else f"it has {size} bytes and the interface allows {LONGEST_NODE_ID}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiSettings:
    node_id: str = flag(
        text,
        name="nodeid",
        required=True,
        metavar="NAME",
        check=is_node_id,
        help="The name of this node in the cluster.",
    )
    driver_name: str = flag(
        text,
        name="drivername",
        default="csi.orlop.dev",
        metavar="NAME",
        check=fault_of_driver_name,
        help="The driver's name, as StorageClasses and pods write it.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        help="Where to serve /metrics, /healthz, /livez and /readyz; not given: nowhere.",
    )
    grace_period: Duration = flag(
        Duration.parse,
        default="20s",
        metavar="DURATION",
        check=is_not_negative,
        help="How long calls under way may take to finish after SIGTERM.",
    )


@dataclass(frozen=True, slots=True)
class CsiSide:
    endpoint: Endpoint
    """With the port that was chosen where 0 was asked for."""
    interceptor: CallInterceptor
    """Answers calls that come without the socket, too."""


@asynccontextmanager
async def csi_side(
    endpoint: Endpoint, settings: CsiSettings, ephemeral: EphemeralSettings, given: Surroundings, more: Checks
) -> AsyncIterator[CsiSide]:
    """`more` is what else has to be well for this process to be ready."""
    async with AsyncExitStack() as stack:
        served, checks, upkeep = await _node_services(settings, ephemeral, given, stack)
        interceptor = _interceptor(settings, given, served, checks)
        if settings.http_endpoint is not None:
            from orlop.processes.http_side import http_side  # noqa: PLC0415 - only who asks for it pays for it

            readiness = {"socket": lambda: _why_no_answer(endpoint), **checks, **upkeep, **more}
            await stack.enter_async_context(http_side(settings.http_endpoint, given, readiness))
        grace = settings.grace_period.seconds
        bound = await stack.enter_async_context(serving(endpoint, interceptor, grace=grace, log=given.log))
        tell_how_to_call(bound, given.log)
        yield CsiSide(bound, interceptor)


async def _node_services(
    settings: CsiSettings, ephemeral: EphemeralSettings, given: Surroundings, stack: AsyncExitStack
) -> tuple[list[services.Node], Checks, Checks]:
    """Services, what they cannot be served without, and what somebody should know of beside that."""
    if not ephemeral.workdir:
        return [], {}, {}
    from orlop.processes.ephemeral_side import ephemeral_side  # noqa: PLC0415 - only who has such folders needs it

    side = await stack.enter_async_context(ephemeral_side(ephemeral, given, settings.driver_name, settings.node_id))
    return [side.node_service], side.readiness, side.upkeep


def _interceptor(
    settings: CsiSettings, given: Surroundings, served: list[services.Node], checks: Checks
) -> CallInterceptor:
    serves = (ServiceType.VOLUME_ACCESSIBILITY_CONSTRAINTS,) if served else ()
    identity = IdentityService(
        DriverIdentity(settings.driver_name, __version__, serves), lambda: is_ready(checks, given.clock)
    )
    return CallInterceptor(
        methods_of(identity, *served),
        driver_name=settings.driver_name,
        log=given.log.bind(driver=settings.driver_name),
        metrics=given.metrics,
        clock=given.clock,
        new_id=request_ids(given.random),
    )


async def is_ready(checks: Checks, clock: Clock) -> bool:
    """Answered in time, also when a check is not: a disk may hang."""
    try:
        async with clock.timeout(LONGEST_CHECKS_SECONDS):
            return all([await check() is None for check in checks.values()])
    except TimeoutError:
        return False


async def _why_no_answer(endpoint: Endpoint) -> str | None:
    """Whether somebody takes connections there; what answers on them is ourselves."""
    try:
        if isinstance(endpoint, UnixEndpoint):
            _, writer = await asyncio.open_unix_connection(endpoint.path)
        else:
            _, writer = await asyncio.open_connection(endpoint.host.strip("[]"), endpoint.port)
    except OSError as error:
        return f"nobody answers on {endpoint}: {error.strerror}"
    writer.close()
    return None
