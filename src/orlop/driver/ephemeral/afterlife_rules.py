"""When a retained folder is erased, and which one first. Pure.

A folder is kept for its lifespan after it was buried. When the disk is fuller than the admin's headroom allows, every
lifespan shrinks by one factor: what is free, as a share of the headroom. One step is decided at a time and the disk is
measured again after it, so that pressure never erases more than it must.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

NO_PRESSURE: Final = Fraction(1)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Free is what users can have, without what the file system keeps for root."""

    total_bytes: int
    free_bytes: int
    total_inodes: int = 0
    free_inodes: int = 0


@dataclass(frozen=True, slots=True)
class RetainedFolder:
    """`age` and `lifespan` are in seconds; `bytes_used` is None until it has been measured."""

    name: str
    namespace: str
    age: float
    lifespan: float
    bytes_used: int | None = None


class Reason(Enum):
    """Why a folder is erased."""

    AGE = "age"
    PRESSURE = "pressure"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Erase:
    name: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be erased before so many seconds have passed, if the disk stays as it is; None: nothing ever."""

    seconds: float | None


Step = Erase | Wait
Weight = tuple[int, int]
"""Bytes and folders."""


def pressure_factor(space: DiskSpace, headroom: Fraction) -> Fraction:
    """1 where enough is free; below that, what is free as a share of what should be. Bytes or inodes: the worse one."""
    return min(
        _share(space.total_bytes, space.free_bytes, headroom),
        _share(space.total_inodes, space.free_inodes, headroom),
    )


def _share(total: int, free: int, headroom: Fraction) -> Fraction:
    wanted = math.ceil(total * headroom)
    if free >= wanted:  # also where nothing is wanted, or the file system counts no inodes
        return NO_PRESSURE
    return Fraction(max(free, 0), wanted)


def next_step(folders: Iterable[RetainedFolder], factor: Fraction, weights: Mapping[str, Weight] | None = None) -> Step:
    """Of what is beyond its time: from the namespace that retains most, the folder that is furthest beyond.

    `folders` are all that are retained. Those that must not be erased now (something has them mounted, somebody reads
    them, the last attempt failed a moment ago) are left out by the caller, and with them what they weigh. Who knows
    the `weights` of all may leave out every folder that cannot be the first: of two of a namespace with the same
    lifespan, the younger.
    """
    everything = list(folders)
    overdue = [folder for folder in everything if _time_left(folder, factor) < 0]
    if overdue:
        first = _first_to_go(overdue, namespace_weights(everything) if weights is None else weights, factor)
        return Erase(first.name, Reason.AGE if first.age > first.lifespan else Reason.PRESSURE)
    return Wait(min((_time_left(folder, factor) for folder in everything), default=None))


def _time_left(folder: RetainedFolder, factor: Fraction) -> float:
    """Negative strictly after its time."""
    return folder.lifespan * float(factor) - folder.age


def _first_to_go(overdue: Sequence[RetainedFolder], weights: Mapping[str, Weight], factor: Fraction) -> RetainedFolder:
    return min(
        overdue,
        key=lambda folder: (
            *(-weight for weight in weights[folder.namespace]),
            folder.namespace,
            _time_left(folder, factor),
            folder.name,
        ),
    )


def namespace_weights(folders: Iterable[RetainedFolder]) -> dict[str, Weight]:
    """By namespace. What has not been measured yet weighs nothing but itself."""
    weights: dict[str, Weight] = defaultdict(lambda: (0, 0))
    for folder in folders:
        size, count = weights[folder.namespace]
        weights[folder.namespace] = size + (folder.bytes_used or 0), count + 1
    return dict(weights)


# ---- the headroom that keeps kubelet from evicting -------------------------------------------------------------------

KUBELET_NODEFS_EVICTION: Final = Fraction(10, 100)
KUBELET_IMAGEFS_EVICTION: Final = Fraction(15, 100)
BEFORE_KUBELET: Final = Fraction(5, 100)
DEFAULT_HEADROOM: Final = Fraction(1, 10)


def effective_headroom(given: Fraction | None, *, shares_disk_with_kubelet: bool) -> Fraction:
    """What the admin gave. Else, on kubelet's own disk, more than where it begins to evict living pods."""
    if given is not None:
        return given
    if not shares_disk_with_kubelet:
        return DEFAULT_HEADROOM
    return max(KUBELET_NODEFS_EVICTION, KUBELET_IMAGEFS_EVICTION) + BEFORE_KUBELET


def next_look(retained: int, factor: Fraction, prune_interval: float) -> float | None:
    """How many seconds the disk may go unwatched: it fills up without telling anybody."""
    if not retained:
        return None
    return prune_interval if factor == NO_PRESSURE else min(prune_interval, UNDER_PRESSURE_SECONDS)


UNDER_PRESSURE_SECONDS: Final = 1.0


# ---- ages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """Both times of one instant, in seconds: the wall's and the one that only grows."""

    wall: float
    elapsed: float


def age_of(buried_at_wall: float, started: Moment, now: Moment, buried_at_elapsed: float | None = None) -> float:
    """How long ago a folder was buried.

    While the process runs, ages grow by elapsed time, so that a jump of the wall clock erases nothing early. For what
    was buried before it started the recorded wall time counts, read once at the start; one in the future is now.
    """
    if buried_at_elapsed is not None:
        return max(0.0, now.elapsed - buried_at_elapsed)
    return max(0.0, started.wall - buried_at_wall) + (now.elapsed - started.elapsed)


def buried_at_elapsed(buried_at_wall: float, started: Moment) -> float:
    """The elapsed time of a burial before the start: `age_of` is the time since."""
    return started.elapsed - max(0.0, started.wall - buried_at_wall)


def wall_clock_jump(last: Moment, now: Moment) -> float:
    """By how many seconds the wall clock moved more (or less) than time did."""
    return (now.wall - last.wall) - (now.elapsed - last.elapsed)
