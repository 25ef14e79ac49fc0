"""A node's drives on this kernel: loop devices as disks, real file systems and I/O errors, the kernel's own events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from orlop.driver.persistent.drive_errors import DriveFailure
from orlop.driver.persistent.recorded_volumes import existing_volume
from orlop.driver.persistent.upkeep import drive_probes, drive_state_rules, drive_watch
from orlop.driver.persistent.upkeep.drive_making import DriveMaking
from orlop.driver.persistent.upkeep.drive_task_rules import FormatDevice, MakeFolder, derived_drive_id
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.block.device_events import DeviceEvents
from orlop.host.block.device_rules import DeviceLimits
from orlop.host.block.image_formats import ImageFormatter
from orlop.host.drive_host import DriveRoot
from orlop.host.drives.linux_drive_host import LinuxDriveHost
from orlop.host.drives.linux_drive_volumes import LinuxDriveVolumes
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.threads import OwnThreads
from orlop.records.drive_record import MIB, DriveState
from orlop.records.drive_request import RequestedDevice, RequestedFolder
from orlop.records.volume_record import encode_volume
from support.drives.reporting_nodes import volume_on_disk
from support.host.disks import GIB, LoopDisk, loop_disk
from support.host.kernel_rooms import mount_room, run, shut_down
from support.host.own_loops import OwnDisk, own_disk

PATIENCE = 120.0
READY, LOST, ERROR = DriveState.READY, DriveState.LOST, DriveState.ERROR


class LinuxNode:
    """One process of a node. Of all devices of this machine it may use only the disks of the test."""

    def __init__(self, folder: Path, disks: list[LoopDisk]) -> None:
        self.kubelet = LinuxKubeletDir(str(folder / "kubelet"))
        self.threads = OwnThreads()
        limits = DeviceLimits(allowed=tuple(str(disk.path) for disk in disks), allow_loop_devices=True)
        self.host = LinuxDriveHost(str(folder / "folders"), str(folder / "drives"), limits)
        self.log: list[LogEntry] = []
        runtime = Runtime(
            clock=SystemClock(),
            random=Random(1),
            log=collecting_log(self.log),
            metrics=Metrics("test", of_process=False),
        )
        self.drives = NodeDrives(
            self.host,
            self._volumes_of,
            node_name="n1",
            kubelet_dir=str(folder / "kubelet"),
            threads=self.threads,
            runtime=runtime,
        )
        self.making = DriveMaking(
            self.drives.opening, self.drives.watch, owner_of=nobody, threads=self.threads, clock=runtime.clock
        )

    def _volumes_of(self, root: DriveRoot) -> LinuxDriveVolumes:
        return LinuxDriveVolumes(root.root, self.kubelet, ImageFormatter(), SystemClock())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        events = DeviceEvents()
        try:
            async with self.drives.running():
                with events.waking(asyncio.get_running_loop(), self.drives.watch.wake):
                    yield
        finally:
            events.close()
            self.threads.close()
            self.drives.table.close()
            self.kubelet.close()

    async def make(self, disk: LoopDisk) -> str:
        """Format a disk; return the id of the drive."""
        device = RequestedDevice(name=disk.name, fingerprint=self._fingerprint(disk))
        task = FormatDevice(device, derived_drive_id(str(disk.image), disk.name), "ext4")
        result = await self.making.make(task)
        assert not result.error, result.error
        await self.until(lambda: self.state(task.drive_id) is READY)
        return task.drive_id

    def _fingerprint(self, disk: LoopDisk) -> str:
        return next(each.fingerprint for each in self.host.survey().devices if each.device.name == disk.name)

    def state(self, drive_id: str) -> DriveState | None:
        standing = self.drives.table.standings().get(drive_id)
        return standing.state if standing is not None else None

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that happens in real time, on a machine of any speed."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await SystemClock().sleep(0.02)


async def nobody(_drive_id: str) -> str:
    return ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as room:
        for name in ("kubelet", "folders", "drives"):
            (room / name).mkdir()
        yield room


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[LoopDisk]]:
    with ExitStack() as stack:
        yield [stack.enter_context(loop_disk(tmp_path / f"{name}.img", GIB)) for name in ("a", "b")]


async def test_a_disk_that_is_plugged_in_is_mounted_by_the_kernels_event_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drive_watch, "SURVEY_SECONDS", 3600.0)
    with own_disk(tmp_path / "disk.img", GIB // 2) as disk:
        await plug_pull_and_plug(folder, disk)


async def plug_pull_and_plug(folder: Path, disk: OwnDisk) -> None:
    disks: list[LoopDisk] = [disk]
    first = LinuxNode(folder, disks)
    async with first.running():
        drive_id = await first.make(disk)
    first.host.unmount_disk(drive_id)
    disk.pull()

    second = LinuxNode(folder, disks)
    async with second.running():
        await second.until(lambda: second.state(drive_id) is LOST)
        disk.plug_again()
        await second.until(lambda: second.state(drive_id) is READY)
        assert second.host.survey().mounted[drive_id].path == str(folder / "drives" / drive_id)
        # The mount outlives the process, and the next one keeps it.
    third = LinuxNode(folder, disks)
    async with third.running():
        await third.until(lambda: third.state(drive_id) is READY)
    third.host.unmount_disk(drive_id, forget=True)


async def test_a_disk_that_fails_in_the_middle_of_a_write_is_an_error_and_the_other_drive_is_unharmed(
    folder: Path, disks: list[LoopDisk], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drive_probes, "PROBE_SECONDS", 0.2)
    node = LinuxNode(folder, disks)
    async with node.running():
        failing, other = await node.make(disks[0]), await node.make(disks[1])
        file = folder / "drives" / failing / "file"
        with file.open("wb") as stream:
            stream.write(os.urandom(MIB))
            shut_down(folder / "drives" / failing)
            await node.until(lambda: node.state(failing) is ERROR)
        assert "fails" in node.drives.table.standings()[failing].why
        assert node.state(other) is READY
        (folder / "drives" / other / "file").write_bytes(b"still works")
    run("umount", "--lazy", folder / "drives" / failing)
    node.host.unmount_disk(other, forget=True)


async def test_a_drive_with_a_volume_that_cannot_be_read_is_an_error_although_its_probe_succeeds(
    folder: Path, disks: list[LoopDisk]
):
    first = LinuxNode(folder, disks)
    async with first.running():
        drive_id = await first.make(disks[0])
        record = encode_volume(volume_on_disk("pvc-1", drive_id))
        first.drives.table.get(drive_id).volumes.create("pvc-1", record, 0o700)
    first.host.unmount_disk(drive_id)
    # The content of the volume's folder seems to be behind the end of the disk.
    run("debugfs", "-w", "-R", "set_inode_field /volumes/pvc-1 block[5] 0x7ffffff0", disks[0].path)

    node = LinuxNode(folder, disks)
    async with node.running():
        await node.until(lambda: node.state(drive_id) is READY)
        with node.drives.table.using(drive_id) as drive:
            with pytest.raises(DriveFailure) as failure:
                existing_volume(drive, "pvc-1")
            assert drive.place.why_failing() is None
        node.drives.watch.note_error(drive_id, failure.value)
        assert node.state(drive_id) is ERROR
        assert str(failure.value).rstrip(".") in node.drives.table.standings()[drive_id].why
    node.host.unmount_disk(drive_id, forget=True)


async def test_a_file_system_that_has_shut_down_is_mounted_again_when_no_volume_is_in_use(
    folder: Path, disks: list[LoopDisk], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drive_probes, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(drive_watch, "SURVEY_SECONDS", 0.2)
    monkeypatch.setattr(drive_watch, "REMOUNT_SECONDS", 0.5)
    monkeypatch.setattr(drive_state_rules, "RECOVERY_SECONDS", 0.1)
    (folder / "target").mkdir()
    node = LinuxNode(folder, disks)
    async with node.running():
        drive_id = await node.make(disks[0])
        mounted = folder / "drives" / drive_id
        run("mount", "--bind", mounted, folder / "target")  # as the volume of a pod
        shut_down(mounted)
        await node.until(lambda: "mounted again when no pod uses" in node.drives.table.standings()[drive_id].why)
        assert node.state(drive_id) is ERROR
        assert node.drives.table.open_drive(drive_id) is not None

        run("umount", folder / "target")
        await node.until(lambda: node.state(drive_id) is READY)
        (mounted / "file").write_bytes(b"works again")
    shut_down(mounted)

    # A new process finds the mount of the earlier one, and cannot read the record through it.
    later = LinuxNode(folder, disks)
    async with later.running():
        await later.until(lambda: later.state(drive_id) is READY)
    later.host.unmount_disk(drive_id, forget=True)


async def test_a_copy_of_a_drive_and_a_read_only_mount_are_errors_that_end_with_their_cause(
    folder: Path, tmp_path: Path
):
    with loop_disk(tmp_path / "one.img", GIB // 2) as one, own_disk(tmp_path / "other.img", GIB // 2) as other:
        node = LinuxNode(folder, [one, other])
        async with node.running():
            drive_id = await node.make(one)
            other.pull()
            run("cp", "--sparse=always", one.image, other.image)
            other.plug_again()
            await node.until(lambda: node.state(drive_id) is ERROR)
            assert "same identity" in node.drives.table.standings()[drive_id].why

            other.pull()
            await node.until(lambda: node.state(drive_id) is READY)

            run("mount", "-o", "remount,ro", folder / "drives" / drive_id)
            node.drives.watch.wake()
            await node.until(lambda: node.state(drive_id) is ERROR)
            run("mount", "-o", "remount,rw", folder / "drives" / drive_id)
            node.drives.watch.wake()
            await node.until(lambda: node.state(drive_id) is READY)
        node.host.unmount_disk(drive_id, forget=True)


async def test_a_folder_becomes_a_drive_and_its_space_is_a_wall_in_both_directions(folder: Path, disks: list[LoopDisk]):
    run("mkfs.ext4", "-q", disks[0].path)
    place = folder / "folders" / "data"
    place.mkdir()
    run("mount", disks[0].path, place)
    node = LinuxNode(folder, [])
    task = MakeFolder(
        RequestedFolder(path=str(place / "d"), capacity_bytes=512 * MIB), derived_drive_id("r", "d"), 512 * MIB
    )
    async with node.running():
        result = await node.making.make(task)
        assert not result.error, result.error
        await node.until(lambda: node.state(task.drive_id) is READY)
        status = os.statvfs(place)
        assert status.f_bavail * status.f_frsize < GIB - 512 * MIB
        again = await node.making.make(task)
        assert (again.error, again.drive) == ("", task.drive_id)
    run("umount", place)
