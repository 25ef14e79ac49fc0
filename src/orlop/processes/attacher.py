"""`orlop attacher`: stands beside any CSI driver and attaches its volumes; its flags are the upstream one's.

Order: the driver says its name and what it can → the lease is taken, where there is one → the caches are filled → work.
When the driver is lost the lease is given up, and taken again only after the driver has answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from orlop import __version__
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import Endpoint, TcpEndpoint, parse_endpoint, parse_optional_http_address
from orlop.csi.error_codes import CsiError, DeadlineExceeded, Unavailable
from orlop.csi.grpc_transport import GrpcConnection
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import MapOf, at_least, between, boolean, flag, floating, group, integer, text
from orlop.foundation.task_group import TaskGroup
from orlop.kube.client import KubeClient
from orlop.kube.event_bodies import Reporter
from orlop.kube.event_recorder import EventRecorder
from orlop.kube.informer import Watched, without_managed_fields
from orlop.kube.informers import Informers
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, Surroundings, is_some_time, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.kube_side import RequestRate, kube_access, kube_client
from orlop.processes.leader_flags import LeaderSettings
from orlop.processes.lease_side import LeaseSide
from orlop.sidecars.attacher.attacher import Caches
from orlop.sidecars.attacher.attacher_name_rules import finalizer_of, lease_of
from orlop.sidecars.attacher.driver_session import (
    LOOK_AGAIN_SECONDS,
    AnotherDriver,
    DriverLost,
    DriverSession,
    SessionTimes,
    came_back_as,
)
from orlop.sidecars.attacher.tools import AttacherSettings, Tools

NAME: Final = "orlop-attacher"
EVENTS_SECONDS: Final = 5.0
BURST: Final = 10
LARGEST_PAGE: Final = 2**31 - 1
"""What CSI has room for."""
_NO_EFFECT: Final = "Accepted for upstream's sake, without effect."


@dataclass(frozen=True, slots=True, kw_only=True)
class AttacherFlags:
    csi_address: Endpoint = flag(
        parse_endpoint, default="/run/csi/socket", metavar="ADDRESS", help="Where the CSI driver answers."
    )
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="How to reach the API server; not given: as kubectl finds it, else with the pod's own credentials.",
    )
    timeout: Duration = flag(
        Duration.parse,
        default="15s",
        metavar="DURATION",
        check=is_some_time,
        help="How long the driver may take for one call.",
    )
    worker_threads: int = flag(
        integer,
        default="10",
        metavar="COUNT",
        check=at_least(1),
        help="How many attach at a time, how many detach, and how many let go of volumes; the volumes of one node have "
        "at most 80 % of the workers that other nodes leave, and one at least.",
    )
    retry_interval_start: Duration = flag(
        Duration.parse, default="1s", metavar="DURATION", help="When a failure is tried again first; doubled each time."
    )
    retry_interval_max: Duration = flag(
        Duration.parse,
        default="5m",
        metavar="DURATION",
        help="When it is tried again at the latest, also the first time.",
    )
    resync: Duration = flag(
        Duration.parse, default="10m", metavar="DURATION", help="How often all objects are looked at again; 0s: never."
    )
    reconcile_sync: Duration = flag(
        Duration.parse,
        default="1m",
        metavar="DURATION",
        help="How often a driver that can list its volumes is asked what it has published; 0s: never.",
    )
    max_entries: int = flag(
        integer,
        default="0",
        metavar="COUNT",
        check=between(0, LARGEST_PAGE),
        help="Volumes on one page of that list; 0: as it likes.",
    )
    default_fstype: str = flag(
        text, default="", metavar="TYPE", help="The file system of volumes that name none; not given: the driver's own."
    )
    kube_api_qps: float = flag(
        floating,
        default="0",
        metavar="COUNT",
        help="At most so many requests a second to the API server; 0 or less: as many as it takes, unlike upstream's.",
    )
    kube_api_burst: int = flag(
        integer,
        default="10",
        metavar="COUNT",
        check=at_least(0),
        help=f"So many of them at once, where they are limited; 0: {BURST}.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        help="Where to serve /healthz/leader-election, /readyz and /metrics; not given: nowhere.",
    )
    metrics_address: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        deprecated="--http-endpoint says the same.",
        help="As --http-endpoint.",
    )
    metrics_path: str = flag(text, default="/metrics", metavar="PATH", help="Where the metrics are.")
    max_grpc_log_length: int = flag(integer, default="-1", metavar="COUNT", help=_NO_EFFECT)
    automaxprocs: bool = flag(boolean, default="false", help=_NO_EFFECT)
    feature_gates: Mapping[str, bool] = flag(
        MapOf(boolean), default="", metavar="GATE=BOOL,…", help=f"{_NO_EFFECT} Error codes are always told."
    )
    version: bool = flag(boolean, default="false", help="Print the version and exit.")
    leader: LeaderSettings = group(LeaderSettings)
    log: LogSettings = group(LogSettings)
    klog: KlogSettings = group(KlogSettings)

    @property
    def http_address(self) -> TcpEndpoint | None:
        return self.http_endpoint or self.metrics_address

    @property
    def rate(self) -> RequestRate | None:
        return RequestRate(self.kube_api_qps, self.kube_api_burst or BURST) if self.kube_api_qps > 0 else None

    def cross_check(self) -> Iterator[str]:
        if self.http_endpoint is not None and self.metrics_address is not None:
            yield "Only one of --http-endpoint and --metrics-address can be set."
        if not self.metrics_path.startswith("/"):
            yield f"--metrics-path cannot be '{self.metrics_path}': it begins with a slash."


def printed_instead(settings: AttacherFlags) -> str | None:
    return f"orlop attacher {__version__}\n" if settings.version else None


DAEMON: Final = Daemon(
    "orlop attacher", "Attaches and detaches the volumes of a CSI driver.", AttacherFlags, printed_instead
)


async def run(settings: AttacherFlags, given: Surroundings) -> None:
    async with AsyncExitStack() as stack:
        csi = CsiClient(
            GrpcConnection(settings.csi_address),
            log=given.log,
            metrics=given.metrics,
            clock=given.clock,
            random=given.random,
            timeout=settings.timeout.seconds,
        )
        stack.push_async_callback(csi.close)
        access = kube_access(settings.kubeconfig, given)
        kube = await stack.enter_async_context(kube_client(access, given, name=NAME, rate=settings.rate))
        unlimited = kube
        if settings.rate is not None:
            unlimited = await stack.enter_async_context(kube_client(access, given, name=NAME))
        leases = LeaseSide(settings.leader, given, unlimited, access.namespace)
        role = _Role(settings, given, csi, kube, leases)
        if settings.http_address is not None:
            await _serve_http(settings, given, role, stack, settings.http_address)
        await role.run()


class _Role:
    """From the driver's name to the end."""

    def __init__(
        self, settings: AttacherFlags, given: Surroundings, csi: CsiClient, kube: KubeClient, leases: LeaseSide
    ) -> None:
        self._settings = settings
        self._given = given
        self._csi = csi
        self._kube = kube
        self.leases = leases
        self._queues = WorkqueueMetrics(given.metrics)
        self._driver: str | None = None
        """Its name, since it was first asked: that does not change as long as we live."""
        self._has_driver = False
        self._in_session = False

    async def run(self) -> None:
        """Until it is told to stop. What waits for the driver or the lease is cut off then; work is let end."""
        loop = asyncio.get_running_loop()
        working, stopping = loop.create_task(self._work()), loop.create_task(self._given.stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not self._in_session:
                working.cancel()
            await asyncio.wait((working,))
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait((working, stopping))
        if not working.cancelled():
            working.result()

    async def why_not_ready(self) -> str | None:
        """Whoever waits for the lease is: else no update of several could ever be rolled out."""
        return None if self._has_driver else "the driver is waited for"

    async def _work(self) -> None:
        while not self._given.stop.is_set():
            driver = await self._known_driver()
            try:
                async with self.leases.leading(lease_of(driver)) as may_act:
                    await self._attach(driver, may_act)
            except DriverLost as error:
                self._given.log.error("the driver is lost: nothing is attached until it answers again", error=error)
            except (AnotherDriver, LeadershipLost) as error:
                raise CannotGoOn(str(error)) from None

    async def _known_driver(self) -> str:
        """Waits for one that answers and says that it is ready; only the first may have any name."""
        self._has_driver = False
        name = await self._ready_driver()
        if self._driver is not None and name != self._driver:
            raise CannotGoOn(came_back_as(name, self._driver))
        self._driver, self._has_driver = name, True
        return name

    async def _ready_driver(self) -> str:
        self._given.log.info("waiting for the driver", address=str(self._settings.csi_address))
        while True:
            try:
                await self._csi.ready()
                return (await self._csi.plugin_info()).name
            except (Unavailable, DeadlineExceeded) as error:
                self._given.log.warning("the driver went away", error=error)
                await self._given.clock.sleep(LOOK_AGAIN_SECONDS)
            except CsiError as error:
                raise CannotGoOn(f"the driver at {self._settings.csi_address} cannot be used: {error}") from None

    async def _attach(self, driver: str, may_act: Callable[[], None]) -> None:
        given, settings = self._given, self._settings
        reporter = Reporter("external-attacher", socket.gethostname())
        events = EventRecorder(
            self._kube, reporter, clock=given.clock, random=given.random, log=given.log, metrics=given.metrics
        )
        tools = Tools(
            self._kube,
            self._csi,
            events,
            given.clock,
            given.random,
            given.log.bind(driver=driver),
            self._queues,
            may_act,
        )
        times = SessionTimes(
            settings.leader.leader_election_renew_deadline.seconds,
            settings.reconcile_sync.seconds,
            settings.max_entries,
            settings.timeout.seconds + 1,
        )
        async with (
            Informers(self._kube, clock=given.clock, random=given.random, log=given.log) as informers,
            _caches(informers) as caches,
            TaskGroup() as tasks,
        ):
            telling = tasks.start(events.run(), name="events")
            self._in_session = True
            try:
                await DriverSession(caches, _order(settings, driver), times, tools).run(given.stop)
            finally:
                self._in_session = False
                await events.drain(EVENTS_SECONDS)
                telling.cancel()


def _order(settings: AttacherFlags, driver: str) -> AttacherSettings:
    return AttacherSettings(
        driver,
        finalizer_of(driver),
        settings.default_fstype,
        settings.timeout.seconds,
        settings.worker_threads,
        settings.retry_interval_start.seconds,
        settings.retry_interval_max.seconds,
        settings.resync.seconds,
    )


@asynccontextmanager
async def _caches(informers: Informers) -> AsyncIterator[Caches]:
    kinds = (VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE)
    attachments, volumes, csi_nodes = (Watched(kind, transform=without_managed_fields) for kind in kinds)
    async with (
        informers.using(attachments) as all_attachments,
        informers.using(volumes) as all_volumes,
        informers.using(csi_nodes) as all_csi_nodes,
    ):
        yield Caches(all_attachments, all_volumes, all_csi_nodes)


async def _serve_http(
    settings: AttacherFlags, given: Surroundings, role: _Role, stack: AsyncExitStack, address: TcpEndpoint
) -> None:
    from orlop.processes.http_side import http_side  # noqa: PLC0415 - only who asks for it pays for it

    liveness = {"leader-election": role.leases.why_not_leading} if settings.leader.leader_election else {}
    readiness = {"attaching": role.why_not_ready}
    await stack.enter_async_context(
        http_side(address, given, readiness, liveness=liveness, metrics_path=settings.metrics_path)
    )


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
