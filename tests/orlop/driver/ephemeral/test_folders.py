"""Publishing and unpublishing on a model of the machine: every state, every error, every kill."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from orlop.csi.error_codes import (
    AlreadyExists,
    CsiError,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import FolderIndex, read_index, start_index
from orlop.driver.ephemeral.locked_folders import lifespan_at_burial
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import FolderOptions
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillMoment, KillPoints, explore_kills
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

HOUR = 3600.0
LIMITS = AdminLimits(afterlifespan=12 * HOUR, max_afterlifespan=24 * HOUR)


def assert_untouched(machine: FakeMachine) -> None:
    """As if nothing had been asked; a new folder may lie in the trash."""
    assert folder_ids(machine, FolderState.LIVE) == []
    assert folder_ids(machine, FolderState.RETAINED) == []
    assert machine.half_made == {}
    assert mounted(machine) == []
    assert names_of(UID) not in machine.kubelet_folders


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_pods()


@pytest.mark.virtual_time
async def test_a_published_folder_is_recorded_and_mounted_at_its_target(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    (mount,) = machine.mounts[names_of(UID)]
    assert mount.folder is machine.folders[FolderPlace(FolderState.LIVE, ID)]
    assert mount.options.no_suid
    assert mount.options.no_devices
    assert not mount.options.read_only
    assert folders.book.live[ID].targets == ("/".join(names_of(UID)),)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_publishing_twice_changes_nothing(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    before = dict(machine.folders), {target: list(stack) for target, stack in machine.mounts.items()}
    await folders.publish(order())
    assert (machine.folders, machine.mounts) == before


@pytest.mark.virtual_time
async def test_a_folder_asked_for_read_only_is_mounted_read_only(machine: FakeMachine):
    await folders_on(machine).publish(order(read_only=True))
    assert machine.mounts[names_of(UID)][0].options.read_only


@pytest.mark.virtual_time
async def test_unpublishing_unmounts_removes_the_target_and_buries_the_folder(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    assert mounted(machine) == []
    assert names_of(UID) not in machine.kubelet_folders
    assert folder_ids(machine, FolderState.LIVE) == []
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert folders.book.retained[ID].burial.lifespan_seconds == LIFESPAN
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_the_name_of_a_volume_in_its_pods_spec_is_known_in_its_afterlife_and_after_a_restart(
    machine: FakeMachine,
):
    folders = folders_on(machine)
    await folders.publish(replace(order(), volume_name="scratch"))
    await folders.unpublish(ID, order().target)
    assert folders.book.retained[ID].record.volume_name == "scratch"
    assert folders_on(machine).book.retained[ID].record.volume_name == "scratch"


@pytest.mark.virtual_time
async def test_unpublishing_what_is_unknown_missing_or_gone_already_is_fine(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.unpublish("csi-unknown", "pods/none/volumes/kubernetes.io~csi/x/mount")
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_without_an_afterlife_goes_to_the_trash(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(lifespan_seconds=0.0))
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.TRASH) == [ID]
    assert folders.book.retained == {}


@pytest.mark.virtual_time
async def test_publishing_a_buried_volume_brings_it_back_with_its_files(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
    await folders.unpublish(ID, order().target)
    await folders.publish(order())
    assert folder_ids(machine, FolderState.RETAINED) == []
    assert machine.folders[FolderPlace(FolderState.LIVE, ID)].files == {"result.csv": b"1,2,3"}
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_volume_brought_back_at_another_target_has_that_one_alone(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    await folders.publish(order(volume="other"))
    assert folders.book.live[ID].targets == (order(volume="other").target,)
    assert_book_is_true(folders, machine)
    await folders.unpublish(ID, order(volume="other").target)
    assert folder_ids(machine, FolderState.LIVE) == []
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_volume_brought_back_at_another_target_in_vain_is_recorded_as_it_was(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.unpublish(ID, order().target)
    machine.faults.fail("bind", errno.EIO)
    with pytest.raises(Internal):
        await folders.publish(order(volume="other"))
    assert folders.book.retained[ID].record.targets == (order().target,)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_volume_with_two_targets_is_buried_when_the_last_one_goes(machine: FakeMachine):
    folders = folders_on(machine)
    first, second = order(), order(volume="other")
    await folders.publish(first)
    await folders.publish(second)
    await folders.unpublish(ID, first.target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert mounted(machine) == [names_of(UID, "other")]
    await folders.unpublish(ID, second.target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_target_that_a_restart_unmounted_still_keeps_the_folder(machine: FakeMachine):
    """Kubelet will publish it again: what counts is that nobody has unpublished it."""
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.publish(order(volume="other"))
    machine.mounts.clear()
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]


@pytest.mark.virtual_time
async def test_a_folder_that_a_container_still_has_mounted_is_not_buried(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    mount = machine.mount_elsewhere(FolderPlace(FolderState.LIVE, ID))
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert not await folders.bury_if_unused(ID, why="nobody asks for it")
    machine.unmount_elsewhere(mount)
    assert await folders.bury_if_unused(ID, why="nobody asks for it")
    assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
async def test_an_unmount_that_fails_is_an_error_and_buries_nothing(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.busy.add(names_of(UID))
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert mounted(machine) == [names_of(UID)]
    machine.busy.clear()
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment), ids=lambda moment: moment.value)
async def test_a_burial_that_fails_is_undone_and_succeeds_when_it_is_asked_again(machine, moment: KillMoment):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.faults.fail("move", errno.EIO, moment=moment)
    with pytest.raises(Internal):
        await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(folders, machine)
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("again", ["publish", "unpublish"])
async def test_a_folder_whose_way_to_the_trash_failed_is_asked_for_again_with_success(
    machine: FakeMachine, again: str, moment: KillMoment
):
    folders = folders_on(machine)
    asked = order(lifespan_seconds=0.0)
    await folders.publish(asked)
    machine.faults.fail("move", errno.EIO, moment=moment)
    with pytest.raises(Internal):
        await folders.unpublish(ID, asked.target)
    await folders._clock.sleep(1)
    if again == "publish":
        await folders.publish(asked)
        assert mounted(machine) == [names_of(UID)]
        assert_book_is_true(folders, machine)
    await folders.unpublish(ID, asked.target)
    assert folder_ids(machine, FolderState.LIVE) == []
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
@pytest.mark.parametrize("shelf", [FolderState.LIVE, FolderState.RETAINED])
async def test_a_folder_that_somebody_removed_by_hand_is_made_anew(machine: FakeMachine, shelf: FolderState):
    folders = folders_on(machine)
    await folders.publish(order())
    if shelf is FolderState.RETAINED:
        await folders.unpublish(ID, order().target)
    machine.mounts.clear()  # as after a reboot
    machine.folders.clear()
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_what_is_not_ours_is_not_unmounted(machine: FakeMachine):
    secret = ("pods", UID, "volumes", "kubernetes.io~secret")
    machine.kubelet_makes(secret)
    machine.mount_something_else(secret)
    with pytest.raises(FailedPrecondition):
        await folders_on(machine).unpublish(ID, "/".join(secret))
    assert mounted(machine) == [secret]


@pytest.mark.virtual_time
async def test_something_else_at_the_target_is_left_there_and_the_folder_undone(machine: FakeMachine):
    machine.kubelet_makes(names_of(UID))
    machine.mount_something_else(names_of(UID))
    with pytest.raises(FailedPrecondition):
        await folders_on(machine).publish(order())
    assert len(machine.mounts[names_of(UID)]) == 1
    assert folder_ids(machine, FolderState.LIVE) == []


@pytest.mark.virtual_time
async def test_the_same_volume_at_the_same_target_with_other_options_is_refused_and_stays(machine: FakeMachine):
    """With a code that is not final: kubelet has to unpublish what is mounted there."""
    folders = folders_on(machine)
    await folders.publish(order())
    with pytest.raises(Unavailable, match="with other options: rw,nosuid,nodev"):
        await folders.publish(order(read_only=True))
    assert mounted(machine) == [names_of(UID)]
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_volume_that_somebody_mounted_with_other_options_at_a_target_of_no_record_is_told_as_that(
    machine: FakeMachine,
):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.kubelet_makes(names_of(UID, "other"))
    machine.mounts[names_of(UID, "other")] = list(machine.mounts[names_of(UID)])
    with pytest.raises(AlreadyExists, match="with other options: rw,nosuid,nodev"):
        await folders.publish(order(volume="other", read_only=True))
    assert mounted(machine) == [names_of(UID, "other"), names_of(UID)]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_beyond_the_most_volumes_a_new_one_is_refused_and_old_ones_are_served(machine: FakeMachine):
    machine = machine_with_pods("u1", "u2", "u3")
    folders = folders_on(machine, max_volumes=2)
    await folders.publish(order("csi-1", "u1"))
    await folders.publish(order("csi-2", "u2"))
    with pytest.raises(ResourceExhausted, match="--maxvolumespernode"):
        await folders.publish(order("csi-3", "u3"))
    await folders.publish(order("csi-2", "u2"))
    await folders.unpublish("csi-1", order("csi-1", "u1").target)
    await folders.publish(order("csi-3", "u3"))
    with pytest.raises(ResourceExhausted):
        await folders.publish(order("csi-1", "u1"))


@pytest.mark.virtual_time
async def test_a_folder_without_a_record_is_never_taken(machine: FakeMachine):
    place = FolderPlace(FolderState.LIVE, ID)
    machine.folders[place] = machine.new_folder(0o700, None)
    folders = folders_on(machine)
    assert [(each.place, ID in folders.book.live) for each in folders.book.left_alone] == [(str(place), False)]
    with pytest.raises(FailedPrecondition, match="left alone"):
        await folders.publish(order())
    assert machine.folders[place].record is None


# ---- whatever fails is undone ----------------------------------------------------------------------------------------

PUBLISH_STEPS = ["create", "make_target", "bind"]
RESURRECT_STEPS = ["move", "make_target", "bind"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("step", PUBLISH_STEPS)
async def test_a_publish_that_fails_is_undone(machine: FakeMachine, step: str, moment: KillMoment):
    folders = folders_on(machine)
    machine.faults.fail(step, errno.EIO, moment=moment)
    with pytest.raises(Internal):
        await folders.publish(order())
    assert_untouched(machine)
    assert_book_is_true(folders, machine)
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]


@pytest.mark.virtual_time
@pytest.mark.parametrize("moment", list(KillMoment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("step", RESURRECT_STEPS)
async def test_a_resurrection_that_fails_buries_the_folder_again_as_it_was(machine, step: str, moment: KillMoment):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
    await folders.unpublish(ID, order().target)
    burial = folders.book.retained[ID].burial
    machine.faults.fail(step, errno.EIO, moment=moment)
    with pytest.raises(Internal):
        await folders.publish(order())
    assert folders.book.retained[ID].burial == burial
    assert machine.folders[FolderPlace(FolderState.RETAINED, burial.folder_name)].files == {"result.csv": b"1,2,3"}
    assert mounted(machine) == []
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
@pytest.mark.parametrize("undoing", ["unmount", "remove_target", "move"])
async def test_where_undoing_fails_kubelet_is_told_to_come_again(machine: FakeMachine, undoing: str):
    folders = folders_on(machine)
    machine.faults.fail("bind", errno.EIO, moment=KillMoment.AFTER)
    machine.faults.fail(undoing, errno.EIO)
    with pytest.raises(Unavailable, match="could not be undone"):
        await folders.publish(order())
    machine.faults.forget()
    await folders.publish(order())
    assert mounted(machine) == [names_of(UID)]
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
@pytest.mark.parametrize("undoing", ["unmount", "remove_target", "move"])
async def test_where_undoing_a_resurrection_fails_the_next_try_finds_what_there_is(machine: FakeMachine, undoing: str):
    folders = folders_on(machine)
    await folders.publish(order())
    machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
    await folders.unpublish(ID, order().target)
    machine.faults.fail("bind", errno.EIO, moment=KillMoment.AFTER)
    machine.faults.fail(undoing, errno.EIO, times=2)
    with pytest.raises((Unavailable, Internal)):
        await folders.publish(order())
    machine.faults.forget()
    await folders.publish(order())
    assert machine.folders[FolderPlace(FolderState.LIVE, ID)].files == {"result.csv": b"1,2,3"}
    assert_book_is_true(folders, machine)
    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert mounted(machine) == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("buried", [False, True])
async def test_another_pod_never_gets_a_pods_folder_living_or_dead(buried: bool):  # noqa: FBT001 - a case
    machine = machine_with_pods(UID, "thief")
    folders = folders_on(machine)
    await folders.publish(order())
    if buried:
        await folders.unpublish(ID, order().target)
    with pytest.raises(FailedPrecondition, match="belongs to the pod u1, and the pod thief asks for it"):
        await folders.publish(order(pod="thief"))
    assert mounted(machine) == ([] if buried else [names_of(UID)])
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
async def test_a_full_disk_is_told_as_that(machine: FakeMachine):
    machine.faults.fail("create", errno.ENOSPC)
    with pytest.raises(ResourceExhausted):
        await folders_on(machine).publish(order())
    assert_untouched(machine)


# ---- kills -----------------------------------------------------------------------------------------------------------


async def retried(ask: Callable[[], Awaitable[None]]) -> None:
    """As kubelet does it: again and again."""
    for _ in range(3):
        try:
            return await ask()
        except CsiError:
            continue
    raise AssertionError("it never succeeds")


@pytest.mark.virtual_time
async def test_a_publish_killed_anywhere_succeeds_when_it_is_asked_again():
    async def publish(machine: FakeMachine, points: KillPoints) -> None:
        folders = folders_on(machine, points)
        await retried(lambda: folders.publish(order()))

    def check(machine: FakeMachine) -> None:
        assert mounted(machine) == [names_of(UID)]
        assert len(machine.mounts[names_of(UID)]) == 1
        assert folder_ids(machine, FolderState.LIVE) == [ID]
        assert folder_ids(machine, FolderState.RETAINED) == []

    explored = await explore_kills(machine_with_pods, publish, check, deaths=2)
    assert len(explored.effects) >= 3


@pytest.mark.virtual_time
async def test_an_unpublish_killed_anywhere_succeeds_when_it_is_asked_again():
    async def build() -> FakeMachine:
        machine = machine_with_pods()
        await folders_on(machine).publish(order())
        machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
        return machine

    async def unpublish(machine: FakeMachine, points: KillPoints) -> None:
        folders = folders_on(machine, points)
        await retried(lambda: folders.unpublish(ID, order().target))

    def check(machine: FakeMachine) -> None:
        assert mounted(machine) == []
        assert names_of(UID) not in machine.kubelet_folders
        (place,) = machine.folders
        assert place.state is FolderState.RETAINED
        assert machine.folders[place].files == {"result.csv": b"1,2,3"}

    explored = await explore_kills(build, unpublish, check, deaths=2)
    assert len(explored.effects) >= 3


@pytest.mark.virtual_time
async def test_a_resurrection_killed_anywhere_loses_no_file():
    async def build() -> FakeMachine:
        machine = machine_with_pods()
        folders = folders_on(machine)
        await folders.publish(order())
        machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"
        await folders.unpublish(ID, order().target)
        return machine

    async def publish(machine: FakeMachine, points: KillPoints) -> None:
        folders = folders_on(machine, points)
        await retried(lambda: folders.publish(order()))

    def check(machine: FakeMachine) -> None:
        (place,) = machine.folders
        assert place == FolderPlace(FolderState.LIVE, ID)
        assert machine.folders[place].files == {"result.csv": b"1,2,3"}
        assert mounted(machine) == [names_of(UID)]

    await explore_kills(build, publish, check, deaths=2)


# ---- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_publish_and_unpublish_of_one_volume_never_run_together(machine: FakeMachine):
    folders = folders_on(machine)
    asked = [folders.publish(order()), folders.unpublish(ID, order().target), folders.publish(order())]
    await asyncio.gather(*asked)
    assert mounted(machine) == [names_of(UID)]
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert_book_is_true(folders, machine)


def test_a_book_says_what_it_leaves_alone():
    machine = machine_with_pods()
    machine.strangers[None] = {"deletedVolumes.db": "?"}
    machine.strangers[FolderState.RETAINED] = {"lost+found": "it has no record"}
    record = machine.new_folder(0o700, b"not a record")
    machine.folders[FolderPlace(FolderState.LIVE, "broken")] = record
    book: FolderIndex = read_index(FakeNodeHost(machine).workdir, Moment(0, 0))
    assert sorted(each.place for each in book.left_alone) == ["deletedVolumes.db", "live/broken", "retained/lost+found"]
    assert book.live == {}


def test_a_start_lists_every_shelf_once_and_removes_what_was_half_made():
    machine = machine_with_pods()
    machine.half_made[FolderPlace(FolderState.LIVE, "csi-dead")] = machine.new_folder(0o700, b"")
    start_index(FakeNodeHost(machine).workdir, Moment(0, 0))
    assert machine.half_made == {}
    assert machine.faults.calls("listing") == len((FolderState.LIVE, FolderState.RETAINED))


@pytest.mark.virtual_time
async def test_records_under_a_wrong_name_are_left_alone():
    machine = machine_with_pods()
    folders = folders_on(machine)
    await folders.publish(order())
    place = FolderPlace(FolderState.LIVE, ID)
    machine.folders[replace(place, name="csi-other")] = machine.folders.pop(place)
    machine.folders[FolderPlace(FolderState.RETAINED, "no-burial")] = machine.folders[replace(place, name="csi-other")]
    book = read_index(FakeNodeHost(machine).workdir, Moment(0, 0))
    assert sorted(each.place for each in book.left_alone) == ["live/csi-other", "retained/no-burial"]


@pytest.mark.virtual_time
@pytest.mark.parametrize("lifespan", [1e-9, 0.0004, 0.0005, 0.001])
async def test_a_lifespan_shorter_than_can_be_written_down_leaves_nothing_that_nobody_knows(
    machine: FakeMachine, lifespan: float
):
    folders = folders_on(machine)
    await folders.publish(order(lifespan_seconds=lifespan))
    await folders.unpublish(ID, "/".join(names_of(UID)))
    assert folder_ids(machine, FolderState.RETAINED) == list(folders.book.retained)
    assert_book_is_true(folders, machine)


@pytest.mark.virtual_time
@pytest.mark.parametrize("asked_for", ["csi-2", "csi-unknown"])
async def test_a_volume_is_not_taken_from_its_target_in_the_name_of_another(asked_for: str):
    machine = machine_with_pods(UID, "u2")
    folders = folders_on(machine)
    await folders.publish(order())
    await folders.publish(order("csi-2", "u2"))
    with pytest.raises(FailedPrecondition, match=f"is the volume {ID}"):
        await folders.unpublish(asked_for, "/".join(names_of(UID)))
    assert mounted(machine) == [names_of(UID), names_of("u2")]
    assert set(folders.book.live) == {ID, "csi-2"}
    assert_book_is_true(folders, machine)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        (FolderOptions(5 * HOUR, own_lifespan=False), 12 * HOUR),
        (FolderOptions(20 * HOUR, own_lifespan=False), 12 * HOUR),
        (FolderOptions(0.0, own_lifespan=False), 12 * HOUR),
        (FolderOptions(5 * HOUR), 5 * HOUR),
        (FolderOptions(0.0), 0.0),
        (FolderOptions(24 * HOUR), 24 * HOUR),
        (FolderOptions(48 * HOUR), 24 * HOUR),
    ],
)
def test_a_lifespan_is_the_pods_own_within_the_limit_at_burial_or_the_flags_at_burial(options, seconds: float):
    assert lifespan_at_burial(options, LIMITS) == seconds
