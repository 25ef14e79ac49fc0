"""Disks made drives: on real loop devices, with everything that may go wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from orlop.host.block.block_devices import BlockDevices
from orlop.host.block.device_rules import LABEL
from orlop.host.block.disk_signatures import MARK, marks_of
from orlop.host.drive_host import DiskOrder
from orlop.host.drives import disk_format, drive_files
from orlop.host.drives.disk_format import DiskFormat, check_order, make_disk_drive
from orlop.host.drives.linux_drive_host import DiskMounts
from orlop.host.host_errors import HostError
from orlop.testing.kill_points import KillPoints, explore_kills
from support.host.disks import GIB, LIMITS, LoopDisk, loop_disk
from support.host.kernel_rooms import descriptor, mount_room, run

# Other workers mount drives at the same time, and XFS mounts no two file systems of one UUID.
DRIVE, OTHER = str(uuid4()), str(uuid4())
DEVICES = BlockDevices(LIMITS)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with loop_disk(tmp_path / "disk.img") as made:
        yield made


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[DiskMounts]:
    with mount_room(tmp_path / "drives") as folder:
        yield DiskMounts(str(folder))


def order(disk: LoopDisk, file_system: str = "xfs", *, force: bool = False) -> DiskOrder:
    return DiskOrder(disk.name, disk.found().fingerprint, file_system, DRIVE, force)


def record_of(free: int) -> bytes:
    return b"record of %d" % free


def reason(call: Callable[[], object]) -> int | None:
    with pytest.raises(HostError) as caught:
        call()
    assert str(caught.value).endswith(".")
    return caught.value.errno


@pytest.mark.parametrize("file_system", ["xfs", "ext4"])
def test_a_blank_disk_becomes_a_drive_that_describes_itself(disk: LoopDisk, mounts: DiskMounts, file_system: str):
    make_disk_drive(DEVICES, order(disk, file_system), record_of)

    found = disk.found().device
    assert found.content.file_system is not None
    assert found.content.file_system.name == file_system
    assert found.content.file_system.uuid == DRIVE
    assert found.content.file_system.label == LABEL
    mounts.mount(found, DRIVE, file_system)
    with closing(mounts.open(DRIVE)) as drive:
        free = int(drive.read_record().removeprefix(b"record of "))
        assert 0.8 * GIB < free < GIB
        assert drive.space().free == pytest.approx(free, rel=0.01)
        assert drive.features.file_system == file_system
        assert set(os.listdir(drive.root)) - {"lost+found"} == {  # noqa: PTH208 - a descriptor
            "drive.json",
            "volumes",
            "trash",
        }
    mounts.unmount(DRIVE)
    check = {"xfs": ("xfs_repair", "-n"), "ext4": ("e2fsck", "-n", "-f")}[file_system]
    subprocess.run([*check, disk.path], check=True, capture_output=True)


def test_the_whole_disk_is_still_held_while_it_is_formatted(disk: LoopDisk):
    seen: list[int | None] = []

    def try_to_claim(free: int) -> bytes:
        try:
            os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            seen.append(error.errno)
        return record_of(free)

    make_disk_drive(DEVICES, order(disk), try_to_claim)

    assert seen == [errno.EBUSY]


def test_a_dry_run_writes_nothing(disk: LoopDisk):
    before = disk.found()

    check_order(DEVICES, order(disk))

    assert disk.found() == before
    assert disk.found().device.content.is_blank


def test_another_disk_that_got_the_name_since_is_not_touched(disk: LoopDisk, tmp_path: Path):
    shown = order(disk)
    with loop_disk(tmp_path / "other.img") as other:
        while not disk.replace(other.image):
            disk.plug()
            shown = order(disk)

        assert reason(lambda: make_disk_drive(DEVICES, shown, record_of)) == errno.ENODEV
        assert reason(lambda: check_order(DEVICES, shown)) == errno.ENODEV
        assert disk.found().device.content.is_blank


@pytest.mark.parametrize("file_system", ["xfs", "ext4"])
def test_a_new_drive_is_mounted_while_somebody_still_reads_the_loop_device_of_mkfs(
    disk: LoopDisk, mounts: DiskMounts, file_system: str, monkeypatch: pytest.MonkeyPatch
):
    """As udev does. The loop device, which then stays for a moment, must have no claim on the disk."""
    readers: list[int] = []
    finish = DiskFormat.remove_mark

    def finish_and_read(made: DiskFormat) -> None:
        finish(made)
        readers.append(os.open(made.path, os.O_RDONLY))

    monkeypatch.setattr(DiskFormat, "remove_mark", finish_and_read)
    make_disk_drive(DEVICES, order(disk, file_system), record_of)
    mounts.mount(disk.found().device, DRIVE, file_system)
    os.close(readers.pop())

    assert mounts.mounted().keys() == {DRIVE}


def test_a_disk_whose_content_changed_since_it_was_shown_is_not_touched(disk: LoopDisk):
    shown = order(disk, force=True)
    disk.write(12345, b"precious")

    assert reason(lambda: make_disk_drive(DEVICES, shown, record_of)) == errno.ENODEV
    with disk.image.open("rb") as image:
        assert os.pread(image.fileno(), 8, 12345) == b"precious"


def test_a_file_system_and_unknown_data_are_overwritten_only_by_force(disk: LoopDisk):
    run("mkfs.ext4", "-q", disk.path)
    assert reason(lambda: make_disk_drive(DEVICES, order(disk), record_of)) == errno.EEXIST

    make_disk_drive(DEVICES, order(disk, force=True), record_of)

    assert disk.found().device.content.names == "xfs"


@pytest.mark.parametrize("force", [False, True])
def test_a_partition_table_and_an_ambiguous_disk_are_never_overwritten(disk: LoopDisk, *, force: bool):
    disk.write(512, b"EFI PART")
    assert reason(lambda: make_disk_drive(DEVICES, order(disk, force=force), record_of)) == errno.EINVAL
    disk.write(GIB - 512, b"EFI PART")
    run("mkfs.xfs", "-q", "-f", disk.path)
    disk.write(GIB - 512, b"EFI PART")
    assert reason(lambda: make_disk_drive(DEVICES, order(disk, force=force), record_of)) == errno.EINVAL

    assert {signature.name for signature in disk.found().device.content.signatures} == {"gpt", "xfs"}


def test_a_mounted_disk_and_one_that_somebody_holds_are_not_touched(disk: LoopDisk, tmp_path: Path):
    shown = order(disk, force=True)
    with descriptor(disk.path, os.O_RDONLY | os.O_EXCL):
        assert reason(lambda: make_disk_drive(DEVICES, shown, record_of)) == errno.EBUSY
    run("mkfs.xfs", "-q", disk.path)
    (tmp_path / "spot").mkdir()
    run("mount", disk.path, tmp_path / "spot")
    try:
        assert reason(lambda: make_disk_drive(DEVICES, order(disk, force=True), record_of)) == errno.EBUSY
    finally:
        run("umount", tmp_path / "spot")


async def test_of_two_requests_for_one_disk_one_makes_a_drive(disk: LoopDisk):
    first, second = order(disk), replace(order(disk), drive_id=OTHER)

    results = await asyncio.gather(
        *(asyncio.to_thread(make_disk_drive, DEVICES, each, record_of) for each in (first, second)),
        return_exceptions=True,
    )

    refused = [result for result in results if isinstance(result, HostError)]
    assert len(refused) == 1
    assert refused[0].errno in {errno.EBUSY, errno.ENODEV}
    content = disk.found().device.content.file_system
    assert content is not None
    assert content.uuid == (first, second)[results.index(None)].drive_id


@pytest.mark.parametrize("file_system", ["xfs", "ext4"] if os.environ.get("ORLOP_SOAK") else ["ext4"])
async def test_a_disk_is_formatted_whatever_died_while_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: str
):
    count = iter(range(100))
    with ExitStack() as stack:

        def build() -> LoopDisk:
            return stack.enter_context(loop_disk(tmp_path / f"disk-{next(count)}.img", GIB // 2))

        async def run_once(disk: LoopDisk, points: KillPoints) -> None:
            files = points.wrap(drive_files, "begin", "make_shelves", "complete")
            monkeypatch.setattr(disk_format, "drive_files", files)
            for name in ("mark", "make", "remove_mark", "_run_mkfs"):
                whole = getattr(DiskFormat, name)
                monkeypatch.setattr(DiskFormat, name, _effect(points, name, whole))
            try:
                if not _is_drive(disk):
                    make_disk_drive(DEVICES, order(disk, file_system), record_of)
            finally:
                monkeypatch.undo()

        def check(disk: LoopDisk) -> None:
            assert _is_drive(disk)

        explored = await explore_kills(build, run_once, check)

    assert explored.runs >= 14


def _effect(points: KillPoints, name: str, whole: Callable[..., None]) -> Callable[..., None]:
    def act(*arguments: object, **more: object) -> None:
        with points.effect(name):
            whole(*arguments, **more)

    return act


def _is_drive(disk: LoopDisk) -> bool:
    """A kill leaves a blank disk, one that is half made and needs no force, or a drive: nothing else."""
    content = disk.found().device.content
    assert content.is_blank or content.is_half_made or content.names in {"xfs", "ext4"}, content
    if content.is_blank or content.is_half_made:
        return False
    assert content.file_system is not None
    assert content.file_system.uuid == DRIVE
    return True


@pytest.mark.parametrize("written", [0, 1])
def test_a_disk_with_one_mark_is_formatted_again_without_force(disk: LoopDisk, written: int):
    disk.write(marks_of(GIB)[written], MARK)

    make_disk_drive(DEVICES, order(disk), record_of)

    assert disk.found().device.content.names == "xfs"


# ---- mounts ----------------------------------------------------------------------------------------------------------


def test_a_drive_stays_mounted_and_the_next_process_finds_it(disk: LoopDisk, mounts: DiskMounts):
    make_disk_drive(DEVICES, order(disk), record_of)
    mounts.mount(disk.found().device, DRIVE, "xfs")

    found = mounts.mounted()[DRIVE]

    assert found.major_minor == disk.found().device.major_minor
    assert not found.is_read_only
    with pytest.raises(HostError, match="mounted at"):
        mounts.mount(disk.found().device, DRIVE, "xfs")


def test_a_drive_that_became_read_only_is_found_so(disk: LoopDisk, mounts: DiskMounts):
    make_disk_drive(DEVICES, order(disk, "ext4"), record_of)
    mounts.mount(disk.found().device, DRIVE, "ext4")
    run("mount", "-o", "remount,ro", mounts.mounted()[DRIVE].path)

    assert mounts.mounted()[DRIVE].is_read_only


def test_a_drive_in_use_is_not_unmounted(disk: LoopDisk, mounts: DiskMounts):
    make_disk_drive(DEVICES, order(disk), record_of)
    mounts.mount(disk.found().device, DRIVE, "xfs")

    with closing(mounts.open(DRIVE)):
        assert reason(lambda: mounts.unmount(DRIVE)) == errno.EBUSY
    mounts.unmount(DRIVE)
    mounts.unmount(DRIVE)

    assert mounts.mounted() == {}
    assert reason(lambda: mounts.open(DRIVE)) == errno.ENOENT


def test_a_disk_without_a_file_system_is_not_mounted(disk: LoopDisk, mounts: DiskMounts):
    with pytest.raises(HostError, match="dmesg"):
        mounts.mount(disk.found().device, DRIVE, "xfs")

    assert mounts.mounted() == {}


def test_a_corrupt_superblock_is_an_error_and_mounts_nothing(disk: LoopDisk, mounts: DiskMounts):
    make_disk_drive(DEVICES, order(disk), record_of)
    disk.write(8, b"\xff" * 24)

    with pytest.raises(HostError, match="cannot be mounted"):
        mounts.mount(disk.found().device, DRIVE, "xfs")

    assert mounts.mounted() == {}


@pytest.mark.parametrize("name", ["../x", "x", "", "6D7F3C1E-0A0B-4C1D-8E2F-000000000001"])
def test_a_name_that_is_no_id_of_a_drive_is_refused(disk: LoopDisk, mounts: DiskMounts, name: str):
    assert reason(lambda: mounts.mount(disk.found().device, name, "xfs")) == errno.EINVAL
    assert reason(lambda: mounts.open(name)) == errno.EINVAL
    assert reason(lambda: mounts.unmount(name)) == errno.EINVAL


def test_a_program_that_is_missing_is_named(disk: LoopDisk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(HostError, match=r"mkfs\.xfs is not installed"):
        make_disk_drive(DEVICES, order(disk), record_of)

    assert disk.found().device.content.is_half_made
