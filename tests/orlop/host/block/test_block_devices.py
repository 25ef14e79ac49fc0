from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orlop.host.block.block_devices import BlockDevices, FoundDevice, locked_device
from orlop.host.block.device_rules import DeviceLimits, why_unusable
from orlop.host.host_errors import HostError
from support.host.disks import GIB, LIMITS, LoopDisk, loop_disk
from support.host.kernel_rooms import descriptor, other_namespace, run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path / "disk.img") as made:
        yield made


def reasons(found: FoundDevice) -> tuple[str, ...]:
    return why_unusable(found.device, LIMITS)


def test_a_survey_does_not_claim_a_disk_that_is_locked(disk: LoopDisk):
    """A mount or a format is about to begin there, and the claim would make it fail."""
    with locked_device(disk.found().device):
        assert "it is in use, perhaps in another mount namespace" in reasons(disk.found())

    assert reasons(disk.found()) == ()


def test_a_new_disk_is_found_with_its_size_and_can_become_a_drive(disk: LoopDisk):
    found = {each.device.name: each for each in BlockDevices(disk.limits).all_devices()}[disk.name]

    assert found.device.bytes == GIB
    assert found.device.path == str(disk.path)
    assert found.device.disk_sequence
    assert reasons(found) == ()
    assert found == disk.found()


def test_a_disk_mounted_in_another_namespace_alone_is_in_use(disk: LoopDisk, tmp_path: Path):
    run("mkfs.xfs", "-q", disk.path)
    spot = tmp_path / "spot"
    spot.mkdir()
    run("mount", disk.path, spot)
    with other_namespace("private"):
        run("umount", spot)

        assert reasons(disk.found()) == (f"it is mounted at {spot}",)


def test_a_disk_that_is_not_read_because_it_is_mounted_has_the_file_system_of_its_mount(disk: LoopDisk, tmp_path: Path):
    run("mkfs.xfs", "-q", disk.path)
    spot = tmp_path / "spot"
    spot.mkdir()
    run("mount", disk.path, spot)
    found = disk.found()
    run("umount", spot)

    assert (found.device.content.names, found.device.mounted_as) == ("", "xfs")
    assert disk.found().device.content.names == "xfs"


def test_a_disk_that_somebody_holds_is_in_use(disk: LoopDisk):
    with descriptor(disk.path, os.O_RDWR | os.O_EXCL):
        assert reasons(disk.found()) == ("it is in use, perhaps in another mount namespace",)
    assert reasons(disk.found()) == ()


def test_a_read_only_disk_and_a_small_one_are_refused(tmp_path: Path, disk: LoopDisk):
    disk.pull()
    disk.plug("--read-only")
    with loop_disk(tmp_path / "small.img", 1 << 20) as small:
        assert reasons(disk.found()) == ("it is read-only",)
        assert any("too small" in reason for reason in reasons(small.found()))


def test_loop_devices_are_refused_unless_the_admin_allows_them(disk: LoopDisk):
    refused = "it is a loop device, which --allow-devices of its node does not allow"
    assert refused in why_unusable(disk.found(DeviceLimits()).device, DeviceLimits())


def test_another_disk_under_the_same_name_has_another_fingerprint(disk: LoopDisk, tmp_path: Path):
    before = disk.found()
    with ExitStack() as stack:
        other = stack.enter_context(loop_disk(tmp_path / "other.img"))
        while not disk.replace(other.image):
            disk.plug()
            before = disk.found()

        after = disk.found()

    assert after.device.name == before.device.name
    assert after.fingerprint != before.fingerprint


def test_a_device_that_is_not_there_is_an_error(disk: LoopDisk):
    for name in ("nothing", "../sda", "a/b", ""):
        with pytest.raises(HostError, match="no block device") as caught:
            BlockDevices(LIMITS).find(name)
        assert caught.value.errno == errno.ENOENT


