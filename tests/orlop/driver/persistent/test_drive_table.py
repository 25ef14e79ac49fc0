from __future__ import annotations

from dataclasses import replace

import pytest

from orlop.csi.error_codes import NotFound, Unavailable
from orlop.driver.persistent.drive_table import DriveStanding, DriveTable, OpenDrive
from orlop.records.drive_record import DriveRecord, DriveState, DriveType
from orlop.testing.fake_host import FakeDrive, FakeDriveVolumes, FakeFolderDrives, FakeMachine

ID = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
READY = DriveStanding(DriveState.READY)
LOST = DriveStanding(DriveState.LOST, "its disk is not there")
RECORD = DriveRecord(
    drive_id=ID, type=DriveType.FOLDER, file_system="ext4", capacity_bytes=1 << 30, node_name="n", created_at=0.0
)


def opened(record: DriveRecord = RECORD) -> OpenDrive:
    machine = FakeMachine()
    drive = machine.drives["/srv/a"] = FakeDrive(record=b"x")
    place = FakeFolderDrives(machine, "/srv").open_folder_drive("/srv/a")
    return OpenDrive(record, place, FakeDriveVolumes(machine, drive))


def is_closed(drive: OpenDrive) -> bool:
    closed: set[bool] = {getattr(part, "is_closed") for part in (drive.place, drive.volumes)}  # noqa: B009 - the fakes'
    assert len(closed) == 1
    return closed.pop()


def test_a_drive_that_is_ready_is_returned():
    table, drive = DriveTable(), opened()
    table.put(ID, READY, drive)

    assert table.get(ID) is drive
    assert table.open_drives() == (drive,)
    assert table.standings() == {ID: READY}


def test_a_drive_of_another_node_and_a_lost_one_are_errors_with_the_reason():
    table = DriveTable()
    table.put(ID, LOST, None)

    with pytest.raises(Unavailable, match="its disk is not there"):
        table.get(ID)
    with pytest.raises(NotFound, match="no drive ffffffff"):
        table.get("ffffffff-0a0b-4c1d-8e2f-000000000001")


def test_a_drive_stays_open_until_its_last_user_has_left():
    table, drive = DriveTable(), opened()
    table.put(ID, READY, drive)

    with table.using(ID), table.using(ID):
        table.put(ID, LOST, None)
        assert table.is_used(ID)
        assert not is_closed(drive)

    assert is_closed(drive)
    assert not table.is_used(ID)


def test_a_drive_without_users_is_closed_when_it_is_lost_replaced_or_discarded():
    table = DriveTable()
    drives = [opened(replace_time(number)) for number in range(3)]
    table.put(ID, READY, drives[0])
    table.put(ID, READY, drives[1])
    table.put(ID, LOST, None)
    table.put(ID, READY, drives[2])
    table.discard(ID)

    assert [is_closed(drive) for drive in drives] == [True, True, True]


def replace_time(number: int) -> DriveRecord:
    fields = {name: getattr(RECORD, name) for name in RECORD.__struct_fields__}
    return DriveRecord(**{**fields, "created_at": float(number)})


def test_listeners_are_called_for_all_drives_then_for_each_change_and_no_more_in_the_end():
    table, calls = DriveTable(), list[str]()
    table.put(ID, LOST, None)

    end = table.listen(calls.append)
    table.put(ID, LOST, None)
    table.put(ID, replace(LOST, why="its disk was pulled out"), None)
    end()
    table.discard(ID)

    assert calls == [ID, ID]


def test_at_the_end_of_the_process_every_drive_is_closed():
    table, drive = DriveTable(), opened()
    table.put(ID, READY, drive)

    table.close()

    assert is_closed(drive)
    assert table.standings() == {}
