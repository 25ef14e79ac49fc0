"""The afterlife on virtual time, on a model of the machine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import TypeVar

import pytest

from conftest import SOAK
from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings
from orlop.driver.ephemeral.afterlife.trash_purge import MOST_PURGES_AT_ONCE, PURGES_AT_ONCE
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Level, LogEntry, collecting_log
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import Burial
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

T = TypeVar("T")
MEGABYTE = 1 << 20


@dataclass
class Node:
    machine: FakeMachine
    folders: Folders
    purge: FakePurge
    clock: VirtualClock
    log: list[LogEntry]
    reaper: Reaper
    metrics: Metrics

    async def pod_comes_and_goes(self, volume_id: str = ID, *, size: int = 0, **options: object) -> None:
        asked = order(volume_id, volume_id, **options)  # type: ignore[arg-type]
        self.machine.kubelet_makes(tuple(asked.target.split("/"))[:-1])
        await self.folders.publish(asked)
        self.machine.folders[FolderPlace(FolderState.LIVE, volume_id)].files["data"] = bytes(size)
        await self.folders.unpublish(volume_id, asked.target)

    def left(self) -> list[str]:
        return sorted(place.name.rpartition("_")[2] for place in self.machine.folders)


@asynccontextmanager
async def running(
    machine: FakeMachine, points: KillPoints | None = None, threads: Threads = right_here
) -> AsyncIterator[Node]:
    folders, clock, log = folders_on(machine, points), VirtualClock(), list[LogEntry]()
    folders._clock = clock
    purge = FakePurge(machine, points)
    metrics = Metrics("test", of_process=False)
    runtime = Runtime(clock=clock, random=Random(1), log=collecting_log(log), metrics=metrics)
    settings = ReaperSettings(prune_interval=5.0, headroom=Fraction(1, 10))
    reaper = Reaper(folders, FakeNodeHost(machine, points), purge, settings, runtime, threads=threads)
    task = asyncio.get_running_loop().create_task(reaper.run())
    try:
        yield Node(machine, folders, purge, clock, log, reaper, metrics)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


@pytest.mark.virtual_time
async def test_a_folder_is_kept_for_its_lifespan_and_then_erased(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        await node.clock.sleep(LIFESPAN - 1)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]
        await node.clock.sleep(2)
        assert node.left() == []
        assert node.folders.book.retained == {}


@pytest.mark.virtual_time
async def test_a_folder_without_an_afterlife_is_erased_at_once(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes(lifespan_seconds=0.0)
        await node.clock.sleep(1)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_folder_that_anything_has_mounted_is_never_erased(machine: FakeMachine):
    """I1; the purge itself fails the test if it is asked to."""
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        mount = machine.mount_elsewhere(next(iter(machine.folders)))
        await node.clock.sleep((30 if SOAK else 3) * LIFESPAN)
        assert node.left() == [ID]
        machine.unmount_elsewhere(mount)
        await node.clock.sleep(1000)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_folder_mounted_after_it_came_to_the_trash_is_not_purged(machine: FakeMachine):
    async with running(machine) as node:
        node.purge.fails[ID] = 1
        await node.pod_comes_and_goes(lifespan_seconds=1.0)
        await node.clock.sleep(2)
        (place,) = machine.folders
        assert place.state is FolderState.TRASH
        mount = machine.mount_elsewhere(place)
        await node.clock.sleep(5000)
        assert node.left() == [ID]
        machine.unmount_elsewhere(mount)
        await node.clock.sleep(1000)
        assert node.left() == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("others_use", [892, 896, 900, 950, 965, 980, 990, 995])
async def test_pressure_erases_no_more_than_it_must(machine: FakeMachine, others_use: int):
    """Exactly the oldest, until those that are left may live at the pressure that is left."""
    machine.total_bytes = 1000 * MEGABYTE
    async with running(machine) as node:
        for number in range(10):
            await node.pod_comes_and_goes(f"csi-{number}", size=MEGABYTE)
            await node.clock.sleep(360 - 0.5)
        assert len(node.left()) == 10
        machine.used_by_others = others_use * MEGABYTE
        await node.clock.sleep(5)
        must_go = 0  # age by number; each that goes gives one megabyte and its folder back
        while must_go < 10 and (10 - must_go) * 359.5 + 2.5 > LIFESPAN * factor_with(machine, others_use, 10 - must_go):
            must_go += 1
        assert node.left() == [f"csi-{number}" for number in range(must_go, 10)]


def factor_with(machine: FakeMachine, others_use: int, folders: int) -> float:
    used = others_use * MEGABYTE + folders * (MEGABYTE + 4096)
    return min(1.0, max(0, machine.total_bytes - used) / (machine.total_bytes / 10))


@pytest.mark.virtual_time
async def test_pressure_waits_for_what_is_being_purged_already(machine: FakeMachine):
    """The trash of another process is enough: nothing that is retained goes for it."""
    machine.total_bytes = 1000 * MEGABYTE
    async with running(machine) as node:
        await node.pod_comes_and_goes("csi-kept", size=MEGABYTE)
        await node.clock.sleep(LIFESPAN / 2)
    trash = machine.new_folder(0o700, b"")
    trash.files["data"] = bytes(200 * MEGABYTE)
    machine.folders[FolderPlace(FolderState.TRASH, "0_0_csi-trash")] = trash
    machine.used_by_others = 790 * MEGABYTE
    async with running(machine) as node:
        await node.clock.sleep(60)
        assert node.left() == ["csi-kept"]


@pytest.mark.virtual_time
async def test_pressure_waits_for_what_came_to_the_trash_without_a_word(machine: FakeMachine):
    machine.total_bytes = 1000 * MEGABYTE
    async with running(machine) as node:
        await node.pod_comes_and_goes("csi-kept", size=MEGABYTE)
        await node.clock.sleep(LIFESPAN / 2 + 2)
        trash = machine.new_folder(0o700, b"")
        trash.files["data"] = bytes(200 * MEGABYTE)
        machine.folders[FolderPlace(FolderState.TRASH, "0_0_csi-trash")] = trash
        machine.used_by_others = 790 * MEGABYTE
        await node.pod_comes_and_goes("csi-short", lifespan_seconds=0.1)  # has the disk measured soon
        await node.clock.sleep(60)
        assert node.left() == ["csi-kept"]


@pytest.mark.virtual_time
async def test_under_pressure_a_purge_that_fails_for_ever_holds_up_no_other(machine: FakeMachine):
    machine.total_bytes = 1000 * MEGABYTE
    async with running(machine) as node:
        node.purge.fails["csi-bad"] = 10**6
        for name in ("csi-bad", "csi-1", "csi-2"):
            await node.pod_comes_and_goes(name, size=MEGABYTE)
            await node.clock.sleep(60)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(20)
        assert node.left() == ["csi-bad"]


class SlowThreads:
    """Threads in which the purge of some folders takes its time; everything else is done at once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By a part of the name."""
        self.node: Node | None = None
        self.running = self.most = 0
        """Slow purges: now, and at most at a time."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        if self.node is not None and (seconds := self._seconds_for(work)):
            self.running += 1
            self.most = max(self.most, self.running)
            await self.node.clock.sleep(seconds)
            self.running -= 1
        return work()

    def _seconds_for(self, work: Callable[[], object]) -> float:
        names = [cell.cell_contents for cell in work.__closure__ or () if isinstance(cell.cell_contents, str)]
        is_purge = "_purge" in work.__code__.co_names
        return sum(seconds for part, seconds in self.seconds.items() if is_purge and any(part in n for n in names))


