"""Scratch folders whose size no quota would hold: each has an image of that size, on a model of the machine."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest

from orlop.csi.error_codes import CsiError, DataLoss, FailedPrecondition, ResourceExhausted, Unavailable
from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity, NodeRules
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.ephemeral.upkeep.quota_watch import why_limits_cannot_be_held
from orlop.driver.ephemeral.upkeep.volume_health import VolumeHealth
from orlop.host.block.image_files import ImageShape
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import VERSION, decode_record
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillPoints, explore_kills
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    assert_book_is_true,
    folder_ids,
    folders_on,
    machine_with_pods,
    mounted,
    names_of,
    order,
    right_here,
)

pytestmark = pytest.mark.virtual_time
MIB = 1 << 20
SIZE = 20 * MIB
LIVE = FolderPlace(FolderState.LIVE, ID)
KUBELET = "/var/lib/kubelet"
FIRST, OTHER = names_of(UID), names_of(UID, "other")


def machine_with_images() -> FakeMachine:
    machine = machine_with_pods()
    machine.why_no_quota = "The file system has no project quota. Mount it with prjquota."
    machine.why_no_images = None
    return machine


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_images()


def image_of(machine: FakeMachine) -> ImageShape | None:
    return machine.folders[LIVE].image


def service_on(machine: FakeMachine, folders: Folders) -> EphemeralNodeService:
    host = FakeNodeHost(machine)
    return EphemeralNodeService(
        folders,
        host,
        NodeIdentity("n1", "csi.orlop.dev/node"),
        NodeRules((KUBELET,), AdminLimits(1.0, 1.0)),
        timed_threads=right_here,
        clock=VirtualClock(),
        health=VolumeHealth(host, {}),
    )


# ---- publish ---------------------------------------------------------------------------------------------------------


async def test_a_size_without_quota_is_a_file_system_in_an_image_that_only_root_reaches(machine: FakeMachine):
    await folders_on(machine).publish(order(size_bytes=SIZE, mode=0o750))

    folder = machine.folders[LIVE]
    assert folder.image == ImageShape(SIZE, "ext4", keeps_space=True, mode=0o750)
    assert folder.mode == 0o700
    assert [each.root for each in machine.mounts[FIRST]] == [folder.image_root]
    record = decode_record(folder.record or b"")
    assert (record.image, record.project, record.version) == ("ext4", 0, VERSION)
    with pytest.raises(OSError, match="No space left"):
        machine.tenant_writes(LIVE, "large", bytes(SIZE + 1))


@pytest.mark.parametrize(
    ("asked", "made", "kind"),
    [
        (1, 16 * MIB, "ext4"),
        (16 * MIB, 16 * MIB, "ext4"),
        (20 * MIB + 5000, 20 * MIB + 4096, "ext4"),
        (300 * MIB - 1, 300 * MIB - 4096, "ext4"),
        (300 * MIB, 300 * MIB, "xfs"),
    ],
)
async def test_an_image_is_no_larger_than_asked_unless_no_file_system_is_so_small(
    machine: FakeMachine, asked: int, made: int, kind: str
):
    await folders_on(machine).publish(order(size_bytes=asked))

    assert image_of(machine) == ImageShape(made, kind, keeps_space=True)


async def test_where_quota_is_enforced_and_where_no_size_is_asked_for_there_is_no_image(machine: FakeMachine):
    await folders_on(machine).publish(order())
    assert image_of(machine) is None

    machine.why_no_quota = None
    await folders_on(machine).publish(order("csi-2", volume="other", size_bytes=SIZE))
    assert machine.folders[FolderPlace(FolderState.LIVE, "csi-2")].image is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size_bytes": SIZE}, "prjquota. No loop devices."),
        ({"size_bytes": SIZE, "inodes": 5}, "prjquota. An image would limit only its size."),
        ({"inodes": 5}, "prjquota. An image would limit only its size."),
    ],
)
async def test_what_neither_quota_nor_an_image_can_limit_is_refused_and_leaves_nothing(
    machine: FakeMachine, options: dict[str, int], sentence: str
):
    machine.why_no_images = "No loop devices."

    with pytest.raises(FailedPrecondition, match=sentence):
        await folders_on(machine).publish(order(**options))

    assert (machine.folders, machine.half_made, mounted(machine)) == ({}, {}, [])


async def test_a_disk_without_the_space_refuses_the_pod_and_has_nothing_of_it(machine: FakeMachine):
    machine.used_by_others = machine.total_bytes - SIZE

    with pytest.raises(ResourceExhausted):
        await folders_on(machine).publish(order(size_bytes=SIZE))

    assert folder_ids(machine, FolderState.LIVE) == []
    assert (machine.half_made, mounted(machine)) == ({}, [])
    assert FIRST not in machine.kubelet_folders


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EUCLEAN, errno.EBUSY])
async def test_a_mount_that_fails_leaves_nothing_and_can_be_repeated(machine: FakeMachine, number: int):
    folders = folders_on(machine)
    machine.faults.fail("mount_image", number)

    with pytest.raises(CsiError):
        await folders.publish(order(size_bytes=SIZE))
    assert folder_ids(machine, FolderState.LIVE) == []
    assert (mounted(machine), FIRST in machine.kubelet_folders) == ([], False)

    await folders.publish(order(size_bytes=SIZE))
    assert mounted(machine) == [FIRST]


async def test_a_repeated_publish_mounts_nothing_twice_and_one_after_a_reboot_mounts_again(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    await folders.publish(order(size_bytes=SIZE))
    await folders_on(machine).publish(order(size_bytes=SIZE))
    assert len(machine.mounts[FIRST]) == 1

    machine.tenant_writes(LIVE, "file", b"content")
    machine.reboot()
    await folders_on(machine).publish(order(size_bytes=SIZE))

    assert [each.root for each in machine.mounts[FIRST]] == [machine.folders[LIVE].image_root]
    assert machine.folders[LIVE].files == {"file": b"content"}


async def test_a_damaged_file_system_is_not_published_and_its_image_stays(machine: FakeMachine):
    await folders_on(machine).publish(order(size_bytes=SIZE))
    machine.reboot()
    machine.folders[LIVE].is_damaged = True

    with pytest.raises(Unavailable, match="cannot be mounted"):  # retried: only an unpublish forgets its target
        await folders_on(machine).publish(order(size_bytes=SIZE))
    with pytest.raises(DataLoss):
        await folders_on(machine).publish(order(size_bytes=SIZE, volume="other"))

    assert folder_ids(machine, FolderState.LIVE) == [ID]


async def test_an_image_stays_one_when_the_disk_gets_a_quota(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    machine.why_no_quota = None

    await folders.publish(order(size_bytes=SIZE, volume="other"))

    assert [each.root for each in machine.mounts[OTHER]] == [machine.folders[LIVE].image_root]


# ---- unpublish and afterlife -----------------------------------------------------------------------------------------


async def test_the_image_stays_with_its_folder_and_comes_back_with_it(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    machine.tenant_writes(LIVE, "file", b"content")

    await folders.unpublish(ID, order().target)
    assert (mounted(machine), folder_ids(machine, FolderState.RETAINED)) == ([], [ID])
    await folders_on(machine).publish(order(size_bytes=SIZE))

    assert machine.folders[LIVE].files == {"file": b"content"}
    assert [each.root for each in machine.mounts[FIRST]] == [machine.folders[LIVE].image_root]


async def test_the_last_of_several_targets_buries_the_folder(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    await folders.publish(order(size_bytes=SIZE, volume="other"))

    await folders.unpublish(ID, order().target)
    assert (mounted(machine), folder_ids(machine, FolderState.LIVE)) == ([OTHER], [ID])
    await folders.unpublish(ID, order(volume="other").target)

    assert folder_ids(machine, FolderState.RETAINED) == [ID]
    assert_book_is_true(folders, machine)


async def test_an_image_that_a_container_has_mounted_is_not_buried(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    mount = machine.mount_elsewhere(LIVE)

    await folders.unpublish(ID, order().target)
    assert folder_ids(machine, FolderState.LIVE) == [ID]
    assert not await folders.bury_if_unused(ID, "its pod is gone")
    machine.unmount_elsewhere(mount)

    assert await folders.bury_if_unused(ID, "its pod is gone")


async def test_another_volumes_image_is_not_unmounted(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    await folders.publish(order("csi-2", volume="other", size_bytes=SIZE))

    with pytest.raises(FailedPrecondition, match="unpublish that volume by its own id"):
        await folders.unpublish("csi-2", order().target)

    assert mounted(machine) == sorted([FIRST, OTHER])


async def test_a_file_system_that_failed_can_be_unpublished_at_its_own_target(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    machine.failed_devices.add(machine.folders[LIVE].image_root.device)

    await folders.unpublish(ID, order().target)

    assert (mounted(machine), folder_ids(machine, FolderState.RETAINED)) == ([], [ID])


# ---- statistics, health and start ------------------------------------------------------------------------------------


async def test_the_statistics_are_those_of_the_file_system(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    machine.tenant_writes(LIVE, "file", bytes(MIB))
    path = f"{KUBELET}/{order().target}"

    request = csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=path)
    response = await service_on(machine, folders).NodeGetVolumeStats(request)

    sizes = {each.unit: (each.used, each.available, each.total) for each in response.usage}
    assert sizes[csi_pb2.VolumeUsage.Unit.BYTES] == (MIB, SIZE - MIB, SIZE)
    assert sizes[csi_pb2.VolumeUsage.Unit.INODES] == (1, 999, 1000)


async def test_a_published_image_is_healthy_and_one_that_is_not_mounted_is_not(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=SIZE))
    request = csi_pb2.NodeGetVolumeHealthRequest(volume_id=ID)

    healthy = await service_on(machine, folders).NodeGetVolumeHealth(request)
    machine.reboot()
    broken = await service_on(machine, folders).NodeGetVolumeHealth(request)
    await folders.publish(order(size_bytes=SIZE))
    machine.failed_devices.add(machine.folders[LIVE].image_root.device)
    failed = await service_on(machine, folders).NodeGetVolumeHealth(request)

    assert list(healthy.volume_health.health_statuses) == []
    assert [each.reason for each in broken.volume_health.health_statuses] == ["NotMounted"]
    assert [each.reason for each in failed.volume_health.health_statuses] == ["DiskFailing"]


def test_a_flag_for_the_size_needs_quota_or_images(machine: FakeMachine):
    workdir, limits = FakeNodeHost(machine).workdir, AdminLimits(1.0, 1.0, default_size=SIZE)

    assert why_limits_cannot_be_held(workdir, limits) is None
    machine.why_no_images = "No loop devices."
    assert "prjquota. No loop devices." in (why_limits_cannot_be_held(workdir, limits) or "")


# ---- kills -----------------------------------------------------------------------------------------------------------

Act = Callable[[Folders], Awaitable[None]]


async def publish(folders: Folders) -> None:
    await folders.publish(order(size_bytes=SIZE))


async def unpublish(folders: Folders) -> None:
    await folders.unpublish(ID, order().target)


async def killed(before: list[Act], act: Act, check: Callable[[FakeMachine], None]) -> tuple[str, ...]:
    """Run the act with a kill at each of its effects, each time repeated until it succeeds; return the effects."""

    async def build() -> FakeMachine:
        machine = machine_with_images()
        for each in before:
            await each(folders_on(machine))
        return machine

    async def run(machine: FakeMachine, points: KillPoints) -> None:
        host = FakeNodeHost(machine, points)
        for name in host.workdir.listing(FolderState.LIVE).half_made:
            host.workdir.remove_half_made(FolderPlace(FolderState.LIVE, name))
        await act(folders_on(machine, points))

    return (await explore_kills(build, run, check, deaths=2)).effects


async def test_a_publish_killed_anywhere_ends_with_one_mount_of_a_complete_image():
    def check(machine: FakeMachine) -> None:
        assert machine.half_made == {}
        assert image_of(machine) == ImageShape(SIZE, "ext4", keeps_space=True)
        assert [each.root for each in machine.mounts[FIRST]] == [machine.folders[LIVE].image_root]

    effects = await killed([], publish, check)

    order_of = [next(i for i, each in enumerate(effects) if part in each) for part in ("the image", "name", "mount")]
    assert order_of == sorted(order_of)


async def test_an_unpublish_killed_anywhere_ends_with_a_retained_image():
    def check(machine: FakeMachine) -> None:
        assert mounted(machine) == []
        (folder,) = machine.folders.values()
        assert folder.image is not None
        assert folder_ids(machine, FolderState.RETAINED) == [ID]

    await killed([publish], unpublish, check)


async def test_a_resurrection_killed_anywhere_ends_with_the_image_mounted():
    def check(machine: FakeMachine) -> None:
        assert folder_ids(machine, FolderState.LIVE) == [ID]
        assert [each.root for each in machine.mounts[FIRST]] == [machine.folders[LIVE].image_root]

    await killed([publish, unpublish], publish, check)


@pytest.mark.parametrize("function", ["create", "make_target", "mount_image", "write_record", "is_shown_by"])
async def test_every_call_may_fail_and_the_next_one_succeeds(machine: FakeMachine, function: str):
    folders = folders_on(machine)
    machine.faults.fail(function, errno.EIO)
    for _ in range(2):
        try:
            await publish(folders)
        except (CsiError, HostError):
            continue
    await publish(folders)
    await unpublish(folders)

    assert (mounted(machine), folder_ids(machine, FolderState.LIVE)) == ([], [])
