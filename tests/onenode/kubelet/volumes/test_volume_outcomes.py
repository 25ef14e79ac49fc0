"""What is known after a step failed, and when it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.volumes import reconcile_rules as backoff
from onenode.kubelet.volumes.reconcile_rules import Attempt, Failures
from onenode.kubelet.volumes.steps.outcome_rules import (
    FailureKind,
    MountChange,
    after_failed_publish,
    after_failed_stage,
    call_text,
    failure_of_call,
)
from onenode.kubelet.volumes.volume_values import ActualMount, Device, Lifecycle, MountState, VolumeSpec
from orlop.csi.error_codes import ERROR_OF_CODE, Code, Internal, Unavailable

SPEC = VolumeSpec("v", "d", "h", Lifecycle.PERSISTENT)
NOT_FINAL = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED}


@pytest.mark.parametrize("code", sorted(ERROR_OF_CODE))
def test_five_codes_leave_it_open_and_all_others_are_final(code: Code):
    expected = FailureKind.NOT_FINAL if code in NOT_FINAL else FailureKind.FINAL

    assert failure_of_call(ERROR_OF_CODE[code]("x")) is expected


def test_what_is_no_answer_of_a_driver_is_not_final():
    assert failure_of_call(TimeoutError()) is FailureKind.NOT_FINAL


def test_a_drivers_error_is_told_as_go_tells_it():
    assert call_text(Internal("boom")) == "rpc error: code = Internal desc = boom"
    assert call_text(Unavailable("gone")) == "rpc error: code = Unavailable desc = gone"


mounts = st.none() | st.builds(
    ActualMount, st.just("u"), st.just(SPEC), st.sampled_from(MountState), st.booleans(), st.booleans()
)


@given(before=mounts, failure=st.sampled_from(FailureKind), is_mounted=st.booleans())
def test_nothing_that_may_be_mounted_is_ever_forgotten_or_removed(
    *, before: ActualMount | None, failure: FailureKind, is_mounted: bool
):
    outcome = after_failed_publish(before, failure, is_mounted=is_mounted)

    if failure is not FailureKind.FINAL or is_mounted:
        assert outcome.change is not MountChange.DROP
        assert not outcome.remove_folders
    if before is not None and (before.state is MountState.MOUNTED or before.reconstructed):
        assert outcome.change is MountChange.KEEP
    if failure is FailureKind.NOT_FINAL and before is None:
        assert outcome.change is MountChange.UNCERTAIN
    assert outcome.remove_folders == (outcome.change is MountChange.DROP)


@given(
    before=st.sampled_from(Device),
    failure=st.sampled_from(FailureKind),
    reconstructed=st.booleans(),
    is_mounted=st.booleans(),
)
def test_staging_is_believed_not_to_have_happened_only_after_a_final_error(
    *, before: Device, failure: FailureKind, reconstructed: bool, is_mounted: bool
):
    outcome = after_failed_stage(before, failure, reconstructed=reconstructed, is_mounted=is_mounted)

    if outcome.remove_folders:
        assert failure is FailureKind.FINAL
        assert not is_mounted
        assert not reconstructed
        assert outcome.device is Device.NOT_MOUNTED
    if failure is FailureKind.TRANSIENT or before is Device.MOUNTED:
        assert outcome.device is before
    if failure is FailureKind.NOT_FINAL and before is Device.NOT_MOUNTED:
        assert outcome.device is Device.UNCERTAIN


MOUNT, UNMOUNT_A, UNMOUNT_B = Attempt("volume_mount"), Attempt("volume_unmount", "a"), Attempt("volume_unmount", "b")


def test_delays_double_from_half_a_second_to_two_minutes_and_two():
    failures: Failures = ()
    delays = []
    for _ in range(11):
        failures = backoff.after_failure(failures, MOUNT, 0.0)
        delays.append(backoff.held_until(failures, MOUNT))

    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0, 122.0]


def test_another_operation_runs_at_once_and_clears_the_delay():
    failures = backoff.after_failure((), MOUNT, 0.0)

    assert backoff.held_until(failures, UNMOUNT_A) == 0.0
    assert backoff.after_start(failures, UNMOUNT_A, 0.1) == ()


def test_once_the_delay_has_passed_the_record_stays_as_it_is():
    failures = backoff.after_failure((), MOUNT, 0.0)

    assert backoff.after_start(failures, UNMOUNT_A, 0.6) == failures


def test_two_pods_unmounts_do_not_hold_back_each_other():
    failures = backoff.after_failure((), UNMOUNT_A, 0.0)

    assert backoff.held_until(failures, UNMOUNT_B) == 0.0
    assert backoff.held_until(failures, UNMOUNT_A) == 0.5


def test_what_was_not_prepared_is_looked_at_ten_times_a_second_for_ever():
    failures: Failures = ()
    for _ in range(5):
        failures = backoff.after_unprepared(failures, UNMOUNT_A, 7.0)

    assert backoff.held_until(failures, UNMOUNT_A) == pytest.approx(7.1)


def test_success_deletes_the_record():
    failures = backoff.after_failure(backoff.after_failure((), MOUNT, 0.0), MOUNT, 1.0)

    assert backoff.after_success(failures, MOUNT) == ()
