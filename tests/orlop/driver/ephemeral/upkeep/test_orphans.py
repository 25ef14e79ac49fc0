"""Folders that kubelet forgot are buried after a grace, and no others."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import Unavailable
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.upkeep.orphan_watch import (
    LiveFolder,
    OrphanVerdict,
    OrphanWatch,
    folders_that_show_the_pod,
    judge,
)
from orlop.foundation.structured_log import silent_log
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import FolderOptions, FolderRecord, Owner
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    folder_ids,
    folders_on,
    machine_with_pods,
    names_of,
    order,
    right_here,
)

GRACE = 3600.0


def live(**facts: bool) -> LiveFolder:
    return LiveFolder(ID, **{"unpublished": False, "mounted": False, "pod_is_known": False, **facts})


def test_an_orphan_is_buried_when_its_grace_is_over():
    first = judge([live()], {}, now=100.0, grace=GRACE)
    assert first == OrphanVerdict((), {ID: 100.0})
    assert judge([live()], first.orphans_since, now=99.0 + GRACE, grace=GRACE) == first
    assert judge([live()], first.orphans_since, now=100.0 + GRACE, grace=GRACE) == OrphanVerdict((ID,), {})


def test_an_orphan_that_was_found_again_begins_anew():
    first = judge([live()], {}, now=100.0, grace=GRACE)
    again = judge([live(pod_is_known=True)], first.orphans_since, now=200.0, grace=GRACE)
    assert again == OrphanVerdict((), {})


def test_what_was_unpublished_waits_only_for_its_last_mount():
    assert judge([live(unpublished=True, pod_is_known=True)], {}, now=0.0, grace=GRACE).bury == (ID,)
    assert judge([live(unpublished=True, mounted=True)], {}, now=0.0, grace=GRACE).bury == ()


folders_of_tests = st.lists(
    st.builds(LiveFolder, st.sampled_from("abcdef"), st.booleans(), st.booleans(), st.booleans()),
    unique_by=lambda folder: folder.volume_id,
)


@given(folders_of_tests, st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 100)), st.floats(0, 50))
def test_nothing_that_is_mounted_or_known_is_ever_buried(folders, before, grace):
    verdict = judge(folders, before, now=100.0, grace=grace)
    safe = {each.volume_id for each in folders if each.mounted or (each.pod_is_known and not each.unpublished)}
    assert not safe & {*verdict.bury, *verdict.orphans_since}
    assert all(began <= 100.0 for began in verdict.orphans_since.values())


def test_a_pod_is_known_by_its_own_folder_and_another_target_by_its_parent():
    targets = ("/".join(names_of(UID)), "sanity/x/target")
    record = FolderRecord(ID, Owner(), FolderOptions(1.0), 0.0, targets)
    assert folders_that_show_the_pod(record) == {("pods", UID), ("sanity", "x")}


@asynccontextmanager
async def watching(machine: FakeMachine, *, grace: float = GRACE) -> AsyncIterator[tuple[Folders, VirtualClock]]:
    folders, clock = folders_on(machine), VirtualClock()
    watch = OrphanWatch(folders, FakeNodeHost(machine), grace=grace, threads=right_here, clock=clock, log=silent_log())
    task = asyncio.get_running_loop().create_task(watch.run())
    try:
        yield folders, clock
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.virtual_time
async def test_a_folder_whose_pod_kubelet_forgot_is_buried_after_the_grace():
    machine = machine_with_pods()
    async with watching(machine) as (folders, clock):
        await folders.publish(order())
        machine.kubelet_removes(("pods", UID))
        await clock.sleep(GRACE - 60)
        assert folder_ids(machine, FolderState.LIVE) == [ID]
        await clock.sleep(120)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_that_a_reboot_unmounted_is_kept_while_kubelet_knows_the_pod():
    machine = machine_with_pods()
    async with watching(machine) as (folders, clock):
        await folders.publish(order())
        machine.mounts.clear()
        await clock.sleep(100 * GRACE)
        assert folder_ids(machine, FolderState.LIVE) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_that_a_lost_container_has_mounted_is_kept_until_it_has_not():
    machine = machine_with_pods()
    async with watching(machine) as (folders, clock):
        await folders.publish(order())
        mount = machine.mount_elsewhere(FolderPlace(FolderState.LIVE, ID))
        await folders.unpublish(ID, order().target)
        await clock.sleep(10 * GRACE)
        assert folder_ids(machine, FolderState.LIVE) == [ID]
        machine.unmount_elsewhere(mount)
        await clock.sleep(60)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_that_is_mounted_since_the_mounts_were_read_is_not_buried():
    """A pod was started again meanwhile: burying would move the folder away under its feet."""
    machine = machine_with_pods()
    folders = folders_on(machine)
    await folders.publish(order())
    assert not await folders.bury_if_unused(ID, why="its pod is gone")
    assert folder_ids(machine, FolderState.LIVE) == [ID]


@pytest.mark.virtual_time
async def test_after_a_restart_the_grace_begins_anew():
    machine = machine_with_pods()
    async with watching(machine) as (folders, clock):
        await folders.publish(order())
        machine.kubelet_removes(("pods", UID))
        await clock.sleep(GRACE / 2)
    async with watching(machine) as (folders, clock):
        await clock.sleep(GRACE - 60)
        assert folder_ids(machine, FolderState.LIVE) == [ID]
        await clock.sleep(120)
        assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_an_orphan_that_cannot_be_buried_holds_up_no_other_and_begins_no_new_grace():
    machine = machine_with_pods("u1", "u2")
    async with watching(machine) as (folders, clock):
        await folders.publish(order("csi-1", "u1"))
        await folders.publish(order("csi-2", "u2"))
        for pod in ("u1", "u2"):
            machine.kubelet_removes(("pods", pod))
        await clock.sleep(GRACE - 60)
        machine.faults.fail("move", errno.EIO, times=1)
        await clock.sleep(90)
        assert folder_ids(machine, FolderState.RETAINED) == ["csi-2"]
        await clock.sleep(60)
        assert folder_ids(machine, FolderState.RETAINED) == ["csi-1", "csi-2"]


@pytest.mark.virtual_time
async def test_what_a_failure_left_is_found_out_when_nobody_asks_for_it_any_more():
    machine = machine_with_pods()
    async with watching(machine) as (folders, clock):
        machine.faults.fail("bind", errno.EIO)
        machine.faults.fail("remove_target", errno.EIO)
        with pytest.raises(Unavailable):
            await folders.publish(order())
        machine.kubelet_removes(("pods", UID))
        await clock.sleep(GRACE + 120)
        assert folder_ids(machine, FolderState.LIVE) == []
        assert folder_ids(machine, FolderState.RETAINED) == [ID]
        assert folders.book.retained.keys() == {ID}


@pytest.mark.virtual_time
async def test_a_pod_that_cannot_be_looked_for_keeps_its_folder_and_holds_up_no_other():
    machine = machine_with_pods("u1", "u2")
    async with watching(machine) as (folders, clock):
        await folders.publish(order("csi-1", "u1"))
        await folders.publish(order("csi-2", "u2"))
        machine.mounts.clear()
        for pod in ("u1", "u2"):
            machine.kubelet_removes(("pods", pod))
        machine.kubelet_files.add(("pods", "u1"))
        await clock.sleep(GRACE + 60)
        assert folder_ids(machine, FolderState.LIVE) == ["csi-1"]
        assert folder_ids(machine, FolderState.RETAINED) == ["csi-2"]
