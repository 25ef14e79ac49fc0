"""Decide when a retained folder is erased, and which one first. Pure.

A folder is retained for its lifespan, counted from its burial. While less of the disk is free than the headroom, every
lifespan is multiplied by one factor: free space divided by headroom. One step is decided at a time, and the disk is
measured again after it, so that pressure never erases more folders than necessary.
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
    """The space of a disk. Free space is what users can allocate: blocks reserved for root do not count."""

    total_bytes: int
    free_bytes: int
    total_inodes: int = 0
    free_inodes: int = 0


@dataclass(frozen=True, slots=True)
class RetainedFolder:
    """A retained folder. `age` and `lifespan` are in seconds; `bytes_used` is None until it has been measured."""

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
    """Nothing has to be erased for `seconds`, if the disk stays as it is; None: nothing is retained."""

    seconds: float | None


Step = Erase | Wait
Weight = tuple[int, int]
"""Bytes and folders."""


def pressure_factor(space: DiskSpace, headroom: Fraction) -> Fraction:
    """Return 1 if the headroom is free, else free space divided by headroom; the worse of bytes and inodes."""
    return min(
        _share(space.total_bytes, space.free_bytes, headroom),
        _share(space.total_inodes, space.free_inodes, headroom),
    )


def _share(total: int, free: int, headroom: Fraction) -> Fraction:
    required = math.ceil(total * headroom)
    if free >= required:  # also true without headroom, and for a file system that counts no inodes
        return NO_PRESSURE
    return Fraction(max(free, 0), required)


def next_step(folders: Iterable[RetainedFolder], factor: Fraction, weights: Mapping[str, Weight] | None = None) -> Step:
    """Return the next folder to erase: of the namespace that retains most, the one furthest beyond its lifespan.

    `folders` are all retained folders, without those that must not be erased now (mounted, being read, or failed a
    moment ago). A caller that passes `weights`, the totals of all folders by namespace, may also leave out folders that
    cannot be the first: of two folders of one namespace with the same lifespan, the younger.
    """
    candidates = list(folders)
    overdue = [folder for folder in candidates if _time_left(folder, factor) < 0]
    if overdue:
        first = _first_to_erase(overdue, namespace_weights(candidates) if weights is None else weights, factor)
        return Erase(first.name, Reason.AGE if first.age > first.lifespan else Reason.PRESSURE)
    return Wait(min((_time_left(folder, factor) for folder in candidates), default=None))


def _time_left(folder: RetainedFolder, factor: Fraction) -> float:
    """Return the seconds until a folder expires; negative after that."""
    return folder.lifespan * float(factor) - folder.age


def _first_to_erase(
    overdue: Sequence[RetainedFolder], weights: Mapping[str, Weight], factor: Fraction
) -> RetainedFolder:
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
    """Return the weights by namespace; a folder that has not been measured yet counts with 0 bytes."""
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


def effective_headroom(configured: Fraction | None, *, shares_disk_with_kubelet: bool) -> Fraction:
    """Return the admin's headroom, or the default; on kubelet's own disk that is above kubelet's eviction threshold."""
    if configured is not None:
        return configured
    if not shares_disk_with_kubelet:
        return DEFAULT_HEADROOM
    return max(KUBELET_NODEFS_EVICTION, KUBELET_IMAGEFS_EVICTION) + BEFORE_KUBELET


def next_measurement(retained: int, factor: Fraction, prune_interval: float) -> float | None:
    """Return after how many seconds to measure the disk again: the kernel sends no notification when it fills up."""
    if not retained:
        return None
    return prune_interval if factor == NO_PRESSURE else min(prune_interval, UNDER_PRESSURE_SECONDS)


UNDER_PRESSURE_SECONDS: Final = 1.0


# ---- ages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant, in seconds of the wall clock and in elapsed time, which never jumps."""

    wall: float
    elapsed: float


def age_of(buried_at_wall: float, started: Moment, now: Moment, buried_at_elapsed: float | None = None) -> float:
    """Return the age of a folder: the seconds since its burial.

    While the process runs, ages grow by elapsed time, so that a jump of the wall clock erases nothing early. For a
    folder buried before the start, the recorded wall time is compared once, with the start; a future one counts as now.
    """
    if buried_at_elapsed is not None:
        return max(0.0, now.elapsed - buried_at_elapsed)
    return max(0.0, started.wall - buried_at_wall) + (now.elapsed - started.elapsed)


def buried_at_elapsed(buried_at_wall: float, started: Moment) -> float:
    """Return the elapsed time of a burial before the start, so that `age_of` is the time since."""
    return started.elapsed - max(0.0, started.wall - buried_at_wall)


def wall_clock_jump(last: Moment, now: Moment) -> float:
    """Return by how many seconds the wall clock advanced more (or less) than elapsed time."""
    return (now.wall - last.wall) - (now.elapsed - last.elapsed)