@asynccontextmanager
async def running_with_slow_purges(
    machine: FakeMachine, threads: SlowThreads | None = None, **seconds: float
) -> AsyncIterator[Node]:
    """On a disk of 1000 MB; `seconds` that a purge takes, by a part of the volume id."""
    machine.total_bytes = 1000 * MEGABYTE
    threads = threads or SlowThreads()
    async with running(machine, threads=threads) as node:
        threads.node, threads.seconds = node, {f"csi-{name}": each for name, each in seconds.items()}
        yield node


@pytest.mark.virtual_time
async def test_a_slow_purge_does_not_stop_eviction(machine: FakeMachine):
    async with running_with_slow_purges(machine, huge=3600.0) as node:
        for name in ("csi-huge", "csi-1", "csi-2", "csi-3"):
            await node.pod_comes_and_goes(name, size=MEGABYTE)
            await node.clock.sleep(1)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(9)
        assert node.left() == ["csi-1", "csi-2", "csi-3", "csi-huge"], "the purge has its time to free space"
        await node.clock.sleep(60)
        assert node.left() == ["csi-huge"]


@pytest.mark.virtual_time
async def test_while_a_slow_purge_frees_space_nothing_else_is_evicted(machine: FakeMachine):
    async with running_with_slow_purges(machine, huge=3600.0) as node:
        for name in ("csi-huge", "csi-1"):
            await node.pod_comes_and_goes(name, size=MEGABYTE)
            await node.clock.sleep(1)
        machine.used_by_others = machine.total_bytes - 2 * (MEGABYTE + 4096)
        for _ in range(100):
            machine.used_by_others -= 4096
            await node.clock.sleep(8)
            assert node.left() == ["csi-1", "csi-huge"]
        await node.clock.sleep(30)
        assert node.left() == ["csi-huge"]


