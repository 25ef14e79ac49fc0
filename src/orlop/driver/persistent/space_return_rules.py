"""Decide how space on drives returns, and how lost allocations are restored. Pure.

    Volume   erased: return its space → remove our finalizer, after its object was deleted
             deleted through CSI, not erased yet: delete its object, which our finalizer keeps until it is erased
    Drive    does not list what is on it: restore allocations
             was removed, and its node has released it: delete its object
             has had an allocation without a volume for ten minutes: ask its node, by a Volume with `reservationOnly`
             has had an allocation for ten minutes whose Volume is on another drive: remove it

An allocation whose Volume is on another drive is left by a process that died, or lost its lease, between the two writes
of a creation, while the next leader created the volume elsewhere: no response has named it. One without a Volume is
left by a crash between these writes, or by a forced removal of the Volume. The controller cannot distinguish these two,
and the disk may hold the only copy of the data: only the node decides.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.driver.persistent.drive_choice_rules import DriveFacts
from orlop.driver.persistent.reservation_rules import PlacedVolume, missing_allocations
from orlop.records.drive import Allocation
from orlop.records.drive_record import DriveState
from orlop.records.volume import ERASE_FINALIZER, DriveVolumeSpec

UNKNOWN_SECONDS: Final = 600.0
"""How long an allocation may have no Volume: longer than the provisioner takes to repeat CreateVolume."""


class DeleteVolumeObject:
    """Request the deletion of the object; our finalizer keeps it until the data is erased."""


class ReturnSpace:
    """Remove the allocation; then our finalizer, or first the object if it is not being deleted."""


class LeaveVolume:
    """Nothing to do."""


SpaceStep = DeleteVolumeObject | ReturnSpace | LeaveVolume


def next_volume_step(volume: PlacedVolume) -> SpaceStep:
    is_over = volume.spec.erase or volume.is_erased
    if is_over and not volume.is_being_deleted:
        return DeleteVolumeObject()
    if volume.is_erased and ERASE_FINALIZER in volume.finalizers:
        return ReturnSpace()
    return LeaveVolume()


@dataclass(frozen=True, slots=True)
class RestoreAllocations:
    """Add the allocations that the object of the drive has lost."""

    missing: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class FindVolume:
    """Create a Volume for an allocation of which nothing else is known."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class RemoveStray:
    """Remove an allocation whose Volume is on another drive."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class CheckAgain:
    """Decide again after `seconds`: then an allocation has been unknown for long enough."""

    seconds: float


class DeleteDriveObject:
    """Delete the object of a drive that was removed: nothing is on it, and nothing uses it."""


class LeaveAllocations:
    """Nothing to do until something changes."""


DriveStep = RestoreAllocations | FindVolume | RemoveStray | CheckAgain | DeleteDriveObject | LeaveAllocations


def unknown_allocations(drive: DriveFacts, is_known: Callable[[str], bool]) -> tuple[Allocation, ...]:
    """Return the allocations without a volume: neither the cluster nor the drive's node has one of this name on it."""
    return tuple(
        each for name, each in drive.allocations.items() if name not in drive.unrecorded_names and not is_known(name)
    )


def next_drive_step(
    drive: DriveFacts,
    volumes: Mapping[str, DriveVolumeSpec],
    unknown_for: Mapping[Allocation, float],
    elsewhere: Container[str] = frozenset(),
) -> DriveStep:
    """Return the next step.

    `unknown_for`: for how many seconds some allocations have had no volume on this drive. `elsewhere`: the names among
    them of volumes that another drive has.
    """
    missing = missing_allocations(drive, volumes)
    if missing:
        return RestoreAllocations(missing)
    if drive.released and not drive.allocations:
        return DeleteDriveObject()
    due = [each for each, seconds in unknown_for.items() if seconds >= UNKNOWN_SECONDS]
    strays = [each for each in due if each.volume in elsewhere]
    # Only while the node reports what is on the drive: data under this name would be reported.
    if strays and drive.state is DriveState.READY:
        return RemoveStray(strays[0])
    if others := [each for each in due if each.volume not in elsewhere]:
        return FindVolume(others[0])
    if waiting := [seconds for seconds in unknown_for.values() if seconds < UNKNOWN_SECONDS]:
        return CheckAgain(UNKNOWN_SECONDS - max(waiting))
    return LeaveAllocations()