def test_a_held_disk_cannot_be_mounted_by_others_and_is_free_afterwards(disk: LoopDisk):
    run("mkfs.xfs", "-q", disk.path)

    with BlockDevices(LIMITS).held(disk.name) as held:
        assert held.found == disk.found() or held.found.device.is_claimed is False
        with pytest.raises(OSError, match="busy"):
            os.open(disk.path, os.O_RDONLY | os.O_EXCL)

    os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL))


# ---- a machine made of files -----------------------------------------------------------------------------------------


def written(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    written(root, "proc/sys/kernel/random/boot_id", "b\n")
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/mnt").symlink_to("mnt:[1]")
    (root / "proc/self/root").symlink_to("/")
    written(root, "proc/self/mountinfo", "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")
    for name, number in (("sda", "8:0"), ("sda/sda1", "8:1"), ("nvme0n1", "259:0")):
        written(root, f"sys/devices/{name}/dev", f"{number}\n")
        written(root, f"sys/devices/{name}/size", "4194304\n")
        (root / "sys/class/block").mkdir(parents=True, exist_ok=True)
        (root / "sys/class/block" / name.rpartition("/")[2]).symlink_to(root / "sys/devices" / name)
    written(root, "sys/devices/sda/sda1/partition", "1\n")
    written(root, "sys/devices/sda/device/vendor", "ATA     \n")
    written(root, "sys/devices/sda/device/model", "Samsung SSD 870 \n")
    (root / "sys/devices/sda/device/vpd_pg80").write_bytes(b"\0\x80\0\x08S6PTNM0X")
    written(root, "sys/devices/nvme0n1/wwid", "eui.0025388b\n")
    written(root, "sys/devices/nvme0n1/device/model", "PM9A3\n")
    written(root, "sys/devices/nvme0n1/queue/rotational", "0\n")
    written(root, "run/udev/data/b259:0", "S:disk/by-id/x\nE:ID_SERIAL_SHORT=S64G\nE:ID_MODEL=other\n")
    return root


def test_what_the_kernel_shows_of_a_disk_is_read_and_udev_adds_the_rest(machine: Path):
    found = {each.device.name: each.device for each in BlockDevices(LIMITS, str(machine)).all_devices()}

    assert found["sda"].model == "ATA Samsung SSD 870"
    assert found["sda"].serial == "S6PTNM0X"
    assert found["sda"].partitions == ("sda1",)
    assert found["sda1"].partition_of == "sda"
    assert found["sda1"].mount_points == ("/",)
    assert (found["nvme0n1"].model, found["nvme0n1"].serial, found["nvme0n1"].wwn) == ("PM9A3", "S64G", "eui.0025388b")
    assert found["nvme0n1"].bytes == 2 << 30


def test_the_mount_points_of_the_host_come_before_those_of_our_own_container(machine: Path):
    """A container runtime binds files of the host's disk into every container."""
    container = "30 1 8:1 /pods/u1/log /dev/termination-log rw - ext4 /dev/sda1 rw\n"
    (machine / "proc/self/mountinfo").write_text(container)
    for process, namespace, table in (
        ("1", "mnt:[2]", "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"),
        ("7", "mnt:[1]", container),
    ):
        written(machine, f"proc/{process}/mountinfo", table)
        (machine / f"proc/{process}/ns").mkdir()
        (machine / f"proc/{process}/ns/mnt").symlink_to(namespace)
        (machine / f"proc/{process}/root").symlink_to("/")

    found = BlockDevices(LIMITS, str(machine)).find("sda1")

    assert found.device.mount_points == ("/", "/dev/termination-log")
    assert "it is mounted at /" in reasons(found)


def test_a_disk_without_anything_in_sys_is_left_out(machine: Path):
    (machine / "sys/class/block/loop7").mkdir()

    assert [each.device.name for each in BlockDevices(LIMITS, str(machine)).all_devices()] == ["nvme0n1", "sda", "sda1"]
