"""`orlop driver`: the CSI services of this node on one socket, and nothing else, for use with any sidecars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from orlop import __version__
from orlop.csi.driver_name import fault_of_driver_name
from orlop.csi.endpoint import Endpoint, TcpEndpoint, parse_endpoint, parse_http_address
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.server import serving
from orlop.driver.identity_service import DriverIdentity, IdentityService
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, group, text
from orlop.processes.daemon import (
    Daemon,
    LogSettings,
    Surroundings,
    folder_exists,
    is_not_negative,
    request_ids,
    run_daemon,
    tell_how_to_call,
)

LONGEST_NODE_ID: Final = 256


def is_node_id(node_id: str) -> str | None:
    try:
        size = len(node_id.encode())
    except UnicodeEncodeError:
        return "it is no text in UTF-8, and the interface allows no other"
    return None if size <= LONGEST_NODE_ID else f"it has {size} bytes and the interface allows {LONGEST_NODE_ID}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    endpoint: Endpoint = flag(
        parse_endpoint,
        default="unix:///csi/csi.sock",
        metavar="ADDRESS",
        help="Where to answer CSI calls: unix:///path or tcp://host:port.",
    )
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
        parse_http_address,
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
    log: LogSettings = group(LogSettings)

    def cross_check(self) -> Iterator[str]:
        # Not a check of the flag itself: its default cannot know whether this machine has the folder.
        if objection := folder_exists(self.endpoint):
            yield f"--endpoint cannot be {str(self.endpoint)!r}: {objection}."


DAEMON: Final = Daemon("orlop driver", "Serves the CSI services of this node on a socket.", DriverSettings)


async def always_ready() -> bool:
    return True


async def run(settings: DriverSettings, given: Surroundings) -> None:
    identity = IdentityService(DriverIdentity(settings.driver_name, __version__), always_ready)
    interceptor = CallInterceptor(
        methods_of(identity),
        driver_name=settings.driver_name,
        log=given.log.bind(driver=settings.driver_name),
        metrics=given.metrics,
        clock=given.clock,
        new_id=request_ids(given.random),
    )
    async with AsyncExitStack() as stack:
        if settings.http_endpoint is not None:
            from orlop.processes.http_side import http_side  # noqa: PLC0415 - only who asks for it pays for it

            await stack.enter_async_context(http_side(settings.http_endpoint, given, {}))
        grace = settings.grace_period.seconds
        bound = await stack.enter_async_context(serving(settings.endpoint, interceptor, grace=grace, log=given.log))
        tell_how_to_call(bound, given.log)
        await given.stop.wait()


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
