"""What every host of disks that are drives promises: one suite, on a fake machine and on this kernel's loop devices."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from orlop.host.block.block_devices import FoundDevice
from orlop.host.drive_host import DiskOrder, DriveHost
from orlop.host.drives.linux_drive_host import LinuxDriveHost
from orlop.host.host_errors import HostError
from orlop.testing.fake_host import FakeDisk, FakeDriveHost, FakeMachine
from support.host.disks import LoopDisk, loop_disk
from support.host.kernel_rooms import mount_room, run

GIB = 1 << 30


class DiskWorld(Protocol):
    host: DriveHost
    disk: str
    """The name of a blank disk."""

    def remount_read_only(self, drive_id: str) -> None: ...


class FakeDiskWorld:
    disk = "sdb"

    def __init__(self) -> None:
        self.machine = FakeMachine(total_bytes=10 * GIB)
        self.machine.disks["sdb"] = FakeDisk(GIB)
        self.host: DriveHost = FakeDriveHost(self.machine, "/srv/folders")

    def remount_read_only(self, drive_id: str) -> None:
        self.machine.mounted_drives[drive_id].is_read_only = True


class LinuxDiskWorld:
    def __init__(self, folder: Path, drives: Path, disk: LoopDisk) -> None:
        self.host: DriveHost = LinuxDriveHost(str(folder), str(drives), disk.limits)
        self._drives = drives
        self.disk = disk.name

    def remount_read_only(self, drive_id: str) -> None:
        run("mount", "-o", "remount,ro", self._drives / drive_id)


@pytest.fixture(params=["fake", "linux"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DiskWorld]:
    if request.param == "fake":
        yield FakeDiskWorld()
        return
    with ExitStack() as stack:
        disk = stack.enter_context(loop_disk(tmp_path / "disk.img"))
        drives = stack.enter_context(mount_room(tmp_path / "drives"))
        (tmp_path / "folders").mkdir()
        yield LinuxDiskWorld(tmp_path / "folders", drives, disk)


def found(world: DiskWorld) -> FoundDevice:
    return next(each for each in world.host.survey().devices if each.device.name == world.disk)


def order(world: DiskWorld, drive_id: str) -> DiskOrder:
    return DiskOrder(world.disk, found(world).fingerprint, "ext4", drive_id)


def reason(call: Callable[[], object]) -> int | None:
    with pytest.raises(HostError) as caught:
        call()
    return caught.value.errno


def test_a_disk_becomes_a_drive_is_mounted_and_known_until_it_is_forgotten(world: DiskWorld):
    drive_id = str(uuid4())
    world.host.make_disk_drive(order(world, drive_id), lambda free: b"free %d" % free)
    assert found(world).device.content.drive == drive_id
    assert drive_id not in world.host.survey().known

    world.host.mount_disk(found(world).device, drive_id, "ext4")
    with closing(world.host.open_disk(drive_id)) as root:
        assert root.read_record().startswith(b"free ")
        assert root.why_failing() is None
    survey = world.host.survey()
    assert survey.mounted[drive_id].major_minor == found(world).device.major_minor
    assert not survey.mounted[drive_id].is_read_only
    assert not survey.mounted[drive_id].wrong_options
    assert world.disk in survey.unusable

    world.host.unmount_disk(drive_id)
    survey = world.host.survey()
    assert drive_id not in survey.mounted
    assert drive_id in survey.known
    assert reason(lambda: world.host.open_disk(drive_id)) == errno.ENOENT

    world.host.unmount_disk(drive_id, forget=True)
    world.host.unmount_disk(drive_id, forget=True)
    assert drive_id not in world.host.survey().known


def test_a_drive_that_became_read_only_is_seen_so(world: DiskWorld):
    drive_id = str(uuid4())
    world.host.make_disk_drive(order(world, drive_id), lambda _free: b"record")
    world.host.mount_disk(found(world).device, drive_id, "ext4")
    assert reason(lambda: world.host.mount_disk(found(world).device, drive_id, "ext4")) == errno.EBUSY

    world.remount_read_only(drive_id)

    assert world.host.survey().mounted[drive_id].is_read_only
    world.host.unmount_disk(drive_id, forget=True)


def test_what_was_not_shown_is_not_formatted_and_a_dry_run_changes_nothing(world: DiskWorld):
    shown = order(world, str(uuid4()))
    before = found(world)

    world.host.make_disk_drive(shown, lambda _free: b"", dry_run=True)
    assert reason(lambda: world.host.make_disk_drive(replace(shown, name="sdnone"), lambda _free: b"")) == errno.ENOENT
    other = replace(shown, fingerprint="0" * 32)
    assert reason(lambda: world.host.make_disk_drive(other, lambda _free: b"")) == errno.ENODEV
    assert reason(lambda: world.host.make_disk_drive(other, lambda _free: b"", dry_run=True)) == errno.ENODEV

    assert found(world) == before


def test_a_drive_is_overwritten_only_by_force(world: DiskWorld):
    world.host.make_disk_drive(order(world, str(uuid4())), lambda _free: b"record")
    again = order(world, str(uuid4()))

    assert reason(lambda: world.host.make_disk_drive(again, lambda _free: b"")) == errno.EEXIST
    world.host.make_disk_drive(replace(again, force=True), lambda _free: b"record")

    assert found(world).device.content.drive == again.drive_id


def test_a_disk_whose_name_means_another_device_is_not_mounted(world: DiskWorld):
    drive_id = str(uuid4())
    world.host.make_disk_drive(order(world, drive_id), lambda _free: b"record")
    other = replace(found(world).device, major_minor="250:77")

    assert reason(lambda: world.host.mount_disk(other, drive_id, "ext4")) == errno.ENODEV
    assert drive_id not in world.host.survey().mounted