@pytest.mark.virtual_time
async def test_slow_purges_do_not_keep_a_small_folder_from_being_purged(machine: FakeMachine):
    """As many as are purged at a time otherwise are slow: one more is purged beside them."""
    async with running_with_slow_purges(machine, huge=3600.0) as node:
        for name in ("csi-huge-1", "csi-huge-2", "csi-1"):
            await node.pod_comes_and_goes(name, size=MEGABYTE)
            await node.clock.sleep(1)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(60)
        assert node.left() == ["csi-huge-1", "csi-huge-2"]


@pytest.mark.virtual_time
async def test_a_folder_that_would_wait_behind_slow_purges_is_not_evicted(machine: FakeMachine):
    """It would free nothing, and is still of use to whoever wants its files."""
    async with running_with_slow_purges(machine, huge=3600.0) as node:
        for number in range(20):
            await node.pod_comes_and_goes(f"csi-huge-{number:02}", size=MEGABYTE)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(1000)
        assert len(folder_ids(machine, FolderState.TRASH)) == MOST_PURGES_AT_ONCE
        assert len(folder_ids(machine, FolderState.RETAINED)) == 20 - MOST_PURGES_AT_ONCE


@pytest.mark.virtual_time
async def test_after_slow_purges_only_the_usual_number_is_purged_at_a_time(machine: FakeMachine):
    threads = SlowThreads()
    async with running_with_slow_purges(machine, threads, huge=100.0) as node:
        for number in range(6):
            await node.pod_comes_and_goes(f"csi-huge-{number}", size=MEGABYTE)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(2000)
        assert (node.left(), threads.most) == ([], MOST_PURGES_AT_ONCE)
        machine.used_by_others, threads.most = 0, 0
        for number in range(6):
            await node.pod_comes_and_goes(f"csi-huge-{number}", lifespan_seconds=0.0)
        await node.clock.sleep(2000)
        assert (node.left(), threads.most) == ([], PURGES_AT_ONCE)


