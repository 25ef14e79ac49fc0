"""Delays grow with each failure, stay within their bounds, and repeat themselves from one seed."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.backoff import Backoff

SMOOTH = Backoff(initial=0.5, factor=2, cap=300)


class HighestDraw(Random):
    def random(self) -> float:
        return math.nextafter(1.0, 0.0)


@st.composite
def backoffs(draw: st.DrawFn, most_jitter: float = 1.0) -> Backoff:
    initial = draw(st.floats(1e-6, 1e6))
    cap = initial * draw(st.floats(1, 1e6))
    return Backoff(initial, draw(st.floats(1, 100)), cap, draw(st.floats(0, most_jitter)))


counts = st.integers(1, 200) | st.integers(1, 10**400)


def test_the_delay_doubles_up_to_the_cap():
    delays = [SMOOTH.delay(failures, Random(1)) for failures in (1, 2, 3, 10, 11, 12)]
    assert delays == [0.5, 1, 2, 256, 300, 300]


@pytest.mark.parametrize("failures", [0, -1])
def test_without_a_failure_there_is_nothing_to_wait_for(failures: int):
    assert SMOOTH.delay(failures, Random(1)) == 0


def test_a_factor_of_one_waits_the_same_each_time_however_many_failures_there_were():
    steady = Backoff(initial=5, factor=1.0, cap=60)
    assert {steady.delay(failures, Random(1)) for failures in (1, 2, 10**6, 10**400)} == {5}


def test_the_jitter_comes_from_the_random_source_it_is_given():
    backoff = Backoff(initial=10, factor=2, cap=100, jitter=0.5)
    assert backoff.delay(1, Random(7)) == 10 * (1 + 0.5 * Random(7).random())
    assert backoff.delay(1, HighestDraw()) == pytest.approx(15)


@given(backoffs(), counts, st.randoms(use_true_random=False))
def test_a_delay_is_never_below_the_first_nor_above_the_cap_and_its_jitter(
    backoff: Backoff, failures: int, random: Random
):
    assert backoff.initial <= backoff.delay(failures, random) <= backoff.cap * (1 + backoff.jitter)


@given(backoffs(most_jitter=0.0), counts, counts)
def test_without_jitter_more_failures_never_mean_a_shorter_delay(backoff: Backoff, few: int, many: int):
    few, many = sorted((few, many))
    assert backoff.delay(few, Random(1)) <= backoff.delay(many, Random(1))


@given(backoffs(), counts, st.integers())
def test_the_same_seed_gives_the_same_delay(backoff: Backoff, failures: int, seed: int):
    assert backoff.delay(failures, Random(seed)) == backoff.delay(failures, Random(seed))


@pytest.mark.parametrize(
    ("initial", "factor", "cap", "jitter", "sentence"),
    [
        (0, 2, 10, 0, r"the first delay \(0\) must be above 0 and at most the cap \(10\)"),
        (20, 2, 10, 0, r"the first delay \(20\) must be above 0 and at most the cap \(10\)"),
        (math.nan, 2, 10, 0, r"the first delay \(nan\)"),
        (1, 2, math.inf, 0, r"the cap \(inf\)"),
        (1, 0.5, 10, 0, "must be a number of at least 1, not 0.5"),
        (1, math.inf, 10, 0, "must be a number of at least 1, not inf"),
        (1, 2, 10, -0.1, "must be between 0 and 1, not -0.1"),
        (1, 2, 10, 1.1, "must be between 0 and 1, not 1.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(
    initial: float, factor: float, cap: float, jitter: float, sentence: str
):
    with pytest.raises(ValueError, match=sentence):
        Backoff(initial, factor, cap, jitter)
