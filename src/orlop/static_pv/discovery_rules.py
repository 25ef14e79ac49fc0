"""Decide which entries of the class folders are offered as volumes, and why the others are not. Pure.

What is listed stays listed as long as its disk is there. Where two entries would be the same PersistentVolume (the name
is a hash of 32 bits), or have the same disk behind them, the one that is listed already wins, else the first in the
order of classes and names: a new entry must never change what an existing volume means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind, overlaps
from orlop.records.api_record import LONGEST_NAME, LONGEST_TEXT
from orlop.records.provisioner_status import MOST_DISKS, MOST_PROBLEMS, DiskProblem, LocalVolume
from orlop.static_pv.configuration import StaticClass, StaticConfiguration
from orlop.static_pv.naming_rules import capacity_text, entry_fault, matches, rounded_capacity, volume_name

BLOCK: Final = "Block"
FILE_SYSTEM: Final = "Filesystem"
INVALID_NAME: Final = "InvalidName"
UNREADABLE: Final = "Unreadable"
NOT_MOUNTED: Final = "NotMounted"
NOT_A_DISK: Final = "NotADisk"
WRONG_MODE: Final = "WrongMode"
IN_USE: Final = "InUse"
EMPTY: Final = "Empty"
NAME_COLLISION: Final = "NameCollision"
SAME_DISK: Final = "SameDisk"
TOO_MANY: Final = "TooManyDisks"
FOLDER_UNREADABLE: Final = "FolderUnreadable"


@dataclass(frozen=True, slots=True)
class ClassListing:
    """The entries of one class folder that its pattern wants; `why` if the folder could not be read."""

    storage_class: str
    entries: tuple[DiskEntry, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveredDisk:
    """A disk that is offered: what is listed, and the entry behind it."""

    volume: LocalVolume
    entry: DiskEntry


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of one pass."""

    disks: tuple[DiscoveredDisk, ...] = ()
    kept: tuple[LocalVolume, ...] = ()
    """Volumes of folders that could not be read: nothing is known of them, so they stay as they were."""
    problems: tuple[DiskProblem, ...] = ()

    @property
    def volumes(self) -> tuple[LocalVolume, ...]:
        return tuple(sorted((*(each.volume for each in self.disks), *self.kept), key=lambda each: each.name))

    @property
    def unread_classes(self) -> tuple[str, ...]:
        return tuple(each.storage_class for each in self.problems if each.reason == FOLDER_UNREADABLE)


def wants_entry(static_class: StaticClass, name: str) -> bool:
    """Return whether the class looks at an entry of this name. An unfit name is wanted, so that it is reported."""
    return bool(entry_fault(name)) or matches(static_class.name_pattern, name)


def discovered(
    configuration: StaticConfiguration, listings: Iterable[ClassListing], node: str, listed: Iterable[LocalVolume] = ()
) -> Discovery:
    """Return what is offered, and the problems of everything else. `listed` is what was offered before."""
    before = {each.name: each for each in listed}
    candidates: list[DiscoveredDisk] = []
    problems: list[DiskProblem] = []
    kept: list[LocalVolume] = []
    for listing in listings:
        static_class = configuration.of_class(listing.storage_class)
        if static_class is None:
            continue
        if listing.why:
            problems.append(_problem(listing.storage_class, "", FOLDER_UNREADABLE, listing.why))
            kept += [each for each in before.values() if each.storage_class == listing.storage_class]
        for entry in listing.entries:
            judged = _judged(static_class, entry, node, before)
            if isinstance(judged, DiskProblem):
                problems.append(judged)
            else:
                candidates.append(judged)
    return _without_collisions(candidates, tuple(kept), problems, before)


def _judged(
    static_class: StaticClass, entry: DiskEntry, node: str, before: Mapping[str, LocalVolume]
) -> DiscoveredDisk | DiskProblem:
    """Return the disk that an entry is, or why it is none, as far as the entry alone decides."""
    if fault := entry_fault(entry.name):
        return _problem(static_class.name, ascii(entry.name), INVALID_NAME, f"The name cannot be listed: {fault}.")
    stated = static_class.stated_size(entry.name)
    if refusal := _refusal(static_class, entry, stated):
        reason, why = refusal
        return _problem(static_class.name, entry.name, reason, why)
    volume = _volume(static_class, entry, node, stated if entry.kind is EntryKind.FOLDER else entry.bytes)
    was_listed = _is_same_entry(before.get(volume.name), volume)
    # Once it is a volume, its own pods use it, and what they make of it must not unlist it.
    if entry.used_by and not was_listed:
        return _problem(static_class.name, entry.name, IN_USE, f"It is not offered: {'; '.join(entry.used_by)}.")
    return DiscoveredDisk(volume, entry)


