"""Volumes on drives through the calls of a node: staged, published, used, expanded and taken apart again."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import TypeVar

import pytest

from orlop.csi.error_codes import (
    AlreadyExists,
    CsiError,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from orlop.driver.persistent.drive_table import DriveStanding
from orlop.driver.persistent.locked_volumes import RELEASE_SECONDS
from orlop.driver.persistent.upkeep.drive_opening import fit_reserve_of
from orlop.host.batched_work import BatchedWork, run_alone
from orlop.host.block.image_files import ImageShape
from orlop.host.drive_host import DriveFeatures
from orlop.host.folders.project_quota import ProjectLimits
from orlop.host.node_host import Names
from orlop.records.drive_record import MIB, DriveState, DriveType
from orlop.records.volume_record import decode_volume
from orlop.testing.virtual_clock import VirtualClock
from support.drives.node_drives import DRIVE, ID, OTHER_DRIVE, READY, WITH_QUOTA, drive_record, open_drive
from support.drives.volume_node import (
    DEVICE,
    OTHER_DEVICE,
    OTHER_TARGET,
    SIZE,
    STAGING,
    TARGET,
    FakeNode,
    Ground,
    Mode,
    new_ground,
)
from support.shown_lock import ShownLock
from support.waiting import HANGS_AFTER

T = TypeVar("T")
pytestmark = pytest.mark.virtual_time
BACKINGS = pytest.mark.parametrize("backing", ["directory", "image"])
LOST = DriveStanding(DriveState.LOST, "its disk is not there")


@pytest.fixture
def ground() -> Ground:
    return new_ground()


@pytest.fixture
def node(ground: Ground) -> FakeNode:
    return ground.start()


def mounted(node: FakeNode) -> set[tuple[str, ...]]:
    return {target for target, stack in node.ground.machine.mounts.items() if stack}


# ---- a whole life ----------------------------------------------------------------------------------------------------


@BACKINGS
async def test_the_first_staging_makes_the_volume_with_its_record_and_the_pod_has_it(node: FakeNode, backing: str):
    await node.stage(backing=backing)
    await node.publish()

    record = decode_volume(node.ground.drive().volumes[ID].record or b"")
    assert (record.staged, record.unfinished, record.bytes) == ("/".join(STAGING), "", SIZE)
    assert [(target.path, target.pod_name) for target in record.published] == [("/".join(TARGET), "web-0")]
    assert mounted(node) == {STAGING, TARGET}
    assert node.index.get(ID) == record

    await node.unpublish()
    assert mounted(node) == {STAGING}
    assert TARGET not in node.ground.machine.kubelet_folders
    await node.unstage()
    assert mounted(node) == set()
    record = decode_volume(node.ground.drive().volumes[ID].record or b"")
    assert (record.staged, record.published) == ("", ())


async def test_a_directory_is_limited_in_bytes_and_files_before_it_has_its_name(node: FakeNode):
    await node.stage(backing="directory")

    volume = node.ground.drive().volumes[ID]
    limits = node.ground.drive().limits[volume.project]
    assert (limits.bytes, limits.inodes) == (SIZE, SIZE // 4096)
    assert (volume.mode, volume.image) == (0o777, None)


async def test_a_block_volume_is_attached_and_its_device_published_and_it_is_never_mounted(node: FakeNode):
    await node.stage(block=True)
    assert mounted(node) == set()
    await node.publish(block=True)

    volume = node.ground.drive().volumes[ID]
    assert list(volume.devices.values()) == [False]
    assert mounted(node) == {DEVICE}
    assert node.ground.machine.mounts[DEVICE][-1].root.inode in volume.devices

    await node.unpublish(DEVICE)
    assert DEVICE not in node.ground.machine.kubelet_files
    await node.unstage()
    assert volume.devices == {}
    assert node.ground.machine.faults.calls("mount_image") == 0


async def test_every_call_can_be_repeated(node: FakeNode):
    for _ in range(2):
        await node.stage()
        await node.publish()
    assert [len(stack) for stack in node.ground.machine.mounts.values()] == [1, 1]
    for _ in range(2):
        await node.unpublish()
        await node.unstage()
    assert mounted(node) == set()


async def test_any_number_of_pods_of_the_node_use_a_volume(node: FakeNode):
    await node.stage()
    targets = [("pods", f"u{number}", "volumes", "kubernetes.io~csi", "pv1", "mount") for number in range(100)]
    for number, target in enumerate(targets):
        node.ground.machine.kubelet_makes(target[:-1])
        await node.publish(target=target, pod=f"web-{number}")

    record = node.index.get(ID)
    assert record is not None
    assert {target.path for target in record.published} == {"/".join(target) for target in targets}


@pytest.mark.parametrize("block", [False, True])
async def test_read_only_is_a_property_of_the_target(node: FakeNode, *, block: bool):
    one, other = (DEVICE, OTHER_DEVICE) if block else (TARGET, OTHER_TARGET)
    await node.stage(block=block)
    await node.publish(target=one, block=block, read_only=True)
    await node.publish(target=other, block=block)

    if block:
        devices = node.ground.drive().volumes[ID].devices
        assert devices[node.ground.machine.mounts[one][-1].root.inode] is True
        assert devices[node.ground.machine.mounts[other][-1].root.inode] is False
    else:
        assert node.ground.machine.mounts[one][-1].options.read_only
        assert not node.ground.machine.mounts[other][-1].options.read_only
    with pytest.raises(AlreadyExists):
        await node.publish(target=other, block=block, read_only=True, volume_id=ID)


async def test_the_read_only_device_goes_with_the_last_read_only_target(node: FakeNode):
    await node.stage(block=True)
    await node.publish(block=True, read_only=True)
    await node.publish(block=True, read_only=True, target=OTHER_DEVICE)

    await node.unpublish(DEVICE)
    assert sorted(node.ground.drive().volumes[ID].devices.values()) == [False, True]
    await node.unpublish(OTHER_DEVICE)
    assert list(node.ground.drive().volumes[ID].devices.values()) == [False]


async def test_mount_options_of_the_class_hold_for_every_target_and_no_others_are_added(node: FakeNode):
    await node.stage(flags=["noatime", "rw,nodev"])
    await node.publish(flags=["noatime", "rw,nodev"])
    for place in (STAGING, TARGET):
        words = node.ground.machine.mounts[place][-1].options.words()
        assert {"rw", "noatime", "nodev"} <= set(words)
        assert "nosuid" not in words
    with pytest.raises(InvalidArgument, match="unknown mount option 'discard'"):
        await node.stage(flags=["discard"])


# ---- access modes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [(True, True), (True, False), (False, True)])
async def test_a_volume_for_one_pod_alone_has_one_target(node: FakeNode, modes: tuple[bool, bool]):
    first, second = (Mode.SINGLE_NODE_SINGLE_WRITER if alone else Mode.SINGLE_NODE_MULTI_WRITER for alone in modes)
    await node.stage()
    await node.publish(mode=first)
    await node.publish(mode=first)

    with pytest.raises(FailedPrecondition, match="ReadWriteOncePod"):
        await node.publish(mode=second, target=OTHER_TARGET)

    assert mounted(node) == {STAGING, TARGET}
    await node.unpublish()
    await node.publish(mode=second, target=OTHER_TARGET)


async def test_a_pod_that_died_with_the_machine_does_not_keep_its_volume_from_the_next(node: FakeNode):
    await node.stage()
    await node.publish(mode=Mode.SINGLE_NODE_SINGLE_WRITER)
    node.ground.machine.reboot()
    after = node.ground.start()

    await after.stage()
    await after.publish(mode=Mode.SINGLE_NODE_SINGLE_WRITER, target=OTHER_TARGET)

    record = after.index.get(ID)
    assert record is not None
    assert [target.path for target in record.published] == ["/".join(OTHER_TARGET)]


@BACKINGS
async def test_the_record_has_the_access_mode_of_the_last_staging(node: FakeNode, backing: str):
    def recorded() -> str:
        return decode_volume(node.ground.drive().volumes[ID].record or b"").access_mode

    await node.stage(backing=backing, mode=Mode.SINGLE_NODE_SINGLE_WRITER)
    assert recorded() == "ReadWriteOncePod"

    await node.unstage()
    assert recorded() == "ReadWriteOncePod"
    await node.stage(backing=backing, mode=Mode.SINGLE_NODE_MULTI_WRITER)
    assert recorded() == "ReadWriteOnce"


@pytest.mark.parametrize("mode", [Mode.MULTI_NODE_MULTI_WRITER, Mode.MULTI_NODE_READER_ONLY, Mode.UNKNOWN])
async def test_modes_of_several_nodes_are_refused(node: FakeNode, mode: Mode):
    with pytest.raises(InvalidArgument):
        await node.stage(mode=mode)
    with pytest.raises(InvalidArgument):
        await node.publish(mode=mode)


async def test_the_mode_of_readers_makes_every_target_read_only(node: FakeNode):
    await node.stage()
    await node.publish(mode=Mode.SINGLE_NODE_READER_ONLY)
    assert node.ground.machine.mounts[TARGET][-1].options.read_only


async def test_the_number_of_an_erased_directory_is_freed_when_nothing_counts_under_it(node: FakeNode):
    await node.stage(backing="directory")
    await node.unstage()
    await node.stage(backing="directory", volume_id="pvc-2")
    kept, erased = (node.ground.drive().volumes[name].project for name in ("pvc-2", ID))
    drive = node.table.get(DRIVE)
    running = asyncio.ensure_future(node.volumes.run())
    name = drive.volumes.discard(ID)
    node.index.discard(ID)
    clock = VirtualClock()

    await clock.sleep(2 * RELEASE_SECONDS)
    assert set(node.ground.drive().limits) == {kept, erased}
    drive.volumes.erase(name)
    node.ground.machine.faults.fail("quota_usage_on_drive", errno.EIO)
    await clock.sleep(2 * RELEASE_SECONDS)
    assert set(node.ground.drive().limits) == {kept}
    running.cancel()


async def test_a_drive_that_is_lost_while_its_numbers_are_freed_stays_open_until_that_has_ended(node: FakeNode):
    """Its descriptors would come to mean another folder."""
    await node.stage(backing="directory")
    (drive,) = node.table.open_drives()
    was_closed: list[bool] = []

    async def lost_meanwhile(work: Callable[[], T], /) -> T:
        node.table.put(DRIVE, LOST, None)
        was_closed.append(drive.volumes.is_closed)  # type: ignore[attr-defined]
        return work()

    node.volumes._threads = lost_meanwhile
    running = asyncio.ensure_future(node.volumes.run())
    await VirtualClock().sleep(1.5 * RELEASE_SECONDS)
    running.cancel()
    assert was_closed == [False]


# ---- restarts and reboots --------------------------------------------------------------------------------------------


@BACKINGS
async def test_a_new_process_finds_what_is_staged_and_stages_nothing_twice(node: FakeNode, backing: str):
    await node.stage(backing=backing)
    await node.publish()
    before = node.ground.machine.mounts[STAGING][-1]

    after = node.ground.start()
    await after.stage(backing=backing)
    await after.publish()

    assert node.ground.machine.mounts[STAGING] == [before]
    assert len(node.ground.machine.mounts[TARGET]) == 1
    await after.unpublish()
    await after.unstage()
    assert mounted(after) == set()


@BACKINGS
async def test_after_a_reboot_the_volume_has_what_was_written(node: FakeNode, backing: str):
    await node.stage(backing=backing)
    node.ground.drive().volumes[ID].files["data"] = b"1"
    node.ground.machine.reboot()

    after = node.ground.start()
    await after.stage(backing=backing)
    await after.publish()

    assert node.ground.drive().volumes[ID].files == {"data": b"1"}
    assert mounted(after) == {STAGING, TARGET}


async def test_what_was_staged_is_unpublished_and_unstaged_also_before_a_stage_of_the_new_process(node: FakeNode):
    await node.stage()
    await node.publish()
    after = node.ground.start()
    await after.unpublish()
    await after.unstage()
    assert mounted(after) == set()


async def test_no_volume_is_staged_while_its_drive_is_about_to_be_mounted_again(node: FakeNode):
    with node.table.without_staging(DRIVE) as is_free:
        assert is_free
        with pytest.raises(Unavailable, match="is being mounted again"):
            await node.stage()
    assert node.failed_calls == []

    await node.stage()
    assert mounted(node) == {STAGING}


async def test_a_call_that_fails_is_noted_with_its_volume_and_why(node: FakeNode):
    with pytest.raises(NotFound):
        await node.publish()
    node.ground.machine.faults.fail("mount_image", errno.EINVAL)
    with pytest.raises(CsiError) as staging:
        await node.stage()
    await node.stage()
    with pytest.raises(CsiError) as expansion:
        await node.expand(1 << 50)

    assert node.failed_calls == [
        (ID, "NodePublishVolume", f"this node has no volume {ID}"),
        (ID, "NodeStageVolume", str(staging.value)),
        (ID, "NodeExpandVolume", str(expansion.value)),
    ]


async def test_pods_of_a_lost_drive_are_taken_apart(node: FakeNode):
    await node.stage()
    await node.publish()
    node.ground.machine.failed_devices.add(node.ground.machine.mounts[STAGING][-1].root.device)
    node.ground.drive().is_gone = True
    node.table.put(DRIVE, LOST, None)

    with pytest.raises(Unavailable, match="its disk is not there"):
        await node.publish(target=OTHER_TARGET)
    await node.unpublish()
    await node.unstage()

    assert mounted(node) == set()


@pytest.mark.parametrize("block", [False, True])
async def test_pods_of_a_drive_that_fails_are_taken_apart_while_it_is_there(node: FakeNode, *, block: bool):
    await node.stage(block=block)
    await node.publish(block=block)
    node.ground.drive().is_gone = True

    await node.unpublish(DEVICE if block else TARGET)
    await node.unstage()

    assert mounted(node) == set()
    record = node.index.get(ID)
    assert record is not None
    assert (record.staged, record.published) == ("", ())
    assert node.ground.drive().volumes[ID].devices == {}


async def test_pods_of_a_drive_that_this_process_never_saw_are_taken_apart(node: FakeNode):
    await node.stage()
    await node.publish()
    node.ground.records = ()
    after = node.ground.start()

    await after.unpublish()
    await after.unstage()
    assert mounted(after) == set()


async def test_while_drives_are_opened_what_is_not_known_yet_is_asked_for_again(node: FakeNode):
    await node.stage()
    await node.publish()
    records, node.ground.records = node.ground.records, ()
    after = node.ground.start()
    after.is_opening = True

    for call in (after.stage, after.publish, after.unpublish, after.unstage):
        with pytest.raises(Unavailable, match="still being opened"):
            await call()
    assert mounted(after) == {STAGING, TARGET}

    after.table.put(DRIVE, READY, open_drive(node.ground.machine, records[0]))
    await after.unpublish()
    await after.unstage()
    assert mounted(after) == set()


async def test_a_drive_that_hangs_holds_up_no_volume_of_another():
    node = new_ground(drive_record(), drive_record(OTHER_DRIVE)).start()
    await node.stage()
    node.table.put(OTHER_DRIVE, READY, open_drive(node.ground.machine, drive_record(OTHER_DRIVE)))

    async def hang(_work: object, /) -> None:
        await asyncio.Event().wait()

    node.index._threads = hang
    await node.publish()
    await node.unpublish()
    with pytest.raises(Unavailable, match="has not answered for 10 seconds"):
        await node.unpublish(volume_id="pvc-2")
    await node.unstage()


async def test_what_is_left_of_a_lost_drive_is_replaced_when_it_is_back(node: FakeNode):
    await node.stage()
    await node.publish()
    node.table.put(DRIVE, LOST, None)
    node.ground.machine.failed_devices.add(node.ground.machine.mounts[STAGING][-1].root.device)
    back = node.ground.start().table.get(DRIVE)
    node.table.put(DRIVE, READY, back)

    with pytest.raises(FailedPrecondition, match="failed"):
        await node.publish(target=OTHER_TARGET)
    await node.unpublish()
    await node.stage()

    assert len(node.ground.machine.mounts[STAGING]) == 1


# ---- what is refused -------------------------------------------------------------------------------------------------


async def test_a_directory_is_refused_where_its_size_is_not_enforced(ground: Ground):
    ground.drive().features = DriveFeatures("xfs", "No quota here.", has_reflinks=False)
    node = ground.start()

    with pytest.raises(FailedPrecondition, match="No quota here"):
        await node.stage(backing="directory")
    assert ground.drive().volumes == {}

    await node.stage(backing="image")


async def test_a_directory_is_refused_when_its_drive_comes_back_without_quota(node: FakeNode):
    await node.stage(backing="directory")
    node.ground.machine.reboot()
    node.ground.drive().features = DriveFeatures("xfs", "No quota here.", has_reflinks=False)

    with pytest.raises(FailedPrecondition, match="No quota here"):
        await node.ground.start().stage(backing="directory")
    assert mounted(node) == set()


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [({"file_system": "ext4"}, "has xfs"), ({"bytes": 4096 * 10**6}, "the drive has 1Gi")],
)
async def test_a_directory_that_the_drive_cannot_be_is_refused(node: FakeNode, facts: dict[str, object], sentence: str):
    with pytest.raises(CsiError, match=sentence):
        await node.stage(backing="directory", facts=facts)
    assert node.ground.drive().volumes == {}


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"orlop.dev/drive": OTHER_DRIVE}, NotFound),
        ({"orlop.dev/drive": "../../etc"}, InvalidArgument),
        ({"orlop.dev/drive": ""}, InvalidArgument),
        ({"orlop.dev/bytes": str(2 << 30)}, OutOfRange),
        ({"orlop.dev/bytes": "4097"}, InvalidArgument),
        ({"orlop.dev/bytes": "-4096"}, InvalidArgument),
        ({"orlop.dev/bytes": "9" * 30}, InvalidArgument),
        ({"orlop.dev/backing": "folder"}, InvalidArgument),
        ({"orlop.dev/file-system": "btrfs"}, InvalidArgument),
        ({"orlop.dev/file-system": ""}, InvalidArgument),
        ({"orlop.dev/volume-mode": "Block"}, InvalidArgument),
        ({"orlop.dev/volume-mode": "Block", "orlop.dev/file-system": ""}, FailedPrecondition),
    ],
    ids=str,
)
async def test_a_forged_context_makes_nothing(node: FakeNode, changed: dict[str, str], error: type[CsiError]):
    with pytest.raises(error):
        await node.stage(changed=changed)
    assert node.ground.drive().volumes == {}
    assert mounted(node) == set()


async def test_forged_volumes_get_no_more_than_the_drive_has(node: FakeNode):
    for number in range(16):
        path = (*STAGING[:-1], f"g{number}")
        node.ground.machine.kubelet_makes(path)
        await node.stage(volume_id=f"pvc-{number}", path=path)
    with pytest.raises(ResourceExhausted):
        await node.stage(volume_id="pvc-17")
    assert sorted(node.ground.drive().volumes) == sorted(f"pvc-{number}" for number in range(16))


@pytest.mark.parametrize(
    "changed",
    [
        {"orlop.dev/drive": OTHER_DRIVE},
        {"orlop.dev/backing": "directory"},
        {"orlop.dev/file-system": "ext4"},
        {"orlop.dev/file-system": "", "orlop.dev/volume-mode": "Block"},
    ],
    ids=str,
)
async def test_a_changed_context_reaches_no_other_volume(changed: dict[str, str]):
    node = new_ground(drive_record(), drive_record(OTHER_DRIVE)).start()
    await node.stage()
    await node.unstage()
    with pytest.raises(FailedPrecondition):
        await node.stage(changed=changed, block="orlop.dev/volume-mode" in changed)
    assert node.ground.drive(OTHER_DRIVE).volumes == {}
    assert mounted(node) == set()


async def test_the_size_of_a_changed_context_changes_no_volume(node: FakeNode):
    await node.stage()
    await node.unstage()
    await node.stage(changed={"orlop.dev/bytes": str(2 * SIZE)})
    record = node.index.get(ID)
    assert record is not None
    assert record.bytes == SIZE


@pytest.mark.parametrize("volume_id", ["../x", "a/b", "", ".", "..", "x" * 300, "Ä"])
async def test_an_id_that_cannot_be_a_folder_is_refused_by_every_call(node: FakeNode, volume_id: str):
    with pytest.raises(InvalidArgument):
        await node.stage(volume_id=volume_id)
    with pytest.raises(InvalidArgument):
        await node.publish(volume_id=volume_id)
    with pytest.raises(InvalidArgument):
        await node.unpublish(volume_id=volume_id)
    with pytest.raises(InvalidArgument):
        await node.unstage(volume_id=volume_id)
    with pytest.raises(InvalidArgument):
        await node.expand(SIZE, volume_id=volume_id)
    with pytest.raises(InvalidArgument):
        await node.stats(volume_id=volume_id)


async def test_a_target_below_the_staging_path_is_refused(node: FakeNode):
    await node.stage()
    with pytest.raises(InvalidArgument, match="inside the staging path"):
        await node.publish(target=(*STAGING, "x"))


async def test_a_volume_is_published_where_it_is_staged_and_only_then(node: FakeNode):
    with pytest.raises(NotFound):
        await node.publish()
    await node.stage()
    with pytest.raises(FailedPrecondition, match="staged first"):
        await node.publish(path=None)
    with pytest.raises(FailedPrecondition, match="not staged at"):
        await node.publish(path=(*STAGING[:-1], "other"))
    await node.unstage()
    with pytest.raises(FailedPrecondition, match="not staged at"):
        await node.publish()
    assert mounted(node) == set()


async def test_a_volume_is_staged_at_one_path(node: FakeNode):
    other = (*STAGING[:-1], "other")
    node.ground.machine.kubelet_makes(other)
    await node.stage()
    with pytest.raises(FailedPrecondition, match="unstage it there first"):
        await node.stage(path=other)
    await node.unstage()
    await node.stage(path=other)


async def test_a_volume_in_use_is_not_unstaged(node: FakeNode):
    await node.stage()
    await node.publish()
    with pytest.raises(FailedPrecondition, match="unpublish it first"):
        await node.unstage()
    assert mounted(node) == {STAGING, TARGET}


@pytest.mark.parametrize("place", ["staging", "target"])
async def test_what_others_mounted_is_neither_hidden_nor_unmounted(node: FakeNode, place: str):
    await node.stage()
    if place == "staging":
        await node.unstage()
        node.ground.machine.mount_something_else(STAGING)
        with pytest.raises(FailedPrecondition, match="something else is mounted"):
            await node.stage()
        with pytest.raises(FailedPrecondition, match="not the volume"):
            await node.unstage()
        assert mounted(node) == {STAGING}
        return
    node.ground.machine.kubelet_makes(TARGET)
    node.ground.machine.mount_something_else(TARGET)
    with pytest.raises(FailedPrecondition, match="something else is mounted"):
        await node.publish()
    with pytest.raises(FailedPrecondition, match="not the volume"):
        await node.unpublish()
    assert len(node.ground.machine.mounts[TARGET]) == 1


async def test_files_in_a_target_are_not_hidden(node: FakeNode):
    await node.stage()
    node.ground.machine.kubelet_makes(TARGET)
    node.ground.machine.make_empty_file((*TARGET, "precious"))
    with pytest.raises(FailedPrecondition, match="precious"):
        await node.publish()
    assert mounted(node) == {STAGING}


async def test_an_image_that_was_lost_is_not_made_anew(node: FakeNode):
    await node.stage()
    await node.unstage()
    node.ground.drive().volumes[ID].image = None
    with pytest.raises(DataLoss, match="missing"):
        await node.stage()
    assert node.ground.drive().volumes[ID].image is None
    assert await node.health() == ["VolumeMissing"]


async def test_a_damaged_record_is_left_alone(node: FakeNode):
    await node.stage()
    await node.unstage()
    node.ground.drive().volumes[ID].record = b"{"
    after = node.ground.start()
    with pytest.raises(FailedPrecondition, match="left alone"):
        await after.stage()
    assert node.ground.drive().volumes[ID].record == b"{"


async def test_a_damaged_file_system_is_reported_and_not_mounted(node: FakeNode):
    await node.stage()
    await node.unstage()
    node.ground.drive().volumes[ID].is_damaged = True
    with pytest.raises(DataLoss):
        await node.stage()
    assert mounted(node) == set()
    assert await node.health() == ["LastCallFailed"]
    assert node.failed_drives == [DRIVE]


@pytest.mark.parametrize(
    "function", ["list_volumes", "create_volume", "make_image", "write_volume_record", "mount_image"]
)
@pytest.mark.parametrize("number", [errno.EIO, errno.ESHUTDOWN])
async def test_an_error_of_the_drive_while_staging_counts_against_it_at_once(
    node: FakeNode, function: str, number: int
):
    node.ground.machine.faults.fail(function, number)
    with pytest.raises(CsiError):
        await node.stage()

    # What a mount of an image met may be the image's own file system, unless it is an error of reading.
    is_certain = function != "mount_image" or number == errno.EIO
    assert node.failed_drives == [DRIVE]
    assert [f"fake {function} fails" in each for each in node.certain_failures] == [True] * is_certain


async def test_an_error_of_the_drive_while_publishing_or_expanding_counts_against_it_at_once(node: FakeNode):
    await node.stage()
    node.ground.machine.faults.fail("write_volume_record", errno.EROFS)
    with pytest.raises(CsiError):
        await node.publish()
    node.ground.machine.faults.fail("grow_image", errno.EIO)
    with pytest.raises(CsiError):
        await node.expand(2 * SIZE)

    assert len(node.certain_failures) == 2


async def test_errors_of_kubelets_folder_and_of_a_thin_image_prove_nothing_about_the_drive(node: FakeNode):
    node.ground.machine.faults.fail("mount_image", errno.EIO)
    with pytest.raises(CsiError):
        await node.stage(volume_id="pvc-thin", facts={"thin": True})
    await node.stage()
    node.ground.machine.faults.fail("make_target", errno.EIO)
    with pytest.raises(CsiError):
        await node.publish()

    assert (node.failed_drives, node.certain_failures) == ([DRIVE, DRIVE], [])


async def test_no_pod_would_see_a_volume_below_a_private_mount(node: FakeNode):
    node.ground.machine.kubelet_is_shared = False
    with pytest.raises(FailedPrecondition, match="no shared mount"):
        await node.stage()
    assert node.ground.drive().volumes == {}


# ---- the reserve of a folder drive -----------------------------------------------------------------------------------


def folder_ground() -> Ground:
    ground = new_ground(drive_record(type_=DriveType.FOLDER))
    ground.drive().reserve = 1024 * MIB
    ground.machine.total_bytes = 1024 * MIB
    return ground


async def test_an_image_takes_its_space_from_the_reserve():
    ground = folder_ground()
    await ground.start().stage()
    assert ground.drive().reserve == 1024 * MIB - SIZE
    with pytest.raises(FailedPrecondition, match="a folder of a file system"):
        await ground.start().stage(backing="directory", volume_id="pvc-2")


async def test_space_that_an_image_could_not_use_returns_to_the_reserve():
    ground = folder_ground()
    node = ground.start()
    ground.machine.faults.fail("make_image", errno.EIO)
    with pytest.raises(CsiError):
        await node.stage()
    assert ground.drive().reserve == 1024 * MIB
    await node.stage()
    assert ground.drive().reserve == 1024 * MIB - SIZE


async def test_space_of_an_image_that_was_half_made_is_used_again():
    ground = folder_ground()
    ground.machine.faults.fail("make_image", errno.EIO)
    with pytest.raises(CsiError):
        await ground.start().stage(facts={"bytes": 1024 * MIB})
    ground.drive().volumes[ID].half_made_image = 1024 * MIB
    ground.drive().reserve = 0

    await ground.start().stage(facts={"bytes": 1024 * MIB})
    assert (ground.drive().reserve, ground.drive().images) == (0, {ID: 1024 * MIB})


async def test_the_reserve_is_not_fitted_while_an_image_takes_space_from_it():
    """It would take back what the image is about to allocate."""
    ground = folder_ground()
    node, lock = ground.start(), ShownLock()
    (drive,) = node.table.open_drives()
    object.__setattr__(drive, "space", lock)
    make_image, fitted = drive.volumes.make_image, []

    def make_while_another_fits(volume_id: str, shape: ImageShape) -> None:
        before = ground.machine.faults.calls("fit_reserve")
        fitting = threads.submit(fit_reserve_of, drive)
        fitting.add_done_callback(lambda _: lock.is_waited_for.set())
        lock.is_waited_for.wait()
        fitted.append(ground.machine.faults.calls("fit_reserve") - before)
        make_image(volume_id, shape)

    drive.volumes.make_image = make_while_another_fits  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        await node.stage()
    assert fitted == [0]
    assert ground.drive().reserve == 1024 * MIB - SIZE


# ---- expansion -------------------------------------------------------------------------------------------------------


@BACKINGS
async def test_a_volume_grows_while_it_is_in_use(node: FakeNode, backing: str):
    await node.stage(backing=backing)
    await node.publish()

    assert await node.expand(2 * SIZE - 1, path=TARGET) == 2 * SIZE

    volume = node.ground.drive().volumes[ID]
    if backing == "image":
        assert volume.file_system_bytes == 2 * SIZE
    else:
        assert node.ground.drive().limits[volume.project].bytes == 2 * SIZE
    assert await node.expand(SIZE) == 2 * SIZE
    assert await node.expand(0) == 2 * SIZE
    record = node.index.get(ID)
    assert record is not None
    assert (record.bytes, record.unfinished) == (2 * SIZE, "")


async def test_a_block_volume_grows_without_a_file_system(node: FakeNode):
    await node.stage(block=True)
    await node.publish(block=True)
    assert await node.expand(2 * SIZE, path=DEVICE) == 2 * SIZE
    assert [each.total for each in await node.stats(DEVICE)] == [2 * SIZE]


@pytest.mark.parametrize(
    ("size", "limit", "error"),
    [(2 << 30, 0, OutOfRange), (SIZE, SIZE - 1, OutOfRange), (-1, 0, OutOfRange), (SIZE + 1, SIZE + 2, OutOfRange)],
)
async def test_a_size_that_cannot_be_is_refused(node: FakeNode, size: int, limit: int, error: type[CsiError]):
    await node.stage()
    with pytest.raises(error):
        await node.expand(size, limit=limit)
    assert node.ground.drive().images == {ID: SIZE}


async def test_only_a_staged_volume_grows_at_a_path_of_its_own(node: FakeNode):
    await node.stage()
    with pytest.raises(NotFound):
        await node.expand(2 * SIZE, path=TARGET)
    with pytest.raises(NotFound):
        await node.expand(2 * SIZE, volume_id="pvc-2")


async def test_growth_that_fails_leaves_the_volume_usable_and_is_repeated(node: FakeNode):
    await node.stage()
    node.ground.machine.faults.fail("grow_image", errno.ENOSPC)
    with pytest.raises(ResourceExhausted):
        await node.expand(2 * SIZE)
    record = node.index.get(ID)
    assert record is not None
    assert (record.bytes, record.unfinished) == (SIZE, "")

    node.ground.machine.faults.fail("grow_attached", errno.EIO)
    with pytest.raises(CsiError):
        await node.expand(2 * SIZE)
    record = node.index.get(ID)
    assert record is not None
    assert (record.bytes, record.unfinished) == (2 * SIZE, "growth")
    await node.unstage()
    node.ground.machine.faults.fail("grow_attached", errno.EIO)
    await node.stage()
    assert node.index.trouble_of(ID)

    assert await node.expand(0) == 2 * SIZE
    assert node.ground.drive().volumes[ID].file_system_bytes == 2 * SIZE
    assert node.index.trouble_of(ID) == ""


# ---- statistics and condition ----------------------------------------------------------------------------------------


@BACKINGS
async def test_statistics_are_those_of_the_volume(node: FakeNode, backing: str):
    await node.stage(backing=backing)
    await node.publish()
    node.ground.drive().volumes[ID].files["data"] = b"x" * 1000

    in_bytes, in_files = await node.stats()

    assert (in_bytes.total, in_bytes.used, in_bytes.available) == (SIZE, 1000, SIZE - 1000)
    assert in_files.used == 1
    assert (await node.stats(STAGING))[0].total == SIZE
    with pytest.raises(NotFound):
        await node.stats(OTHER_TARGET)
    with pytest.raises(NotFound):
        await node.stats(volume_id="pvc-2")


async def test_an_io_error_is_an_error_of_the_statistics_and_a_condition(node: FakeNode):
    await node.stage()
    await node.publish()
    assert await node.health() == []
    node.ground.machine.faults.fail("room_at", errno.EIO)
    with pytest.raises(CsiError):
        await node.stats()
    node.ground.machine.failed_devices.add(node.ground.machine.mounts[STAGING][-1].root.device)
    assert await node.health() == ["FileSystemFailed"]
    node.table.put(DRIVE, LOST, None)
    assert await node.health() == ["DriveNotReady"]


async def test_the_condition_names_paths_where_the_volume_is_not(node: FakeNode):
    await node.stage()
    await node.publish()
    node.ground.machine.mounts.pop(TARGET)
    assert await node.health() == ["NotMounted"]
    assert await node.health(STAGING) == []
    with pytest.raises(NotFound):
        await node.health(volume_id="pvc-2")


async def test_a_directory_whose_drive_lost_its_quota_is_degraded(node: FakeNode):
    await node.stage(backing="directory")
    assert node.ground.drive().features is WITH_QUOTA
    node.ground.drive().features = DriveFeatures("xfs", "No quota here.", has_reflinks=False)
    assert await node.health() == ["SizeNotEnforced"]


# ---- calls at once ---------------------------------------------------------------------------------------------------


async def test_volumes_that_are_made_at_once_never_add_up_to_more_than_the_drive(node: FakeNode):
    async def later(work: BatchedWork[T], /) -> T:
        await asyncio.sleep(0)
        return run_alone(work)

    node.volumes._batched = later
    places = {f"pvc-{number}": (*STAGING[:-1], f"g{number}") for number in range(40)}
    for path in places.values():
        node.ground.machine.kubelet_makes(path)

    calls = [node.stage(volume_id=name, path=path) for name, path in places.items()]
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert sum(result is None for result in results) == 16
    assert {type(result) for result in results if result is not None} == {ResourceExhausted}
    assert sum(node.ground.drive().images.values()) == 1024 * MIB
    await asyncio.gather(
        *(node.expand(2 * SIZE, path=places[name], volume_id=name) for name in sorted(node.ground.drive().volumes)),
        return_exceptions=True,
    )
    assert sum(node.ground.drive().images.values()) == 1024 * MIB


async def test_volumes_that_grow_at_once_never_add_up_to_more_than_the_drive(node: FakeNode):
    async def later(work: BatchedWork[T], /) -> T:
        await asyncio.sleep(0)
        return run_alone(work)

    places = {f"pvc-{number}": (*STAGING[:-1], f"g{number}") for number in range(10)}
    for name, path in places.items():
        node.ground.machine.kubelet_makes(path)
        await node.stage(volume_id=name, path=path)
    node.volumes._batched = later

    calls = [node.expand(2 * SIZE, path=path, volume_id=name) for name, path in places.items()]
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert sum(result == 2 * SIZE for result in results) == 6
    assert sum(isinstance(result, ResourceExhausted) for result in results) == 4
    assert sum(decode_volume(each.record).bytes for each in node.ground.drive().volumes.values()) == 1024 * MIB


async def test_calls_for_one_volume_wait_for_each_other(node: FakeNode):
    async def later(work: BatchedWork[T], /) -> T:
        await asyncio.sleep(0)
        return run_alone(work)

    node.volumes._batched = later
    await asyncio.gather(*(node.stage() for _ in range(5)))
    await asyncio.gather(*(node.publish() for _ in range(5)), *(node.publish(target=OTHER_TARGET) for _ in range(5)))
    assert [len(stack) for stack in node.ground.machine.mounts.values()] == [1, 1, 1]
    await asyncio.gather(node.unpublish(), node.unpublish(OTHER_TARGET), node.unpublish())
    await asyncio.gather(node.unstage(), node.unstage())
    assert mounted(node) == set()


CALLS = {
    "stage": lambda node: node.stage(mode=Mode.SINGLE_NODE_SINGLE_WRITER),
    "publish": lambda node: node.publish(target=OTHER_TARGET),
    "unpublish": lambda node: node.unpublish(),
    "unstage": lambda node: node.unstage(),
    "expand": lambda node: node.expand(2 * SIZE),
}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *permutations(("publish", "unpublish", "expand"), 2),
        *permutations(("publish", "stage")),
        *permutations(("unpublish", "stage")),
        *permutations(("publish", "unstage")),
        *permutations(("expand", "unstage")),
    ],
)
async def test_no_call_writes_a_record_over_that_of_another(node: FakeNode, first: str, second: str):
    """The first has read the record, and is about to write what it made of it."""
    await node.stage()
    if "unpublish" in {first, second}:
        await node.publish()
    access_mode = decode_volume(node.ground.drive().volumes[ID].record).access_mode
    (drive,) = node.table.open_drives()
    loop, is_writing, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    write = drive.volumes.write_record

    def write_later(volume_id: str, record: bytes, *, durable: bool = True) -> None:
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(is_writing.set)
            go_on.wait(HANGS_AFTER)
        write(volume_id, record, durable=durable)

    async def first_in_thread(work: BatchedWork[T], /) -> T:
        return await asyncio.to_thread(run_alone, work) if not is_writing.is_set() else run_alone(work)

    drive.volumes.write_record = write_later  # type: ignore[method-assign]
    node.volumes._batched = first_in_thread
    calls = [asyncio.ensure_future(CALLS[first](node))]
    await is_writing.wait()
    calls.append(asyncio.ensure_future(CALLS[second](node)))
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()
    ended = dict(zip((first, second), await asyncio.gather(*calls, return_exceptions=True), strict=True))

    record = decode_volume(node.ground.drive().volumes[ID].record)
    assert record == node.index.get(ID)
    paths = [record.staged, *(each.path for each in record.published)]
    assert {tuple(path.split("/")) for path in paths if path} == mounted(node)
    assert (record.access_mode != access_mode) == ("stage" in ended)
    assert record.bytes == (2 * SIZE if ended.get("expand") == 2 * SIZE else SIZE)


@pytest.mark.parametrize("call", CALLS)
async def test_a_drive_that_is_lost_during_a_call_stays_open_until_the_call_has_ended(node: FakeNode, call: str):
    """Its descriptors would come to mean another folder."""
    (drive,) = node.table.open_drives()
    if call != "stage":
        await node.stage()
    if call == "unpublish":
        await node.publish()
    was_closed: list[bool] = []

    async def lost_meanwhile(work: BatchedWork[T], /) -> T:
        node.table.put(DRIVE, LOST, None)
        was_closed.append(drive.volumes.is_closed)  # type: ignore[attr-defined]
        return run_alone(work)

    node.volumes._batched = lost_meanwhile
    await CALLS[call](node)
    assert was_closed == [False]
    assert drive.volumes.is_closed  # type: ignore[attr-defined]


async def test_two_volumes_never_share_a_target(node: FakeNode):
    """The first has found the target free; the second must not find it free as well."""
    other, other_staging = "pvc-2", (*STAGING[:-1], "g2")
    node.ground.machine.kubelet_makes(other_staging)
    await node.stage()
    await node.stage(volume_id=other, path=other_staging)
    loop, has_made, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    make_target = node.kubelet_dir.make_target

    def make_and_stop(target: Names) -> bool:
        is_new = make_target(target)
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(has_made.set)
            go_on.wait()
        return is_new

    async def in_thread(work: BatchedWork[T], /) -> T:
        return await asyncio.to_thread(run_alone, work) if not has_made.is_set() else run_alone(work)

    node.kubelet_dir.make_target = make_and_stop  # type: ignore[method-assign]
    node.volumes._batched = in_thread
    first = asyncio.ensure_future(node.publish())
    await has_made.wait()
    second = asyncio.ensure_future(node.publish(volume_id=other, path=other_staging))
    for _ in range(20):
        await asyncio.sleep(0)
    go_on.set()

    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in ended] == [type(None), FailedPrecondition]
    assert len(node.ground.machine.mounts[TARGET]) == 1


async def test_limits_are_not_lifted_before_the_directory_exists_that_they_are_for(node: FakeNode):
    """Nothing counts under the number yet: only its reservation shows that it is in use."""
    (drive,) = node.table.open_drives()
    numbers = node.volumes._numbers_of(drive)
    limited: list[int] = []

    class WatchedLimits(dict[int, ProjectLimits]):
        def __setitem__(self, project: int, limits: ProjectLimits) -> None:
            super().__setitem__(project, limits)
            numbers.release_unused()
            limited.append(project)

    node.ground.drive().limits = WatchedLimits()
    await node.stage(backing="directory")
    assert [*node.ground.drive().limits] == limited == [node.ground.drive().volumes[ID].project]
