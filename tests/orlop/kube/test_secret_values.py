"""Secrets are decoded exactly, or refused with a sentence that names the key and hides the value."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.secret_values import UnusableSecret, secret_values


def secret(data: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "storage", "name": "login"}, "data": data}


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_every_text_is_decoded_as_it_was_encoded(values: dict[str, str]):
    assert secret_values(secret({key: encoded(value.encode()) for key, value in values.items()})) == values


@pytest.mark.parametrize("data", [None, {}])
def test_a_secret_without_data_has_no_values(data: Any):
    assert secret_values(secret(data)) == {}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (encoded(b"hunter2\xff\xfe"), "is not UTF-8 text"),
        ("aHVudGVyMg=", "is not valid base64"),
        ("hunter2 hunter2", "is not valid base64"),
        ("hunter\u00e9", "is not valid base64"),
        (17, "is not valid base64"),
        (None, "is not valid base64"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_refused_by_its_key_and_not_quoted(value: Any, fault: str):
    with pytest.raises(UnusableSecret) as refused:
        secret_values(secret({"user": encoded(b"me"), "password": value}))
    assert str(refused.value).startswith(f"the value of the key 'password' in the secret storage/login {fault}")
    assert "hunter" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_data_that_is_no_map_is_refused():
    with pytest.raises(UnusableSecret, match="the data of the secret storage/login is not a map"):
        secret_values(secret(["hunter2"]))