def _refusal(static_class: StaticClass, entry: DiskEntry, stated: int) -> tuple[str, str] | None:
    match entry.kind:
        case EntryKind.UNREADABLE:
            return UNREADABLE, f"It cannot be read: {entry.why}."
        case EntryKind.OTHER:
            return NOT_A_DISK, f"It is {entry.why or entry.kind.value}: mount a disk there, or link a block device."
        case EntryKind.FOLDER if not stated:
            return NOT_MOUNTED, (
                f"Nothing is mounted there: mount a disk, or name its size in the class's 'directories' "
                f"(storageClassMap[{static_class.name}].directories)."
            )
        case EntryKind.MOUNT | EntryKind.FOLDER if static_class.volume_mode == BLOCK:
            return WRONG_MODE, f"It is {entry.kind.value}, and volumes of the class are block devices."
        case EntryKind.MOUNT | EntryKind.DEVICE if entry.bytes <= 0:
            return EMPTY, "It has no size."
    return None


def _volume(static_class: StaticClass, entry: DiskEntry, node: str, size: int) -> LocalVolume:
    capacity = rounded_capacity(size)
    return LocalVolume(
        name=volume_name(entry.name, node, static_class.name),
        storage_class=static_class.name,
        entry=entry.name,
        capacity_bytes=capacity,
        capacity=capacity_text(capacity),
        volume_mode=BLOCK if static_class.volume_mode == BLOCK else FILE_SYSTEM,
        device=entry.kind is EntryKind.DEVICE,
        file_system=entry.file_system[:LONGEST_NAME],
        identity=entry.recognized_by[:LONGEST_NAME],
    )


def _without_collisions(
    candidates: list[DiscoveredDisk],
    kept: tuple[LocalVolume, ...],
    problems: list[DiskProblem],
    before: Mapping[str, LocalVolume],
) -> Discovery:
    """Choose among entries that exclude each other."""

    def order(disk: DiscoveredDisk) -> tuple[bool, str, str]:
        volume = disk.volume
        return not _is_same_entry(before.get(volume.name), volume), volume.storage_class, volume.entry

    chosen: dict[str, DiscoveredDisk] = {}
    by_disk: dict[str, list[DiscoveredDisk]] = {}
    names = {each.name: each for each in kept}
    for disk in sorted(candidates, key=order):
        volume = disk.volume
        if (other := names.get(volume.name)) is not None:
            message = f"Its name {volume.name} is that of {_of(other)} too: rename the entry."
            problems.append(_problem(volume.storage_class, volume.entry, NAME_COLLISION, message))
        elif (same := _same_disk(disk, by_disk)) is not None:
            message = f"It is, or is a part of, the disk of {_of(same.volume)}: remove one of them."
            problems.append(_problem(volume.storage_class, volume.entry, SAME_DISK, message))
        elif len(chosen) + len(kept) >= MOST_DISKS:
            message = f"A node has at most {MOST_DISKS} static volumes."
            problems.append(_problem(volume.storage_class, volume.entry, TOO_MANY, message))
        else:
            chosen[volume.name], names[volume.name] = disk, volume
            for number in _numbers(disk.entry):
                by_disk.setdefault(number, []).append(disk)
    disks = tuple(chosen[name] for name in sorted(chosen))
    problems.sort(key=lambda each: (each.reason != FOLDER_UNREADABLE, each.storage_class, each.entry, each.reason))
    return Discovery(disks, kept, tuple(problems[:MOST_PROBLEMS]))


def _same_disk(disk: DiscoveredDisk, by_disk: Mapping[str, list[DiscoveredDisk]]) -> DiscoveredDisk | None:
    near = (other for number in _numbers(disk.entry) for other in by_disk.get(number, ()))
    return next((other for other in near if overlaps(disk.entry, other.entry)), None)


def _numbers(entry: DiskEntry) -> tuple[str, ...]:
    """Return the numbers of the devices under which entries that may overlap with this one are found."""
    return tuple({number for number in (entry.place.partition("/")[0], entry.whole_disk) if number})


def _is_same_entry(one: LocalVolume | None, other: LocalVolume) -> bool:
    return one is not None and (one.storage_class, one.entry) == (other.storage_class, other.entry)


def _of(volume: LocalVolume) -> str:
    return f"the entry {volume.entry!r} of the class {volume.storage_class}"


def _problem(storage_class: str, entry: str, reason: str, message: str) -> DiskProblem:
    return DiskProblem(
        storage_class=storage_class, reason=reason, entry=entry[: 4 * LONGEST_NAME], message=message[:LONGEST_TEXT]
    )
