"""The volumes of a node in memory: read from its drives, followed, and kept while a drive is lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from orlop.driver.persistent.drive_table import DriveStanding
from orlop.driver.persistent.volume_index import VolumeIndex
from orlop.foundation.structured_log import silent_log
from orlop.host.mounts.mounts import MountOptions
from orlop.records.drive_record import DriveState
from orlop.records.volume_record import VolumeTarget, encode_volume
from orlop.testing.fake_host import FakeMachine
from support.drives.node_drives import (
    DRIVE,
    ID,
    OTHER_DRIVE,
    READY,
    drive_record,
    index_of,
    make_drive,
    open_drive,
    table_of,
    volume_record,
)

T = TypeVar("T")
STAGING = ("plugins", "globalmount")
TARGETS = [("pods", f"u{number}", "mount") for number in range(2)]
LOST = DriveStanding(DriveState.LOST, "its disk is not there")


@pytest.fixture
def machine() -> FakeMachine:
    machine = FakeMachine()
    make_drive(machine)
    for folder in (STAGING, *TARGETS):
        machine.kubelet_makes(folder)
    return machine


async def test_the_volumes_of_a_drive_are_read_once_for_each_opening(machine: FakeMachine):
    drive = open_drive(machine)
    drive.volumes.create(ID, encode_volume(volume_record()), 0o700)
    table = table_of(drive)
    index = index_of(table)

    await index.read_all()

    assert index.is_read(drive)
    assert index.get(ID) == volume_record()
    assert index.on_drive(DRIVE) == (volume_record(),)
    assert index.promised(DRIVE) == volume_record().bytes
    await index.read(drive)
    assert machine.faults.calls("list_volumes") == 1


async def test_paths_of_before_a_reboot_are_not_in_use_and_those_that_are_mounted_are(machine: FakeMachine):
    drive = open_drive(machine)
    targets = tuple(VolumeTarget("/".join(target)) for target in TARGETS)
    record = volume_record(backing="directory", staged="/".join(STAGING), published=targets)
    drive.volumes.create(ID, encode_volume(record), 0o777)
    drive.volumes.mount_folder(ID, STAGING, MountOptions())
    drive.volumes.mount_folder(ID, TARGETS[0], MountOptions())

    index = index_of(table_of(drive))
    await index.read(drive)
    assert index.get(ID) == replace(record, published=targets[:1])

    machine.reboot()
    index = index_of(table_of(drive))
    await index.read(drive)
    assert index.get(ID) == replace(record, staged="", published=())


async def test_a_block_volume_is_staged_while_a_loop_device_has_its_image(machine: FakeMachine):
    drive = open_drive(machine)
    record = volume_record(volume_mode="Block", file_system="", staged="/".join(STAGING))
    drive.volumes.create(ID, encode_volume(record), 0o700)

    index = index_of(table_of(drive))
    await index.read(drive)

    assert index.get(ID) == replace(record, staged="")


async def test_what_is_no_volume_of_the_drive_is_left_alone_with_the_reason(machine: FakeMachine):
    make_drive(machine, OTHER_DRIVE)
    drive, other = open_drive(machine), open_drive(machine, drive_record(OTHER_DRIVE))
    drive.volumes.create("pvc-1", encode_volume(volume_record("pvc-1")), 0o700)
    other.volumes.create("pvc-1", encode_volume(volume_record("pvc-1", drive=OTHER_DRIVE)), 0o700)
    other.volumes.create("pvc-2", encode_volume(volume_record("pvc-2")), 0o700)
    other.volumes.create("pvc-3", b"{", 0o700)
    machine.drives[f"/srv/folders/{OTHER_DRIVE}"].half_made_volumes["pvc-4"] = machine.drives[
        f"/srv/folders/{OTHER_DRIVE}"
    ].volumes.pop("pvc-2")
    other.volumes.create("pvc-2", encode_volume(volume_record("pvc-2")), 0o700)
    index = index_of(table_of(drive, other))

    await index.read_all()

    assert index.all_records() == (volume_record("pvc-1"),)
    left = index.unusable_entries(OTHER_DRIVE)
    assert sorted(left) == ["pvc-1", "pvc-2", "pvc-3"]
    assert f"the drive {DRIVE} has a volume of this name" in left["pvc-1"]
    assert f"on the drive {DRIVE}" in left["pvc-2"]
    assert "damaged" in left["pvc-3"]
    assert other.volumes.listing().half_made == ()


async def test_volumes_of_a_lost_drive_stay_known_and_are_read_again_when_it_is_back(machine: FakeMachine):
    drive = open_drive(machine)
    drive.volumes.create("pvc-1", encode_volume(volume_record("pvc-1")), 0o700)
    drive.volumes.create("pvc-2", encode_volume(volume_record("pvc-2")), 0o700)
    table = table_of(drive)
    index = index_of(table)
    await index.read_all()

    table.put(DRIVE, LOST, None)
    await index.read_all()
    assert len(index.on_drive(DRIVE)) == 2

    back = open_drive(machine)
    back.volumes.write_record("pvc-1", encode_volume(volume_record("pvc-1", bytes=1 << 30)))
    back.volumes.discard("pvc-2")
    table.put(DRIVE, READY, back)
    assert not index.is_read(back)
    await index.read_all()
    assert index.all_records() == (volume_record("pvc-1", bytes=1 << 30),)


async def test_a_drive_that_cannot_be_read_is_read_when_it_works(machine: FakeMachine):
    drive = open_drive(machine)
    index = index_of(table_of(drive))
    machine.faults.fail("list_volumes", errno.EIO)

    await index.read_all()
    assert not index.is_read(drive)
    await index.read_all()
    assert index.is_read(drive)


async def test_listeners_get_every_volume_and_each_change_once(machine: FakeMachine):
    index = index_of(table_of())
    index.put(volume_record("pvc-1"))
    seen: list[str] = []
    stop = index.listen(seen.append)

    index.put(volume_record("pvc-1"))
    index.put(volume_record("pvc-2"))
    index.set_trouble("pvc-2", "its file system is damaged")
    index.set_trouble("pvc-2", "its file system is damaged")
    index.discard("pvc-2")
    index.discard("pvc-2")
    stop()
    index.put(volume_record("pvc-3"))

    assert seen == ["pvc-1", "pvc-2", "pvc-2", "pvc-2"]
    assert index.trouble_of("pvc-2") == ""


async def test_a_volume_is_read_when_no_call_changes_it(machine: FakeMachine):
    """Its record would be read before the change, and replace in memory what the change has written."""
    drive = open_drive(machine)
    drive.volumes.create(ID, encode_volume(volume_record()), 0o700)
    index = index_of(table_of(drive))

    async with index.keys.hold(ID, why="NodeStageVolume"):
        reading = asyncio.ensure_future(index.read(drive))
        for _ in range(20):
            await asyncio.sleep(0)
        assert index.get(ID) is None
        larger = replace(volume_record(), bytes=2 * volume_record().bytes)
        drive.volumes.write_record(ID, encode_volume(larger))
        index.put(larger)
    await reading

    assert index.get(ID) == larger


async def test_a_volume_that_is_gone_is_forgotten_when_no_call_changes_it(machine: FakeMachine):
    """The call would put it back into memory when it ends."""
    drive = open_drive(machine)
    drive.volumes.create(ID, encode_volume(volume_record()), 0o700)
    index = index_of(table_of(drive))
    await index.read(drive)
    drive.volumes.discard(ID)

    async with index.keys.hold(ID, why="NodeUnpublishVolume"):
        reading = asyncio.ensure_future(index.read(open_drive(machine)))
        for _ in range(20):
            await asyncio.sleep(0)
        index.put(replace(volume_record(), published=(VolumeTarget("pods/u0/mount"),)))
    await reading

    assert index.get(ID) is None


async def test_a_drive_that_is_lost_while_it_is_read_stays_open_until_that_has_ended(machine: FakeMachine):
    """Its descriptors would come to mean another folder."""
    drive = open_drive(machine)
    table, was_closed = table_of(drive), list[bool]()

    async def lost_meanwhile(work: Callable[[], T], /) -> T:
        table.put(DRIVE, LOST, None)
        was_closed.append(drive.volumes.is_closed)  # type: ignore[attr-defined]
        return work()

    await VolumeIndex(table, threads=lost_meanwhile, log=silent_log()).read_all()

    assert was_closed == [False]
    assert drive.volumes.is_closed  # type: ignore[attr-defined]


async def test_a_drive_is_read_once_however_many_wait_for_it(machine: FakeMachine):
    drive = open_drive(machine)
    drive.volumes.create(ID, encode_volume(volume_record()), 0o700)

    async def later(work: Callable[[], T], /) -> T:
        await asyncio.sleep(0)
        return work()

    index = VolumeIndex(table_of(drive), threads=later, log=silent_log())
    await asyncio.gather(*(index.read(drive) for _ in range(5)))

    assert index.get(ID) == volume_record()
    assert machine.faults.calls("list_volumes") == 1
