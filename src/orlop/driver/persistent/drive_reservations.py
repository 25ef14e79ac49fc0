"""Reserve space on drives, and return it: the only writer of `spec.allocations`.

Order of a new volume: choose a drive → reserve, by one guarded patch → create the Volume object. After a crash in
between, the repeated call finds the allocation by the volume's name, or DeleteVolume returns it. Order of a deletion:
the data is erased → the allocation goes → the Volume's finalizer goes.

Within this process, one reservation at a time is made on a drive, after choosing again: without that, parallel calls
would all patch the drive with the most space, and all but one would fail. Another process is stopped by the guard of
the patch; then the drive is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import Aborted, AlreadyExists, OutOfRange, ResourceExhausted
from orlop.driver.persistent.drive_catalog import DriveCatalog
from orlop.driver.persistent.drive_choice_rules import (
    Chosen,
    DriveFacts,
    DrivePlacement,
    HeldByDrive,
    NoDrive,
    NoSuchSize,
    choose_drive,
    placement_on,
)
from orlop.driver.persistent.reservation_rules import (
    allocation_of,
    growth,
    missing_allocations,
    release,
    reservation,
    restoration,
)
from orlop.driver.persistent.volume_request_rules import WantedVolume
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.drive import DRIVE
from orlop.records.volume import DriveVolumeSpec

LONGEST_SECONDS: Final = 8.0
"""How long a call chooses again after conflicts: less than the shortest usual timeout of a sidecar, which is 10 s."""
LONGEST_PAUSE_SECONDS: Final = 0.05
"""Pause after a conflict, so that two processes do not change one drive in turn as fast as they can."""

ReadVolumes = Callable[[], Awaitable[Mapping[str, DriveVolumeSpec]]]
"""Reads the Volumes that a drive must list, by name."""
PatchOf = Callable[[DriveFacts], JsonPatch | None]


@dataclass(frozen=True, slots=True)
class Reserved:
    """The drive lists the volume, with this placement. `is_new`: by this call."""

    drive: DriveFacts
    placement: DrivePlacement
    is_new: bool


class DriveReservations:
    def __init__(
        self, kube: KubeClient, catalog: DriveCatalog, runtime: Runtime, may_act: Callable[[], None] = lambda: None
    ) -> None:
        """`may_act` raises if another process leads; it is called before each attempt of a write."""
        self._kube = kube.guarded(may_act)
        self._catalog = catalog
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log
        self._locks = KeyedLock()
        metrics = runtime.metrics
        self._choices = metrics.counter(
            "orlop_drive_choices_total", "Choices of a drive for a volume, by their answer.", ("answer",)
        )
        self._conflicts = metrics.counter(
            "orlop_drive_conflicts_total", "Patches of allocations that failed because the drive had changed."
        )

    async def reserve(self, wanted: WantedVolume) -> Reserved:
        """Return the drive that lists the volume, after reserving if none does."""
        deadline = self._clock.deadline(LONGEST_SECONDS)
        while True:
            choice = choose_drive(wanted, self._catalog.drives())
            self._choices.inc(type(choice).__name__)
            match choice:
                case HeldByDrive(drive, _):
                    # An earlier process may have returned the space after our cache saw it reserved.
                    await self.refresh(drive.name)
                    live = self._catalog.get(drive.name)
                    if live is not None and (held := live.allocations.get(wanted.volume_id)) is not None:
                        return Reserved(live, _placement_again(wanted, live, held.bytes), is_new=False)
                case NoSuchSize(why):
                    raise OutOfRange(why)
                case NoDrive(why):
                    raise ResourceExhausted(why)
                case Chosen(drive, placement):
                    reserved = await self._reserve_on(wanted, drive, placement)
                    if reserved is not None:
                        return reserved
            if deadline.passed():
                raise Aborted(f"other requests changed the drives during {LONGEST_SECONDS:g} s: try again")

    async def _reserve_on(self, wanted: WantedVolume, drive: DriveFacts, placement: DrivePlacement) -> Reserved | None:
        async with self._locks.hold(drive.name, f"reserving {wanted.volume_id}"):
            # A reservation that held the lock before may have used the space.
            if choose_drive(wanted, self._catalog.drives()) != Chosen(drive, placement):
                return None
            after = await self._patch(drive, reservation(drive, allocation_of(wanted, placement.bytes)))
        if after is None:
            return None
        self._log.info(
            "space reserved", volume=wanted.volume_id, drive=drive.name, node=drive.node_name, bytes=placement.bytes
        )
        return Reserved(after, placement, is_new=True)

    async def grow(self, drive: str, volume_id: str, size: int) -> None:
        """Make an allocation at least this large."""

        def patch_of(facts: DriveFacts) -> JsonPatch | None:
            held = facts.allocations.get(volume_id)
            if held is None:
                raise Aborted(f"the drive {drive} does not list the volume {volume_id} yet: try again")
            more = size - held.bytes
            if more <= 0:
                return None
            if not facts.restored:
                # What seems free may belong to a volume that the object does not list yet.
                raise Aborted(f"the allocations of the drive {drive} are not restored yet: try again")
            if size > facts.capacity:
                raise OutOfRange(f"{_text(size)} is more than the drive {drive} has: {_text(facts.capacity)}")
            if more > facts.free:
                raise ResourceExhausted(
                    f"the drive {drive} has {_text(max(0, facts.free))} free, and {_text(more)} more are asked for"
                )
            return growth(facts, volume_id, size)

        if not await self._change(drive, patch_of):
            # A volume that grew now would be restored in its new size, into space that other volumes have.
            raise Aborted(f"the drive {drive} has no object at the moment: try again when its node has made it again")

    async def release(self, drive: str, volume_id: str) -> None:
        """Return the space of a volume whose data is gone. Succeeds if the drive or the allocation is gone."""
        await self._change(drive, lambda facts: release(facts, volume_id))

    async def restore(self, name: str, read_volumes: ReadVolumes) -> int:
        """Add the allocations that the object of a drive has lost; return how many."""
        async with self._locks.hold(name, "restoring allocations"):
            await self.refresh(name)
            drive = self._catalog.get(name)
            missing = missing_allocations(drive, await read_volumes()) if drive is not None else ()
            if drive is None or not missing:
                return 0
            if await self._patch(drive, restoration(drive, missing)) is None:
                raise Aborted(f"the drive {name} was changed by others: try again")
            return len(missing)

    async def delete_drive(self, drive: DriveFacts) -> None:
        """Delete the object of a drive that was removed, unless it has changed. Raises `Conflict`."""
        with suppress(NotFound):
            await self._kube.delete(
                DRIVE, ObjectName(None, drive.name), DeleteOptions(uid=drive.uid, version=drive.version)
            )

    async def _change(self, name: str, patch_of: PatchOf) -> bool:
        """Write what `patch_of` decides on the current drive; return False if there is no such drive."""
        deadline = self._clock.deadline(LONGEST_SECONDS)
        async with self._locks.hold(name, "changing an allocation"):
            # Not from the cache: it may lack an allocation that another process has just made.
            await self.refresh(name)
            while (drive := self._catalog.get(name)) is not None:
                patch = patch_of(drive)
                if patch is None or await self._patch(drive, patch) is not None:
                    return True
                if deadline.passed():
                    raise Aborted(f"the drive {name} was changed by others during {LONGEST_SECONDS:g} s: try again")
            return False

    async def _patch(self, drive: DriveFacts, patch: JsonPatch) -> DriveFacts | None:
        """Return the drive after a patch; None if it has changed meanwhile, and was read again."""
        try:
            self._catalog.put(await self._kube.patch(DRIVE, ObjectName(None, drive.name), patch))
        except (PatchRefused, Conflict, NotFound):
            self._conflicts.inc()
            await self._clock.sleep(self._random.uniform(0.0, LONGEST_PAUSE_SECONDS))
            await self.refresh(drive.name)
            return None
        return self._catalog.get(drive.name)

    async def refresh(self, name: str) -> None:
        """Read a drive from the API server."""
        try:
            self._catalog.put(await self._kube.get(DRIVE, ObjectName(None, name)), is_live=True)
        except NotFound:
            self._catalog.forget(name)


def _placement_again(wanted: WantedVolume, drive: DriveFacts, size: int) -> DrivePlacement:
    """Return the placement of a volume whose space an earlier call reserved; its Volume object does not exist."""
    if not wanted.size.holds(size):
        raise AlreadyExists(f"the drive {drive.name} has {size} bytes reserved for {wanted.name}, of another request")
    placement = placement_on(wanted.storage, wanted.size, drive.offer)
    if placement is None:
        raise Aborted(f"the drive {drive.name} cannot hold the volume it has reserved space for; delete the claim")
    return DrivePlacement(placement.backing, placement.file_system, size)


def _text(size: int) -> str:
    return str(Quantity.of(size))
