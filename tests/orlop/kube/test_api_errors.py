"""An answer becomes the one error it means, whatever shape it has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import api_errors
from orlop.kube.api_errors import Cause, Details, StatusError, error_from_status
from support.random_tests import FEWER


def status(code: int, reason: str, message: str = "a sentence", **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }


KINDS = [
    (400, "BadRequest", api_errors.BadRequest),
    (401, "Unauthorized", api_errors.Unauthorized),
    (403, "Forbidden", api_errors.Forbidden),
    (404, "NotFound", api_errors.NotFound),
    (405, "MethodNotAllowed", api_errors.MethodNotAllowed),
    (406, "NotAcceptable", api_errors.NotAcceptable),
    (409, "Conflict", api_errors.Conflict),
    (409, "AlreadyExists", api_errors.AlreadyExists),
    (410, "Gone", api_errors.Gone),
    (410, "Expired", api_errors.Expired),
    (413, "RequestEntityTooLarge", api_errors.RequestTooLarge),
    (415, "UnsupportedMediaType", api_errors.UnsupportedMediaType),
    (422, "Invalid", api_errors.Invalid),
    (429, "TooManyRequests", api_errors.TooManyRequests),
    (500, "InternalError", api_errors.ServerError),
    (500, "ServerTimeout", api_errors.ServerError),
    (503, "ServiceUnavailable", api_errors.ServiceUnavailable),
    (504, "Timeout", api_errors.Timeout),
]


@pytest.mark.parametrize(("code", "reason", "kind"), KINDS, ids=[reason for _, reason, _ in KINDS])
def test_the_reason_decides_which_error_it_is(code: int, reason: str, kind: type[StatusError]):
    error = error_from_status(code, status(code, reason, name="x"), {})
    assert type(error) is kind
    assert (error.code, error.reason, error.message, error.details.name) == (code, reason, "a sentence", "x")


BY_CODE = [
    *((code, kind) for code, reason, kind in KINDS if reason not in {"AlreadyExists", "Expired", "Invalid"}),
    (422, api_errors.PatchRefused),
    (418, StatusError),
    (502, api_errors.ServerError),
    (599, api_errors.ServerError),
]


@pytest.mark.parametrize(("code", "kind"), BY_CODE)
@pytest.mark.parametrize("body", [None, {}, {"reason": "Unheard Of"}, {"reason": 7, "message": [], "details": "odd"}])
def test_without_a_reason_we_know_the_code_decides(code: int, kind: type[StatusError], body: Any):
    error = error_from_status(code, body, {})
    assert type(error) is kind
    assert error.message == f"{kind.default_message} (HTTP {code})"


def test_the_causes_of_an_invalid_object_are_kept():
    body = status(
        422,
        "Invalid",
        'PersistentVolume "x" is invalid: spec.capacity: Required value',
        name="x",
        kind="PersistentVolume",
        causes=[{"reason": "FieldValueRequired", "message": "Required value", "field": "spec.capacity"}, "odd", {}],
    )
    error = error_from_status(422, body, {})
    assert type(error) is api_errors.Invalid
    assert error.causes[0] == Cause("FieldValueRequired", "Required value", "spec.capacity")
    assert error.has_cause("FieldValueRequired")
    assert not error.has_cause("FieldValueInvalid")


def test_a_json_patch_that_does_not_fit_is_told_from_an_object_that_is_wrong():
    message = "the server rejected our request due to an error in our request"
    error = error_from_status(422, status(422, "Invalid", message), {})
    assert type(error) is api_errors.PatchRefused
    assert isinstance(error, api_errors.Invalid)


def test_a_version_the_server_has_not_yet_seen_is_told_from_other_timeouts():
    body = status(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge", "message": "Too large"}])
    error = error_from_status(504, body, {"Retry-After": "1"})
    assert type(error) is api_errors.ResourceVersionTooLarge
    assert error.retry_after == 1.0


def test_an_expired_watch_is_gone_as_well():
    assert isinstance(error_from_status(410, status(410, "Expired"), {}), api_errors.Gone)


WAITS = [
    ({"Retry-After": "3"}, {}, 3.0),
    ({"retry-after": "0"}, {}, 0.0),
    ({"RETRY-AFTER": "3"}, {"retryAfterSeconds": 9}, 3.0),
    ({}, {"retryAfterSeconds": 9}, 9.0),
    ({}, {"retryAfterSeconds": 0}, None),
    ({}, {"retryAfterSeconds": "9"}, None),
    ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
    ({"Retry-After": "-1"}, {}, None),
    ({"Retry-After": "٣"}, {}, None),
    ({"Retry-After": ""}, {}, None),
    ({}, {}, None),
]


@pytest.mark.parametrize(("headers", "details", "seconds"), WAITS)
def test_how_long_the_server_asks_to_wait_is_read_from_header_or_body(headers, details, seconds):
    assert error_from_status(429, status(429, "TooManyRequests", **details), headers).retry_after == seconds


def test_an_error_holds_nothing_of_the_headers_and_a_very_long_message_is_cut():
    headers = {"Set-Cookie": "session=hunter2", "Authorization": "Bearer hunter2"}
    error = error_from_status(500, status(500, "InternalError", "x" * 10_000), headers)
    assert len(error.message) < 5000
    assert error.message.endswith("(10000 characters)")
    assert "hunter2" not in repr(vars(error)) + repr(error)


def test_the_connection_breaking_is_no_answer_of_the_server():
    assert not issubclass(api_errors.ConnectionBroken, StatusError)
    assert issubclass(api_errors.ResponseTimeout, api_errors.ConnectionBroken)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["reason", "message", "details", "causes", "field", "name", "retryAfterSeconds"]), inner
        )
    ),
    max_leaves=10,
)


@FEWER
@given(code=st.integers(400, 599), body=ANYTHING, header=st.text(max_size=4))
def test_whatever_a_server_answers_becomes_an_error(code: int, body: Any, header: str):
    error = error_from_status(code, body, {"Retry-After": header})
    assert error.code == code
    assert error.message
    assert isinstance(error.details, Details)
