"""When a list is asked for and when a watch goes on: the decision alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.api_errors import (
    ApiError,
    BadRequest,
    ConnectionBroken,
    Expired,
    Forbidden,
    Gone,
    NotConnected,
    ResourceVersionTooLarge,
    TooManyRequests,
    Unauthorized,
)
from orlop.kube.cache.informer_rules import (
    EndedWatch,
    Standing,
    after_interruption,
    after_list,
    after_watch,
    asked_to_wait,
)

WATCHING = Standing(must_list=False)
ERRORS: list[ApiError | None] = [
    None,
    NotConnected("x"),
    ConnectionBroken("x"),
    Expired("x", code=410),
    Gone("x", code=410),
    TooManyRequests("x", code=429, retry_after=7),
    Unauthorized("x", code=401),
    Forbidden("x", code=403),
    BadRequest("x", code=400),
    ResourceVersionTooLarge("x", code=504),
]


def ended(error: ApiError | None = None, *, progressed: bool = False, seconds: float = 60.0) -> EndedWatch:
    return EndedWatch(error, progressed, seconds)


def test_a_watch_that_simply_ends_goes_on_at_once():
    assert after_watch(WATCHING, ended()) == WATCHING
    assert after_watch(WATCHING, ended(progressed=True, seconds=0)) == WATCHING


def test_a_watch_that_ends_at_once_is_a_failure():
    assert after_watch(WATCHING, ended(seconds=0.1)) == Standing(must_list=False, failures=1)


def test_a_forgotten_version_asks_for_a_list_at_once_if_the_watch_had_been_of_use():
    gone = Expired("too old", code=410)
    assert after_watch(WATCHING, ended(gone, progressed=True)) == Standing(must_list=True, failures=0)
    assert after_watch(WATCHING, ended(gone)) == Standing(must_list=True, failures=1)


@pytest.mark.parametrize("error", [NotConnected("x"), ConnectionBroken("x"), ResourceVersionTooLarge("x", code=504)])
def test_what_passes_is_waited_for_and_after_three_times_listed(error: ApiError):
    standing = WATCHING
    for _ in range(3):
        assert not standing.must_list
        standing = after_watch(standing, ended(error))
    assert standing == Standing(must_list=True, failures=3)


def test_a_version_that_the_server_does_not_take_is_not_asked_for_again():
    assert after_watch(WATCHING, ended(BadRequest("invalid resource version", code=400))).must_list


def test_a_list_that_succeeds_forgives_no_failed_watch():
    assert after_list(Standing(must_list=True, failures=4), None) == Standing(must_list=False, failures=4)


def test_a_server_that_wants_to_be_left_alone_is():
    assert asked_to_wait(TooManyRequests("x", code=429, retry_after=7)) == 7
    assert asked_to_wait(ConnectionBroken("x")) == asked_to_wait(None) == 0


ATTEMPTS = st.lists(st.builds(EndedWatch, st.sampled_from(ERRORS), st.booleans(), st.sampled_from([0.0, 5.0])))


@given(ATTEMPTS)
def test_no_history_of_failures_is_retried_without_a_pause_or_without_ever_listing(attempts: list[EndedWatch]):
    standing, useless = WATCHING, 0
    for attempt in attempts:
        standing = after_watch(standing, attempt)
        worked = attempt.progressed or (attempt.error is None and attempt.seconds > 1)
        useless = 0 if worked else useless + 1
        assert standing.failures >= (1 if useless else 0)
        assert standing.must_list or useless < 3
        assert after_interruption(standing).must_list
        if standing.must_list:
            standing, useless = after_list(standing, None), 0
