"""Wiring of a node's CSI services: their flags, and a context in which the socket is served.

Order: open and index the scratch folders → open the drives → serve health and metrics → serve the socket. They end in
reverse order, so that no call is served after the folders and drives are closed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orlop import __version__
from orlop.csi.driver_name import driver_name_problem
from orlop.csi.endpoint import Endpoint, TcpEndpoint, UnixEndpoint, parse_optional_http_address
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import services
from orlop.csi.server import serving
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.identity_service import DriverIdentity, IdentityService, ServiceType
from orlop.foundation.clock import Clock
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, integer, text
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
from orlop.processes.daemon import (
    CannotGoOn,
    is_absolute_or_none,
    is_folder,
    is_not_negative,
    is_plain,
    is_size,
    is_some_time,
    log_example_call,
    request_ids,
)

if TYPE_CHECKING:
    from orlop.processes.drive_settings import DriveSettings
    from orlop.processes.persistent_wiring import PersistentServices

DEFAULT_WORKDIR: Final = "/var/lib/orlop/ephemeral"
LONGEST_NODE_ID: Final = 256
LONGEST_CHECKS_SECONDS: Final = 0.8
"""Kubelet's probes wait for one second by default; the reason of a failure must arrive before that."""
HealthChecks = Mapping[str, Callable[[], Awaitable[str | None]]]
"""Checks by name. Each returns None if all is well, else the reason."""


_SHARE: Final = re.compile(r"[+-]?(?=\.?[0-9])[0-9]{0,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,2})?")
"""Only two digits in the exponent: the Fraction of 1e999999999 would fill the memory."""


def share(value: str) -> Fraction:
    if not _SHARE.fullmatch(value):
        raise ValueError("allowed is a number from 0 to 1, such as 0.1")
    return Fraction(value)


def is_share(value: Fraction) -> str | None:
    return None if 0 <= value <= 1 else "allowed is a number from 0 to 1, such as 0.1"


def is_count(number: int) -> str | None:
    return None if 0 <= number < 2**31 else "allowed is 0 (no limit) or more"


def is_node_id(node_id: str) -> str | None:
    try:
        size = len(node_id.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8 text, which CSI requires"
    return None if size <= LONGEST_NODE_ID else f"it has {size} bytes, and CSI allows {LONGEST_NODE_ID}"


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
        check=driver_name_problem,
        help="The driver's name, as StorageClasses and pods write it.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        help="The address to serve /metrics, /healthz, /livez and /readyz on; default: none.",
    )
    grace_period: Duration = flag(
        Duration.parse,
        default="20s",
        metavar="DURATION",
        check=is_not_negative,
        help="How long to wait after SIGTERM for calls under way.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EphemeralSettings:
    workdir: str = flag(
        text,
        default=DEFAULT_WORKDIR,
        metavar="DIR",
        check=is_absolute_or_none,
        help="The folder of all scratch folders, live and retained; empty: serve none.",
    )
    kubelet_dir: str = flag(
        text,
        default="/var/lib/kubelet",
        metavar="DIR",
        check=is_plain,
        help="Kubelet's folder; volumes are published below it and nowhere else.",
    )
    max_volumes_per_node: int = flag(
        integer,
        name="maxvolumespernode",
        default="0",
        metavar="NUMBER",
        check=is_count,
        help="The most volumes this node may have at a time; 0: no limit.",
    )
    afterlifespan: Duration = flag(
        Duration.parse,
        default="12h",
        metavar="DURATION",
        aliases=("afterLifespan",),
        check=is_not_negative,
        help="How long a folder is retained after its pod is gone, unless the pod chose otherwise.",
    )
    max_afterlifespan: Duration | None = flag(
        Duration.parse,
        metavar="DURATION",
        check=is_not_negative,
        help="The longest lifespan a pod may request; default: --afterlifespan.",
    )
    prune_interval: Duration = flag(
        Duration.parse,
        name="pruneinterval",
        default="5s",
        metavar="DURATION",
        check=is_some_time,
        help="How often free space is checked while folders are retained.",
    )
    headroom: Fraction | None = flag(
        share,
        metavar="SHARE",
        check=is_share,
        help="The share of free space, 0 to 1, below which lifespans shrink; default: 0.1, and 0.2 on kubelet's disk.",
    )
    default_size: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The size of a folder whose pod requests none; 0: --max-size.",
    )
    max_size: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The largest size a pod may request; 0: no limit.",
    )
    orphan_grace: Duration = flag(
        Duration.parse,
        name="orphangrace",
        default="1h",
        metavar="DURATION",
        check=is_not_negative,
        help="How long to wait before a folder is buried whose pod kubelet no longer knows.",
    )

    admin_socket: str = flag(
        text,
        name="adminsocket",
        default="",
        metavar="PATH",
        check=is_absolute_or_none,
        help="The socket of `orlop afterlife`; default: /run/orlop/<driver>/admin.sock, and for an `orlop driver` with "
        "its own --endpoint and --workdir <endpoint>.admin.sock beside its endpoint.",
    )

    @property
    def lacks_root(self) -> bool:
        return bool(self.workdir) and os.geteuid() != 0

    def refuse_without_root(self) -> None:
        if self.lacks_root:
            raise CannotGoOn(
                "mounting scratch folders needs root: run it as root, or set --workdir= to serve no scratch folders"
            )

    def cross_check(self) -> Iterator[str]:
        if self.lacks_root:
            return  # folders that only root may enter seem to be missing; `refuse_without_root` reports the cause
        folders = (("workdir", self.workdir), ("kubelet-dir", self.kubelet_dir)) if self.workdir else ()
        for name, path in folders:
            if not is_folder(Path(path)):
                yield f"--{name} cannot be {path!r}: there is no such folder; make it first, or name another."
        if self.max_size.value() and self.default_size.value() > self.max_size.value():
            yield f"--default-size cannot be {self.default_size}: --max-size allows {self.max_size}."
        longest = self.max_afterlifespan
        if longest is not None and self.afterlifespan > longest:
            yield f"--afterlifespan cannot be {self.afterlifespan}: --max-afterlifespan allows {longest}."

    @property
    def limits(self) -> AdminLimits:
        longest = self.max_afterlifespan or self.afterlifespan
        return AdminLimits(
            afterlifespan=self.afterlifespan.seconds,
            max_afterlifespan=longest.seconds,
            default_size=self.default_size.value(),
            max_size=self.max_size.value(),
        )


