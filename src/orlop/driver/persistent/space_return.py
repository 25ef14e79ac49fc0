"""Return the space of volumes whose data is gone, and restore allocations that Drive objects have lost.

Order for a deleted Volume: its object is deleted, and kept by our finalizer → the node erases the data and reports it →
the allocation is removed → the finalizer is removed. Each step is decided on the current objects, so the next process
continues after a process that was killed at any step.

Before allocations are restored, the drive is read and then its Volumes: space that returns in between moves the drive's
generation, and the patch fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.drive_choice_rules import DriveFacts
from orlop.driver.persistent.drive_reservations import DriveReservations
from orlop.driver.persistent.reservation_rules import volume_to_find
from orlop.driver.persistent.space_return_rules import (
    UNKNOWN_SECONDS,
    CheckAgain,
    DeleteDriveObject,
    DeleteVolumeObject,
    FindVolume,
    RemoveStray,
    RestoreAllocations,
    ReturnSpace,
    next_drive_step,
    next_volume_step,
    unknown_allocations,
)
from orlop.driver.persistent.volume_register import VolumeRegister
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.objects import ObjectName
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, ReconcileLoop, RetryAfter, WorkerPool
from orlop.kube.queue.workqueue import Workqueue
from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics
from orlop.records.drive import DRIVE, Allocation
from orlop.records.volume import DriveVolumeSpec

DRIVES: Final = "drives"
VOLUMES: Final = "drive-volumes"
WORKERS: Final = 10
BACKOFF: Final = Backoff(initial=1.0, factor=2.0, cap=300.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class SpaceKey:
    """The name of a Drive or a Volume, which differ by their pool."""

    pool: str
    name: str

    def __str__(self) -> str:
        return self.name


class SpaceReturn:
    """`is_used` returns whether a call is working on a volume, or a PersistentVolume names it."""

    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        catalog: DriveCatalog,
        reservations: DriveReservations,
        volumes: VolumeRegister,
        *,
        is_used: Callable[[str], bool],
        runtime: Runtime,
        events: EventRecorder,
        queue_metrics: WorkqueueMetrics,
    ) -> None:
        self._catalog = catalog
        self._reservations = reservations
        self._volumes = volumes
        self._is_used = is_used
        self._clock = runtime.clock
        self._log = runtime.log
        self._events = events
        self._unknown_since: dict[tuple[str, str], float] = {}
        """By drive and volume: when the allocation was first seen without a volume, in elapsed time."""
        self._queue: Workqueue[SpaceKey] = Workqueue(
            (DRIVES, VOLUMES), clock=runtime.clock, random=runtime.random, backoff=BACKOFF, metrics=queue_metrics
        )
        pools = (
            WorkerPool(DRIVES, WORKERS, partial(_expecting_errors, self._reconcile_drive)),
            WorkerPool(VOLUMES, WORKERS, partial(_expecting_errors, self._reconcile_volume)),
        )
        self._loop = ReconcileLoop(self._queue, pools, clock=runtime.clock, log=runtime.log)

    async def run(self) -> None:
        drives, volumes = self._catalog.caches
        removers = (
            drives.add_listener(self._drive_changed, resync=UNKNOWN_SECONDS),
            volumes.add_listener(self._volume_changed),
        )
        try:
            await self._loop.run()
        finally:
            for remove in removers:
                remove()

    def stop(self) -> None:
        self._loop.stop()

    def _drive_changed(self, name: ObjectName) -> None:
        self._queue.add(DRIVES, SpaceKey(DRIVES, name.name))

    def _volume_changed(self, name: ObjectName) -> None:
        self._queue.add(VOLUMES, SpaceKey(VOLUMES, name.name))
        # The drive is checked too: it may not list this volume, or list one of which nothing else is known now.
        drives = [drive.name for drive in self._catalog.holders(name.name)]
        if (volume := self._catalog.volume(name.name)) is not None:
            drives.append(volume.spec.drive)
        for drive in drives:
            self._queue.add(DRIVES, SpaceKey(DRIVES, drive))

    # ---- volumes -------------------------------------------------------------------------------------------------

    async def _reconcile_volume(self, key: SpaceKey) -> Outcome:
        volume = self._catalog.volume(key.name)
        if volume is None:
            return Done()
        match next_volume_step(volume):
            case DeleteVolumeObject():
                await self._volumes.delete(volume)
                return RetryAfter(0.0) if volume.is_erased else Done()
            case ReturnSpace():
                # From the server: an earlier Volume of the name may have been erased, and not this one.
                current = await self._volumes.read(key.name)
                if current is None or not isinstance(next_volume_step(current), ReturnSpace):
                    return RetryAfter(0.0)
                await self._reservations.release(current.spec.drive, key.name)
                await self._volumes.remove_finalizer(current)
                self._log.info("space returned", volume=key.name, drive=current.spec.drive, bytes=current.spec.bytes)
        return Done()

    # ---- drives --------------------------------------------------------------------------------------------------

    async def _reconcile_drive(self, key: SpaceKey) -> Outcome:
        drive = self._catalog.get(key.name)
        if drive is None:
            return Done()
        unknown = unknown_allocations(drive, partial(self._is_known, key.name))
        elsewhere = {each.volume for each in unknown if self._catalog.volume(each.volume) is not None}
        unknown_for = self._unknown_for(drive, unknown)
        match next_drive_step(drive, self._catalog.volumes_on(key.name), unknown_for, elsewhere):
            case RestoreAllocations():
                await self._restore(drive)
                return Done()
            case FindVolume(allocation):
                self._log.warning("allocation has no volume; asking its node", volume=allocation.volume, drive=key.name)
                what = f"No Volume is known for the allocation {allocation.volume}"
                note = f"{what}: its node is asked for its data, and without any the space returns"
                self._events.warning(_reference(drive), "AllocationWithoutVolume", note)
                await self._volumes.create(volume_to_find(drive, allocation))
                return RetryAfter(0.0)
            case RemoveStray(allocation):
                await self._remove_stray(drive, allocation)
                return RetryAfter(0.0)
            case DeleteDriveObject():
                await self._reservations.delete_drive(drive)
                self._log.info("removed drive deleted", drive=drive.name, node=drive.node_name)
            case CheckAgain(seconds):
                return RetryAfter(seconds)
        return Done()

    async def _restore(self, drive: DriveFacts) -> None:
        async def volumes_on_it() -> Mapping[str, DriveVolumeSpec]:
            current = await self._volumes.list_of(drive.node_name)
            return {each.name: each.spec for each in current if each.spec.drive == drive.name and each.holds_space}

        restored = await self._reservations.restore(drive.name, volumes_on_it)
        if restored:
            self._log.info("allocations restored", drive=drive.name, node=drive.node_name, volumes=restored)
            self._events.normal(
                _reference(drive), "AllocationsRestored", f"Restored the allocations of {restored} volumes"
            )

    async def _remove_stray(self, drive: DriveFacts, allocation: Allocation) -> None:
        # From the server: the cache may have an earlier Volume of the name.
        volume = await self._volumes.read(allocation.volume)
        if volume is None or volume.spec.drive == drive.name:
            return
        await self._reservations.release(drive.name, allocation.volume)
        where = {"drive": drive.name, "placed_on": volume.spec.drive}
        self._log.warning("reservation removed; another drive has its volume", volume=allocation.volume, **where)
        note = f"Removed the reservation of {allocation.volume}: the drive {volume.spec.drive} has this volume"
        self._events.normal(_reference(drive), "ReservationRemoved", note)

    def _is_known(self, drive: str, volume_id: str) -> bool:
        volume = self._catalog.volume(volume_id)
        return self._is_used(volume_id) if volume is None else volume.spec.drive == drive

    def _unknown_for(self, drive: DriveFacts, unknown: tuple[Allocation, ...]) -> dict[Allocation, float]:
        now = self._clock.elapsed()
        names = {each.volume for each in unknown}
        for seen in [seen for seen in self._unknown_since if seen[0] == drive.name and seen[1] not in names]:
            del self._unknown_since[seen]
        return {each: now - self._unknown_since.setdefault((drive.name, each.volume), now) for each in unknown}


def _reference(drive: DriveFacts) -> ObjectReference:
    return ObjectReference(DRIVE.api_version, DRIVE.kind, drive.name, uid=drive.uid)


async def _expecting_errors(reconcile: Callable[[SpaceKey], Awaitable[Outcome]], key: SpaceKey) -> Outcome:
    """Reconcile; a CsiError, such as one for a drive that changes all the time, is a failure to retry."""
    try:
        return await reconcile(key)
    except CsiError as error:
        return Failed(error)
