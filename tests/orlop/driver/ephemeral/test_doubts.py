"""A change that failed may have been made all the same: what is true is looked up before anybody goes by the book."""

from __future__ import annotations

import errno

import pytest

from orlop.csi.error_codes import Internal, Unavailable
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import Burial
from orlop.testing.fake_host import FakeMachine
from orlop.testing.kill_points import KillMoment
from support.afterlife.ephemeral_node import (
    ID,
    LIFESPAN,
    UID,
    assert_book_is_true,
    folder_ids,
    folders_on,
    machine_with_pods,
    mounted,
    names_of,
    order,
)


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


@pytest.mark.virtual_time
@pytest.mark.parametrize("undoing", ["unmount", "remove_target"])
async def test_a_resurrection_that_cannot_be_undone_is_not_taken_for_buried(machine: FakeMachine, undoing: str):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    machine.faults.fail("bind", errno.EIO, moment=KillMoment.AFTER)
    machine.faults.fail(undoing, errno.EIO)
    with pytest.raises(Unavailable):
        await folders.publish(order())
    machine.faults.forget()
    await folders.resolve_doubts()
    assert_book_is_true(folders, machine)
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_burial_that_failed_and_was_made_is_found_by_whoever_asks_next(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.faults.fail("move", errno.EIO, moment=KillMoment.AFTER)
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_record_that_failed_and_was_written_is_found_by_whoever_asks_next(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.publish(order(volume="other"))
    machine.faults.fail("write_record", errno.EIO, moment=KillMoment.AFTER)
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    await folders.unpublish(ID, order().target)
    assert_book_is_true(folders, machine)
    assert folders.book.live[ID].targets == (order(volume="other").target,)


@pytest.mark.virtual_time
async def test_what_cannot_be_found_out_stays_in_doubt_and_is_unavailable(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.faults.fail("move", errno.EIO, moment=KillMoment.AFTER)
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    machine.faults.fail("read_record", errno.EIO, times=3)
    for ask in (folders.publish(order()), folders.unpublish(ID, order().target)):
        with pytest.raises(Unavailable, match="cannot be read from disk"):
            await ask
    await folders.resolve_doubts()
    assert folders.in_doubt == {ID}
    await folders.resolve_doubts()
    assert folders.in_doubt == set()
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_what_was_perhaps_never_made_durable_is_not_acknowledged_before_it_is(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.faults.fail("move", errno.EIO, moment=KillMoment.AFTER, times=2)  # and undoing it fails as well
    with pytest.raises((Internal, Unavailable)):
        await folders.unpublish(ID, order().target)
    machine.faults.forget()
    machine.faults.fail("synchronise", errno.EIO)
    with pytest.raises(Unavailable, match="cannot be read from disk"):
        await folders.unpublish(ID, order().target)
    await folders.unpublish(ID, order().target)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_publish_over_what_an_unpublish_left_gives_no_final_code(machine: FakeMachine):
    """After a final code kubelet would forget a target that is still mounted."""
    folders = folders_on(machine)
    await folders.publish(order())
    machine.busy.add(names_of(UID))
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    machine.faults.fail("is_shown_by", errno.EIO, times=2)
    with pytest.raises(Unavailable):
        await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]


@pytest.mark.virtual_time
async def test_a_resurrected_folder_has_only_the_targets_it_was_given_since(machine: FakeMachine):
    folders = folders_on(machine)
    first, second = order(), order(volume="other")
    for asked in (first, second):
        await folders.publish(asked)
    for asked in (first, second):
        await folders.unpublish(ID, asked.target)
    await folders.publish(first)
    assert folders.book.live[ID].targets == (first.target,)
    await folders.unpublish(ID, first.target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_an_unpublish_that_cannot_see_what_is_mounted_is_an_error_with_its_reason(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.faults.fail("mounted_folders", errno.EIO)
    with pytest.raises(Internal, match="mounted_folders"):
        await folders.unpublish(ID, order().target)
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_a_resurrection_that_was_half_undone_is_known_with_the_record_it_has_now(machine: FakeMachine):
    """The folder is back where it was, and its record names the target of the publish that failed."""
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    machine.faults.fail("move", errno.EIO, times=2, moment=KillMoment.AFTER)
    with pytest.raises(Unavailable):
        await folders.publish(order(volume="other"))
    await folders.publish(order())
    assert folders.book.live[ID].targets == (order().target,)
    assert_book_is_true(folders, machine)


def buried_by_hand(machine: FakeMachine, burial: Burial) -> None:
    """As a rename that was made, and reported as failed, leaves it."""
    (place,) = machine.folders
    machine.folders[FolderPlace(FolderState.RETAINED, burial.folder_name)] = machine.folders.pop(place)


@pytest.mark.virtual_time
async def test_a_folder_in_doubt_that_is_buried_already_is_not_buried_again(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.mounts.clear()
    buried_by_hand(machine, Burial(ID, 1_000.0, LIFESPAN))
    folders.in_doubt.add(ID)
    assert not await folders.bury_if_unused(ID, why="kubelet has forgotten its pod")
    assert folders.book.retained[ID].burial == Burial(ID, 1_000.0, LIFESPAN)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_folder_in_doubt_is_kept_longer_under_the_name_it_has(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    buried_by_hand(machine, Burial(ID, 1_000.0, LIFESPAN))
    folders.in_doubt.add(ID)
    assert await folders.keep(ID, 2 * LIFESPAN)
    assert folders.book.retained[ID].burial == Burial(ID, 1_000.0, 2 * LIFESPAN)
    assert_book_is_true(folders, machine)