class HeldThreads:
    """Threads that take the step of this name and do not return its result before `go_on` is set; once."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.is_held, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, work: Callable[[], T], /) -> T:
        result = work()
        if getattr(work, "__name__", "") == self._step and not self.is_held.is_set():
            self.is_held.set()
            await self.go_on.wait()
        return result


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_volume_published_while_the_mounts_are_read_keeps_what_its_pod_writes_then(
    machine: FakeMachine, *, is_asked: bool
):
    """The reaper holds the volume's key before it takes its snapshot: the pod waits, and gets a folder of its own."""
    threads = HeldThreads("mounted_folders")
    async with running(machine, threads=threads) as node:
        loop = asyncio.get_running_loop()
        await node.pod_comes_and_goes()
        erasing = loop.create_task(node.reaper.erase_on_request(ID)) if is_asked else None
        await node.clock.sleep(1 if is_asked else LIFESPAN + 1)
        assert threads.is_held.is_set()
        pod = loop.create_task(node.pod_comes_and_goes(size=MEGABYTE))
        await node.clock.sleep(1)
        threads.go_on.set()
        await pod
        if erasing is not None:
            await erasing
        await node.clock.sleep(10)
        (place,) = machine.folders
        assert place.state is FolderState.RETAINED
        assert len(machine.folders[place].files["data"]) == MEGABYTE


@pytest.mark.virtual_time
async def test_a_folder_purged_while_the_trash_is_listed_counts_as_erased_once(machine: FakeMachine):
    threads = HeldThreads("names_in_trash")
    async with running(machine, threads=threads) as node:
        node.purge.fails[ID] = 1
        await node.pod_comes_and_goes(lifespan_seconds=0.0)
        await threads.is_held.wait()
        await node.clock.sleep(60)
        assert node.left() == []
        threads.go_on.set()
        await node.clock.sleep(60)
        assert b'orlop_ephemeral_erased_total{reason="trash"} 1.0' in node.metrics.render()[0]


@pytest.mark.virtual_time
async def test_a_folder_found_in_the_trash_before_its_mover_adds_it_counts_as_erased_once(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
):
    async with running(machine) as node:
        discard, is_moved, go_on = node.folders.discard, asyncio.Event(), asyncio.Event()

        async def discard_and_wait(burial: Burial) -> None:
            await discard(burial)
            is_moved.set()
            await go_on.wait()

        monkeypatch.setattr(node.folders, "discard", discard_and_wait)
        await node.pod_comes_and_goes()
        erasing = asyncio.get_running_loop().create_task(node.reaper.erase_on_request(ID))
        await is_moved.wait()
        await node.reaper._trash.find_unknown()
        await node.clock.sleep(60)
        go_on.set()
        await erasing
        await node.clock.sleep(60)

        assert node.left() == []
        counted = [line for line in node.metrics.render()[0].decode().splitlines() if "erased_total{" in line]
        assert counted == ['orlop_ephemeral_erased_total{reason="asked"} 1.0']


