"""Volumes on a drive of this kernel: loop devices, file systems and mounts, as a pod and the host see them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from orlop.csi.error_codes import CsiError, DataLoss, FailedPrecondition
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_table import DriveStanding
from orlop.host.block.image_formats import MIB
from orlop.host.drives import drive_files, drive_reserve
from orlop.records.drive_record import DriveState, DriveType
from support.drives.linux_node import LinuxNode
from support.drives.node_drives import DRIVE, ID, drive_record
from support.drives.volume_node import DEVICE, OTHER_DEVICE, OTHER_TARGET, STAGING, TARGET, Mode
from support.host.block_devices import loops_about
from support.host.kernel_rooms import descriptor, disk_image, mount_points_of, mount_room, run
from support.waiting import eventually_there

pytestmark = pytest.mark.virtual_time
SIZE = 16 * MIB
EXT4 = {"bytes": SIZE, "file_system": "ext4"}
RAW = {"bytes": SIZE}
CAPACITY = 64 * MIB
LOST = DriveStanding(DriveState.LOST, "its disk is not there")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as room:
        yield room


@pytest.fixture
def node(room: Path) -> Iterator[LinuxNode]:
    """A node with a folder drive."""
    drive = room / "drive"
    drive.mkdir()
    with descriptor(drive) as root:
        drive_files.make_shelves(root)
        drive_reserve.make(root, CAPACITY)
    node = LinuxNode(room / "kubelet", drive, drive_record(type_=DriveType.FOLDER, capacity=CAPACITY))
    yield node
    node.take_apart()


def mount_points(node: LinuxNode) -> list[str]:
    return [
        path.removeprefix(f"{node.kubelet}/") for path in mount_points_of("self") if path.startswith(str(node.kubelet))
    ]


async def test_pods_share_a_file_system_that_is_mounted_at_the_staging_path_and_nowhere_else(node: LinuxNode):
    await node.stage(facts=EXT4)
    await node.publish(fs_type="ext4")
    await node.publish(target=OTHER_TARGET, read_only=True)

    (node.path(TARGET) / "data").write_text("hello")
    assert (node.path(OTHER_TARGET) / "data").read_text() == "hello"
    with pytest.raises(OSError) as refused:  # noqa: PT011 - by its number
        (node.path(OTHER_TARGET) / "data").write_text("x")
    assert refused.value.errno == errno.EROFS
    assert sorted(mount_points(node)) == sorted("/".join(each) for each in (STAGING, TARGET, OTHER_TARGET))
    in_drive = [path for path in mount_points_of("self") if path.startswith(f"{node.drive}/")]
    assert in_drive == []

    total, inodes = await node.stats()
    assert 10 * MIB < total.available <= total.total <= SIZE
    assert inodes.total > 0


async def test_a_volume_ends_at_its_size_and_its_space_comes_out_of_the_reserve(node: LinuxNode):
    await node.stage(facts=EXT4)
    await node.publish()
    assert (node.drive / "reserve").stat().st_size == CAPACITY - SIZE

    with pytest.raises(OSError) as full, (node.path(TARGET) / "data").open("wb") as file:  # noqa: PT011 - by its number
        for _ in range(32):
            file.write(bytes(MIB))
    assert full.value.errno == errno.ENOSPC


@pytest.mark.parametrize("thin", [False, True])
async def test_an_image_has_all_its_blocks_unless_it_is_thin(node: LinuxNode, *, thin: bool):
    await node.stage(facts=EXT4 | {"thin": thin})
    (image,) = node.drive.rglob("image")
    status = image.stat()

    assert status.st_size == SIZE
    assert (status.st_blocks * 512 < SIZE) is thin


async def test_data_survives_pods_and_restarts_of_the_process_and_nothing_is_attached_after_unstaging(node: LinuxNode):
    await node.stage(facts=EXT4)
    await node.publish()
    (node.path(TARGET) / "data").write_text("hello")

    again = node.restarted()
    await again.stage(facts=EXT4)
    await again.publish()
    assert mount_points(again) == ["/".join(STAGING), "/".join(TARGET)]
    await again.unpublish()
    await again.unstage()
    assert loops_about(again.drive) == []
    assert not again.path(TARGET).exists()

    await again.stage(facts=EXT4)
    await again.publish()
    assert (again.path(TARGET) / "data").read_text() == "hello"


async def test_a_raw_device_reads_as_zeros_is_shared_and_read_only_where_it_is_asked_for(node: LinuxNode):
    await node.stage(block=True, facts=RAW)
    await node.publish(block=True)
    await node.publish(block=True, read_only=True, target=OTHER_DEVICE)

    device, reader = node.path(DEVICE), node.path(OTHER_DEVICE)
    assert device.read_bytes() == bytes(SIZE)
    with device.open("r+b", buffering=0) as written:
        written.write(b"raw" + bytes(4093))
        os.fsync(written.fileno())
    assert reader.read_bytes()[:3] == b"raw"
    with pytest.raises(PermissionError), reader.open("r+b", buffering=0) as written:
        written.write(bytes(4096))
    assert [each.total for each in await node.stats(DEVICE)] == [SIZE]

    await node.unpublish(OTHER_DEVICE)
    assert len(loops_about(node.drive)) == 1
    await node.unpublish(DEVICE)
    await node.unstage()
    assert loops_about(node.drive) == []
    assert not device.exists()


async def test_a_file_system_made_on_a_raw_device_is_none_of_ours(node: LinuxNode):
    await node.stage(block=True, facts=RAW)
    await node.publish(block=True)
    run("mkfs.ext4", "-q", "-F", node.path(DEVICE))
    await node.unpublish(DEVICE)
    await node.unstage()
    with pytest.raises(FailedPrecondition):
        await node.stage(facts=EXT4)
    await node.stage(block=True, facts=RAW)
    assert mount_points(node) == []


async def test_a_new_volume_never_shows_a_byte_of_an_earlier_one(node: LinuxNode):
    await node.stage(block=True, facts={"bytes": 48 * MIB})
    await node.publish(block=True)
    with node.path(DEVICE).open("r+b") as device:
        for _ in range(48):
            device.write(b"secret!!" * (MIB // 8))
    await node.unpublish(DEVICE)
    await node.unstage()
    drive = node.table.get(drive_record().drive_id)
    drive.volumes.erase(drive.volumes.discard(ID))
    node.index.discard(ID)
    drive.place.fit_reserve(CAPACITY)

    await node.stage(block=True, facts={"bytes": 48 * MIB})
    await node.publish(block=True)
    assert node.path(DEVICE).read_bytes() == bytes(48 * MIB)


async def test_a_raw_device_grows_while_it_is_open(node: LinuxNode):
    await node.stage(block=True, facts=RAW)
    await node.publish(block=True)
    with node.path(DEVICE).open("rb") as held:
        assert await node.expand(2 * SIZE, path=DEVICE) == 2 * SIZE
        assert held.seek(0, os.SEEK_END) == 2 * SIZE
    with pytest.raises(CsiError):
        await node.expand(2 * CAPACITY, path=DEVICE)
    assert (node.drive / "reserve").stat().st_size == CAPACITY - 2 * SIZE


async def test_a_directory_is_refused_where_nothing_limits_it(node: LinuxNode):
    with pytest.raises(FailedPrecondition, match="cannot limit its size"):
        await node.stage(backing="directory", facts=EXT4)
    assert list((node.drive / "volumes").iterdir()) == []


async def test_targets_behind_symbolic_links_are_refused(node: LinuxNode, room: Path):
    await node.stage(facts=EXT4)
    elsewhere = room / "elsewhere"
    elsewhere.mkdir()
    parent = node.path(TARGET).parent
    parent.rmdir()
    parent.symlink_to(elsewhere)
    with pytest.raises(CsiError):
        await node.publish()
    assert list(elsewhere.iterdir()) == []
    parent.unlink()


async def test_an_xfs_grows_while_pods_write(room: Path):
    drive = room / "drive"
    drive.mkdir()
    with descriptor(drive) as root:
        drive_files.make_shelves(root)
    node = LinuxNode(room / "kubelet", drive, drive_record(capacity=1 << 40))
    facts = {"bytes": 320 * MIB, "thin": True}
    await node.stage(facts=facts)
    await node.publish()
    with (node.path(TARGET) / "data").open("wb") as written:
        written.write(b"before")
        assert await node.expand(640 * MIB, path=TARGET) == 640 * MIB
        written.write(b"after")
    (total, _) = await node.stats()
    assert total.total > 500 * MIB
    assert (node.path(TARGET) / "data").read_bytes() == b"beforeafter"
    node.take_apart()


DAMAGE = {
    "xfs without its magic": ("xfs", 0, bytes(4)),
    "xfs with a wrong checksum": ("xfs", 200, b"\xff"),
    "ext4 without its magic": ("ext4", 1024 + 56, bytes(2)),
    "ext4 with a wrong checksum": ("ext4", 1024 + 1020, b"\x12\x34\x56\x78"),
    "ext4 without its group descriptors": ("ext4", 4096, b"\xff" * 4096),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_volume_with_a_damaged_file_system_is_marked_and_not_mounted(room: Path, damage: str):
    kind, position, garbage = DAMAGE[damage]
    drive = room / "drive"
    drive.mkdir()
    with descriptor(drive) as root:
        drive_files.make_shelves(root)
    node = LinuxNode(room / "kubelet", drive, drive_record(capacity=1 << 40))
    facts = {"bytes": 320 * MIB, "thin": True, "file_system": kind}
    await node.stage(facts=facts)
    await node.unstage()
    (image,) = drive.rglob("image")
    with image.open("r+b") as file:
        file.seek(position)
        file.write(garbage)

    with pytest.raises(DataLoss, match="damaged"):
        await node.stage(facts=facts)

    assert await node.health() == ["LastCallFailed"]
    assert mount_points(node) == []
    # A program that lists block devices has the loop device open for a moment.
    eventually_there(lambda: not loops_about(drive))
    await node.stage(facts=EXT4, volume_id="pvc-other", path=OTHER_TARGET[:-1])
    await node.service.NodeUnstageVolume(
        csi_pb2.NodeUnstageVolumeRequest(volume_id="pvc-other", staging_target_path=str(node.path(OTHER_TARGET[:-1])))
    )
    node.take_apart()


async def test_when_its_disk_is_gone_a_volume_is_taken_apart_and_used_again_when_the_disk_is_back(tmp_path: Path):
    with disk_image(tmp_path / "room", "xfs") as disk:
        with descriptor(disk.folder) as root:
            drive_files.make_shelves(root)
        node = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, drive_record(capacity=256 * MIB))
        await node.stage(facts=EXT4)
        await node.publish()
        (node.path(TARGET) / "data").write_text("hello")
        os.sync()
        disk.lose_power()

        assert await node.health() != []
        node.table.put(DRIVE, LOST, None)
        await node.unpublish()
        await node.unstage()
        assert mount_points(node) == []
        node.close()
        disk.switch_off()
        disk.switch_on()

        node = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, drive_record(capacity=256 * MIB))
        await node.stage(facts=EXT4)
        await node.publish()
        assert (node.path(TARGET) / "data").read_text() == "hello"
        node.take_apart()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_loop_device_of_a_raw_volume_does_not_keep_a_dead_disk_mounted(tmp_path: Path, *, is_lost: bool):
    with disk_image(tmp_path / "room", "xfs") as disk:
        with descriptor(disk.folder) as root:
            drive_files.make_shelves(root)
        node = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, drive_record(capacity=256 * MIB))
        await node.stage(block=True, facts=RAW)
        await node.publish(block=True, read_only=True)
        disk.lose_power()
        if is_lost:
            node.table.put(DRIVE, LOST, None)

        await node.unpublish(DEVICE)
        await node.unstage()

        assert loops_of(disk.folder) == []
        node.close()
        disk.switch_off()
        disk.switch_on()


async def test_a_loop_device_of_a_mount_namespace_that_ended_does_not_keep_a_dead_disk_mounted(tmp_path: Path):
    """As when the node's container was replaced: the kernel then shows the path of the image below the drive alone."""
    with disk_image(tmp_path / "room", "xfs") as disk:
        with descriptor(disk.folder) as root:
            drive_files.make_shelves(root)
        kubelet, before = tmp_path / "room" / "kubelet", tmp_path / "room" / "before"
        before.mkdir()
        run("mount", "--bind", disk.folder, before)
        record, volume_id = drive_record(capacity=256 * MIB), f"pvc-{uuid4()}"
        node = LinuxNode(kubelet, before, record)
        await node.stage(block=True, facts=RAW, volume_id=volume_id)
        node.close()
        run("umount", "--lazy", before)
        (device,) = loops_over(f"/volumes/{volume_id}/image")

        node = LinuxNode(kubelet, disk.folder, record)
        await node.index.read_all()
        disk.lose_power()
        node.table.put(DRIVE, LOST, None)
        await node.unstage(volume_id)

        left = loops_over(f"/volumes/{volume_id}/image")
        if left:
            run("losetup", "--detach", device)
        assert left == []
        node.close()
        disk.switch_off()
        disk.switch_on()


