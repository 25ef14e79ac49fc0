"""The order of effects of publish, unpublish, burial and undo, each list exactly as `publish_sequence` promises it.

A kill between two effects leaves the machine as the list says so far. That is why the order matters: a target that is
mounted is always named by its folder's record on disk, and nothing is acknowledged before it survives power loss.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orlop.csi.error_codes import CsiError, Internal
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import Owner, decode_record
from orlop.testing.fake_host import FakeMachine
from orlop.testing.kill_points import KillMoment, KillPoints
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    assert_book_is_true,
    folder_ids,
    folders_on,
    machine_with_pods,
    names_of,
    order,
)

LIVE = f"live/{ID}"
TARGET, SECOND = order().target, order(volume="other").target


class Effects(KillPoints):
    """Every effect by its name, with those that make something durable; after each the machine is checked."""

    def __init__(self, machine: FakeMachine) -> None:
        super().__init__()
        self._machine = machine

    def effect(self, name: str) -> Any:
        assert_mounts_are_recorded(self._machine)
        return super().effect(name)

    def watch(self, folders: Folders) -> Folders:
        workdir: Any = folders._workdir
        workdir.make_durable = self._noted("flush", workdir.make_durable)
        workdir.snapshot_mounts = self._noted("read mounts", workdir.snapshot_mounts)
        return folders

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.seen.append(" ".join((name, *(state.value for state in arguments))))
            return call(*arguments)

        return noted

    def take(self) -> list[str]:
        """Those since the last time, with burials as `ID at its burial`."""
        assert_mounts_are_recorded(self._machine)
        seen, self.seen = self.seen, []
        return [" ".join(_plain(word) for word in effect.split()) for effect in seen]


def _plain(word: str) -> str:
    shelf, _, name = word.partition("/")
    return f"{shelf}/…{ID}" if shelf in {"retained", "trash"} and name.endswith(f"_{ID}") else word


def assert_mounts_are_recorded(machine: FakeMachine) -> None:
    for place, folder in machine.folders.items():
        targets = decode_record(folder.record or b"").targets
        for target, stack in machine.mounts.items():
            is_ours = any(mount.folder is folder for mount in stack)
            assert not is_ours or (place.state is FolderState.LIVE and "/".join(target) in targets), (
                f"{place} is mounted at {target}, and its record names {targets}"
            )


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


def watched(machine: FakeMachine) -> tuple[Folders, Effects]:
    effects = Effects(machine)
    return effects.watch(folders_on(machine, effects)), effects


PUBLISH = [
    f"make {LIVE} half",
    f"name {LIVE}",
    "flush live",
    f"make target {TARGET}",
    f"bind {LIVE} at {TARGET}",
]
UNDO = [
    f"unmount {TARGET}",
    f"remove target {TARGET}",
    f"remove half-made {LIVE}",
    f"move {LIVE} to trash/…{ID}",
    "flush trash",
]
UNMOUNT = [f"unmount {TARGET}", f"remove target {TARGET}"]


@pytest.mark.virtual_time
async def test_a_new_folder_is_durable_before_its_target_is_made_and_bound_last(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    assert effects.take() == PUBLISH


@pytest.mark.virtual_time
async def test_a_second_target_is_recorded_before_it_is_made(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    effects.take()
    await folders.publish(order(volume="other"))
    assert effects.take() == [f"write record of {LIVE}", f"make target {SECOND}", f"bind {LIVE} at {SECOND}"]


@pytest.mark.virtual_time
async def test_a_retained_folder_is_recorded_then_live_and_durable_then_bound(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    await folders.unpublish(ID, TARGET)
    effects.take()
    await folders.publish(order(volume="other"))
    assert effects.take() == [
        f"write record of retained/…{ID}",
        f"move retained/…{ID} to {LIVE}",
        "flush live",
        f"make target {SECOND}",
        f"bind {LIVE} at {SECOND}",
    ]


@pytest.mark.virtual_time
async def test_publishing_again_changes_only_what_is_missing(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    effects.take()
    await folders.publish(order())
    assert effects.take() == [f"make target {TARGET}"]
    machine.mounts.clear()
    await folders.publish(order())
    assert effects.take() == [f"make target {TARGET}", f"bind {LIVE} at {TARGET}"]


@pytest.mark.virtual_time
async def test_one_of_several_targets_is_unmounted_and_removed_before_the_record_forgets_it(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    await folders.publish(order(volume="other"))
    effects.take()
    await folders.unpublish(ID, TARGET)
    assert effects.take() == [*UNMOUNT, f"write record of {LIVE}"]


@pytest.mark.virtual_time
async def test_one_of_several_targets_that_cannot_be_unmounted_stays_in_the_record(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    await folders.publish(order(volume="other"))
    machine.busy.add(names_of(UID))
    with pytest.raises(Internal):
        await folders.unpublish(ID, TARGET)
    effects.take()
    record = decode_record(machine.folders[FolderPlace(FolderState.LIVE, ID)].record or b"")
    assert record.targets == (TARGET, SECOND)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_the_last_target_is_gone_and_the_mounts_are_read_before_the_folder_is_buried(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    effects.take()
    await folders.unpublish(ID, TARGET)
    assert effects.take() == [*UNMOUNT, "read mounts", f"move {LIVE} to retained/…{ID}", "flush retained"]


@pytest.mark.virtual_time
async def test_a_folder_without_an_afterlife_is_durably_in_the_trash_when_it_is_acknowledged(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order(lifespan_seconds=0.0))
    effects.take()
    await folders.unpublish(ID, TARGET)
    assert effects.take() == [*UNMOUNT, "read mounts", f"move {LIVE} to trash/…{ID}", "flush trash"]
    (place,) = machine.folders
    assert folders.trashed == [place.name]


@pytest.mark.virtual_time
async def test_a_burial_wakes_the_reaper_which_may_have_to_erase_sooner_than_it_thought(machine: FakeMachine):
    folders, _ = watched(machine)
    await folders.publish(order())
    assert not folders.wake_reaper.is_set()
    await folders.unpublish(ID, TARGET)
    assert folders.wake_reaper.is_set()


@pytest.mark.virtual_time
async def test_a_folder_that_has_reached_the_trash_is_never_moved_back(machine: FakeMachine):
    """The purge finds it there by itself, and may be erasing it."""
    folders, effects = watched(machine)
    await folders.publish(order(lifespan_seconds=0.0))
    machine.faults.fail("make_durable", errno.EIO)
    with pytest.raises(Internal):
        await folders.unpublish(ID, TARGET)
    assert effects.take()[-2:] == [f"move {LIVE} to trash/…{ID}", "flush trash"]
    assert folder_ids(machine, FolderState.TRASH) == [ID]
    await folders.unpublish(ID, TARGET)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_folder_is_kept_longer_by_one_rename_that_is_durable(machine: FakeMachine):
    folders, effects = watched(machine)
    await folders.publish(order())
    await folders.unpublish(ID, TARGET)
    effects.take()
    await folders.keep(ID, 1e6)
    assert effects.take() == [f"move retained/…{ID} to retained/…{ID}", "flush retained"]
    assert folders.book.retained[ID].burial.lifespan_seconds == 1e6


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment), ids=lambda moment: moment.value)
async def test_a_publish_whose_bind_fails_is_undone_backwards(machine: FakeMachine, moment: KillMoment):
    folders, effects = watched(machine)
    machine.faults.fail("bind", errno.EIO, moment=moment)
    with pytest.raises(Internal):
        await folders.publish(order())
    is_bound = moment is KillMoment.AFTER
    assert effects.take() == [*PUBLISH[: 5 if is_bound else 4], *UNDO[0 if is_bound else 1 :]]


@pytest.mark.virtual_time
@pytest.mark.parametrize("function", ["make_durable", "synchronise"])
async def test_a_flush_that_fails_is_undone_or_left_in_doubt(machine: FakeMachine, function: str):
    folders, effects = watched(machine)
    await folders.publish(order())
    machine.faults.fail("make_durable", errno.EIO, times=2)
    with pytest.raises(CsiError):
        await folders.unpublish(ID, TARGET)
    assert folders.in_doubt == {ID}
    machine.faults.forget()
    machine.faults.fail(function, errno.EIO)
    with pytest.raises(CsiError):
        await folders.unpublish(ID, TARGET)
    await folders.unpublish(ID, TARGET)
    effects.take()
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_folder_whose_pod_is_not_known_is_published_for_a_pod_that_is(machine: FakeMachine):
    """A record from before pods were recorded, or of a target that names none."""
    folders = folders_on(machine)
    await folders.publish(replace(order(), owner=Owner()))
    await folders.publish(order())
    await folders.unpublish(ID, TARGET)
    await folders.publish(replace(order(), owner=Owner()))
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(folders, machine)
