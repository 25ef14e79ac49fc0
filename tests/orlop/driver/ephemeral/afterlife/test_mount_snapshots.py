"""A snapshot of the mounts serves a caller only if it began after the caller held its folder, and only for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orlop.driver.ephemeral.afterlife.mount_snapshots import LONGEST_USE_SECONDS, MountSnapshots
from orlop.testing.virtual_clock import VirtualClock

pytestmark = pytest.mark.virtual_time


class Mounts:
    """What is mounted right now; reading it takes `reading_seconds`."""

    def __init__(self) -> None:
        self.now: frozenset[Any] = frozenset()
        self.reads = 0
        self.reading_seconds = 0.0

    def mounted_folders(self) -> frozenset[Any]:
        self.reads += 1
        return self.now

    async def in_thread(self, work: Callable[[], Any], /) -> Any:
        found, seconds = work(), self.reading_seconds
        await asyncio.sleep(seconds)
        return found


def snapshots_of(mounts: Mounts) -> MountSnapshots:
    return MountSnapshots(mounts, mounts.in_thread, VirtualClock())  # type: ignore[arg-type]


async def test_a_mount_made_before_the_generation_was_read_is_seen_although_a_snapshot_was_just_taken():
    mounts = Mounts()
    snapshots = snapshots_of(mounts)
    assert await snapshots.after(snapshots.generation()) == frozenset()

    mounts.now = frozenset({"folder"})

    assert await snapshots.after(snapshots.generation()) == {"folder"}


async def test_callers_of_one_generation_share_a_snapshot_for_a_moment():
    mounts = Mounts()
    snapshots = snapshots_of(mounts)
    generation = snapshots.generation()
    for _ in range(10):
        await snapshots.after(generation)
    assert mounts.reads == 1

    await asyncio.sleep(LONGEST_USE_SECONDS * 1.01)
    await snapshots.after(generation)

    assert mounts.reads == 2


async def test_a_snapshot_that_ends_late_does_not_replace_a_newer_one():
    mounts = Mounts()
    snapshots = snapshots_of(mounts)
    generation = snapshots.generation()
    mounts.reading_seconds = 0.2
    slow = asyncio.create_task(snapshots.after(generation))
    await asyncio.sleep(0.1)
    mounts.now, mounts.reading_seconds = frozenset({"folder"}), 0.05
    assert await snapshots.after(generation) == {"folder"}
    assert await slow == frozenset()

    assert await snapshots.after(generation) == {"folder"}
    assert mounts.reads == 2
