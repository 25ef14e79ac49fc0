"""The common part of sidecars that act on objects: flags, driver, lease, caches, events, health, metrics and shutdown.

Each sidecar is described by a `Sidecar`: its own flags (a subclass of `SidecarFlags`), the kinds that it watches, and
`run(session, caches)`. The registrar is none of them: it has neither lease nor caches, needs no API server, and stays
registered while its driver is away.

Order: wait until the driver is ready and returns its name → acquire the lease, with leader election → wait until the
driver responds again and the caches are complete → `run`. When the driver is lost, `run` is cancelled and the lease is
released; it is acquired again only after the driver has responded. When the process is stopped, `run` ends by itself
after its running calls; all earlier steps are cancelled.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from orlop import __version__
from orlop.csi.client import CsiClient
from orlop.csi.driver_session import (
    AnotherDriver,
    Capabilities,
    DriverLost,
    DriverSession,
    SessionTimes,
    UnusableDriver,
    Worker,
    another_driver,
    wait_for_driver,
)
from orlop.csi.endpoint import Endpoint, TcpEndpoint, parse_endpoint, parse_optional_http_address
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import MapOf, at_least, boolean, flag, floating, group, integer, text
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Informer, Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import Kind
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.processes.daemon import CannotGoOn, Daemon, LogSettings, is_some_time, run_daemon
from orlop.processes.klog_flags import KlogSettings
from orlop.processes.kube_wiring import RequestRate, kube_access, kube_client
from orlop.processes.lease_wiring import LeaderSettings, LeaseWiring

EVENTS_SECONDS: Final = 5.0
BURST: Final = 10
NO_EFFECT: Final = "Accepted for compatibility with upstream, without effect."


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarFlags:
    """The flags of every sidecar, spelled as upstream's. A sidecar may declare a flag again, with its own default."""

    csi_address: Endpoint = flag(
        parse_endpoint, default="/run/csi/socket", metavar="ADDRESS", help="Address of the CSI driver."
    )
    kubeconfig: str = flag(
        text,
        default="",
        metavar="FILE",
        help="Kubeconfig file; if not set, the file that kubectl would use, else the pod's own credentials.",
    )
    timeout: Duration = flag(
        Duration.parse,
        default="15s",
        metavar="DURATION",
        check=is_some_time,
        help="Timeout of one call to the driver.",
    )
    # Upstream's attacher has 10. A worker is a task, which costs nothing while it waits: on a real API server, ours
    # with 10 reaches 0.8 of the rate of upstream's with its limits lifted; with 100 they are level.
    worker_threads: int = flag(
        integer, default="100", metavar="COUNT", check=at_least(1), help="Number of workers of each queue."
    )
    retry_interval_start: Duration = flag(
        Duration.parse,
        default="1s",
        metavar="DURATION",
        help="Delay of the first retry after a failure; it doubles with each retry.",
    )
    retry_interval_max: Duration = flag(
        Duration.parse, default="5m", metavar="DURATION", help="Longest delay of a retry, also of the first."
    )
    kube_api_qps: float = flag(
        floating,
        default="0",
        metavar="COUNT",
        help="Limit of requests per second to the API server; 0 or less: no limit, unlike upstream.",
    )
    kube_api_burst: int = flag(
        integer,
        default="10",
        metavar="COUNT",
        check=at_least(0),
        help=f"Number of requests that may exceed --kube-api-qps at once; 0: {BURST}.",
    )
    http_endpoint: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        help="Address that serves /healthz/leader-election, /readyz and /metrics; if not set, nothing is served.",
    )
    metrics_address: TcpEndpoint | None = flag(
        parse_optional_http_address,
        metavar="HOST:PORT",
        deprecated="use --http-endpoint.",
        help="As --http-endpoint.",
    )
    metrics_path: str = flag(text, default="/metrics", metavar="PATH", help="HTTP path of the metrics.")
    max_grpc_log_length: int = flag(integer, default="-1", metavar="COUNT", help=NO_EFFECT)
    automaxprocs: bool = flag(boolean, default="false", help=NO_EFFECT)
    feature_gates: Mapping[str, bool] = flag(MapOf(boolean), default="", metavar="GATE=BOOL,…", help=NO_EFFECT)
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

    @property
    def session_times(self) -> SessionTimes:
        timeout = self.timeout.seconds
        lost_after = self.leader.leader_election_renew_deadline.seconds
        return SessionTimes(lost_after=lost_after, call_timeout=timeout, grace=timeout + 1)

    def cross_check(self) -> Iterator[str]:
        if self.http_endpoint is not None and self.metrics_address is not None:
            yield "Only one of --http-endpoint and --metrics-address can be set."
        if not self.metrics_path.startswith("/"):
            yield f"--metrics-path cannot be '{self.metrics_path}': it must begin with a slash."


