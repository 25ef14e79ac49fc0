"""`orlop controller`: the controller service of volumes on drives, the provisioner, and the master of static volumes.

Of all replicas one leads.

The service is served on a unix socket, and the provisioner calls it there, as it calls any driver: `orlop csi` can call
it too. Order: serve the socket → acquire the lease → fill the caches → serve the calls that change something, return
the space of deleted volumes, provision, and serve static volumes where a configuration is named. A process that does
not lead answers such calls with UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from orlop import __version__
from orlop.binding.topology_rules import TopologyMode
from orlop.csi.driver_name import driver_name_problem
from orlop.csi.endpoint import Endpoint, parse_endpoint
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.server import serving
from orlop.driver.identity_service import DriverIdentity, IdentityService, ServiceType
from orlop.driver.persistent.controller_service import DriveControllerService, LeaderService
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.drive_choice_rules import DriveFacts
from orlop.driver.persistent.drive_reservations import DriveReservations
from orlop.driver.persistent.reservation_rules import slim_volume
from orlop.driver.persistent.space_return import SpaceReturn
from orlop.driver.persistent.volume_register import VolumeRegister
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.cache.informer import Watched
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.processes.daemon import Daemon, folder_exists, is_some_time, log_example_call, request_ids, run_daemon
from orlop.processes.provisioner import provisioner_identity, run_provisioner
from orlop.processes.sidecar import Caches, Sidecar, SidecarFlags, SidecarSession, run_life
from orlop.processes.static_settings import StaticMasterFlags
from orlop.records.api_record import GROUP
from orlop.records.drive import DRIVE
from orlop.records.drive_record import DriveState
from orlop.records.volume import VOLUME
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source

if TYPE_CHECKING:
    from orlop.static_pv.master_metrics import MasterMetrics

BY_VOLUME_ID: Final = "PersistentVolumes by the id of their volume"
Readings = dict[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFlags(SidecarFlags):
    csi_address: Endpoint = flag(
        parse_endpoint,
        default="/run/orlop/controller.sock",
        metavar="ADDRESS",
        help="Address that the controller service is served on; the provisioner of this process calls it there.",
    )
    driver_name: str = flag(
        text,
        name="drivername",
        default=f"csi.{GROUP}",
        metavar="NAME",
        check=driver_name_problem,
        help="The driver's name, as StorageClasses write it.",
    )
    timeout: Duration = flag(
        Duration.parse,
        default="10s",
        metavar="DURATION",
        check=is_some_time,
        help="Timeout of one call of the controller service.",
    )

    static: StaticMasterFlags = group(StaticMasterFlags)

    def cross_check(self) -> Iterator[str]:
        yield from SidecarFlags.cross_check(self)
        if objection := folder_exists(self.csi_address):
            yield f"--csi-address cannot be {str(self.csi_address)!r}: {objection}."


def lease_of(driver: str) -> str:
    return f"orlop-controller-{driver}"


class DriveControl:
    """The controller of drives: its service, served from the start, and its work while this process leads."""

    def __init__(self, runtime: Runtime, *, serves_static: bool = False) -> None:
        """Create it. `serves_static`: a configuration of static volumes is named."""
        self.leader_service = LeaderService()
        self._catalog: DriveCatalog | None = None
        self._static_metrics = _static_metrics(runtime) if serves_static else None
        gauge, labels = runtime.metrics.gauge_from, ("drive", "node")
        gauge("orlop_drive_capacity_bytes", "Bytes that volumes can have on a drive.", self._capacity, labels)
        gauge("orlop_drive_allocated_bytes", "Sum of the allocations of a drive.", self._allocated, labels)
        gauge("orlop_drive_volumes", "Number of volumes that a drive lists.", self._volumes, labels)
        gauge("orlop_drive_state", "1 for the state of a drive, else 0.", self._states, (*labels, "state"))

    async def run(self, session: SidecarSession[ControllerFlags], caches: Caches) -> None:
        volumes = caches[PERSISTENT_VOLUME]
        volumes.add_index(BY_VOLUME_ID, partial(_volume_ids, session.driver.driver))
        keys = KeyedLock()

        def is_used(volume_id: str) -> bool:
            return keys.holder(volume_id) is not None or any(volumes.cache.by_index(BY_VOLUME_ID, volume_id))

        async with self._catalog_of(session, caches) as catalog:
            reservations = DriveReservations(session.kube, catalog, session.runtime, session.may_act)
            register = VolumeRegister(session.kube, catalog, session.may_act)
            space = SpaceReturn(
                catalog,
                reservations,
                register,
                is_used=is_used,
                runtime=session.runtime,
                events=session.events,
                queue_metrics=session.queue_metrics,
            )
            service = DriveControllerService(catalog, reservations, register, keys, session.runtime, session.events)
            async with TaskGroup() as tasks:
                tasks.start(space.run(), name="return of space")
                if session.settings.static.static_config:
                    tasks.start(self._serve_static_volumes(session), name="static volumes")
                with self.leader_service.leading(service):
                    await run_provisioner(session, caches, provisioner_settings(session))
                space.stop()

    async def _serve_static_volumes(self, session: SidecarSession[ControllerFlags]) -> None:
        # Imported only with a configuration: the master and its imports take 1.4 MB.
        from orlop.processes.static_master_wiring import (  # noqa: PLC0415
            MasterServices,
            configuration_watch,
            run_static_master,
        )

        assert self._static_metrics is not None  # noqa: S101 - a configuration is named
        flags = session.settings.static
        services = MasterServices(
            runtime=session.runtime,
            kube=session.kube,
            events=session.events,
            metrics=self._static_metrics,
            queue_metrics=session.queue_metrics,
            may_act=session.may_act,
            stop=session.stop,
        )
        await run_static_master(flags, configuration_watch(flags, session.runtime), services)

    @asynccontextmanager
    async def _catalog_of(
        self, session: SidecarSession[ControllerFlags], caches: Caches
    ) -> AsyncIterator[DriveCatalog]:
        async with session.informers.using(Watched(VOLUME, transform=slim_volume)) as volumes:
            await volumes.wait_synced()
            self._catalog = catalog = DriveCatalog(caches[DRIVE], volumes, session.runtime.log, session.events)
            try:
                yield catalog
            finally:
                catalog.close()
                self._catalog = None

    # ---- metrics -------------------------------------------------------------------------------------------------

    def _capacity(self) -> Readings:
        return {(drive.name, drive.node_name): drive.capacity for drive in self._drives()}

    def _allocated(self) -> Readings:
        return {(drive.name, drive.node_name): drive.capacity - drive.free for drive in self._drives()}

    def _volumes(self) -> Readings:
        return {(drive.name, drive.node_name): len(drive.allocations) for drive in self._drives()}

    def _states(self) -> Readings:
        return {
            (drive.name, drive.node_name, state.value): float(drive.state is state)
            for drive in self._drives()
            for state in DriveState
        }

    def _drives(self) -> Iterable[DriveFacts]:
        return self._catalog.drives() if self._catalog is not None else ()


def _static_metrics(runtime: Runtime) -> MasterMetrics:
    from orlop.static_pv.master_metrics import MasterMetrics  # noqa: PLC0415 - only where static volumes are served

    return MasterMetrics(runtime.metrics)


def provisioner_settings(session: SidecarSession[ControllerFlags]) -> ProvisionerSettings:
    """Return the settings that our driver needs: a volume is on the node of its pod, and knows its claim."""
    flags = session.settings
    return ProvisionerSettings(
        driver=session.driver.driver,
        identity=provisioner_identity(session),
        claim_metadata=True,
        topology=TopologyMode(strict=True, immediate=True),
        timeout=flags.timeout.seconds,
        workers=flags.worker_threads,
        retry_start=flags.retry_interval_start.seconds,
        retry_most=flags.retry_interval_max.seconds,
    )


def _volume_ids(driver: str, volume: CachedObject) -> Iterable[str]:
    source = csi_source(volume)
    return (str(source.get("volumeHandle")),) if source.get("driver") == driver else ()


def controller_sidecar(control: DriveControl) -> Sidecar[ControllerFlags]:
    return Sidecar(
        name="controller",
        summary="Creates, expands and deletes volumes on drives, for the whole cluster.",
        flags=ControllerFlags,
        event_source="orlop-controller",
        lease_of=lease_of,
        kinds=(PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, STORAGE_CLASS, DRIVE),
        run=control.run,
    )


async def run(settings: ControllerFlags, runtime: Runtime, stop: asyncio.Event) -> None:
    control = DriveControl(runtime, serves_static=bool(settings.static.static_config))
    name = settings.driver_name
    kinds = (ServiceType.CONTROLLER_SERVICE, ServiceType.VOLUME_ACCESSIBILITY_CONSTRAINTS)
    identity = IdentityService(DriverIdentity(name, __version__, kinds), _is_ready)
    interceptor = CallInterceptor(
        {**methods_of(identity), **control.leader_service.methods()},
        driver_name=name,
        log=runtime.log.bind(driver=name),
        metrics=runtime.metrics,
        clock=runtime.clock,
        new_id=request_ids(runtime.random),
    )
    grace = settings.timeout.seconds
    async with serving(settings.csi_address, interceptor, grace=grace, log=runtime.log) as bound:
        log_example_call(bound, runtime.log)
        await run_life(controller_sidecar(control), settings, runtime, stop)


async def _is_ready() -> bool:
    """Report that the service can be called, on each replica: calls of one that does not lead are UNAVAILABLE."""
    return True


DAEMON: Final = Daemon(
    "orlop controller",
    "Creates, expands and deletes volumes on drives, for the whole cluster.",
    ControllerFlags,
    lambda settings: f"orlop controller {__version__}\n" if settings.version else None,
)


def main(arguments: Sequence[str]) -> int:
    return run_daemon(DAEMON, arguments, run)
