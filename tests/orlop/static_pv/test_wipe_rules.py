"""The next step of a delete operation: recorded before it is begun, complete only after it succeeded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.kube.objects import time_text
from orlop.records.provisioner_status import DeleteOperation, DeleteStatus
from orlop.static_pv.wipe_rules import (
    RecordStatus,
    StartWipe,
    WaitForWipe,
    WipeFailed,
    WipeProgress,
    WipeRun,
    WipeStep,
    WipeSucceeded,
    next_wipe_step,
    resumed_bytes,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OPERATION = DeleteOperation(
    uid="u1", persistent_volume="pv", volume="local-pv-1", storage_class="fast", entry="a", identity="wwn:1"
)
HALF = WipeProgress(512, 1024, "zero", "wwn:1", "Overwriting (zero).")


def status(**fields: object) -> DeleteStatus:
    return msgspec.structs.replace(
        DeleteStatus(uid="u1", state="InProgress", attempts=1, start_time=time_text(NOW)), **fields
    )


def step(present: DeleteStatus | None, run: WipeRun | None = None, *, may_start: bool = True) -> WipeStep:
    return next_wipe_step(present, run, OPERATION, may_start=may_start, now=NOW)


def test_an_operation_is_recorded_before_it_is_begun():
    assert step(None) == RecordStatus(status())
    assert step(status()) == StartWipe(WipeProgress())


def test_without_a_free_worker_an_operation_stays_requested():
    assert step(None, may_start=False) == WaitForWipe()
    assert step(status(), may_start=False) == WaitForWipe()
    assert step(status(state="Error"), may_start=False) == WaitForWipe()


def test_a_wipe_of_an_earlier_process_is_resumed_with_its_progress():
    recorded = status(bytes_done=512, bytes_total=1024, method="zero", identity="wwn:1", progress=50)

    assert step(recorded) == StartWipe(WipeProgress(512, 1024, "zero", "wwn:1"))


def test_progress_is_recorded_and_is_not_whole_before_it_is_complete():
    recorded = step(status(), WipeRun(HALF))
    assert isinstance(recorded, RecordStatus)
    assert (recorded.status.progress, recorded.status.bytes_done, recorded.urgent) == (50, 512, False)
    assert step(recorded.status, WipeRun(HALF)) == WaitForWipe()
    whole = step(status(), WipeRun(WipeProgress(1024, 1024, "zero")))
    assert isinstance(whole, RecordStatus)
    assert whole.status.progress == 99


def test_a_success_is_complete_and_stays_so():
    done = step(status(), WipeRun(HALF, WipeSucceeded()))
    assert isinstance(done, RecordStatus)
    assert (done.status.state, done.status.progress, done.status.bytes_done) == ("Complete", 100, 1024)
    assert done.status.end_time == time_text(NOW)
    assert step(done.status) == WaitForWipe()
    assert step(done.status, WipeRun(HALF)) == WaitForWipe()


def test_a_failure_is_recorded_with_its_progress_and_tried_again_when_it_is_due():
    failed = step(status(), WipeRun(HALF, WipeFailed("it is in use", 30)))
    assert isinstance(failed, RecordStatus)
    assert (failed.status.state, failed.status.message, failed.status.bytes_done) == ("Error", "it is in use", 512)
    assert failed.status.next_attempt_time == time_text(NOW + timedelta(seconds=30))
    assert step(failed.status) == WaitForWipe(30)

    again = next_wipe_step(failed.status, None, OPERATION, may_start=True, now=NOW + timedelta(seconds=30))
    assert isinstance(again, RecordStatus)
    assert (again.status.state, again.status.attempts, again.status.bytes_done) == ("InProgress", 2, 512)


@pytest.mark.parametrize("moment", ["", "soon", time_text(NOW + timedelta(days=30))])
def test_no_time_that_makes_no_sense_delays_an_attempt(moment: str):
    assert isinstance(step(status(state="Error", next_attempt_time=moment)), RecordStatus)


def test_a_failure_before_the_first_byte_keeps_what_was_done():
    recorded = status(bytes_done=512, bytes_total=1024, method="zero", identity="wwn:1", progress=50)
    failed = step(recorded, WipeRun(WipeProgress(), WipeFailed("it is in use", 30)))

    assert isinstance(failed, RecordStatus)
    assert (failed.status.bytes_done, failed.status.method, failed.status.identity) == (512, "zero", "wwn:1")


@given(
    some.builds(WipeProgress, some.integers(0, 3000), some.sampled_from([0, 1024]), some.sampled_from(["zero", "x"])),
    some.sampled_from(["", "wwn:1", "wwn:2"]),
    some.sampled_from(["", "wwn:1", "wwn:2"]),
)
def test_only_the_same_wipe_of_the_same_known_disk_goes_on(recorded: WipeProgress, was: str, now: str):
    recorded = WipeProgress(recorded.done, recorded.total, recorded.method, was)
    done = resumed_bytes(recorded, method="zero", total=1024, identity=now)

    assert 0 <= done <= 1024
    if done:
        assert (recorded.method, recorded.total, was) == ("zero", 1024, now)
        assert now
