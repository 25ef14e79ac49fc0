"""Tenants that leave their quota are found within a minute, on virtual time and on a model of the machine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.upkeep.quota_watch import (
    ALL_EVERY_CHECKS,
    CHECK_SECONDS,
    Counted,
    Counts,
    QuotaWatch,
    counts_of,
    suspects,
)
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Level, LogEntry, collecting_log
from orlop.host.node_host import FolderPlace, FolderState
from orlop.testing.fake_host import FakeFolder, FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import ID, folders_on, machine_with_pods, order, right_here

MINUTE = 60.0
MIB = 1 << 20


# ---- the rule --------------------------------------------------------------------------------------------------------


def counts(rest: tuple[int, int] = (100, 10), **volumes: tuple[int, int]) -> Counts:
    return Counts({name: Counted(*counted) for name, counted in volumes.items()}, Counted(*rest))


def test_at_the_first_look_everybody_is_suspected():
    assert suspects(None, counts(a=(1, 1), b=(1, 1))) == {"a", "b"}


def test_while_nothing_changes_nobody_is_suspected():
    assert suspects(counts(a=(5, 1), b=(5, 1)), counts(a=(5, 1), b=(5, 1))) == frozenset()


def test_who_alone_has_changed_has_not_left():
    assert suspects(counts(a=(5, 1), b=(5, 1)), counts(a=(9, 2), b=(5, 1))) == {"b"}


def test_when_the_rest_of_the_disk_has_changed_everybody_is_suspected():
    assert suspects(counts(a=(5, 1), b=(5, 1)), counts((99, 10), a=(5, 1), b=(5, 1))) == {"a", "b"}


def test_the_rest_is_what_is_used_and_counts_by_no_volume():
    volumes = {"a": Counted(5, 1), "b": Counted(6, 2)}
    assert counts_of(volumes, Counted(100, 10)) == Counts(volumes, Counted(89, 7))


names = st.sampled_from("abcd")
some_counts = st.builds(Counted, st.integers(0, 99), st.integers(0, 9))
some_volumes = st.dictionaries(names, some_counts, min_size=1)


@given(some_volumes, some_counts, names, st.none() | names, st.integers(0, 9))
def test_whoever_leaves_for_the_rest_or_for_another_is_suspected(volumes, disk, leaver, into, size):
    volumes = {leaver: Counted(50, 5), **({into: Counted(50, 5)} if into else {}), **volumes}
    before = counts_of(volumes, disk)
    had = volumes[leaver]
    after = {**volumes, leaver: Counted(had.bytes - size, had.inodes - 1)}
    if into and into != leaver:
        after[into] = Counted(volumes[into].bytes + size, volumes[into].inodes + 1)
    if into != leaver:
        assert leaver in suspects(before, counts_of(after, disk))


@given(some_volumes, some_counts)
def test_nobody_is_suspected_when_all_is_as_it_was(volumes, disk):
    assert suspects(counts_of(volumes, disk), counts_of(dict(volumes), disk)) == frozenset()


# ---- the watch -------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    machine: FakeMachine
    folders: Folders
    watch: QuotaWatch
    clock: VirtualClock
    log: list[LogEntry]
    metrics: Metrics

    async def publish(self, volume_id: str = ID, **options: object) -> FakeFolder:
        asked = order(volume_id, volume_id, **{"size_bytes": MIB, **options})
        self.machine.kubelet_makes(tuple(asked.target.split("/"))[:-1])
        await self.folders.publish(asked)
        return self.machine.folders[FolderPlace(FolderState.LIVE, volume_id)]

    async def unpublish(self, volume_id: str = ID) -> None:
        await self.folders.unpublish(volume_id, order(volume_id, volume_id).target)

    def counted_escapes(self) -> int:
        (line,) = [
            line for line in self.metrics.render()[0].decode().splitlines() if line.startswith("orlop_ephemeral_quota_")
        ]
        return int(float(line.split()[1]))

    def warnings(self) -> list[str]:
        return [entry.message for entry in self.log if entry.level is Level.WARNING]


@asynccontextmanager
async def running(machine: FakeMachine | None = None) -> AsyncIterator[Node]:
    machine = machine or machine_with_pods()
    machine.why_no_quota = None
    folders, clock, log, metrics = folders_on(machine), VirtualClock(), list[LogEntry](), Metrics("t", of_process=False)
    folders._clock = clock
    host = FakeNodeHost(machine)
    tools = {"threads": right_here, "clock": clock, "log": collecting_log(log), "metrics": metrics}
    watch = QuotaWatch(folders, host.workdir, **tools)
    task = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield Node(machine, folders, watch, clock, log, metrics)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def leave(folder: FakeFolder, into: int = 0, path: str = "left") -> None:
    folder.files[path] = bytes(10_000)
    folder.left[path] = into


@pytest.mark.virtual_time
@pytest.mark.parametrize("begins", [0.1, 10.0, 24.9, 25.1, 40.0])
@pytest.mark.parametrize("volumes", [1, 50])
async def test_a_tenant_that_leaves_its_quota_is_found_within_a_minute(begins: float, volumes: int):
    async with running() as node:
        folders = [await node.publish(f"v{number:02}") for number in range(volumes)]
        await node.clock.sleep(begins)
        leave(folders[volumes // 2])
        await node.clock.sleep(MINUTE)
        assert node.watch.escapes.keys() == {f"v{volumes // 2:02}"}
        assert node.watch.escapes[f"v{volumes // 2:02}"].first == "left"
        assert node.counted_escapes() == 1


@pytest.mark.virtual_time
async def test_one_that_takes_the_number_of_another_volume_is_found_and_the_other_is_not_blamed():
    async with running() as node:
        thief, victim = await node.publish("thief"), await node.publish("victim")
        await node.clock.sleep(MINUTE)
        leave(thief, victim.project)
        await node.clock.sleep(MINUTE)
        assert node.watch.escapes.keys() == {"thief"}


@pytest.mark.virtual_time
async def test_it_is_told_once_and_counted_while_it_lasts():
    async with running() as node:
        folder = await node.publish()
        leave(folder)
        await node.clock.sleep(10 * MINUTE)
        assert len(node.warnings()) == 1
        (entry,) = [entry for entry in node.log if entry.level is Level.WARNING]
        assert (entry.fields["volume"], entry.fields["pod"], entry.fields["such_as"]) == (ID, "web-0", "left")
        folder.left.clear()
        await node.clock.sleep(MINUTE)
        assert node.counted_escapes() == 0


@pytest.mark.virtual_time
async def test_what_hides_behind_another_that_shrinks_just_as_much_is_found_later():
    async with running() as node:
        other, folder = await node.publish("other", size_bytes=0), await node.publish()
        other.files["left"] = bytes(10_000)
        await node.clock.sleep(MINUTE)
        del other.files["left"]
        leave(folder)
        await node.clock.sleep((ALL_EVERY_CHECKS + 1) * CHECK_SECONDS)
        assert node.watch.escapes.keys() == {ID}


@pytest.mark.virtual_time
async def test_one_that_was_buried_before_anybody_looked_is_found_and_forgotten_when_it_is_erased():
    async with running() as node:
        await node.clock.sleep(MINUTE)
        leave(await node.publish())
        await node.unpublish()
        await node.clock.sleep(MINUTE)
        assert node.counted_escapes() == 1
        node.machine.folders.clear()
        node.folders.book.was_discarded(ID)
        await node.clock.sleep(MINUTE)
        assert node.counted_escapes() == 0
        assert node.machine.limits == {}


@pytest.mark.virtual_time
async def test_on_a_quiet_node_no_folder_is_looked_through():
    async with running() as node:
        await node.publish()
        await node.clock.sleep(MINUTE)
        node.machine.faults.fail("strays", errno.EIO, times=1_000)  # would be told
        await node.clock.sleep(2 * MINUTE)
        assert node.warnings() == []


@pytest.mark.virtual_time
async def test_folders_without_limits_and_disks_without_quota_are_left_alone():
    async with running() as node:
        leave(await node.publish(size_bytes=0), 77)
        await node.clock.sleep(2 * MINUTE)
        node.machine.why_no_quota = "None here."
        await node.clock.sleep(2 * MINUTE)
        assert (node.counted_escapes(), node.warnings()) == (0, [])


@pytest.mark.virtual_time
async def test_a_disk_that_does_not_answer_is_told_and_looked_at_again():
    async with running() as node:
        leave(await node.publish())
        node.machine.faults.fail("quota_usage", errno.EIO)
        node.machine.faults.fail("strays", errno.EIO)
        await node.clock.sleep(2 * MINUTE)
        assert node.counted_escapes() == 1
        assert len(node.warnings()) == 3


@pytest.mark.virtual_time
@pytest.mark.parametrize("failing", ["projects", "quota_usage", "room", "strays"])
async def test_no_error_makes_it_forget_one_that_was_buried_meanwhile(failing: str):
    async with running() as node:
        await node.clock.sleep(MINUTE)
        leave(await node.publish())
        await node.unpublish()
        node.machine.faults.fail(failing, errno.EIO)
        await node.clock.sleep(2 * MINUTE)
        assert node.counted_escapes() == 1


@pytest.mark.virtual_time
async def test_numbers_of_erased_folders_are_let_go():
    async with running() as node:
        await node.publish(lifespan_seconds=0.0)
        await node.unpublish()
        await node.clock.sleep(MINUTE)
        assert len(node.machine.limits) == 1
        node.machine.folders.clear()
        await node.clock.sleep(MINUTE)
        assert node.machine.limits == {}
