"""The JSON of a request is read as Go reads it, and names given twice are told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.requests.json_bodies import DEEPEST, LONGEST_PATH, MOST_DUPLICATES, JsonBody, NotJson, read_body

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_was_written_is_read(value: Any):
    assert read_body(json.dumps(value).encode()) == JsonBody(value)


def test_a_name_given_twice_has_its_last_value_and_is_told_with_its_path():
    body = read_body(b'{"data":{"a":"1","a":"2"},"spec":{"containers":[{"name":"x"},{"name":"y","name":"z"}]}}')

    assert body.value == {"data": {"a": "2"}, "spec": {"containers": [{"name": "x"}, {"name": "z"}]}}
    assert body.duplicates == ("data.a", "spec.containers[1].name")


def test_a_name_given_three_times_is_told_once():
    assert read_body(b'{"a":1,"a":2,"a":3}').duplicates == ("a",)


def test_names_given_twice_are_counted_in_one_pass():
    """Were each name counted by itself, these would take an hour."""
    names = range(300_000)
    text = "{" + ",".join(f'"{name}":0' for name in [*names, *names]) + "}"

    body = read_body(text.encode())

    assert len(body.value) == len(names)
    assert body.duplicates == tuple(str(name) for name in names[:MOST_DUPLICATES])


def test_the_way_to_a_duplicate_is_written_for_the_duplicate_alone():
    """Written for every object, the long name would make a hundred gigabytes of one megabyte."""
    text = b'{"%s":[%s{}],"z":1,"z":2}' % (b"k" * 500_000, b"{}," * 200_000)

    assert read_body(text).duplicates == ("z",)


def test_the_way_to_a_duplicate_is_shortened():
    text = b'{"%s":{"a":1,"a":2}}' % (b"k" * 100_000)

    assert read_body(text).duplicates == ("k" * LONGEST_PATH,)


def test_a_duplicate_name_with_half_of_a_surrogate_pair_can_be_written():
    assert read_body(rb'{"\ud800":1,"\ud800":2}').duplicates == ("\ufffd",)


def test_duplicates_inside_what_was_overwritten_are_no_part_of_the_value():
    assert read_body(b'{"a":{"x":1,"x":2},"a":{}}').duplicates == ("a",)


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":}', b"nonsense", b'{"a":NaN}', b"[1,]", b"{} {}", b"Infinity"])
def test_what_is_no_json_is_refused(text: bytes):
    with pytest.raises(NotJson):
        read_body(text)


def test_a_number_of_thousands_of_digits_is_refused():
    with pytest.raises(NotJson):
        read_body(b"1" * 10_000)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"1.5E400", b"9" * 400 + b".0"])
def test_a_number_too_large_for_a_double_is_refused(number: bytes):
    with pytest.raises(NotJson, match="a number is too large"):
        read_body(b'{"a":[' + number + b"]}")


def test_the_largest_double_is_read():
    assert read_body(b"1.7976931348623157e308").value == 1.7976931348623157e308


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_values_nest_to_a_limit(opening: bytes, closing: bytes):
    assert read_body(opening * DEEPEST + b"1" + closing * DEEPEST)

    for depth in (DEEPEST + 2, 5_000, 200_000):
        with pytest.raises(NotJson, match="nests deeper than 200 levels"):
            read_body(opening * depth + b"1" + closing * depth)


def test_many_brackets_side_by_side_are_no_depth():
    assert len(read_body(b"[" + b"[]," * 5000 + b"[]]").value) == 5001


def test_bytes_that_are_no_text_are_replaced():
    assert read_body(b'{"a":"\xff"}').value == {"a": "\ufffd"}


def test_half_of_a_surrogate_pair_is_replaced():
    assert read_body(rb'{"a":["\ud800"],"\ud801":"\ud83d\ude00"}').value == {"a": ["\ufffd"], "\ufffd": "\U0001f600"}


def test_a_byte_order_mark_is_passed_over():
    assert read_body(b"\xef\xbb\xbf{}").value == {}
