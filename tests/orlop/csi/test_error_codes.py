from __future__ import annotations

import errno

import pytest

from orlop.csi.error_codes import Code, CsiError, Unknown, error_of, failure_of, is_final, unanswered
from orlop.foundation.duration import InvalidDuration
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.quantity import InvalidQuantity

MAY_STILL_RUN = {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED}


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: code.name)
def test_every_code_has_an_error_of_its_own_and_is_final_unless_the_call_may_still_run(code: Code):
    error = error_of(code, "why")

    assert (error.code, error.message) == (code, "why")
    assert is_final(error) == (code not in MAY_STILL_RUN)


def test_what_is_no_answer_of_a_driver_is_not_final():
    assert not is_final(ConnectionResetError())
    assert not is_final(ValueError("a bug"))


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: code.name)
def test_no_error_that_the_client_makes_after_sending_is_final(code: Code):
    assert not is_final(unanswered(code, "why"))


def test_codes_are_spelled_as_go_spells_them_in_metrics():
    names = [code.go_name for code in Code]

    assert names[:4] == ["OK", "Canceled", "Unknown", "InvalidArgument"]
    assert names[9] == "FailedPrecondition"


TABLE = [
    (error_of(Code.NOT_FOUND, "no such volume"), Code.NOT_FOUND),
    (KeyHeld("volume v1", "NodeStageVolume"), Code.ABORTED),
    (InvalidQuantity("1X", "X is no suffix"), Code.INVALID_ARGUMENT),
    (InvalidDuration("1X", "X is no unit"), Code.INVALID_ARGUMENT),
    (TimeoutError(), Code.DEADLINE_EXCEEDED),
    (OSError(errno.ENOSPC, "No space left on device"), Code.RESOURCE_EXHAUSTED),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), Code.RESOURCE_EXHAUSTED),
    (OSError(errno.EMFILE, "Too many open files"), Code.RESOURCE_EXHAUSTED),
]


@pytest.mark.parametrize(("error", "code"), TABLE, ids=lambda value: str(value)[:30])
def test_what_stands_in_the_table_is_answered_with_its_code_and_its_own_words(error: Exception, code: Code):
    failure = failure_of(error, "Node.NodeStageVolume", "r-1")

    assert (failure.code, failure.expected) == (code, True)
    assert failure.message


def test_what_does_not_stand_in_the_table_is_internal_and_keeps_its_words_to_the_log():
    failure = failure_of(OSError(errno.EIO, "disk on fire"), "Node.NodeStageVolume", "r-1")

    assert (failure.code, failure.expected) == (Code.INTERNAL, False)
    assert "on fire" not in failure.message
    assert "request r-1" in failure.message


def test_a_code_that_grpc_invents_later_is_unknown():
    assert isinstance(error_of(99, "new"), Unknown)  # type: ignore[arg-type]
    assert issubclass(Unknown, CsiError)
