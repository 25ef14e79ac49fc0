"""Durations are read and written as Go does; the examples are facts of its own type's behaviour."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.duration import (
    HOUR,
    LONGEST,
    MICROSECOND,
    MILLISECOND,
    MINUTE,
    SECOND,
    SHORTEST,
    Duration,
    InvalidDuration,
)

READINGS = [
    ("0", 0),
    ("-0", 0),
    ("+0", 0),
    ("0s", 0),
    ("5s", 5 * SECOND),
    ("1478s", 1478 * SECOND),
    ("-5s", -5 * SECOND),
    ("+5s", 5 * SECOND),
    ("-1m", -MINUTE),
    ("5.0s", 5 * SECOND),
    ("5.6s", 5600 * MILLISECOND),
    ("5.s", 5 * SECOND),
    (".5s", 500 * MILLISECOND),
    ("1.004s", 1004 * MILLISECOND),
    ("1.0040s", 1004 * MILLISECOND),
    ("100.00100s", 100001 * MILLISECOND),
    ("10ns", 10),
    ("11us", 11 * MICROSECOND),
    ("12\u00b5s", 12 * MICROSECOND),
    ("12\u03bcs", 12 * MICROSECOND),
    ("13ms", 13 * MILLISECOND),
    ("15m", 15 * MINUTE),
    ("16h", 16 * HOUR),
    ("1.5h", 90 * MINUTE),
    ("3h30m", 3 * HOUR + 30 * MINUTE),
    ("10.5s4m", 4 * MINUTE + 10500 * MILLISECOND),
    ("-2m3.4s", -(2 * MINUTE + 3400 * MILLISECOND)),
    ("1h2m3s4ms5us6ns", HOUR + 2 * MINUTE + 3 * SECOND + 4 * MILLISECOND + 5 * MICROSECOND + 6),
    ("39h9m14.425s", 39 * HOUR + 9 * MINUTE + 14425 * MILLISECOND),
    ("52763797000ns", 52763797000),
    ("0.3333333333333333333h", 20 * MINUTE),
    ("9007199254740993ns", 2**53 + 1),
    ("9223372036854775807ns", LONGEST),
    ("9223372036854775.807us", LONGEST),
    ("9223372036s854ms775us807ns", LONGEST),
    ("-9223372036854775808ns", SHORTEST),
    ("-9223372036854775.808us", SHORTEST),
    ("-9223372036s854ms775us808ns", SHORTEST),
    ("-2562047h47m16.854775808s", SHORTEST),
    ("0.100000000000000000000h", 6 * MINUTE),
    ("0.830103483285477580700h", 49 * MINUTE + 48 * SECOND + 372539827),
    ("0.8142836364902776738722622h", 2931421091364),
    ("0" * 500 + "7s", 7 * SECOND),
]

WRITINGS = [
    (0, "0s"),
    (1, "1ns"),
    (1100, "1.1µs"),
    (2200 * MICROSECOND, "2.2ms"),
    (100 * MILLISECOND, "100ms"),
    (1500 * MILLISECOND, "1.5s"),
    (3300 * MILLISECOND, "3.3s"),
    (MINUTE, "1m0s"),
    (4 * MINUTE + 5 * SECOND, "4m5s"),
    (4 * MINUTE + 5001 * MILLISECOND, "4m5.001s"),
    (5 * HOUR + 6 * MINUTE + 7001 * MILLISECOND, "5h6m7.001s"),
    (8 * MINUTE + 1, "8m0.000000001s"),
    (HOUR, "1h0m0s"),
    (90 * MINUTE, "1h30m0s"),
    (100 * HOUR, "100h0m0s"),
    (LONGEST, "2562047h47m16.854775807s"),
    (SHORTEST, "-2562047h47m16.854775808s"),
    (-1, "-1ns"),
    (-1500 * MILLISECOND, "-1.5s"),
]

REFUSED = [
    *[
        "",
        "3",
        "-",
        "+",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "1d",
        "1.2.3s",
        "--1s",
        "+-1s",
        "1h-30m",
        "1 h",
        " 1h",
        "1h ",
        "1H",
    ],
    *["\x85\x85", "\xffff", "hello \xffff world", "\ufffd", "1h3", "00", "1e3s", "1_0s", "١s", "1s\n", "infs", "1.5"],  # noqa: RUF001
]

TOO_LONG = [
    *["9223372036854775810ns", "9223372036854775808ns", "-9223372036854775809ns", "9223372036854776us", "3000000h"],
    *["9223372036854775.808us", "9223372036854ms775us808ns", "9" * 900 + "h", "-2562047h47m16.854775809s"],
    "9223372036854775808ns9223372036854775808ns",
]


@pytest.mark.parametrize(("text", "nanoseconds"), READINGS)
def test_a_text_means_what_go_takes_it_for(text: str, nanoseconds: int):
    assert Duration.parse(text).nanoseconds == nanoseconds


@pytest.mark.parametrize(("nanoseconds", "text"), WRITINGS)
def test_a_duration_is_written_as_go_writes_it(nanoseconds: int, text: str):
    assert str(Duration(nanoseconds)) == text
    assert Duration.parse(text) == Duration(nanoseconds)


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_text_is_named_and_told_what_is_allowed(text: str):
    with pytest.raises(
        InvalidDuration, match=re.escape(repr(text)) + " is not a duration: .*; allowed is 0, or numbers"
    ):
        Duration.parse(text)


@pytest.mark.parametrize("text", TOO_LONG)
def test_a_text_beyond_what_go_can_hold_is_refused_by_name(text: str):
    with pytest.raises(InvalidDuration, match=re.escape(repr(text)) + ".*longer than the 292 years"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1d", r"'d' is no unit \(days are written as hours: 72h for three of them\);"),
        ("1w", "'w' is no unit;"),
        ("1h30", "there is no unit after 30"),
        ("5m.", "a point stands without digits"),
        ("h5m", "there is no number before 'h'"),
        (".5", r"there is no unit after \.5;"),
        ("2.5", r"there is no unit after 2\.5;"),
        ("-", "it has no number"),
    ],
)
def test_the_refusal_names_the_part_that_is_wrong(text: str, why: str):
    with pytest.raises(InvalidDuration, match=why):
        Duration.parse(text)


def test_no_refusal_recommends_less_than_nothing():
    with pytest.raises(InvalidDuration, match=r'such as "1h30m" or "1\.5s"$'):
        Duration.parse("forever")


def test_an_endless_text_is_refused_without_repeating_it():
    with pytest.raises(InvalidDuration, match="it has 6000 characters, of at most 1000") as caught:
        Duration.parse("1s" * 3000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("nanoseconds", [LONGEST + 1, SHORTEST - 1])
def test_no_duration_is_made_that_go_could_not_hold(nanoseconds: int):
    with pytest.raises(ValueError, match=f"{nanoseconds} nanoseconds are more than a duration can hold"):
        Duration(nanoseconds)


def test_a_duration_is_made_of_hours_minutes_and_seconds_to_the_nearest_nanosecond():
    assert str(Duration.of(hours=1, minutes=30, seconds=0.1)) == "1h30m0.1s"
    assert Duration.of(seconds=1.1).nanoseconds == 1_100_000_000
    assert Duration.of(seconds=-0.0000000006).nanoseconds == -1


@pytest.mark.parametrize(("text", "seconds"), [("1h30m", 5400.0), ("100ms", 0.1), ("-1.5s", -1.5), ("1ns", 1e-9)])
def test_the_seconds_are_the_nearest_float(text: str, seconds: float):
    assert Duration.parse(text).seconds == seconds


@pytest.mark.parametrize(("text", "microseconds"), [("1h", 3_600_000_000), ("1999ns", 1), ("-1999ns", -1), ("1us", 1)])
def test_a_timedelta_drops_what_is_finer_than_a_microsecond(text: str, microseconds: int):
    assert Duration.parse(text).timedelta() == timedelta(microseconds=microseconds)


def test_durations_are_ordered_by_length():
    assert Duration.parse("-1h") < Duration.parse("1ns") < Duration.parse("1us") < Duration.parse("1m")


int64s = st.integers(SHORTEST, LONGEST)


@given(int64s | st.integers(-2 * SECOND, 2 * SECOND))
def test_what_is_written_is_read_as_the_same_duration(nanoseconds: int):
    assert Duration.parse(str(Duration(nanoseconds))).nanoseconds == nanoseconds


@given(int64s, int64s)
def test_the_order_is_that_of_the_numbers(left: int, right: int):
    assert (Duration(left) < Duration(right)) == (left < right)


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_the_parts_of_a_text_add_up(hours: int, minutes: int, seconds: int, milliseconds: int):
    duration = Duration.parse(f"{hours}h{minutes}m{seconds}s{milliseconds}ms")
    assert duration.nanoseconds == hours * HOUR + minutes * MINUTE + seconds * SECOND + milliseconds * MILLISECOND


@given(st.text(max_size=12) | st.from_regex(r"[-+]?([0-9]*(\.[0-9]*)?(h|m|s|ms|us|ns)){1,4}", fullmatch=True))
def test_any_text_at_all_is_either_read_or_refused_by_name(text: str):
    try:
        reading = str(Duration.parse(text))
    except InvalidDuration as refusal:
        reading = str(refusal)
    assert reading.startswith(repr(text)[:10]) or Duration.parse(reading) == Duration.parse(text)