@pytest.mark.parametrize("kind", ["xfs", "ext4"])
async def test_what_was_acknowledged_survives_power_loss(tmp_path: Path, kind: str):
    """Staged: the volume with its record and its whole image. Expanded: its new size."""
    shape = {"bytes": 4 * MIB}
    with disk_image(tmp_path / "room", kind) as disk:
        with descriptor(disk.folder) as root:
            drive_files.make_shelves(root)
        record = drive_record(capacity=256 * MIB)
        for size, act in ((4 * MIB, "stage"), (8 * MIB, "expand")):
            node = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, record)
            await node.stage(block=True, facts=shape)
            if act == "expand":
                await node.expand(size)
            disk.lose_power()
            node.table.put(DRIVE, LOST, None)
            for device in loops_of(disk.folder):
                run("losetup", "--detach", device)
            node.close()
            disk.switch_off()
            disk.switch_on()

            found = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, record)
            await found.index.read_all()
            volume = found.index.get(ID)
            assert volume is not None
            assert (volume.bytes, volume.unfinished) == (size, "")
            assert found.table.get(DRIVE).volumes.image_bytes(ID) == size
            found.close()


async def test_an_access_mode_that_was_changed_survives_power_loss(tmp_path: Path):
    """As for a PersistentVolume that was ReadWriteOnce, or a record of an Orlop that recorded no access mode."""
    shape = {"bytes": 4 * MIB}
    with disk_image(tmp_path / "room", "xfs") as disk:
        with descriptor(disk.folder) as root:
            drive_files.make_shelves(root)
        record = drive_record(capacity=256 * MIB)
        node = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, record)
        await node.stage(block=True, facts=shape)
        await node.unstage()
        await node.stage(block=True, facts=shape, mode=Mode.SINGLE_NODE_SINGLE_WRITER)
        disk.lose_power()
        node.table.put(DRIVE, LOST, None)
        for device in loops_of(disk.folder):
            run("losetup", "--detach", device)
        node.close()
        disk.switch_off()
        disk.switch_on()

        found = LinuxNode(tmp_path / "room" / "kubelet", disk.folder, record)
        await found.index.read_all()
        volume = found.index.get(ID)
        assert volume is not None
        assert volume.access_mode == "ReadWriteOncePod"
        found.close()


def loops_over(path: str) -> list[str]:
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parts[3]}" for file in files if file.read_text() == f"{path}\n"]


def loops_of(folder: Path) -> list[str]:
    """The loop devices over files below a folder."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [f"/dev/{file.parts[3]}" for file in files if file.read_text().startswith(f"{folder}/")]
