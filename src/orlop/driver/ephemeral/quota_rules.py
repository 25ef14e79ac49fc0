"""Why a folder with limits may not be had, and which volumes may have left their quota. Pure.

A tenant can give its own files another number and write on uncounted. What it then takes counts somewhere else: by the
number of another volume, or by the rest, which is all that is on the disk and counts by no volume with limits. So a
volume is looked through only when something besides its own count has changed since the last look, and on a quiet node
nothing is. Reading one count for each volume tells it, however many folders are retained. Now and then all are looked
through whatever the counts say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LOOK_SECONDS: Final = 25.0
"""What left right after one look is found by the end of the next: well within a minute."""
ALL_EVERY_LOOKS: Final = 12


@dataclass(frozen=True, slots=True)
class Counted:
    bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """At one look: of each volume that has limits, and of the rest of the disk."""

    volumes: Mapping[str, Counted]
    rest: Counted


def counts_of(volumes: Mapping[str, Counted], disk: Counted) -> Counts:
    """`disk` is all that is used on it."""
    own_bytes = sum(counted.bytes for counted in volumes.values())
    own_inodes = sum(counted.inodes for counted in volumes.values())
    return Counts(volumes, Counted(disk.bytes - own_bytes, disk.inodes - own_inodes))


def suspects(before: Counts | None, now: Counts) -> frozenset[str]:
    """`before` is None at the first look: then all are."""
    if before is None or before.rest != now.rest:
        return frozenset(now.volumes)
    volumes = before.volumes.keys() | now.volumes.keys()
    changed = {volume_id for volume_id in volumes if before.volumes.get(volume_id) != now.volumes.get(volume_id)}
    return frozenset(volume_id for volume_id in now.volumes if changed - {volume_id})


def why_refused(limited_by: Sequence[str], reason: str) -> str:
    """`limited_by` are the attributes and flags that the limits come from."""
    what = " and ".join(limited_by) or "the limits of the volume"
    return f"{what} cannot be held here, and nobody is left without a limit instead. {reason}"
