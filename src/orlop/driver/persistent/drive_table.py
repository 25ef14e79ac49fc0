"""The drives of this node by id: the open ones, and why each of the others is not open.

`drive_watch` keeps the table; volumes and the status of drives read it. A drive is used inside `using`: its root stays
open until the last user has left, even if the drive is lost meanwhile, so no descriptor can come to mean another
folder.

All methods are called on the event loop; users may pass the drive to their threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from orlop.csi.error_codes import NotFound, Unavailable
from orlop.host.drive_host import DriveFeatures, DriveRoot
from orlop.host.drive_volumes import DriveVolumes
from orlop.records.drive_record import DriveRecord, DriveState, DriveType

DriveListener: TypeAlias = Callable[[str], None]
"""Gets the id of a drive that changed, and reads the table itself. Must not block."""


@dataclass(frozen=True, slots=True)
class OpenDrive:
    """A drive that can be used: its record, its root and its volumes. They stay open until the last user has left."""

    record: DriveRecord
    place: DriveRoot
    volumes: DriveVolumes
    space: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    """Held by a thread that moves space from the reserve to an image, from the first step to the last. Otherwise
    `fit_reserve` would reserve again what the image is about to use."""

    @property
    def drive_id(self) -> str:
        return self.record.drive_id

    @property
    def root(self) -> int:
        return self.place.root

    @property
    def path(self) -> str:
        return self.place.path

    @property
    def features(self) -> DriveFeatures:
        return self.place.features

    @property
    def is_folder(self) -> bool:
        return self.record.type is DriveType.FOLDER

    def close(self) -> None:
        # The volumes first: their descriptors come from the root.
        self.volumes.close()
        self.place.close()


@dataclass(frozen=True, slots=True)
class DriveStanding:
    """The state of a drive, and the reason as a sentence unless it is Ready."""

    state: DriveState
    why: str = ""


@dataclass(eq=False, slots=True)
class _TableEntry:
    standing: DriveStanding
    drive: OpenDrive | None


@dataclass(eq=False, slots=True)
class DriveTable:
    _entries: dict[str, _TableEntry] = field(default_factory=dict)
    _users: dict[OpenDrive, int] = field(default_factory=dict)
    _stagings: Counter[str] = field(default_factory=Counter)
    """By drive: the calls under way that stage a volume."""
    _without_staging: set[str] = field(default_factory=set)
    _retired: set[OpenDrive] = field(default_factory=set)
    _listeners: list[DriveListener] = field(default_factory=list)

    # ---- for users -----------------------------------------------------------------------------------------------

    def get(self, drive_id: str) -> OpenDrive:
        """Return a drive that can be used, for this moment; threads and awaits need `using`.

        NotFound: this node has no such drive. Unavailable: it has, and the drive cannot be used now.
        """
        entry = self._entries.get(drive_id)
        if entry is None:
            raise NotFound(f"this node has no drive {drive_id}; 'orlop drives list' shows where it is")
        if entry.drive is None:
            raise Unavailable(f"the drive {drive_id} cannot be used: {entry.standing.why}")
        return entry.drive

    @contextmanager
    def using(self, drive_id: str) -> Iterator[OpenDrive]:
        """Return a drive and keep its root open in this context. Raises as `get` does."""
        drive = self.get(drive_id)
        with self.using_open(drive):
            yield drive

    @contextmanager
    def using_open(self, drive: OpenDrive) -> Iterator[None]:
        """Keep an open drive open in this context, even if it is lost meanwhile. Await nothing before it."""
        self._users[drive] = self._users.get(drive, 0) + 1
        try:
            yield
        finally:
            self._users[drive] -= 1
            self._close_unused(drive)

    @contextmanager
    def staging(self, drive_id: str) -> Iterator[OpenDrive]:
        """As `using`, for a call that stages a volume. Unavailable, too, while staging is prevented."""
        if drive_id in self._without_staging:
            raise Unavailable(f"the drive {drive_id} fails, and is being mounted again; try again")
        with self.using(drive_id) as drive:
            self._stagings[drive_id] += 1
            try:
                yield drive
            finally:
                self._stagings[drive_id] -= 1

    def standings(self) -> Mapping[str, DriveStanding]:
        """Return the state of every drive, by id."""
        return {drive_id: entry.standing for drive_id, entry in self._entries.items()}

    def open_drive(self, drive_id: str) -> OpenDrive | None:
        """Return a drive if it is open, for this moment; threads and awaits need `using_open`."""
        entry = self._entries.get(drive_id)
        return entry.drive if entry is not None else None

    def open_drives(self) -> tuple[OpenDrive, ...]:
        return tuple(entry.drive for entry in self._entries.values() if entry.drive is not None)

    def listen(self, listener: DriveListener) -> Callable[[], None]:
        """Call `listener` for every drive, then on each change. Return a function that ends it."""
        self._listeners.append(listener)
        for drive_id in tuple(self._entries):
            listener(drive_id)
        return lambda: self._listeners.remove(listener)

    # ---- for the watch -------------------------------------------------------------------------------------------

    def put(self, drive_id: str, standing: DriveStanding, drive: OpenDrive | None) -> None:
        """Set the state of a drive. `drive` is None if it cannot be used: an open one is closed after its last user."""
        entry = self._entries.get(drive_id)
        if entry is not None and (entry.standing, entry.drive) == (standing, drive):
            return
        self._entries[drive_id] = _TableEntry(standing, drive)
        if entry is not None and entry.drive is not drive:
            self._retire(entry.drive)
        self._notify(drive_id)

    @contextmanager
    def without_staging(self, drive_id: str) -> Iterator[bool]:
        """Prevent stagings on a drive in this context. False: one is under way already, and goes on."""
        self._without_staging.add(drive_id)
        try:
            yield not self._stagings[drive_id]
        finally:
            self._without_staging.discard(drive_id)

    def discard(self, drive_id: str) -> None:
        """Forget a drive that was removed."""
        entry = self._entries.pop(drive_id, None)
        if entry is not None:
            self._retire(entry.drive)
            self._notify(drive_id)

    def is_used(self, drive_id: str) -> bool:
        """Return whether a call uses the drive, or an earlier opening of it, at this moment."""
        return any(count and drive.drive_id == drive_id for drive, count in self._users.items())

    def close(self) -> None:
        """Close every drive, at the end of the process."""
        for drive_id in tuple(self._entries):
            self.discard(drive_id)

    def _retire(self, drive: OpenDrive | None) -> None:
        if drive is not None:
            self._retired.add(drive)
            self._close_unused(drive)

    def _close_unused(self, drive: OpenDrive) -> None:
        if self._users.get(drive):
            return
        self._users.pop(drive, None)
        if drive in self._retired:
            self._retired.discard(drive)
            drive.close()

    def _notify(self, drive_id: str) -> None:
        for listener in tuple(self._listeners):
            listener(drive_id)
