"""The entries of a folder of disks, as values. Pure.

`place` names the storage behind an entry: `8:16` is the block device of this number, `8:16/data` the folder /data of
the file system on it. Two entries with the same place, or of which one contains the other, are the same disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

_LINK_OF_PLACE: Final = "/"
DEVICE_SESSION: Final = "sequence"
FOLDER_SESSION: Final = "folder"
SESSIONS: Final = (DEVICE_SESSION, FOLDER_SESSION)
"""What a disk is recognized by only until the machine restarts: `KIND:BOOT:`, and numbers that the kernel assigned."""


class EntryKind(Enum):
    """What an entry of the folder is."""

    DEVICE = "a block device"
    MOUNT = "a mounted file system"
    FOLDER = "a folder without a mount of its own"
    OTHER = "neither a folder nor a block device"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskEntry:
    """One entry of a folder. Facts that its kind does not have are empty."""

    name: str
    kind: EntryKind
    bytes: int = 0
    """Of the device, or of the whole file system."""
    used_bytes: int = 0
    """Of the file system."""
    identity: str = ""
    """What the disk is recognized by, also after a restart of the machine; empty: nothing is known."""
    session: str = ""
    """What the disk is recognized by until the machine restarts."""
    place: str = ""
    whole_disk: str = ""
    """The number of the disk that a device is a partition of."""
    device: str = ""
    """The kernel's name of the block device."""
    file_system: str = ""
    used_by: tuple[str, ...] = ()
    """Ends of sentences: what uses the device, other than a volume of kubelet's."""
    why: str = ""
    """Why it is unreadable, or what it is, as the end of a sentence."""

    @property
    def recognized_by(self) -> str:
        """Return what the disk is recognized by at least until the machine restarts."""
        return self.identity or self.session


def is_session(known: str) -> bool:
    """Return whether this text recognizes a disk only until the machine restarts."""
    return known.startswith(tuple(f"{kind}:" for kind in SESSIONS))


def is_outdated(known: str, now: str) -> bool:
    """Return whether the machine has restarted between two such texts, so that they cannot be compared."""
    return is_session(known) and is_session(now) and known.split(":")[1:2] != now.split(":")[1:2]


def why_another(entry: DiskEntry, known: str) -> str:
    """Return why an entry is not the disk that was known, or may not be, as the end of a sentence; empty if it is."""
    if not known or known in (entry.identity, entry.session):
        return ""
    if not entry.identity and is_outdated(known, entry.session):
        return "may not be the disk that was released: nothing identifies it, and the machine has restarted since"
    current = entry.recognized_by or "an unknown one"
    return f"is not the disk that was released: that was {known}, this is {current}"


def overlaps(one: DiskEntry, other: DiskEntry) -> bool:
    """Return whether two entries have storage in common."""
    if not one.place or not other.place:
        return False
    if one.whole_disk == _number(other) or other.whole_disk == _number(one):
        return True
    return _contains(one.place, other.place) or _contains(other.place, one.place)


def _contains(outer: str, inner: str) -> bool:
    # A device contains every folder of the file system on it: its place has no path.
    number, slash, path = outer.partition(_LINK_OF_PLACE)
    other_number, _, other_path = inner.partition(_LINK_OF_PLACE)
    if number != other_number:
        return False
    return not slash or not path or other_path == path or other_path.startswith(f"{path}/")


def _number(entry: DiskEntry) -> str:
    return entry.place.partition(_LINK_OF_PLACE)[0]
