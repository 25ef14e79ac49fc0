"""The drives of a node: mounted, opened, lost, found again, and never two at once, on a fake machine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

import pytest

from orlop.csi.error_codes import Unavailable
from orlop.driver.persistent.drive_errors import DriveFailure
from orlop.driver.persistent.upkeep.drive_opening import DriveOpening, ForeignDrive
from orlop.driver.persistent.upkeep.drive_sightings import ExpectedDrive
from orlop.host.drive_host import DriveSurvey
from orlop.host.host_errors import HostError
from orlop.records.drive_record import DriveState, DriveType, decode_drive
from orlop.testing.fake_host import FakeDriveHost, FakeMachine
from orlop.testing.fake_host.fake_drives import FakeDriveRoot
from orlop.testing.kill_points import KillPoints, explore_kills
from support.drives.watched_nodes import (
    GIB,
    ID,
    NODE,
    OTHER,
    ROOT,
    WatchedNode,
    drive_disk,
    folder_drive,
    machine_with,
    record,
)

pytestmark = pytest.mark.virtual_time
T = TypeVar("T")
READY, LOST, ERROR, REMOVING = DriveState.READY, DriveState.LOST, DriveState.ERROR, DriveState.REMOVING
EXPECTED = {ID: ExpectedDrive(DriveType.DISK)}
REMOVED = {ID: ExpectedDrive(DriveType.DISK, removing=True)}


async def test_after_a_reboot_every_drive_is_mounted_and_ready_without_an_api_server():
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk(OTHER))
    folder_drive(machine, f"{ROOT}/a", "6d7f3c1e-0a0b-4c1d-8e2f-000000000003")
    node = WatchedNode(machine)

    async with node.running():
        assert [node.state(each) for each in node.table.standings()] == [READY] * 3
        assert set(machine.mounted_drives) == {ID, OTHER}


async def test_a_drive_that_is_plugged_in_is_ready_within_a_second():
    machine = machine_with()
    machine.known_drives.add(ID)
    node = WatchedNode(machine)

    async with node.running():
        assert node.state() is LOST
        machine.plug_disk("sdb", drive_disk())
        node.watch.wake()
        await node.passes(1)

        assert node.state() is READY


async def test_a_drive_that_a_request_makes_and_mounts_after_a_survey_is_never_an_error():
    machine = machine_with()
    node = WatchedNode(machine)

    async with node.running():
        async with node.watch.keys.hold(ID, "a request to make it"):
            machine.known_drives.add(ID)
            machine.plug_disk("sdb", drive_disk())
            node.watch.wake()
            await node.passes(1)
            DriveOpening(node.host, NODE, node.host.volumes_of).mount(ID, "sdb", node.host.survey())
        await node.passes(1)

        assert node.state() is READY
        assert not [each for each in node.entries if each.message == "drive not usable"]


async def test_a_disk_that_is_pulled_out_is_lost_and_ready_again_under_another_name():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        disk = machine.pull_disk("sdb")
        node.watch.wake()
        await node.passes(1)
        assert node.state() is LOST
        assert "not there" in node.why()
        assert not machine.mounted_drives

        machine.plug_disk("sdx", disk)
        node.watch.wake()
        await node.passes(1)
        assert node.state() is READY


async def test_a_lost_drive_whose_mount_is_still_used_is_mounted_again_when_it_is_free():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        disk = machine.pull_disk("sdb")
        machine.busy_drives.add(ID)
        node.watch.wake()
        await node.passes(1)
        machine.plug_disk("sdb", disk)
        node.watch.wake()
        await node.passes(60)
        assert node.state() is ERROR
        assert "cannot be unmounted" in node.why()

        machine.busy_drives.clear()
        await node.passes(40)
        assert node.state() is READY


async def test_an_io_error_is_found_by_a_probe_and_the_drive_is_watched_before_it_is_ready_again():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    node.machine.busy_drives.add(ID)

    async with node.running():
        disk.drive.is_gone = True
        await node.passes(31)
        assert node.state() is ERROR
        assert "Input/output error" in node.why()
        assert node.why().endswith("It is mounted again when no pod uses its volumes any more.")
        assert node.table.get(ID).drive_id == ID  # volumes can still be unmounted

        disk.drive.is_gone = False
        await node.passes(31)
        assert node.state() is ERROR
        await node.passes(91)
        assert node.state() is READY


async def test_a_file_system_that_has_shut_down_is_mounted_again_when_no_volume_is_in_use():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    node.machine.busy_drives.add(ID)

    async with node.running():
        disk.has_shut_down = disk.drive.is_gone = True
        await node.passes(300)
        assert node.state() is ERROR
        assert node.table.open_drive(ID) is not None
        assert node.machine.faults.calls("unmount_disk") == 0

        node.machine.busy_drives.clear()
        await node.passes(35)
        assert not disk.has_shut_down
        assert node.state() is ERROR  # watched until it has worked for a minute
        await node.passes(91)
        assert node.state() is READY


async def test_a_volume_that_was_staged_since_the_survey_prevents_that_its_drive_is_mounted_again():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    survey = node.host.survey

    def survey_before_a_staging() -> DriveSurvey:
        surveyed = survey()
        if disk.has_shut_down:
            node.machine.busy_drives.add(ID)
        return surveyed

    async with node.running():
        drive = node.table.get(ID)
        node.host.survey = survey_before_a_staging  # type: ignore[method-assign] - a volume is staged just after it
        disk.has_shut_down = disk.drive.is_gone = True
        await node.passes(300)
        assert node.machine.faults.calls("unmount_disk") == 0
        assert node.table.open_drive(ID) is drive

        node.host.survey = survey  # type: ignore[method-assign]
        node.machine.busy_drives.clear()
        await node.passes(130)
        assert node.state() is READY


async def test_a_drive_is_mounted_again_after_a_staging_under_way_and_takes_none_meanwhile():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    survey, refusals = node.host.survey, set[str]()

    def survey_and_stage() -> DriveSurvey:
        try:
            with node.table.staging(ID):
                pass
        except Unavailable as error:
            refusals.add(str(error))
        return survey()

    async with node.running():
        with node.table.staging(ID):
            disk.has_shut_down = disk.drive.is_gone = True
            await node.passes(300)
            assert node.machine.faults.calls("unmount_disk") == 0
            surveys = node.machine.faults.calls("survey")
            await node.passes(300)
            assert node.machine.faults.calls("survey") - surveys < 30

        node.host.survey = survey_and_stage  # type: ignore[method-assign] - a pod starts while the node surveys
        await node.passes(31)
        assert not disk.has_shut_down
        assert f"the drive {ID} fails, and is being mounted again; try again" in refusals
        await node.passes(91)
        assert node.state() is READY


def test_the_root_of_a_drive_of_another_node_is_not_left_open():
    host = FakeDriveHost(machine_with(sdb=drive_disk(node="n2")), ROOT)
    opening = DriveOpening(host, NODE, host.volumes_of)
    opening.mount(ID, "sdb", host.survey())
    opened, open_disk = [], host.open_disk

    def open_and_note(drive_id: str) -> FakeDriveRoot:
        opened.append(open_disk(drive_id))
        return opened[-1]

    host.open_disk = open_and_note  # type: ignore[method-assign]
    with pytest.raises(ForeignDrive):
        opening.open(ID, f"{ROOT}/{ID}", DriveType.DISK)
    assert [each.is_closed for each in opened] == [True]


async def test_a_drive_that_is_unmounted_to_be_mounted_again_takes_no_staging():
    """A staging that began before the unmount would keep the file system as it is."""
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    unmount, may_stage = node.host.unmount_disk, []

    def look_and_unmount(drive_id: str, *, forget: bool = False) -> None:
        may_stage.append(node.table.open_drive(drive_id) is not None)
        unmount(drive_id, forget=forget)

    node.host.unmount_disk = look_and_unmount  # type: ignore[method-assign]
    async with node.running():
        disk.has_shut_down = disk.drive.is_gone = True
        await node.passes(300)
        assert node.state() is READY

    assert may_stage == [False]


async def test_a_process_that_finds_a_file_system_which_has_shut_down_mounts_it_again():
    disk = drive_disk()
    machine = machine_with(sdb=disk)
    async with WatchedNode(machine).running():
        pass
    assert disk.drive is not None
    disk.has_shut_down = disk.drive.is_gone = True
    node = WatchedNode(machine)

    async with node.running():
        await node.passes(100)

        assert node.state() is READY


async def test_a_drive_is_probed_soon_after_a_call_had_an_io_error():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))

    async with node.running():
        await node.passes(30)  # just after a probe of all drives
        disk.drive.is_gone = True
        node.watch.probes.probe_now(ID)
        await node.passes(2)

        assert node.state() is ERROR


async def test_a_drive_that_fails_a_call_is_an_error_at_once_although_its_probes_succeed():
    machine = machine_with(sdb=drive_disk())
    machine.busy_drives.add(ID)
    node = WatchedNode(machine)

    async with node.running():
        for _ in range(5):
            node.watch.note_error(ID, DriveFailure(errno.EIO, "The record of pvc-1 cannot be read: I/O error."))
            assert node.state() is ERROR
            assert "(sdb) fails: The record of pvc-1 cannot be read: I/O error. The kernel's log" in node.why()
            await node.passes(122)  # the longest time until kubelet repeats the call
            assert node.state() is ERROR

        await node.passes(250)
        assert node.state() is READY
        assert not machine.faults.calls("unmount_disk")


async def test_a_drive_that_fails_a_call_is_mounted_again_once_when_no_volume_is_in_use():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        node.watch.note_error(ID, DriveFailure(errno.EIO, "The record of pvc-1 cannot be read: I/O error."))
        await node.passes(200)
        assert (node.state(), machine.faults.calls("unmount_disk")) == (ERROR, 1)
        assert ID in machine.mounted_drives

        await node.passes(150)
        assert (node.state(), machine.faults.calls("unmount_disk")) == (READY, 1)


async def test_an_error_that_may_not_be_of_the_drive_only_starts_a_probe():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))

    async with node.running():
        await node.passes(26)  # just after a probe of all drives
        for error in (HostError(errno.EIO, "kubelet's folder"), HostError(errno.ENOSPC, "full"), Unavailable("busy")):
            node.watch.note_error(ID, error)
        await node.passes(2)
        assert node.state() is READY

        disk.drive.is_gone = True
        node.watch.note_error(ID, HostError(errno.EIO, "kubelet's folder"))
        await node.passes(2)
        assert node.state() is ERROR


async def test_a_disk_that_was_pulled_out_during_a_call_is_ready_when_it_is_back():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        disk = machine.pull_disk("sdb")
        node.watch.note_error(ID, DriveFailure(errno.EIO, "The record of pvc-1 cannot be read: I/O error."))
        await node.passes(1)
        assert node.state() is LOST

        machine.plug_disk("sdb", disk)
        node.watch.wake()
        await node.passes(1)
        assert node.state() is READY


async def test_a_disk_that_could_not_be_mounted_is_tried_at_once_when_it_was_plugged_in_elsewhere():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)
    machine.faults.fail("mount_disk", errno.EIO, times=10)

    async with node.running():
        await node.passes(600)  # the next attempt is minutes away
        assert node.state() is ERROR
        machine.faults.forget()
        machine.plug_disk("sdx", machine.pull_disk("sdb"))
        node.watch.wake()
        await node.passes(2)

        assert node.state() is READY


async def test_a_disk_that_goes_on_failing_is_mounted_again_once_a_minute_and_never_ready():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    states: set[DriveState | None] = set()

    async with node.running():
        disk.drive.is_gone = True
        await node.passes(31)
        node.table.listen(lambda _drive: states.add(node.state()))
        await node.passes(600)

        assert states == {ERROR}
        assert 2 <= node.machine.faults.calls("unmount_disk") <= 11


async def test_a_failing_drive_that_is_empty_can_be_removed():
    disk = drive_disk()
    assert disk.drive is not None
    node = WatchedNode(machine_with(sdb=disk))
    node.watch.expect(EXPECTED)

    async with node.running():
        disk.has_shut_down = disk.drive.is_gone = True
        await node.passes(31)
        node.watch.expect(REMOVED)
        await node.passes(100)

        assert node.watch.has_released(ID)


async def test_a_disk_that_hangs_is_an_error_and_delays_no_other_drive():
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk(OTHER))
    node = WatchedNode(machine)
    released = asyncio.Event()
    hangs, hanging = False, 0

    async def threads(work: Callable[[], T], /) -> T:
        nonlocal hangs, hanging
        place = getattr(work, "__closure__", None)
        is_probe = place is not None and any(getattr(cell.cell_contents, "drive_id", "") == ID for cell in place)
        if hangs and is_probe:
            hanging += 1
            await released.wait()
        return work()

    node.watch.probes._threads = threads
    async with node.running():
        hangs = True
        await node.passes(95)

        assert node.state() is ERROR
        assert "has not responded" in node.why()
        assert node.state(OTHER) is READY
        node.watch.probes.probe_now(ID)
        await node.passes(95)
        assert hanging == 1  # each would keep a thread

        released.set()
        hangs = False
        await node.passes(1)
        assert node.state() is READY


async def test_two_disks_with_one_identity_are_an_error_and_neither_is_mounted():
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        assert node.state() is ERROR
        assert "sdb and sdc have the same identity" in node.why()
        assert not machine.mounted_drives

        machine.pull_disk("sdc")
        await node.passes(60)
        assert node.state() is READY


async def test_a_copy_of_a_mounted_drive_is_an_error_and_the_mounted_one_stays_open():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        machine.plug_disk("sdc", drive_disk())
        await node.passes(60)

        assert node.state() is ERROR
        assert node.table.open_drive(ID) is not None
        assert machine.mounted_drives[ID] is machine.disks["sdb"]


async def test_a_drive_that_became_read_only_and_one_mounted_otherwise_are_errors():
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk(OTHER))
    node = WatchedNode(machine)

    async with node.running():
        machine.disks["sdb"].is_read_only = True
        machine.disks["sdc"].wrong_options = "It is mounted without prjquota."
        await node.passes(60)

        assert (node.state(), node.state(OTHER)) == (ERROR, ERROR)
        assert "mounted read-only" in node.why()
        assert "without prjquota" in node.why(OTHER)


async def test_a_disk_that_another_node_may_use_is_never_mounted():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(node="n2")
    node = WatchedNode(machine)

    async with node.running():
        await node.passes(100)

        assert machine.faults.calls("mount_disk") == 0
        assert node.state() is None
        assert node.watch.drives.foreign == {ID: ("sdb",)}


async def test_a_drive_object_that_names_a_disk_of_another_node_gets_no_drive():
    machine = FakeMachine()
    machine.disks["sdb"] = drive_disk(node="n2")
    node = WatchedNode(machine)
    node.watch.expect(EXPECTED)

    async with node.running():
        await node.passes(100)

        assert node.state() is ERROR
        assert "made or adopted by the node n2" in node.why()
        assert node.table.open_drive(ID) is None
        assert not machine.mounted_drives


async def test_a_disk_of_ours_that_was_forgotten_is_mounted_when_its_object_is_read():
    machine = machine_with(sdb=drive_disk())
    machine.known_drives.clear()
    node = WatchedNode(machine)

    async with node.running():
        assert node.state() is None
        node.watch.expect(EXPECTED)
        await node.passes(1)

        assert node.state() is READY


@pytest.mark.parametrize("content", [b"", b"{", record(OTHER)])
async def test_a_damaged_record_and_that_of_another_drive_are_errors_and_change_nothing(content: bytes):
    machine = machine_with(sdb=drive_disk(content=content or b"\0"), sdc=drive_disk(OTHER))
    node = WatchedNode(machine)

    async with node.running():
        assert node.state() is ERROR
        assert node.state(OTHER) is READY
        assert node.table.open_drive(ID) is None
        disk = machine.disks["sdb"]
        assert disk.drive is not None
        assert disk.drive.record == (content or b"\0")


async def test_a_corrupt_superblock_is_an_error_that_is_not_retried_without_end():
    machine = machine_with(sdb=drive_disk(), sdc=drive_disk(OTHER))
    machine.disks["sdb"].is_corrupt = True
    node = WatchedNode(machine)

    async with node.running():
        await node.passes(3600)

        assert node.state() is ERROR
        assert "cannot be mounted" in node.why()
        assert machine.faults.calls("mount_disk") < 30
        assert node.state(OTHER) is READY


async def test_a_folder_that_is_gone_is_lost_and_one_whose_record_is_damaged_is_an_error():
    machine = FakeMachine(total_bytes=1000 * GIB)
    folder_drive(machine, f"{ROOT}/a")
    folder_drive(machine, f"{ROOT}/b", OTHER)
    node = WatchedNode(machine)
    node.watch.expect({OTHER: ExpectedDrive(DriveType.FOLDER, path=f"{ROOT}/b")})

    async with node.running():
        assert (node.state(), node.state(OTHER)) == (READY, READY)

        del machine.drives[f"{ROOT}/a"]
        machine.drives[f"{ROOT}/b"].record = b"{"
        await node.passes(60)
        assert node.state() is LOST
        assert node.table.open_drive(ID) is None
        assert node.state(OTHER) is READY  # open, and its root is the one that was checked


async def test_a_folder_whose_space_others_took_takes_no_volumes_until_it_is_free_again():
    machine = FakeMachine(total_bytes=20 * GIB)
    drive = folder_drive(machine, f"{ROOT}/a")
    drive.reserve = 0
    machine.used_by_others = 15 * GIB
    node = WatchedNode(machine)

    async with node.running():
        await node.passes(60)
        assert node.state() is ERROR
        assert "Others hold 5Gi of its capacity" in node.why()

        machine.used_by_others = 0
        await node.passes(60)
        assert node.state() is READY
        assert drive.reserve == 10 * GIB


# ---- removal ---------------------------------------------------------------------------------------------------------


async def test_an_empty_drive_is_released_and_forgotten_and_can_be_used_otherwise():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)
    node.watch.expect(EXPECTED)

    async with node.running():
        assert not node.watch.has_released(ID)
        node.watch.expect(REMOVED)
        await node.passes(3)

        assert node.state() is REMOVING
        assert node.watch.has_released(ID)
        assert not machine.mounted_drives
        assert not machine.known_drives
        disk = machine.disks["sdb"].drive
        assert disk is not None
        assert disk.record is not None
        assert decode_drive(disk.record).removed

        node.watch.expect({})
        await node.passes(1)
        assert node.state() is None


async def test_a_drive_with_volumes_is_not_released():
    machine = machine_with(sdb=drive_disk())
    node = WatchedNode(machine)

    async with node.running():
        drive = machine.disks["sdb"].drive
        assert drive is not None
        drive.half_made_volumes["pvc-1"] = None  # type: ignore[assignment]
        node.watch.expect(REMOVED)
        await node.passes(600)

        assert node.state() is REMOVING
        assert "holds 1 volumes, such as pvc-1" in node.why()
        assert not node.watch.has_released(ID)
        assert ID in machine.mounted_drives


async def test_a_folder_drive_is_removed_with_its_files():
    machine = FakeMachine(total_bytes=1000 * GIB)
    drive = folder_drive(machine, f"{ROOT}/a")
    node = WatchedNode(machine)
    node.watch.expect({ID: ExpectedDrive(DriveType.FOLDER, removing=True)})

    async with node.running():
        await node.passes(3)

        assert node.watch.has_released(ID)
        assert (drive.record, drive.reserve) == (None, 0)


async def test_a_drive_is_released_whatever_is_killed_meanwhile():
    def build() -> FakeMachine:
        return machine_with(sdb=drive_disk())

    async def run(machine: FakeMachine, points: KillPoints) -> None:
        node = WatchedNode(machine, points)
        node.watch.expect(REMOVED)
        async with node.running():
            await node.passes(5)
            assert node.watch.has_released(ID)

    def check(machine: FakeMachine) -> None:
        drive = machine.disks["sdb"].drive
        assert drive is not None
        assert drive.record is not None
        assert decode_drive(drive.record).removed
        assert not machine.mounted_drives

    explored = await explore_kills(build, run, check)
    assert explored.runs >= 6


@pytest.mark.parametrize("function", ["survey", "mount_disk", "open_disk", "read_drive_record"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.EBUSY, errno.ENOSPC, errno.EROFS])
async def test_after_an_error_of_the_host_the_drive_is_ready_later(function: str, number: int):
    machine = machine_with(sdb=drive_disk())
    machine.faults.fail(function, number)
    node = WatchedNode(machine)

    async with node.running():
        await node.passes(60)

        assert node.state() is READY
