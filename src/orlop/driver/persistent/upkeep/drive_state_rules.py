"""Decide the state of a drive, and what the node does with it next. Pure.

A sighting has all facts about one drive at one moment. `finding_of` returns the one fact that decides the state;
TRANSITIONS is the table from state and finding to the next state:

    finding         from none  Ready     Lost      Error     Removing
    WORKS           Ready      Ready     Ready     Ready     Ready
    RECOVERING      Error      Ready     Ready     Error     Error      an I/O error a short while ago
    GONE            Lost       Lost      Lost      Lost      Lost       no device, no folder
    FAILING         Error      Error     Error     Error     Error      I/O error of a probe or call, or no response
    DUPLICATES      Error      Error     Error     Error     Error      two devices or folders with one identity
    READ_ONLY       Error      Error     Error     Error     Error
    WRONG_OPTIONS   Error      Error     Error     Error     Error      mounted by another program, with other options
    UNUSABLE        Error      Error     Error     Error     Error      not mounted, damaged, or of another node
    REMOVAL         Removing   Removing  Removing  Removing  Removing   `spec.removing` is set

The state before matters only after an I/O error: a drive that fails again and again takes no volumes in between.
A drive that is not lost stays open while its volumes are in use: they can be unmounted, and often be read. A disk that
fails is unmounted and mounted again once nothing uses it, because a file system that has shut down after an error works
again only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from orlop.records.drive_record import DriveState, DriveType

RECOVERY_SECONDS: Final = 60.0
"""How long a drive must work after an I/O error before it is Ready again."""
CALL_RECOVERY_SECONDS: Final = 300.0
"""How long no call may fail before a drive that failed one is Ready again.

