"""Calls that meet at one target or one volume, each held in the middle of its work while the other comes.

The first call runs in a thread and stops inside the host; the second runs on the event loop, as far as it gets. No
time passes: what has not happened when the loop is idle waits for a lock.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.host.node_host import FolderPlace, FolderState
from orlop.host.threads import Threads
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    assert_book_is_true,
    folder_ids,
    machine_with_pods,
    mounted,
    names_of,
    order,
    right_here,
)

T = TypeVar("T")
OTHER = "csi-2"


def folders_of(host: FakeNodeHost, threads: Threads = right_here, **options: Any) -> Folders:
    """By the real clock: threads know no other."""
    clock = SystemClock()
    book = read_index(host.workdir, Moment(clock.now().timestamp(), clock.elapsed()))
    return Folders(host, book, threads=threads, clock=clock, log=silent_log(), **options)


class Meeting:
    """Folders on which the first call stops after one call of the host, until the second has got as far as it can."""

    def __init__(self, machine: FakeMachine, part: str, call: str, **options: Any) -> None:
        self.machine = machine
        self._reached, self._go_on = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] | None = None
        host = FakeNodeHost(machine)
        owner: Any = host if part == "host" else getattr(host, part)
        setattr(owner, call, self._stopping(getattr(owner, call)))
        self.folders = folders_of(host, self._threads, **options)

    def _stopping(self, call: Callable[..., T]) -> Callable[..., T]:
        def stopped(*arguments: object) -> T:
            result = call(*arguments)
            if threading.current_thread() is not threading.main_thread() and not self._go_on.is_set():
                self._loop.call_soon_threadsafe(self._reached.set)
                self._go_on.wait()
            return result

        return stopped

    async def _threads(self, work: Callable[[], T], /) -> T:
        return await asyncio.to_thread(work) if asyncio.current_task() is self._first else work()

    async def of(self, first: Awaitable[None], second: Awaitable[None]) -> list[bool]:
        """Which of them succeeded, when the second comes while the first is stopped."""
        earlier = self._first = asyncio.ensure_future(first)
        reached = asyncio.ensure_future(self._reached.wait())
        try:
            await asyncio.wait([earlier, reached], return_when=asyncio.FIRST_COMPLETED)
            assert reached.done(), f"the first call never got there: {earlier}"
            later = asyncio.ensure_future(second)
            for _ in range(20):
                await asyncio.sleep(0)
        finally:
            self._go_on.set()
            reached.cancel()
        ended = await asyncio.gather(earlier, later, return_exceptions=True)
        assert all(each is None or isinstance(each, CsiError) for each in ended), ended
        return [each is None for each in ended]


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


async def test_two_volumes_never_share_a_target(machine: FakeMachine):
    """The first has found the target free; the second must not find it free as well."""
    meeting = Meeting(machine, "kubelet_dir", "make_target")
    publish = meeting.folders.publish
    assert await meeting.of(publish(order(ID)), publish(order(OTHER))) == [True, False]
    (mount,) = machine.mounts[names_of(UID)]
    assert mount.folder is machine.folders[FolderPlace(FolderState.LIVE, ID)]
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(meeting.folders, machine)


async def test_an_unpublish_never_unmounts_a_volume_that_came_to_its_target_meanwhile(machine: FakeMachine):
    """It has found nothing mounted; what is published there since then belongs to another volume."""
    meeting = Meeting(machine, "kubelet_dir", "mounted_at")
    unpublish = meeting.folders.unpublish(ID, order(ID).target)
    assert await meeting.of(unpublish, meeting.folders.publish(order(OTHER))) == [True, True]
    assert mounted(machine) == [names_of(UID)]
    assert folder_ids(machine, FolderState.LIVE) == [OTHER]
    assert_book_is_true(meeting.folders, machine)


async def test_a_publish_never_finds_the_target_of_another_volume_half_removed(machine: FakeMachine):
    """Unmounted, and not removed yet: a bind there would be removed along with it, or keep the other from its end."""
    await folders_of(FakeNodeHost(machine)).publish(order(ID))
    meeting = Meeting(machine, "kubelet_dir", "unmount")
    unpublish = meeting.folders.unpublish(ID, order(ID).target)
    assert await meeting.of(unpublish, meeting.folders.publish(order(OTHER))) == [True, True]
    assert mounted(machine) == [names_of(UID)]
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(meeting.folders, machine)


async def test_an_unpublish_waits_for_the_publish_of_its_volume(machine: FakeMachine):
    """Without the volume's key it would find no record, unmount nothing and report success."""
    meeting = Meeting(machine, "workdir", "create")
    publish, unpublish = meeting.folders.publish(order(ID)), meeting.folders.unpublish(ID, order(ID).target)
    assert await meeting.of(publish, unpublish) == [True, True]
    assert mounted(machine) == []
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(meeting.folders, machine)