@dataclass(frozen=True, slots=True)
class CsiServices:
    endpoint: Endpoint
    """The endpoint with its real port, also if the flag has port 0."""
    interceptor: CallInterceptor
    """Also serves calls from within this process."""
    persistent: PersistentServices | None
    """The drives of this node and their volumes; None if it serves none."""


@dataclass(frozen=True, slots=True)
class ServedSettings:
    """What a node serves."""

    csi: CsiSettings
    ephemeral: EphemeralSettings
    drives: DriveSettings


@asynccontextmanager
async def serving_csi(
    endpoint: Endpoint, settings: ServedSettings, runtime: Runtime, more: HealthChecks
) -> AsyncIterator[CsiServices]:
    """Serve the CSI socket inside this context. `more` are further checks of `/readyz`."""
    csi = settings.csi
    async with AsyncExitStack() as stack:
        node = await _node_services(settings, runtime, stack)
        interceptor = _interceptor(csi, runtime, node)
        if csi.http_endpoint is not None:
            from orlop.processes.http_wiring import serving_http  # noqa: PLC0415 - saves memory if HTTP is not served

            readiness = {"socket": lambda: _why_no_answer(endpoint), **node.checks, **node.upkeep, **more}
            await stack.enter_async_context(serving_http(csi.http_endpoint, runtime, readiness))
        grace = csi.grace_period.seconds
        bound = await stack.enter_async_context(serving(endpoint, interceptor, grace=grace, log=runtime.log))
        log_example_call(bound, runtime.log)
        yield CsiServices(bound, interceptor, node.persistent)


@dataclass(frozen=True, slots=True)
class _NodeServices:
    served: list[services.Node]
    checks: HealthChecks
    """Those that must pass to serve calls."""
    upkeep: HealthChecks
    """Further checks for admins."""
    persistent: PersistentServices | None


async def _node_services(settings: ServedSettings, runtime: Runtime, stack: AsyncExitStack) -> _NodeServices:
    csi, ephemeral, drives = settings.csi, settings.ephemeral, settings.drives
    folders = None
    if ephemeral.workdir:
        from orlop.processes.ephemeral_wiring import serving_ephemeral  # noqa: PLC0415 - saves memory if none are served

        folders = await stack.enter_async_context(serving_ephemeral(ephemeral, runtime, csi.driver_name, csi.node_id))
    scratch = folders.node_service if folders is not None else None
    checks, upkeep = (folders.readiness, folders.upkeep) if folders is not None else ({}, {})
    if not drives.drives_dir:
        return _NodeServices([scratch] if scratch is not None else [], checks, upkeep, None)
    from orlop.processes.persistent_wiring import combined_node_service, serving_persistent  # noqa: PLC0415 - as above

    others = (ephemeral.workdir,) if ephemeral.workdir else ()
    persistent = await stack.enter_async_context(
        serving_persistent(drives, ephemeral.kubelet_dir, others, runtime, csi.node_id)
    )
    dispatch = combined_node_service(scratch, persistent.node_service, csi.node_id, ephemeral.max_volumes_per_node)
    return _NodeServices([dispatch], {**checks, **persistent.readiness}, upkeep, persistent)


def _interceptor(settings: CsiSettings, runtime: Runtime, node: _NodeServices) -> CallInterceptor:
    identity = IdentityService(
        DriverIdentity(settings.driver_name, __version__, _plugin_services(node)),
        lambda: is_ready(node.checks, runtime.clock),
    )
    return CallInterceptor(
        methods_of(identity, *node.served),
        driver_name=settings.driver_name,
        log=runtime.log.bind(driver=settings.driver_name),
        metrics=runtime.metrics,
        clock=runtime.clock,
        new_id=request_ids(runtime.random),
    )


def _plugin_services(node: _NodeServices) -> tuple[ServiceType, ...]:
    if not node.served:
        return ()
    # CSI: all instances of a plugin name the services of the whole plugin, wherever they run. Volumes on drives have
    # their controller service in another process, `orlop controller`; scratch folders have none.
    controller = (ServiceType.CONTROLLER_SERVICE,) if node.persistent is not None else ()
    return (*controller, ServiceType.VOLUME_ACCESSIBILITY_CONSTRAINTS)


async def is_ready(checks: HealthChecks, clock: Clock) -> bool:
    """Return whether all checks pass; False if they take too long, because a disk may hang."""
    try:
        async with clock.timeout(LONGEST_CHECKS_SECONDS):
            return all([await check() is None for check in checks.values()])
    except TimeoutError:
        return False


async def _why_no_answer(endpoint: Endpoint) -> str | None:
    """Return why the socket accepts no connections; None if it does."""
    try:
        if isinstance(endpoint, UnixEndpoint):
            _, writer = await asyncio.open_unix_connection(endpoint.path)
        else:
            _, writer = await asyncio.open_connection(endpoint.host.strip("[]"), endpoint.port)
    except OSError as error:
        return f"no connection to {endpoint}: {error.strerror}"
    writer.close()
    return None
