"""Decide how space on drives returns, and how lost allocations are restored. Pure.

    Volume   erased: return its space → remove our finalizer, after its object was deleted
             deleted through CSI, not erased yet: delete its object, which our finalizer keeps until it is erased
    Drive    does not list what is on it: restore allocations
             was removed, and its node has released it: delete its object
             has had an allocation without a volume for ten minutes: ask its node, by a Volume with `reservationOnly`

An allocation without a Volume is left by a crash between the two writes of a creation, or by a forced removal of the
Volume. The controller cannot tell these apart, and the disk may hold the only copy of the data: only the node decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.driver.persistent.drive_choice_rules import DriveFacts
from orlop.driver.persistent.reservation_rules import PlacedVolume, missing_allocations
from orlop.records.drive import Allocation
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
class CheckAgain:
    """Decide again after `seconds`: then an allocation has been unknown for long enough."""

    seconds: float


class DeleteDriveObject:
    """Delete the object of a drive that was removed: nothing is on it, and nothing uses it."""


class LeaveAllocations:
    """Nothing to do until something changes."""


DriveStep = RestoreAllocations | FindVolume | CheckAgain | DeleteDriveObject | LeaveAllocations


def unknown_allocations(drive: DriveFacts, is_known: Callable[[str], bool]) -> tuple[Allocation, ...]:
    """Return the allocations without a volume: neither the cluster nor the node of the drive has one of this name."""
    return tuple(
        each for name, each in drive.allocations.items() if name not in drive.unrecorded_names and not is_known(name)
    )


def next_drive_step(
    drive: DriveFacts, volumes: Mapping[str, DriveVolumeSpec], unknown_for: Mapping[Allocation, float]
) -> DriveStep:
    """Return the next step. `unknown_for`: for how many seconds some allocations have had no volume."""
    missing = missing_allocations(drive, volumes)
    if missing:
        return RestoreAllocations(missing)
    if drive.released and not drive.allocations:
        return DeleteDriveObject()
    due = [each for each, seconds in unknown_for.items() if seconds >= UNKNOWN_SECONDS]
    if due:
        return FindVolume(due[0])
    if unknown_for:
        return CheckAgain(UNKNOWN_SECONDS - max(unknown_for.values()))
    return LeaveAllocations()