@pytest.mark.virtual_time
async def test_a_folder_that_somebody_reads_is_not_erased_when_asked(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        with node.folders.book.being_read(ID), pytest.raises(HostError, match="is being read"):
            await node.reaper.erase_on_request(ID)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_in_the_trash_that_somebody_reads_is_purged_when_that_has_ended(machine: FakeMachine):
    """A reader opened the folder while it was retained. Then its pod came back, and ended without an afterlife."""
    async with running(machine) as node:
        with node.folders.book.being_read(ID):
            await node.pod_comes_and_goes(lifespan_seconds=0.0)
            await node.clock.sleep(60)
            assert len(node.left()) == 1
        await node.clock.sleep(600)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_folder_in_doubt_that_lives_again_is_not_forgotten_when_its_lifespan_is_over(machine: FakeMachine):
    """A failed publish may have moved the folder."""
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        (retained,) = [place for place in machine.folders if place.state is FolderState.RETAINED]
        machine.folders[FolderPlace(FolderState.LIVE, ID)] = machine.folders.pop(retained)
        node.folders.in_doubt.add(ID)
        await node.clock.sleep(2 * LIFESPAN)
        assert ID in node.folders.book.live
        assert folder_ids(machine, FolderState.LIVE) == [ID]


@pytest.mark.virtual_time
async def test_a_full_disk_is_relieved_as_fast_as_purges_are(machine: FakeMachine):
    """The end of a purge wakes the reaper; otherwise it would look once in a second."""
    async with running(machine) as node:
        for number in range(20):
            await node.pod_comes_and_goes(f"csi-{number}", size=MEGABYTE)
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(7)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_folder_without_an_afterlife_given_back_while_the_disk_is_measured_is_erased_at_once(
    machine: FakeMachine,
):
    """What wakes the reaper during a step is not lost."""
    threads = HeldThreads("room")
    async with running(machine, threads=threads) as node:
        await threads.is_held.wait()
        await node.pod_comes_and_goes(lifespan_seconds=0.0)
        threads.go_on.set()
        await node.clock.sleep(1)
        assert node.left() == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("look", ["room", "names_in_trash", "mounted_folders"])
async def test_a_disk_that_cannot_be_looked_at_ends_nothing_and_is_told_once_in_a_while(
    machine: FakeMachine, look: str
):
    async with running(machine) as node:
        for number in range(100):
            await node.pod_comes_and_goes(f"csi-{number}", lifespan_seconds=10.0)
        machine.faults.fail(look, errno.EIO, times=1000)
        calls = machine.faults.calls(look)
        await node.clock.sleep(600)
        assert len(node.left()) == 100
        assert node.reaper.why_stuck is not None
        assert b"orlop_ephemeral_disk_failures_total 0.0" not in node.metrics.render()[0]
        told = [entry for entry in node.log if entry.level is Level.WARNING]
        assert 1 <= len(told) <= 600 / 30
        assert machine.faults.calls(look) < calls + 40, "it is not asked again and again"
        machine.faults.forget()
        await node.clock.sleep(100)
        assert node.left() == []
        assert node.reaper.why_stuck is None


@pytest.mark.virtual_time
async def test_a_burial_does_not_shorten_the_patience_with_a_dying_disk(machine: FakeMachine):
    async with running(machine) as node:
        machine.faults.fail("room", errno.EIO, times=1000)
        for number in range(300):
            await node.pod_comes_and_goes(f"csi-{number}")
            await node.clock.sleep(0.1)
        assert machine.faults.calls("room") < 10


@pytest.mark.virtual_time
@pytest.mark.parametrize("reason", ["age", "pressure"])
async def test_a_move_to_the_trash_that_fails_afterwards_is_found_out(machine: FakeMachine, reason: str):
    """The folder is in the trash and the book says otherwise, until it is looked at again."""
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        machine.faults.fail("move", errno.EIO, moment=KillMoment.AFTER)
        if reason == "pressure":
            machine.used_by_others = machine.total_bytes
        await node.clock.sleep(10 if reason == "pressure" else LIFESPAN + 10)
        assert node.left() == []
        machine.used_by_others = 0
        await node.pod_comes_and_goes()
        assert node.left() == [ID]


@pytest.mark.virtual_time
async def test_hundreds_of_folders_whose_time_is_over_take_few_looks_at_the_mounts(machine: FakeMachine):
    count = 1000 if SOAK else 300
    async with running(machine) as node:
        for number in range(count):
            await node.pod_comes_and_goes(f"csi-{number}", lifespan_seconds=100.0, namespace=f"team-{number % 7}")
        before = machine.faults.calls("mounted_folders"), machine.faults.calls("names_in_trash")
        await node.clock.sleep(101)
        assert node.left() == []
        assert machine.faults.calls("mounted_folders") - before[0] <= count / 16
        assert machine.faults.calls("names_in_trash") - before[1] <= 101 / 5 + 1


@pytest.mark.virtual_time
async def test_a_burial_that_is_due_later_wakes_nobody(machine: FakeMachine):
    async with running(machine) as node:
        await node.clock.sleep(1)
        before = machine.faults.calls("room")
        for number in range(100):
            await node.pod_comes_and_goes(f"csi-{number}")
        await node.clock.sleep(1)
        assert machine.faults.calls("room") == before


@pytest.mark.virtual_time
async def test_a_full_disk_erases_everything_that_is_retained(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes("csi-1")
        await node.pod_comes_and_goes("csi-2")
        machine.used_by_others = machine.total_bytes
        await node.clock.sleep(10)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_folder_published_again_is_not_erased_when_its_time_comes(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        await node.clock.sleep(LIFESPAN / 2)
        machine.kubelet_makes(tuple(order(ID, ID).target.split("/"))[:-1])
        await node.folders.publish(order(ID, ID))
        await node.clock.sleep((10 if SOAK else 2) * LIFESPAN)
        assert folder_ids(machine, FolderState.LIVE) == [ID]


@pytest.mark.virtual_time
@pytest.mark.parametrize("jump", [365 * 24 * 3600.0, -3600.0])
async def test_a_jump_of_the_wall_clock_is_told_and_erases_nothing_early(machine: FakeMachine, jump: float):
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        await node.clock.sleep(60)
        node.clock.jump_wall(jump)
        await node.clock.sleep(LIFESPAN - 120)
        assert node.left() == [ID]
        assert any(entry.message.startswith("wall clock jumped") for entry in node.log)
        await node.clock.sleep(120)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_over_a_restart_the_recorded_time_counts(machine: FakeMachine):
    async with running(machine) as node:
        await node.pod_comes_and_goes()
        await node.clock.sleep(LIFESPAN / 2)
    await VirtualClock().sleep(LIFESPAN / 4)
    async with running(machine) as node:
        await node.clock.sleep(LIFESPAN / 4 - 10)
        assert node.left() == [ID]
        await node.clock.sleep(20)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_a_purge_that_fails_is_tried_again_and_holds_up_no_other(machine: FakeMachine):
    async with running(machine) as node:
        node.purge.fails["csi-bad"] = 3
        for name in ("csi-bad", "csi-1", "csi-2", "csi-3"):
            await node.pod_comes_and_goes(name, lifespan_seconds=10.0)
        await node.clock.sleep(12)
        assert node.left() == ["csi-bad"]
        await node.clock.sleep(100)
        assert node.left() == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("look", ["names_in_trash", "room", "mounted_folders"])
async def test_a_disk_that_does_not_answer_is_told_and_asked_again(machine: FakeMachine, look: str):
    async with running(machine) as node:
        await node.pod_comes_and_goes(lifespan_seconds=10.0)
        await node.clock.sleep(1)
        machine.faults.fail(look, errno.EIO, times=3)
        await node.clock.sleep(200)
        assert node.left() == []
        assert [entry.message for entry in node.log if entry.level is Level.WARNING] != []


@pytest.mark.virtual_time
async def test_what_another_process_left_in_the_trash_is_purged(machine: FakeMachine):
    async with running(machine) as node:
        node.purge.fails[ID] = 1
        await node.pod_comes_and_goes(lifespan_seconds=1.0)
        await node.clock.sleep(2)
        assert folder_ids(machine, FolderState.TRASH) == [ID]
    async with running(machine) as node:
        await node.clock.sleep(1)
        assert node.left() == []


@pytest.mark.virtual_time
async def test_an_erase_killed_anywhere_is_finished_by_the_next_process():
    async def build() -> FakeMachine:
        machine = machine_with_pods()
        folders = folders_on(machine)
        await folders.publish(order(lifespan_seconds=60.0))
        await folders.unpublish(ID, order().target)
        return machine

    async def erase(machine: FakeMachine, points: KillPoints) -> None:
        async with running(machine, points) as node:
            await node.clock.sleep(60.0 + 10)

    def check(machine: FakeMachine) -> None:
        assert machine.folders == {}

    explored = await explore_kills(build, erase, check, deaths=2)
    assert len(explored.effects) == 2
