"""Decide the next step of one delete operation. Pure.

Order of effects: the attempt is recorded in `status.deleteStatuses` (InProgress) → the disk is wiped; bytes that are
durable on the disk are recorded from time to time → the result is recorded (Complete, or Error with the time of the
next attempt) → when the operation has left the spec, the entry is removed. An attempt begins only from an object that
the API server returned with both the operation and its entry: a wipe that nobody requests any more never begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from orlop.kube.objects import InvalidTime, read_time, time_text
from orlop.records.api_record import LONGEST_NAME, LONGEST_TEXT
from orlop.records.provisioner_status import DeleteOperation, DeleteStatus

LONGEST_DELAY_SECONDS: Final = 600.0
IN_PROGRESS: Final = "InProgress"
COMPLETE: Final = "Complete"
ERROR: Final = "Error"
WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class WipeProgress:
    """How far a wipe is: bytes that survive a loss of power, and what they were written with and to."""

    done: int = 0
    total: int = 0
    method: str = ""
    identity: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class WipeSucceeded:
    """The disk is clean, and that is durable."""


@dataclass(frozen=True, slots=True)
class WipeFailed:
    """The attempt failed; `delay` is the wait until the next one, in seconds."""

    why: str
    delay: float


@dataclass(frozen=True, slots=True)
class WipeRun:
    """An attempt of this process. `result` is None while it runs."""

    progress: WipeProgress
    result: WipeSucceeded | WipeFailed | None = None


@dataclass(frozen=True, slots=True)
class RecordStatus:
    """Write this entry, then decide again. `urgent`: do not wait for other changes."""

    status: DeleteStatus
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class StartWipe:
    """Start, or resume after this progress of an earlier process."""

    resume: WipeProgress


@dataclass(frozen=True, slots=True)
class WaitForWipe:
    """Nothing to do for this many seconds; None: until something changes."""

    seconds: float | None = None


WipeStep: TypeAlias = RecordStatus | StartWipe | WaitForWipe


def next_wipe_step(
    status: DeleteStatus | None, run: WipeRun | None, operation: DeleteOperation, *, may_start: bool, now: datetime
) -> WipeStep:
    """Return the next step. `may_start`: a worker is free, and nothing else wipes this disk."""
    if status is None:
        return RecordStatus(_first_attempt(operation, now)) if may_start else WaitForWipe()
    match status.state:
        case "Complete":
            return WaitForWipe()
        case "Error":
            return _after_error(status, may_start=may_start, now=now)
    if run is None:
        return StartWipe(_recorded(status)) if may_start else WaitForWipe()
    return _result_step(status, run, now)


def _result_step(status: DeleteStatus, run: WipeRun, now: datetime) -> WipeStep:
    match run.result:
        case WipeSucceeded():
            return RecordStatus(_completed(status, run.progress, now))
        case WipeFailed() as failure:
            return RecordStatus(_failed(status, run.progress, failure, now))
    status_now = _with_progress(status, run.progress)
    return RecordStatus(status_now, urgent=False) if status_now != status else WaitForWipe()


def resumed_bytes(recorded: WipeProgress, *, method: str, total: int, identity: str) -> int:
    """Return how much of a wipe an earlier process has done; 0 unless it is the same wipe of the same disk."""
    is_same = (recorded.method, recorded.total, recorded.identity) == (method, total, identity)
    return min(recorded.done, total) if is_same and identity else 0


def forgotten(statuses: Mapping[str, DeleteStatus], operations: Mapping[str, DeleteOperation]) -> frozenset[str]:
    """Return the entries whose operation has left the spec, by uid."""
    return frozenset(statuses.keys() - operations.keys())


def _first_attempt(operation: DeleteOperation, now: datetime) -> DeleteStatus:
    return DeleteStatus(uid=operation.uid, state=IN_PROGRESS, attempts=1, start_time=time_text(now))


def _after_error(status: DeleteStatus, *, may_start: bool, now: datetime) -> WipeStep:
    seconds = _seconds_until(status.next_attempt_time, now)
    if seconds > 0:
        return WaitForWipe(seconds)
    if not may_start:
        return WaitForWipe()
    again = msgspec.structs.replace(
        status, state=IN_PROGRESS, attempts=status.attempts + 1, next_attempt_time="", message=""
    )
    return RecordStatus(again)


def _seconds_until(moment: str, now: datetime) -> float:
    try:
        seconds = (read_time(moment) - now).total_seconds() if moment else 0.0
    except InvalidTime:
        return 0.0
    # A clock that was set back must not delay an attempt by more than the longest delay.
    return seconds if seconds <= 2 * LONGEST_DELAY_SECONDS else 0.0


def _recorded(status: DeleteStatus) -> WipeProgress:
    return WipeProgress(status.bytes_done, status.bytes_total, status.method, status.identity)


def _with_progress(status: DeleteStatus, progress: WipeProgress) -> DeleteStatus:
    if not progress.method:  # it has not begun yet: what an earlier process did still counts
        return msgspec.structs.replace(status, message=progress.message[:LONGEST_TEXT])
    return msgspec.structs.replace(
        status,
        # Not 100 before it is complete.
        progress=min(WHOLE - 1, progress.done * WHOLE // progress.total) if progress.total else 0,
        bytes_done=progress.done,
        bytes_total=progress.total,
        method=progress.method[:LONGEST_TEXT],
        identity=progress.identity[:LONGEST_NAME],
        message=progress.message[:LONGEST_TEXT],
    )


def _completed(status: DeleteStatus, progress: WipeProgress, now: datetime) -> DeleteStatus:
    done = msgspec.structs.replace(_with_progress(status, progress), bytes_done=progress.total, progress=WHOLE)
    return msgspec.structs.replace(done, state=COMPLETE, end_time=time_text(now), message="")


def _failed(status: DeleteStatus, progress: WipeProgress, failure: WipeFailed, now: datetime) -> DeleteStatus:
    due = now + timedelta(seconds=failure.delay)
    return msgspec.structs.replace(
        _with_progress(status, progress),
        state=ERROR,
        next_attempt_time=time_text(due),
        message=failure.why[:LONGEST_TEXT],
    )
