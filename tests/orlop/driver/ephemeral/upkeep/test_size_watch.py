"""Sizes are measured after burial: once, one at a time, and never of what is no longer there."""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest

from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.upkeep.size_watch import BEFORE_ANOTHER_TRY_SECONDS, SizeWatch
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.kernel.disk_usage import TreeUsage
from orlop.host.kernel.idle_thread import idle_thread
from orlop.host.node_host import FolderPlace, FolderState, Workdir
from orlop.records.ephemeral_folder import burial_of
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import ID, LIFESPAN, folders_on, machine_with_pods, order, right_here

T = TypeVar("T")


class Notes:
    """What stands on the folders: they are the same ones, whatever they are called."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[int, str]] = {}

    def noted(self, place: FolderPlace, true_of: str) -> int | None:
        size, of = self._noted.get(burial_of(place.name).volume_id, (None, ""))  # type: ignore[union-attr]
        return size if of == true_of else None

    def note(self, place: FolderPlace, size: int, true_of: str) -> None:
        self._noted[burial_of(place.name).volume_id] = (size, true_of)  # type: ignore[union-attr]


@asynccontextmanager
async def watching(
    machine: FakeMachine,
    folders: Folders,
    *,
    workdir: Workdir | None = None,
    notes: Notes | None = None,
    log: list[LogEntry] | None = None,
) -> AsyncIterator[None]:
    entries = log if log is not None else []
    host = FakeNodeHost(machine)
    watch = SizeWatch(
        folders, workdir or host.workdir, notes or Notes(), right_here, VirtualClock(), collecting_log(entries)
    )
    task = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def bury(machine: FakeMachine, folders: Folders, volume_id: str = ID, size: int = 5000) -> None:
    asked = order(volume_id, volume_id)
    machine.kubelet_makes(tuple(asked.target.split("/"))[:-1])
    await folders.publish(asked)
    machine.folders[FolderPlace(FolderState.LIVE, volume_id)].files["data"] = bytes(size)
    await folders.unpublish(volume_id, asked.target)


class CountingWorkdir:
    """Measures as a real one, which takes a while: `meanwhile` happens in the middle of it."""

    def __init__(self, machine: FakeMachine, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._workdir = FakeNodeHost(machine).workdir
        self._meanwhile = meanwhile
        self.measured: list[FolderPlace] = []

    def measure(self, place: FolderPlace, should_stop: Callable[[], bool]) -> TreeUsage:
        self.measured.append(place)
        self._meanwhile()
        return self._workdir.measure(place, should_stop)


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


@pytest.mark.virtual_time
async def test_what_is_buried_is_measured_once(machine: FakeMachine):
    folders, workdir = folders_on(machine), CountingWorkdir(machine)
    async with watching(machine, folders, workdir=workdir):  # type: ignore[arg-type]
        for volume_id in ("csi-1", "csi-2", "csi-3"):
            await bury(machine, folders, volume_id)
            await VirtualClock().sleep(2)
        await VirtualClock().sleep(LIFESPAN / 2)

    assert {key: each.bytes_used for key, each in folders.book.retained.items()} == dict.fromkeys(
        ("csi-1", "csi-2", "csi-3"), 4096 + 8192
    )
    assert len(workdir.measured) == 3


@pytest.mark.virtual_time
async def test_what_a_process_finds_at_its_start_is_measured(machine: FakeMachine):
    await bury(machine, folders_on(machine))
    folders = folders_on(machine)
    async with watching(machine, folders):
        await VirtualClock().sleep(2)

    assert folders.book.retained[ID].bytes_used == 4096 + 8192


@pytest.mark.virtual_time
async def test_what_was_measured_before_a_restart_is_not_measured_again(machine: FakeMachine):
    notes, folders = Notes(), folders_on(machine)
    async with watching(machine, folders, notes=notes):
        await bury(machine, folders)
        await VirtualClock().sleep(2)
        await folders.keep(ID, 2 * LIFESPAN)
    folders, workdir = folders_on(machine), CountingWorkdir(machine)
    async with watching(machine, folders, notes=notes, workdir=workdir):  # type: ignore[arg-type]
        await VirtualClock().sleep(2)

    assert folders.book.retained[ID].bytes_used == 4096 + 8192
    assert workdir.measured == []


@pytest.mark.virtual_time
async def test_what_is_buried_again_is_measured_again(machine: FakeMachine):
    folders = folders_on(machine)
    async with watching(machine, folders, notes=Notes()):
        await bury(machine, folders, size=1)
        await VirtualClock().sleep(2)
        await bury(machine, folders, size=100_000)
        await VirtualClock().sleep(2)

    assert folders.book.retained[ID].bytes_used == 4096 + 102_400


@pytest.mark.virtual_time
async def test_measuring_stops_when_the_folder_is_published_or_erased(machine: FakeMachine):
    folders, log = folders_on(machine), list[LogEntry]()
    await bury(machine, folders)
    workdir = CountingWorkdir(machine, meanwhile=lambda: folders.book.was_discarded(ID))
    async with watching(machine, folders, workdir=workdir, log=log):  # type: ignore[arg-type]
        await VirtualClock().sleep(1000)

    assert folders.book.retained == {}
    assert len(workdir.measured) == 1
    assert log == []


@pytest.mark.virtual_time
async def test_what_cannot_be_measured_is_tried_a_few_times_and_holds_up_no_other(machine: FakeMachine):
    folders, log, workdir = folders_on(machine), list[LogEntry](), CountingWorkdir(machine)
    await bury(machine, folders, "csi-bad")
    await bury(machine, folders, "csi-good")
    machine.faults.fail("measure", errno.ESTALE)
    async with watching(machine, folders, workdir=workdir, log=log):  # type: ignore[arg-type]
        await VirtualClock().sleep(2)
        assert folders.book.retained["csi-good"].bytes_used is not None
        assert folders.book.retained["csi-bad"].bytes_used is None
        await VirtualClock().sleep(BEFORE_ANOTHER_TRY_SECONDS)
        assert folders.book.retained["csi-bad"].bytes_used is not None
        machine.faults.fail("measure", errno.EIO, times=100)
        await bury(machine, folders, "csi-worse")
        await VirtualClock().sleep(10 * BEFORE_ANOTHER_TRY_SECONDS)

    assert [entry.message for entry in log] == ["folder not measured"] * 4
    assert len(workdir.measured) == 6


@pytest.mark.skipif(shutil.which("ionice") is None, reason="needs ionice")
def test_an_idle_thread_has_idle_io_priority():
    def priority() -> str:
        asked = subprocess.run(["ionice", "-p", str(threading.get_native_id())], capture_output=True, check=True)
        return asked.stdout.decode().strip()

    with idle_thread("measure") as pool:
        assert pool.submit(priority).result() == "idle"
    assert priority() != "idle"
