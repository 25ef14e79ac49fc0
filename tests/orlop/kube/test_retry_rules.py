"""What is asked again: whatever had no effect, and of the rest only what does no harm the second time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import api_errors, patches
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch
from orlop.kube.retry_rules import (
    LONGEST_WAIT_SECONDS,
    MOST_ATTEMPTS,
    GiveUp,
    RenewCredentials,
    Retry,
    Verb,
    after_failure,
    is_safe_to_repeat,
)
from support.random_tests import FEWER

BUSY = api_errors.TooManyRequests("busy", code=429, retry_after=2.0)
BUSY_WITHOUT_A_TIME = api_errors.TooManyRequests("busy", code=429)
DOWN_FOR_A_WHILE = api_errors.ServiceUnavailable("down", code=503, retry_after=5.0)
DOWN = api_errors.ServiceUnavailable("down", code=503)
BROKEN_INSIDE = api_errors.ServerError("broken", code=500)
LATE = api_errors.Timeout("late", code=504, retry_after=1.0)
CUT = api_errors.ConnectionBroken("reset by peer")
SILENT = api_errors.ResponseTimeout("nothing for 30 s")
UNREACHABLE = api_errors.NotConnected("refused")
WRONG_TOKEN = api_errors.Unauthorized("Unauthorized", code=401)

VERSIONED = {"metadata": {"name": "x", "resourceVersion": "7"}}
UNVERSIONED = {"metadata": {"name": "x"}}
VERSION_TEST = [{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}]
WITH_UID = {"preconditions": {"uid": "u-1"}}

EVERY_REQUEST: list[tuple[Verb, Any]] = [
    (Verb.GET, None),
    (Verb.LIST, None),
    (Verb.WATCH, None),
    (Verb.CREATE, UNVERSIONED),
    (Verb.UPDATE, VERSIONED),
    (Verb.UPDATE, UNVERSIONED),
    (Verb.PATCH, VERSIONED),
    (Verb.PATCH, UNVERSIONED),
    (Verb.PATCH, VERSION_TEST),
    (Verb.DELETE, WITH_UID),
    (Verb.DELETE, None),
    (Verb.DELETE_COLLECTION, None),
]


@pytest.mark.parametrize(("verb", "body"), EVERY_REQUEST)
def test_what_certainly_had_no_effect_is_asked_again_whatever_it_is(verb: Verb, body: Any):
    assert after_failure(verb, body, BUSY) == Retry(2.0)
    assert after_failure(verb, body, BUSY_WITHOUT_A_TIME) == Retry(None)
    assert after_failure(verb, body, DOWN_FOR_A_WHILE) == Retry(5.0)
    assert after_failure(verb, body, UNREACHABLE) == Retry(None)
    assert after_failure(verb, body, WRONG_TOKEN) == RenewCredentials()


SAFE = [
    (Verb.GET, None),
    (Verb.LIST, None),
    (Verb.WATCH, None),
    (Verb.UPDATE, VERSIONED),
    (Verb.PATCH, VERSIONED),
    (Verb.PATCH, VERSION_TEST),
    (Verb.PATCH, patches.guarded_by_version(VERSIONED).remove("spec").body()),
    (Verb.DELETE, WITH_UID),
    (Verb.DELETE, {"preconditions": {"resourceVersion": "7"}}),
]


@pytest.mark.parametrize(("verb", "body"), SAFE)
@pytest.mark.parametrize("error", [DOWN, BROKEN_INSIDE, CUT, SILENT])
def test_what_may_have_had_its_effect_is_asked_again_where_a_second_time_does_no_harm(verb, body, error):
    assert after_failure(verb, body, error) == Retry(None)
    assert after_failure(verb, body, LATE) == Retry(1.0)


UNSAFE: list[tuple[Verb, Any]] = [
    (Verb.CREATE, UNVERSIONED),
    (Verb.CREATE, VERSIONED),
    (Verb.UPDATE, UNVERSIONED),
    (Verb.UPDATE, {"metadata": {"resourceVersion": ""}}),
    (Verb.UPDATE, {"metadata": None}),
    (Verb.UPDATE, None),
    (Verb.PATCH, {"spec": {"x": 1}}),
    (Verb.PATCH, []),
    (Verb.PATCH, [{"op": "add", "path": "/metadata/resourceVersion", "value": "7"}]),
    (Verb.PATCH, [{"op": "test", "path": "/metadata/resourceVersion", "value": None}]),
    (Verb.PATCH, [{"op": "test", "path": "/spec/x", "value": 1}, {"op": "replace", "path": "/spec/x", "value": 2}]),
    (Verb.PATCH, ["odd"]),
    (Verb.PATCH, b"bytes"),
    (Verb.DELETE, None),
    (Verb.DELETE, {"preconditions": None}),
    (Verb.DELETE, {"preconditions": {"uid": "", "resourceVersion": None}}),
    (Verb.DELETE, {"propagationPolicy": "Background"}),
    (Verb.DELETE_COLLECTION, WITH_UID),
]


@pytest.mark.parametrize(("verb", "body"), UNSAFE)
@pytest.mark.parametrize("error", [DOWN, BROKEN_INSIDE, CUT, SILENT, LATE])
def test_no_other_write_is_repeated_when_it_may_have_had_its_effect(verb, body, error):
    assert after_failure(verb, body, error) == GiveUp()


FINAL = [
    api_errors.NotFound("x", code=404),
    api_errors.Conflict("x", code=409),
    api_errors.AlreadyExists("x", code=409),
    api_errors.Expired("x", code=410, retry_after=1.0),
    api_errors.Invalid("x", code=422),
    api_errors.Forbidden("x", code=403),
    api_errors.BadRequest("x", code=400),
    api_errors.CredentialsUnavailable("x"),
]


@pytest.mark.parametrize("error", FINAL, ids=[type(error).__name__ for error in FINAL])
def test_what_the_server_decided_is_not_asked_again(error: api_errors.ApiError):
    assert after_failure(Verb.GET, None, error) == GiveUp()


def test_new_credentials_are_tried_once():
    assert after_failure(Verb.GET, None, WRONG_TOKEN, [BUSY]) == RenewCredentials()
    assert after_failure(Verb.GET, None, WRONG_TOKEN, [WRONG_TOKEN, BUSY]) == GiveUp()


def test_nothing_is_asked_more_than_ten_times():
    assert after_failure(Verb.GET, None, BUSY, [BUSY] * (MOST_ATTEMPTS - 2)) == Retry(2.0)
    assert after_failure(Verb.GET, None, BUSY, [BUSY] * (MOST_ATTEMPTS - 1)) == GiveUp()


def test_a_server_that_asks_for_a_long_wait_is_not_waited_for():
    at_most = api_errors.TooManyRequests("busy", code=429, retry_after=LONGEST_WAIT_SECONDS)
    longer = api_errors.TooManyRequests("busy", code=429, retry_after=LONGEST_WAIT_SECONDS + 1)
    assert after_failure(Verb.GET, None, at_most) == Retry(LONGEST_WAIT_SECONDS)
    assert after_failure(Verb.GET, None, longer) == GiveUp()


def test_a_wait_of_no_seconds_is_left_to_the_backoff():
    assert after_failure(Verb.GET, None, api_errors.TooManyRequests("busy", code=429, retry_after=0.0)) == Retry(None)


# ---- why it does no harm ---------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "replace"]),
            "path": st.sampled_from(["/spec/a", "/spec/list/-", "/spec/list/0"]),
        },
    ).map(lambda operation: {**operation, "value": 1}),
    max_size=3,
)


class Server:
    """Counts versions as an API server does: a patch that changes something gives the object a new one."""

    def __init__(self) -> None:
        self.obj = {"metadata": {"resourceVersion": "1"}, "spec": {"a": 0, "list": [0]}}

    def patch(self, patch: list[Any]) -> None:
        after = apply_json_patch(self.obj, patch)
        if after != self.obj:
            after["metadata"]["resourceVersion"] = str(int(self.obj["metadata"]["resourceVersion"]) + 1)
        self.obj = after


@FEWER
@given(OPERATIONS, st.lists(OPERATIONS, max_size=2))
def test_a_patch_that_tests_the_version_has_its_effect_once_however_often_it_is_sent(ours, others):
    server = Server()
    patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}, *ours]
    assert is_safe_to_repeat(Verb.PATCH, patch)
    try:
        server.patch(patch)
        for other in others:
            server.patch(other)
    except PatchDoesNotApply:
        return
    before = copy.deepcopy(server.obj)
    try:
        server.patch(patch)
    except PatchDoesNotApply:
        pass
    else:
        assert before["metadata"]["resourceVersion"] == "1"
    assert server.obj == before