Flags = TypeVar("Flags", bound=SidecarFlags)
Caches: TypeAlias = Mapping[Kind, Informer]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSession(Generic[Flags]):
    """The services for `run` of a sidecar, while its driver responds and it may act."""

    settings: Flags
    runtime: Runtime
    """Every line of its log has the driver's name."""
    driver: DriverSession
    kube: KubeClient
    informers: Informers
    """For kinds that only some drivers need; the other kinds are in the caches that `run` gets."""
    events: EventRecorder
    queue_metrics: WorkqueueMetrics
    may_act: Callable[[], None]
    """Raises if the lease is lost. Call it before each effect."""
    lease_namespace: str
    """The namespace of the sidecar's Leases, with or without leader election."""
    stop: asyncio.Event

    async def run_workers(self, worker_for: Callable[[Capabilities], Worker]) -> None:
        """Run the worker for the driver's capabilities until the process is stopped."""
        await self.driver.run_workers(worker_for, self.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Generic[Flags]):
    """One sidecar. `run` returns when `session.stop` is set and its calls in flight have ended."""

    name: str
    """The verb, as in `orlop NAME`."""
    summary: str
    flags: type[Flags]
    event_source: str
    """The component in its events."""
    lease_of: Callable[[str], str]
    """Returns the name of the lease for a driver."""
    kinds: tuple[Kind, ...]
    """The kinds that it watches."""
    run: Callable[[SidecarSession[Flags], Caches], Awaitable[None]]

    @property
    def daemon(self) -> Daemon:
        version = f"orlop {self.name} {__version__}\n"
        return Daemon(
            f"orlop {self.name}", self.summary, self.flags, lambda settings: version if settings.version else None
        )


def run_sidecar(sidecar: Sidecar[Flags], arguments: Sequence[str]) -> int:
    return run_daemon(sidecar.daemon, arguments, partial(run_life, sidecar))


async def run_life(sidecar: Sidecar[Flags], settings: Flags, runtime: Runtime, stop: asyncio.Event) -> None:
    """Run a sidecar in this process until `stop` is set."""
    async with AsyncExitStack() as stack:
        csi = CsiClient(
            GrpcConnection(settings.csi_address),
            log=runtime.log,
            metrics=runtime.metrics,
            clock=runtime.clock,
            random=runtime.random,
            timeout=settings.timeout.seconds,
        )
        stack.push_async_callback(csi.close)
        name = f"orlop-{sidecar.name}"
        access = kube_access(settings.kubeconfig, runtime)
        kube = await stack.enter_async_context(kube_client(access, runtime, name=name, rate=settings.rate))
        unlimited = kube
        if settings.rate is not None:
            unlimited = await stack.enter_async_context(kube_client(access, runtime, name=name))
        leases = LeaseWiring(settings.leader, runtime, unlimited, access.namespace)
        life = SidecarLife(sidecar, settings, runtime=runtime, csi=csi, kube=kube, leases=leases)
        if settings.http_address is not None:
            await stack.enter_async_context(_served_http(settings.http_address, settings, runtime, life))
        await life.run(stop)


@asynccontextmanager
async def _served_http(
    address: TcpEndpoint, settings: SidecarFlags, runtime: Runtime, life: SidecarLife[Any]
) -> AsyncIterator[None]:
    from orlop.processes.http_wiring import serving_http  # noqa: PLC0415 - imported only if it is served: it costs memory

    liveness = {"leader-election": life.leases.why_not_leading} if settings.leader.leader_election else {}
    readiness = {"driver": life.why_not_ready}
    async with serving_http(address, runtime, readiness, liveness=liveness, metrics_path=settings.metrics_path):
        yield