More than two minutes, the longest time until kubelet repeats a call: a disk may pass every probe and fail that call.
"""
BEING_REMOVED: Final = "It is being removed."
WAS_REMOVED: Final = "It was removed, and can be unplugged or used otherwise."
REMOUNT_ADVICE: Final = "It is mounted again when no pod uses its volumes any more"
CALL_ADVICE: Final = "It takes volumes again when no call has failed for five minutes"


class DriveFinding(Enum):
    """What decides the state of a drive."""

    WORKS = "works"
    RECOVERING = "recovering"
    GONE = "gone"
    FAILING = "failing"
    DUPLICATES = "duplicates"
    READ_ONLY = "read-only"
    WRONG_OPTIONS = "wrong options"
    UNUSABLE = "unusable"
    REMOVAL = "removal"


_READY, _LOST, _ERROR, _REMOVING = DriveState.READY, DriveState.LOST, DriveState.ERROR, DriveState.REMOVING
STATES: Final[tuple[DriveState | None, ...]] = (None, _READY, _LOST, _ERROR, _REMOVING)
_ROWS: Final[Mapping[DriveFinding, tuple[DriveState, ...]]] = {
    DriveFinding.WORKS: (_READY, _READY, _READY, _READY, _READY),
    DriveFinding.RECOVERING: (_ERROR, _READY, _READY, _ERROR, _ERROR),
    DriveFinding.GONE: (_LOST, _LOST, _LOST, _LOST, _LOST),
    DriveFinding.FAILING: (_ERROR, _ERROR, _ERROR, _ERROR, _ERROR),
    DriveFinding.DUPLICATES: (_ERROR, _ERROR, _ERROR, _ERROR, _ERROR),
    DriveFinding.READ_ONLY: (_ERROR, _ERROR, _ERROR, _ERROR, _ERROR),
    DriveFinding.WRONG_OPTIONS: (_ERROR, _ERROR, _ERROR, _ERROR, _ERROR),
    DriveFinding.UNUSABLE: (_ERROR, _ERROR, _ERROR, _ERROR, _ERROR),
    DriveFinding.REMOVAL: (_REMOVING, _REMOVING, _REMOVING, _REMOVING, _REMOVING),
}
TRANSITIONS: Final[Mapping[tuple[DriveState | None, DriveFinding], DriveState]] = {
    (state, finding): after for finding, row in _ROWS.items() for state, after in zip(STATES, row, strict=True)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveSighting:
    """All facts about one drive at one moment."""

    drive_id: str
    type: DriveType
    places: tuple[str, ...] = ()
    """Names of the devices, or paths of the folders, that have its identity; a mounted device among them."""
    is_ours: bool = False
    """It was mounted here before, was made here, or its object names this node. A folder is ours by its record."""
    mounted: str = ""
    """Where a disk is mounted."""
    is_stale: bool = False
    """What is mounted there is a device that is gone, even if another one has its identity now."""
    is_read_only: bool = False
    wrong_options: str = ""
    """A sentence, if its mount options differ from those that this process uses."""
    opened: str = ""
    """The path at which it is open in this process."""
    failing: str = ""
    """What the last probe found, as the end of a sentence."""
    failed_call: str = ""
    """How the drive failed a call within CALL_RECOVERY_SECONDS, as a sentence."""
    seconds_since_failure: float | None = None
    """None: no I/O error since it was opened."""
    is_in_use: bool = False
    """A volume on it is mounted, or its image is attached."""
    may_remount: bool = False
    """It responds with I/O errors, and was not mounted again a short while ago."""
    trouble: str = ""
    """Why the last attempt to mount, open or unmount it failed, as a sentence."""
    may_retry: bool = True
    """Enough time has passed since that attempt."""
    removing: bool = False
    """`spec.removing` of its object is set."""
    is_released: bool = False
    """Its record is marked as removed."""


# ---- state -----------------------------------------------------------------------------------------------------------


def finding_of(drive: DriveSighting) -> DriveFinding:  # noqa: C901, PLR0911 - one line for each finding, in their order
    """Return the first finding that applies: it decides the state."""
    if drive.removing:
        return DriveFinding.REMOVAL
    if not drive.places:
        return DriveFinding.GONE
    if len(drive.places) > 1:
        return DriveFinding.DUPLICATES
    if drive.failing:
        return DriveFinding.FAILING
    if not drive.opened or drive.is_stale:
        return DriveFinding.UNUSABLE
    if drive.is_read_only:
        return DriveFinding.READ_ONLY
    if drive.wrong_options:
        return DriveFinding.WRONG_OPTIONS
    if drive.trouble:
        return DriveFinding.UNUSABLE
    if drive.failed_call:
        return DriveFinding.FAILING
    if drive.seconds_since_failure is not None and drive.seconds_since_failure < RECOVERY_SECONDS:
        return DriveFinding.RECOVERING
    return DriveFinding.WORKS


def next_state(before: DriveState | None, drive: DriveSighting) -> DriveState:
    """Return the state of a drive after `before`; None: it had none yet."""
    return TRANSITIONS[before, finding_of(drive)]


def why_in_state(state: DriveState, drive: DriveSighting) -> str:  # noqa: PLR0911 - as above
    """Return why a drive has its state, as a sentence; empty for a drive that is Ready."""
    if state is DriveState.READY:
        return ""
    places = " and ".join(drive.places)
    what = "disk" if drive.type is DriveType.DISK else "folder"
    match finding_of(drive):
        case DriveFinding.REMOVAL:
            waits = drive.trouble or BEING_REMOVED
            return WAS_REMOVED if is_gone(drive) else waits
        case DriveFinding.GONE:
            # Also of a folder without its record: nothing else shows that it is the drive.
            thing = "disk" if drive.type is DriveType.DISK else "folder, or the file drive.json in it,"
            return f"Its {thing} is not there. {drive.trouble}".rstrip()
        case DriveFinding.DUPLICATES:
            return f"{places} have the same identity: remove all but one, or wipe the copies with 'wipefs --all'."
        case DriveFinding.FAILING:
            advice = f" {REMOUNT_ADVICE}." if drive.mounted and drive.is_in_use else ""
            advice = advice or ("" if drive.failing else f" {CALL_ADVICE}.")
            failure = drive.failing or drive.failed_call.rstrip(".")
            return f"Its {what} ({places}) fails: {failure}. The kernel's log (dmesg) has the reason.{advice}"
        case DriveFinding.READ_ONLY:
            return f"{drive.mounted} is mounted read-only: check the kernel's log (dmesg), then remount it writable."
        case DriveFinding.WRONG_OPTIONS:
            return drive.wrong_options
        case DriveFinding.UNUSABLE:
            return drive.trouble or f"Its {what} ({places}) is not open yet."
        case _:
            return f"Its {what} ({places}) failed a short while ago: it is watched until it has worked for a minute."


def is_gone(drive: DriveSighting) -> bool:
    """Return whether nothing on this node uses the drive any more."""
    return not (drive.opened or drive.mounted) and (drive.is_released or not drive.places)


# ---- what to do ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MountDrive:
    """Mount a disk at its folder."""

    device: str


@dataclass(frozen=True, slots=True)
class OpenDrivePlace:
    """Open a mounted disk, or a folder."""

    path: str


@dataclass(frozen=True, slots=True)
class CloseDrive:
    """Take the drive out of the table of open drives."""


@dataclass(frozen=True, slots=True)
class UnmountDrive:
    """Unmount a disk. `forget`: it is ours no more."""

    forget: bool = False


@dataclass(frozen=True, slots=True)
class RemountDrive:
    """Close and unmount a disk that fails, so that it is mounted anew."""


@dataclass(frozen=True, slots=True)
class ReleaseDrive:
    """Write into its record that the drive was removed; of a folder, remove the files of the drive."""


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """No step is needed, or none would help."""


UpkeepStep: TypeAlias = (
    MountDrive | OpenDrivePlace | CloseDrive | UnmountDrive | RemountDrive | ReleaseDrive | NothingToDo
)


def next_drive_step(drive: DriveSighting) -> UpkeepStep:
    """Return one step. The caller takes it, gathers the facts again, and asks for the next one."""
    if drive.trouble and not drive.may_retry:
        return NothingToDo()
    if _helps_remount(drive):
        return RemountDrive()
    if drive.removing or drive.is_released:
        return _removal_step(drive)
    if not drive.places or drive.is_stale or (drive.opened and drive.opened not in {drive.mounted, *drive.places}):
        # The root of a disk that is gone keeps its mount busy, and the disk cannot be mounted again.
        return CloseDrive() if drive.opened else UnmountDrive() if drive.mounted else NothingToDo()
    return NothingToDo() if drive.opened else _opening_step(drive)


def _helps_remount(drive: DriveSighting) -> bool:
    # Not while a volume is in use: the file system would stay as it is, and what is on it could not be unmounted.
    is_free = drive.mounted and not drive.is_in_use and not drive.is_stale
    return bool(drive.may_remount and is_free and len(drive.places) == 1 and not drive.is_released)


def _removal_step(drive: DriveSighting) -> UpkeepStep:
    """Release the drive: its record first, so that a kill in between is continued."""
    if drive.opened:
        return CloseDrive() if drive.is_released or drive.is_stale or not drive.places else ReleaseDrive()
    if drive.mounted and (drive.is_released or drive.is_stale or not drive.places):
        return UnmountDrive(forget=True)
    return NothingToDo() if drive.is_released else _opening_step(drive)


def _opening_step(drive: DriveSighting) -> UpkeepStep:
    if not drive.is_ours or not drive.places:
        return NothingToDo()
    if drive.mounted:
        return OpenDrivePlace(drive.mounted)
    # Of two devices with one identity neither is opened: only an admin knows which one is the drive.
    if len(drive.places) > 1:
        return NothingToDo()
    place = drive.places[0]
    return MountDrive(place) if drive.type is DriveType.DISK else OpenDrivePlace(place)