async def test_a_publish_waits_for_the_burial_of_its_volume(machine: FakeMachine):
    await folders_of(FakeNodeHost(machine)).publish(order(ID))
    machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
    meeting = Meeting(machine, "workdir", "snapshot_mounts")
    publish, unpublish = meeting.folders.publish(order(ID)), meeting.folders.unpublish(ID, order(ID).target)
    assert await meeting.of(unpublish, publish) == [True, True]
    assert mounted(machine) == [names_of(UID)]
    assert machine.folders[FolderPlace(FolderState.LIVE, ID)].files == {"result.csv": b"1,2,3"}
    assert_book_is_true(meeting.folders, machine)


async def test_a_watch_that_buries_waits_for_the_publish_of_a_second_target(machine: FakeMachine):
    """It would see nothing mounted, and move the folder away from under the bind."""
    await folders_of(FakeNodeHost(machine)).publish(order(ID))
    machine.mounts.clear()  # as after a reboot
    meeting = Meeting(machine, "kubelet_dir", "make_target")

    async def bury() -> None:
        assert not await meeting.folders.bury_if_unused(ID, why="kubelet has forgotten its pod")

    assert await meeting.of(meeting.folders.publish(order(ID, volume="other")), bury()) == [True, True]
    assert mounted(machine) == [names_of(UID, "other")]
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(meeting.folders, machine)


async def test_a_publish_waits_for_the_rename_that_keeps_its_folder_longer(machine: FakeMachine):
    """Under its old name it would not be found, and the pod would get an empty folder."""
    folders = folders_of(FakeNodeHost(machine))
    await folders.publish(order(ID))
    machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
    await folders.unpublish(ID, order(ID).target)
    meeting = Meeting(machine, "workdir", "move")

    async def keep() -> None:
        assert await meeting.folders.keep(ID, 1e6)

    assert await meeting.of(keep(), meeting.folders.publish(order(ID))) == [True, True]
    assert machine.folders[FolderPlace(FolderState.LIVE, ID)].files == {"result.csv": b"1,2,3"}
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(meeting.folders, machine)


async def test_a_publish_waits_until_its_volume_is_no_longer_in_doubt(machine: FakeMachine):
    """What was read from disk before the publish would replace what the publish has written since."""
    await folders_of(FakeNodeHost(machine)).publish(order(ID))
    meeting = Meeting(machine, "workdir", "read_record")
    meeting.folders.in_doubt.add(ID)
    ended = await meeting.of(meeting.folders.resolve_doubts(), meeting.folders.publish(order(ID, volume="other")))
    assert ended == [True, True]
    assert meeting.folders.book.live[ID].targets == (order(ID).target, order(ID, volume="other").target)
    assert_book_is_true(meeting.folders, machine)


async def test_a_volume_that_is_being_published_counts_as_one_of_the_nodes(machine: FakeMachine):
    meeting = Meeting(machine, "workdir", "create", max_volumes=1)
    first, second = meeting.folders.publish(order(ID)), meeting.folders.publish(order(OTHER, volume="other"))
    assert await meeting.of(first, second) == [True, False]
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(meeting.folders, machine)
