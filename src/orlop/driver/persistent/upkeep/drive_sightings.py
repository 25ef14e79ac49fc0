"""Find the drives in a survey of the node: by identity, with every place where each was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from orlop.driver.persistent.upkeep.drive_state_rules import DriveSighting
from orlop.host.drive_host import DriveSurvey, MountedDisk, SeenFolder
from orlop.records.drive_record import DriveRecord, DriveType, decode_drive
from orlop.records.record_format import UnreadableRecord


@dataclass(frozen=True, slots=True)
class ExpectedDrive:
    """A drive that has an object naming this node."""

    type: DriveType
    removing: bool = False
    path: str = ""
    """The folder that it was in when it was last reported."""
    capacity: int = 0
    """Its bytes for volumes, as last reported; 0 if they never were."""


@dataclass(frozen=True, slots=True)
class UnreadableFolder:
    """A folder that is, or was to become, a drive, and whose record cannot be read."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class SurveyedDrives:
    """The drives of a survey by id, and what else it has."""

    sightings: Mapping[str, DriveSighting] = field(default_factory=dict)
    foreign: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where drives are that are not this node's, by id: only adoption makes them ours."""
    unreadable: tuple[UnreadableFolder, ...] = ()


def sightings_of(
    survey: DriveSurvey, node_name: str, expected: Mapping[str, ExpectedDrive], trusted: frozenset[str]
) -> SurveyedDrives:
    """Return what a survey shows of each drive. `trusted` are the drives that this process made or adopted."""
    folders, unreadable = _folders(survey.folders, node_name, expected)
    sightings = {each.drive_id: each for each in _disks(survey, expected, trusted)}
    sightings |= {each.drive_id: each for each in folders}
    ours = {drive_id: each for drive_id, each in sightings.items() if each.is_ours}
    foreign = {drive_id: each.places for drive_id, each in sightings.items() if not each.is_ours}
    for drive_id, drive in expected.items():
        sighting = ours.get(drive_id) or DriveSighting(drive_id=drive_id, type=drive.type, is_ours=True)
        ours[drive_id] = replace(sighting, removing=drive.removing)
    return SurveyedDrives(ours, foreign, unreadable)


def _folders(
    folders: tuple[SeenFolder, ...], node_name: str, expected: Mapping[str, ExpectedDrive]
) -> tuple[list[DriveSighting], tuple[UnreadableFolder, ...]]:
    places: dict[str, list[str]] = defaultdict(list)
    own: set[str] = set()
    unreadable: list[UnreadableFolder] = []
    by_path = {drive.path: drive_id for drive_id, drive in expected.items() if drive.path}
    for each in folders:
        try:
            record = _folder_record(each)
        except UnreadableRecord as error:
            unreadable.append(UnreadableFolder(each.path, str(error)))
            # A damaged drive is there, and is no lost one: opening it shows the error.
            if (drive_id := by_path.get(each.path)) is not None:
                places[drive_id].append(each.path)
        else:
            places[record.drive_id].append(each.path)
            if record.node_name == node_name:
                own.add(record.drive_id)
    sightings = [
        DriveSighting(
            drive_id=drive_id, type=DriveType.FOLDER, places=tuple(paths), is_ours=drive_id in own | expected.keys()
        )
        for drive_id, paths in places.items()
    ]
    return sightings, tuple(unreadable)


def _folder_record(folder: SeenFolder) -> DriveRecord:
    if folder.record is None:
        raise UnreadableRecord(folder.why)
    record = decode_drive(folder.record)
    if record.type is not DriveType.FOLDER:
        raise UnreadableRecord("it is the root of a disk that is a drive, mounted by another program")
    return record


def _disks(
    survey: DriveSurvey, expected: Mapping[str, ExpectedDrive], trusted: frozenset[str]
) -> Iterator[DriveSighting]:
    names = {found.device.major_minor: found.device.name for found in survey.devices}
    unmounted: dict[str, list[str]] = defaultdict(list)
    for found in survey.devices:
        if found.device.content.drive:
            unmounted[found.device.content.drive].append(found.device.name)
    expected_disks = {drive_id for drive_id, drive in expected.items() if drive.type is DriveType.DISK}
    for drive_id in sorted({*unmounted, *survey.mounted, *survey.known, *expected_disks}):
        mounted = survey.mounted.get(drive_id)
        name = names.get(mounted.major_minor) if mounted is not None else None
        others = [each for each in unmounted[drive_id] if each != name]
        yield DriveSighting(
            drive_id=drive_id,
            type=DriveType.DISK,
            places=(*([name] if name is not None else []), *others),
            is_ours=drive_id in {*survey.known, *expected_disks, *trusted},
            mounted=mounted.path if mounted is not None else "",
            is_stale=mounted is not None and name is None,
            is_read_only=mounted is not None and mounted.is_read_only,
            wrong_options=mounted.wrong_options if mounted is not None else "",
            is_in_use=mounted is not None and _is_in_use(mounted, survey),
        )


def _is_in_use(drive: MountedDisk, survey: DriveSurvey) -> bool:
    """Return whether a volume is mounted from a drive, or the image of one is attached, in any mount namespace."""
    home = f"/{drive.drive_id}"
    for found in survey.devices:
        device = found.device
        if device.backing_file.startswith(f"{drive.path}/"):
            return True
        if device.major_minor == drive.major_minor and any(not each.endswith(home) for each in device.mount_points):
            return True
    return False
