"""The table of a drive's states, every transition of it, and the steps that lead to a drive that can be used."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.persistent.upkeep.drive_state_rules import (
    CALL_ADVICE,
    RECOVERY_SECONDS,
    REMOUNT_ADVICE,
    STATES,
    TRANSITIONS,
    CloseDrive,
    DriveFinding,
    DriveSighting,
    MountDrive,
    NothingToDo,
    OpenDrivePlace,
    ReleaseDrive,
    RemountDrive,
    UnmountDrive,
    UpkeepStep,
    finding_of,
    is_gone,
    next_drive_step,
    next_state,
    why_in_state,
)
from orlop.records.drive_record import DriveState, DriveType

ID = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
HOME = f"/srv/drives/{ID}"
READY, LOST, ERROR, REMOVING = DriveState.READY, DriveState.LOST, DriveState.ERROR, DriveState.REMOVING
WELL = DriveSighting(drive_id=ID, type=DriveType.DISK, places=("sdb",), is_ours=True, mounted=HOME, opened=HOME)
FOUND = replace(WELL, mounted="", opened="")
GONE = DriveSighting(drive_id=ID, type=DriveType.DISK, is_ours=True)

LOOKS = {
    DriveFinding.WORKS: WELL,
    DriveFinding.RECOVERING: replace(WELL, seconds_since_failure=1.0),
    DriveFinding.GONE: replace(WELL, places=(), is_stale=True),
    DriveFinding.FAILING: replace(WELL, failing="it cannot be used: Input/output error"),
    DriveFinding.DUPLICATES: replace(WELL, places=("sdb", "sdc")),
    DriveFinding.READ_ONLY: replace(WELL, is_read_only=True),
    DriveFinding.WRONG_OPTIONS: replace(WELL, wrong_options="It is mounted without prjquota."),
    DriveFinding.UNUSABLE: replace(FOUND, trouble="It cannot be mounted."),
    DriveFinding.REMOVAL: replace(WELL, removing=True),
}


def sightings() -> st.SearchStrategy[DriveSighting]:
    return st.builds(
        DriveSighting,
        drive_id=st.just(ID),
        type=st.sampled_from([DriveType.DISK, DriveType.FOLDER]),
        places=st.sampled_from([(), ("sdb",), ("sdb", "sdc")]),
        is_ours=st.booleans(),
        mounted=st.sampled_from(["", HOME]),
        is_stale=st.booleans(),
        is_read_only=st.booleans(),
        wrong_options=st.sampled_from(["", "It is mounted without prjquota."]),
        opened=st.sampled_from(["", HOME]),
        failing=st.sampled_from(["", "it cannot be used"]),
        seconds_since_failure=st.sampled_from([None, 1.0, RECOVERY_SECONDS]),
        is_in_use=st.booleans(),
        may_remount=st.booleans(),
        trouble=st.sampled_from(["", "It cannot be mounted."]),
        may_retry=st.booleans(),
        removing=st.booleans(),
        is_released=st.booleans(),
    )


def test_the_table_has_every_state_and_every_finding():
    assert set(TRANSITIONS) == set(product(STATES, DriveFinding))


@pytest.mark.parametrize("finding", DriveFinding)
def test_every_finding_has_a_look_that_shows_it(finding: DriveFinding):
    assert finding_of(LOOKS[finding]) is finding


@pytest.mark.parametrize(("before", "finding"), TRANSITIONS)
def test_every_transition_is_that_of_the_table_and_has_a_reason(before: DriveState | None, finding: DriveFinding):
    after = next_state(before, LOOKS[finding])

    assert after is TRANSITIONS[before, finding]
    assert bool(why_in_state(after, LOOKS[finding])) == (after is not READY)


CHANGES = [
    ("a device that goes is lost", READY, DriveFinding.GONE, LOST),
    ("one that comes back is ready", LOST, DriveFinding.WORKS, READY),
    ("an I/O error", READY, DriveFinding.FAILING, ERROR),
    ("one that works again is watched for a while", ERROR, DriveFinding.RECOVERING, ERROR),
    ("and is ready then", ERROR, DriveFinding.WORKS, READY),
    ("two devices with one identity", READY, DriveFinding.DUPLICATES, ERROR),
    ("one of them is taken out", ERROR, DriveFinding.WORKS, READY),
    ("remounted read-only", READY, DriveFinding.READ_ONLY, ERROR),
    ("mounted with other options", READY, DriveFinding.WRONG_OPTIONS, ERROR),
    ("a file system that cannot be mounted", None, DriveFinding.UNUSABLE, ERROR),
    ("removed by the admin, also when lost", LOST, DriveFinding.REMOVAL, REMOVING),
    ("an admin changes the mind about it", REMOVING, DriveFinding.WORKS, READY),
]


@pytest.mark.parametrize(
    ("before", "finding", "after"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES]
)
def test_what_happens_to_drives(before: DriveState | None, finding: DriveFinding, after: DriveState):
    assert next_state(before, LOOKS[finding]) is after


@given(sightings(), st.sampled_from(STATES))
def test_a_drive_is_ready_only_if_volumes_can_be_placed_on_it(drive: DriveSighting, before: DriveState | None):
    if next_state(before, drive) is READY:
        assert len(drive.places) == 1
        assert drive.opened
        assert not any((drive.is_stale, drive.is_read_only, drive.wrong_options, drive.failing, drive.removing))


@given(sightings())
def test_of_two_disks_with_one_identity_none_is_mounted(drive: DriveSighting):
    if len(drive.places) > 1:
        assert not isinstance(next_drive_step(drive), MountDrive)


@given(sightings())
def test_a_drive_whose_volumes_are_in_use_is_not_mounted_again(drive: DriveSighting):
    if isinstance(next_drive_step(drive), RemountDrive):
        assert drive.mounted
        assert not drive.is_in_use


@given(sightings())
def test_a_drive_of_another_node_is_neither_mounted_nor_opened(drive: DriveSighting):
    if not drive.is_ours:
        assert not isinstance(next_drive_step(drive), MountDrive | OpenDrivePlace)


@given(sightings())
def test_a_drive_is_released_only_if_its_object_asks_for_it(drive: DriveSighting):
    if isinstance(next_drive_step(drive), ReleaseDrive):
        assert drive.removing
        assert drive.opened


@given(sightings())
def test_steps_come_to_an_end(drive: DriveSighting):
    drive = replace(drive, trouble="")
    if drive.is_stale and not drive.mounted:
        drive = replace(drive, is_stale=False)
    taken: list[UpkeepStep] = []
    while not isinstance(step := next_drive_step(drive), NothingToDo):
        taken.append(step)
        drive = after(step, drive)
        assert len(taken) <= 7, taken


def after(step: UpkeepStep, drive: DriveSighting) -> DriveSighting:  # noqa: PLR0911 - one line for each step
    """What the step leads to when it succeeds."""
    match step:
        case MountDrive():
            return replace(drive, mounted=HOME)
        case OpenDrivePlace(path):
            return replace(drive, opened=path)
        case CloseDrive():
            return replace(drive, opened="")
        case RemountDrive():
            return replace(drive, mounted="", opened="", failing="", may_remount=False)
        case UnmountDrive(forget):
            return replace(drive, mounted="", is_stale=False, is_ours=drive.is_ours and not forget)
        case ReleaseDrive():
            return replace(drive, is_released=True)
        case _:
            return drive


STEPS = [
    ("a disk that was found is mounted", FOUND, MountDrive("sdb")),
    ("and opened", replace(FOUND, mounted=HOME), OpenDrivePlace(HOME)),
    ("a folder is opened where it is", replace(FOUND, type=DriveType.FOLDER, places=("/f",)), OpenDrivePlace("/f")),
    ("one that is open stays so, also as an error", LOOKS[DriveFinding.FAILING], NothingToDo()),
    ("it is mounted again", replace(LOOKS[DriveFinding.FAILING], may_remount=True), RemountDrive()),
    (
        "not while a volume is in use",
        replace(LOOKS[DriveFinding.FAILING], may_remount=True, is_in_use=True),
        NothingToDo(),
    ),
    (
        "nor beside another disk of its identity",
        replace(LOOKS[DriveFinding.DUPLICATES], may_remount=True),
        NothingToDo(),
    ),
    ("one that is gone is closed first", LOOKS[DriveFinding.GONE], CloseDrive()),
    ("and unmounted then", replace(LOOKS[DriveFinding.GONE], opened=""), UnmountDrive()),
    ("it came back while its old mount is there", replace(WELL, is_stale=True), CloseDrive()),
    ("a folder that was moved is opened at its new place", replace(WELL, mounted="", places=("/g",)), CloseDrive()),
    ("what failed is not repeated at once", replace(FOUND, trouble="no", may_retry=False), NothingToDo()),
    ("an empty drive is released", replace(WELL, removing=True), ReleaseDrive()),
    ("closed", replace(WELL, removing=True, is_released=True), CloseDrive()),
    ("and forgotten", replace(WELL, opened="", removing=True, is_released=True), UnmountDrive(forget=True)),
    ("it stays unmounted", replace(FOUND, removing=True, is_released=True), NothingToDo()),
    ("a lost one has nothing to release", replace(GONE, removing=True), NothingToDo()),
]


@pytest.mark.parametrize(("drive", "step"), [each[1:] for each in STEPS], ids=[each[0] for each in STEPS])
def test_the_next_step(drive: DriveSighting, step: UpkeepStep):
    assert next_drive_step(drive) == step


def test_a_drive_that_nothing_uses_any_more_is_gone():
    assert is_gone(GONE)
    assert is_gone(replace(FOUND, is_released=True))
    assert not is_gone(FOUND)
    assert not is_gone(replace(GONE, mounted=HOME))


def test_a_drive_that_failed_a_call_is_an_error_and_its_sentence_names_the_call_and_the_way_out():
    failed = replace(WELL, failed_call="The record of pvc-1 cannot be read: Input/output error.")
    assert {next_state(before, failed) for before in (None, READY, LOST, ERROR)} == {ERROR}
    sentence = (
        "Its disk (sdb) fails: The record of pvc-1 cannot be read: Input/output error. "
        "The kernel's log (dmesg) has the reason."
    )
    assert why_in_state(ERROR, failed) == f"{sentence} {CALL_ADVICE}."
    assert why_in_state(ERROR, replace(failed, is_in_use=True)) == f"{sentence} {REMOUNT_ADVICE}."


def test_a_more_precise_reason_is_reported_before_the_failed_call():
    failed = replace(WELL, failed_call="The record of pvc-1 cannot be written: Read-only file system.")
    assert finding_of(replace(failed, is_read_only=True)) is DriveFinding.READ_ONLY
    assert finding_of(replace(failed, failing="it cannot be used: Input/output error")) is DriveFinding.FAILING
    assert finding_of(replace(failed, places=())) is DriveFinding.GONE