class SidecarLife(Generic[Flags]):
    """Runs a sidecar from the first call to its driver to the end of the process."""

    def __init__(
        self,
        sidecar: Sidecar[Flags],
        settings: Flags,
        *,
        runtime: Runtime,
        csi: CsiClient,
        kube: KubeClient,
        leases: LeaseWiring,
    ) -> None:
        self._sidecar = sidecar
        self._settings = settings
        self._runtime = runtime
        self._csi = csi
        self._kube = kube
        self.leases = leases
        self._queue_metrics = WorkqueueMetrics(runtime.metrics)
        self._driver: str | None = None
        """The name of the first driver that responded; it must not change while the process runs."""
        self._has_driver = False
        self._is_working = False

    async def run(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set and the work has ended. Waiting for the driver or the lease is cancelled."""
        loop = asyncio.get_running_loop()
        living, stopping = loop.create_task(self._live(stop)), loop.create_task(stop.wait())
        try:
            await asyncio.wait((living, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not self._is_working:
                living.cancel()
            await asyncio.wait((living,))
        finally:
            for task in (living, stopping):
                task.cancel()
            await asyncio.wait((living, stopping))
        if not living.cancelled():
            living.result()

    async def why_not_ready(self) -> str | None:
        """Return why the sidecar is not ready; None also while it waits for the lease.

        Otherwise the replicas that do not lead would never be ready, and a rollout would never end.
        """
        return None if self._has_driver else "waiting for the driver"

    async def _live(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                driver = await self._find_driver()
                async with self.leases.leading(self._sidecar.lease_of(driver)) as may_act:
                    await self._lead(driver, may_act, stop)
            except DriverLost as error:
                # Several sidecars may write to one log, as in `orlop up`, and each loses the driver: name the sidecar.
                self._runtime.log.error(
                    "driver lost; waiting until it responds", sidecar=self._sidecar.name, error=error
                )
            except (AnotherDriver, UnusableDriver, LeadershipLost) as error:
                raise CannotGoOn(str(error)) from None

    async def _find_driver(self) -> str:
        self._has_driver = False
        address, runtime = str(self._settings.csi_address), self._runtime
        name = await wait_for_driver(self._csi, address, clock=runtime.clock, log=runtime.log)
        # The first driver may have any name; after a loss the name must be the same, or we would act on its objects.
        if self._driver is not None and name != self._driver:
            raise another_driver(name, self._driver)
        self._driver, self._has_driver = name, True
        return name

    async def _lead(self, driver: str, may_act: Callable[[], None], stop: asyncio.Event) -> None:
        runtime = replace(self._runtime, log=self._runtime.log.bind(driver=driver, sidecar=self._sidecar.name))
        clock, random, log = runtime.clock, runtime.random, runtime.log
        reporter = Reporter(self._sidecar.event_source, socket.gethostname())
        events = EventRecorder(self._kube, reporter, clock=clock, random=random, log=log, metrics=runtime.metrics)
        driver_session = DriverSession(self._csi, driver, self._settings.session_times, clock=clock, log=log)
        async with (
            Informers(self._kube, clock=clock, random=random, log=log) as informers,
            _caches(informers, self._sidecar.kinds) as caches,
            TaskGroup() as tasks,
        ):
            session = SidecarSession(
                settings=self._settings,
                runtime=runtime,
                driver=driver_session,
                kube=self._kube,
                informers=informers,
                events=events,
                queue_metrics=self._queue_metrics,
                may_act=may_act,
                lease_namespace=self.leases.namespace,
                stop=stop,
            )
            recording = tasks.start(events.run(), name="events")
            try:
                async with driver_session.open():
                    for informer in caches.values():
                        await informer.wait_synced()
                    self._is_working = True
                    await self._sidecar.run(session, caches)
            finally:
                self._is_working = False
                # Send the last events before the client is closed: they may have the reason of the end.
                await events.drain(EVENTS_SECONDS)
                recording.cancel()


@asynccontextmanager
async def _caches(informers: Informers, kinds: tuple[Kind, ...]) -> AsyncIterator[Caches]:
    async with AsyncExitStack() as stack:
        yield {
            kind: await stack.enter_async_context(informers.using(Watched(kind, transform=without_managed_fields)))
            for kind in kinds
        }
