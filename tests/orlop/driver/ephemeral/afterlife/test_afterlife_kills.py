"""Keeping, erasing and restoring, killed before and after every effect; and what happens to readers meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.host.folders.folder_copy import CopyProgress
from orlop.host.folders.folder_restore import FolderRestore, restore_folder
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import burial_of
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillMoment, KillPoints, explore_kills
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import (
    ID,
    LIFESPAN,
    FakePurge,
    folder_ids,
    folders_on,
    machine_with_pods,
    order,
    right_here,
)
from support.host.descriptors import folder_descriptor
from support.host.file_systems import MOUNTS


async def buried() -> FakeMachine:
    machine = machine_with_pods()
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    return machine


def lifespans(machine: FakeMachine) -> list[float]:
    burials = [burial_of(place.name) for place in machine.folders if place.state is FolderState.RETAINED]
    return [burial.lifespan_seconds for burial in burials if burial is not None]


def reaper_on(machine: FakeMachine, folders: Folders, points: KillPoints | None = None) -> Reaper:
    metrics = Metrics("test", of_process=False)
    runtime = Runtime(clock=VirtualClock(), random=Random(1), log=silent_log(), metrics=metrics)
    settings = ReaperSettings(prune_interval=5.0, headroom=Fraction(0))
    host, purge = FakeNodeHost(machine, points), FakePurge(machine, points)
    return Reaper(folders, host, purge, settings, runtime, threads=right_here)


@asynccontextmanager
async def reaping(reaper: Reaper) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(reaper.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# ---- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_keeping_killed_anywhere_leaves_the_folder_with_its_old_or_its_new_lifespan():
    async def keep(machine: FakeMachine, points: KillPoints) -> None:
        folders = folders_on(machine, points)
        assert lifespans(machine) in ([LIFESPAN], [2 * LIFESPAN])
        assert await folders.keep(ID, 2 * LIFESPAN)

    def check(machine: FakeMachine) -> None:
        assert lifespans(machine) == [2 * LIFESPAN]

    explored = await explore_kills(buried, keep, check, deaths=2)
    assert len(explored.effects) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment))
async def test_keeping_that_fails_changes_neither_the_folder_nor_the_book(moment: KillMoment):
    machine = await buried()
    folders = folders_on(machine)
    machine.faults.fail("move", errno.EIO, moment=moment)
    with pytest.raises(CsiError):
        await folders.keep(ID, 2 * LIFESPAN)

    assert lifespans(machine) == [LIFESPAN]
    assert folders.book.retained[ID].burial.lifespan_seconds == LIFESPAN
    assert await folders.keep(ID, 3 * LIFESPAN)
    assert lifespans(machine) == [3 * LIFESPAN]


@pytest.mark.virtual_time
async def test_a_folder_that_is_kept_is_erased_at_its_new_time():
    machine = await buried()
    folders = folders_on(machine)
    clock = VirtualClock()
    async with reaping(reaper_on(machine, folders)):
        await clock.sleep(LIFESPAN - 10)
        await folders.keep(ID, 2 * LIFESPAN)
        await clock.sleep(LIFESPAN)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]
        await clock.sleep(20)
        assert machine.folders == {}


@pytest.mark.virtual_time
async def test_less_than_a_millisecond_more_changes_nothing():
    machine = await buried()
    folders = folders_on(machine)

    assert await folders.keep(ID, LIFESPAN + 0.0004)
    assert lifespans(machine) == [LIFESPAN]


@pytest.mark.virtual_time
async def test_what_was_published_again_is_not_kept():
    machine = await buried()
    folders = folders_on(machine)
    await folders.publish(order())

    assert not await folders.keep(ID, 2 * LIFESPAN)
    assert folder_ids(machine, FolderState.LIVE) == [ID]


# ---- erasing ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_an_erase_that_was_asked_for_and_killed_anywhere_is_whole_or_not_at_all():
    async def erase(machine: FakeMachine, points: KillPoints) -> None:
        folders = folders_on(machine, points)
        reaper = reaper_on(machine, folders, points)
        async with reaping(reaper):
            if ID in folders.book.retained:
                await reaper.erase_on_request(ID)
            await VirtualClock().sleep(60)

    def check(machine: FakeMachine) -> None:
        assert machine.folders == {}

    explored = await explore_kills(buried, erase, check, deaths=2)
    assert len(explored.effects) == 2


@pytest.mark.virtual_time
async def test_a_folder_that_anything_has_mounted_is_not_erased_when_asked():
    machine = await buried()
    folders = folders_on(machine)
    machine.mount_elsewhere(next(iter(machine.folders)))
    with pytest.raises(HostError, match="mounted"):
        await reaper_on(machine, folders).erase_on_request(ID)

    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert ID in folders.book.retained


# ---- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_folder_that_is_read_outlives_its_time_and_holds_up_no_other():
    machine = machine_with_pods("u1", "u2")
    folders = folders_on(machine)
    for volume_id, pod in ((ID, "u1"), ("csi-2", "u2")):
        await folders.publish(order(volume_id, pod))
        await folders.unpublish(volume_id, order(volume_id, pod).target)
    clock = VirtualClock()
    async with reaping(reaper_on(machine, folders)):
        with folders.book.being_read(ID):
            await clock.sleep(3 * LIFESPAN)
            assert folder_ids(machine, FolderState.RETAINED) == [ID]
        await clock.sleep(10)
        assert machine.folders == {}


@pytest.mark.virtual_time
async def test_a_folder_that_is_read_can_be_published_again_and_is_not_purged_meanwhile():
    """Then it went to the trash, as what has no second afterlife: there it waits for its reader."""
    machine = machine_with_pods()
    folders = folders_on(machine)
    await folders.publish(order(lifespan_seconds=LIFESPAN))
    await folders.unpublish(ID, order().target)
    async with reaping(reaper_on(machine, folders)):
        with folders.book.being_read(ID):
            await folders.publish(order())
            assert folder_ids(machine, FolderState.LIVE) == [ID]
            await folders.unpublish(ID, order().target)
            (place,) = machine.folders
            machine.folders[FolderPlace(FolderState.TRASH, place.name)] = machine.folders.pop(place)
            folders.book.was_discarded(ID)
            await VirtualClock().sleep(1000)
            assert folder_ids(machine, FolderState.TRASH) == [ID]
        await VirtualClock().sleep(1000)
        assert machine.folders == {}


# ---- restoring -------------------------------------------------------------------------------------------------------

RESTORE_STEPS = ("erase_what_was_left", "make", "fill", "give_name")


def no_progress(_: CopyProgress) -> None:
    pass


@MOUNTS
@pytest.mark.parametrize("kill_in_copy", [False, True])
async def test_a_restore_killed_anywhere_is_complete_or_known_as_unfinished_and_repeats(
    tmp_path: Path, *, kill_in_copy: bool
):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (source / name).write_text(name)
    numbers = iter(range(1000))

    def build() -> Path:
        to = tmp_path / f"to-{next(numbers)}"
        to.mkdir()
        return to

    def restore(to: Path, points: KillPoints) -> None:
        assert {each.name for each in to.iterdir()} <= {"v1", ".orlop-unfinished-v1"}
        if (to / "v1").exists():
            return
        with folder_descriptor(source) as folder, folder_descriptor(to) as directory:
            steps = FolderRestore(folder, directory, "v1")

            def step(progress: CopyProgress) -> None:
                if kill_in_copy:
                    with points.effect(f"progress {progress}"):
                        pass

            restore_folder(points.wrap(steps, *(() if kill_in_copy else RESTORE_STEPS)), threading.Event(), step)

    def check(to: Path) -> None:
        assert sorted(os.listdir(to)) == ["v1"]  # noqa: PTH208 - names alone
        assert {str(each.relative_to(to / "v1")) for each in (to / "v1").rglob("*")} == {"a", "b", "sub", "sub/c"}

    explored = await explore_kills(
        build, lambda to, points: asyncio.to_thread(restore, to, points), check, deaths=1 if kill_in_copy else 2
    )
    assert len(explored.effects) >= len(RESTORE_STEPS) - 1
