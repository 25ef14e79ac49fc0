"""When a retained folder goes, and which one first."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.ephemeral.afterlife.retention_rules import (
    DEFAULT_HEADROOM,
    DiskSpace,
    Erase,
    Moment,
    Reason,
    RetainedFolder,
    Wait,
    age_of,
    effective_headroom,
    namespace_weights,
    next_measurement,
    next_step,
    pressure_factor,
    wall_clock_jump,
)

HOUR = 3600.0
ONE = Fraction(1)


def space(free: int, total: int = 1000) -> DiskSpace:
    return DiskSpace(total, free)


@pytest.mark.parametrize(
    ("total", "free", "headroom", "factor"),
    [
        (1000, 110, "0.1", "1"),
        (1000, 100, "0.1", "1"),
        (1000, 99, "0.1", "0.99"),
        (1000, 0, "0.1", "0"),
        (1000, 0, "0", "1"),
        (1000, 500, "1", "0.5"),
        (1001, 100, "0.1", "100/101"),  # the headroom is rounded up to whole bytes
        (0, 0, "0.1", "1"),
    ],
)
def test_the_factor_is_what_is_free_as_a_share_of_the_headroom(total: int, free: int, headroom: str, factor: str):
    assert pressure_factor(DiskSpace(total, free), Fraction(headroom)) == Fraction(factor)


def test_inodes_count_as_space_does_and_the_worse_one_decides():
    headroom = Fraction(1, 10)
    assert pressure_factor(DiskSpace(1000, 500, 1000, 25), headroom) == Fraction(1, 4)
    assert pressure_factor(DiskSpace(1000, 50, 1000, 25), headroom) == Fraction(1, 4)
    assert pressure_factor(DiskSpace(1000, 10, 1000, 25), headroom) == Fraction(1, 10)


def test_a_file_system_that_counts_no_inodes_is_not_under_pressure_for_it():
    assert pressure_factor(DiskSpace(1000, 500, 0, 0), Fraction(1, 10)) == 1


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63), st.fractions(0, 1))
def test_more_free_space_never_means_more_pressure(total: int, free: int, more: int, headroom: Fraction):
    factor = pressure_factor(DiskSpace(total, free), headroom)
    assert 0 <= factor <= 1
    assert pressure_factor(DiskSpace(total, free + more), headroom) >= factor


def folder(name: str, *, age: float, lifespan: float = 12 * HOUR, namespace: str = "a", size: int | None = 0):
    return RetainedFolder(name, namespace, age, lifespan, size)


def test_a_folder_goes_strictly_after_its_time():
    assert next_step([folder("f", age=12 * HOUR)], ONE) == Wait(0.0)
    assert next_step([folder("f", age=12 * HOUR + 0.001)], ONE) == Erase("f", Reason.AGE)


def test_without_folders_there_is_nothing_to_wait_for():
    assert next_step([], ONE) == Wait(None)


def test_the_wait_ends_when_the_first_folder_is_due():
    assert next_step([folder("f", age=11 * HOUR), folder("g", age=1 * HOUR)], ONE) == Wait(HOUR)


def test_pressure_makes_a_folder_due_sooner_and_is_told_as_the_reason():
    half = Fraction(1, 2)
    assert next_step([folder("f", age=7 * HOUR)], half) == Erase("f", Reason.PRESSURE)
    assert next_step([folder("f", age=13 * HOUR)], half) == Erase("f", Reason.AGE)
    assert next_step([folder("f", age=5 * HOUR)], half) == Wait(HOUR)


def test_no_space_at_all_makes_everything_due():
    assert next_step([folder("f", age=0.5)], Fraction(0)) == Erase("f", Reason.PRESSURE)


def test_the_namespace_that_retains_most_gives_first():
    folders = [
        folder("old", age=20 * HOUR, namespace="small", size=10),
        folder("new", age=13 * HOUR, namespace="large", size=1000),
    ]
    assert next_step(folders, ONE) == Erase("new", Reason.AGE)


def test_what_is_not_due_weighs_as_well():
    folders = [
        folder("old", age=20 * HOUR, namespace="small", size=10),
        folder("new", age=13 * HOUR, namespace="large", size=1),
        folder("fresh", age=0, namespace="large", size=1000),
    ]
    assert next_step(folders, ONE) == Erase("new", Reason.AGE)


def test_within_a_namespace_the_one_furthest_beyond_its_time_goes_first():
    folders = [
        folder("short", age=3 * HOUR, lifespan=HOUR),
        folder("long", age=13 * HOUR, lifespan=12 * HOUR),
    ]
    assert next_step(folders, ONE) == Erase("short", Reason.AGE)


def test_where_sizes_are_not_known_the_number_of_folders_decides():
    folders = [
        folder("a1", age=20 * HOUR, namespace="a", size=None),
        folder("b1", age=13 * HOUR, namespace="b", size=None),
        folder("b2", age=14 * HOUR, namespace="b", size=None),
    ]
    assert next_step(folders, ONE) == Erase("b2", Reason.AGE)
    assert namespace_weights(folders) == {"a": (0, 1), "b": (0, 2)}


folders_of_tests = st.lists(
    st.builds(
        RetainedFolder,
        name=st.uuids().map(str),
        namespace=st.sampled_from(["a", "b", "c"]),
        age=st.floats(0, 1e6),
        lifespan=st.floats(0, 1e6),
        bytes_used=st.none() | st.integers(0, 1000),
    ),
    max_size=12,
    unique_by=lambda folder: folder.name,
)


@given(folders_of_tests, st.fractions(0, 1), st.randoms(use_true_random=False))
def test_the_order_in_which_folders_are_listed_decides_nothing(folders, factor, random):
    shuffled = list(folders)
    random.shuffle(shuffled)
    assert next_step(shuffled, factor) == next_step(folders, factor)


@given(folders_of_tests, st.fractions(0, 1))
def test_what_is_erased_is_beyond_its_time_and_while_one_is_beyond_something_is_erased(folders, factor):
    due = {folder.name for folder in folders if folder.age > folder.lifespan * float(factor)}
    match next_step(folders, factor):
        case Erase(name, _):
            assert name in due
        case Wait():
            assert not due


@given(folders_of_tests, st.fractions(0, 1))
def test_after_the_wait_something_is_due(folders, factor):
    step = next_step(folders, factor)
    if isinstance(step, Wait) and step.seconds is not None:
        later = [replace(folder, age=folder.age + step.seconds + 1) for folder in folders]
        assert isinstance(next_step(later, factor), Erase)


def test_on_kubelets_disk_folders_go_before_kubelet_evicts_a_pod():
    assert effective_headroom(None, shares_disk_with_kubelet=True) == Fraction(20, 100)
    assert effective_headroom(None, shares_disk_with_kubelet=False) == DEFAULT_HEADROOM
    assert effective_headroom(Fraction(1, 50), shares_disk_with_kubelet=True) == Fraction(1, 50)


def test_the_disk_is_looked_at_every_second_under_pressure_and_never_without_folders():
    assert next_measurement(3, ONE, 5.0) == 5.0
    assert next_measurement(3, Fraction(1, 2), 5.0) == 1.0
    assert next_measurement(3, Fraction(1, 2), 0.5) == 0.5
    assert next_measurement(0, Fraction(1, 2), 5.0) is None


def test_a_jump_of_the_wall_clock_makes_no_folder_older():
    started = Moment(wall=1_000_000.0, elapsed=50.0)
    a_year_later_says_the_wall = Moment(wall=1_000_060.0 + 365 * 24 * HOUR, elapsed=110.0)
    assert age_of(999_000.0, started, a_year_later_says_the_wall) == 1060.0
    assert age_of(1_000_010.0, started, a_year_later_says_the_wall, buried_at_elapsed=60.0) == 50.0
    assert wall_clock_jump(started, a_year_later_says_the_wall) == 365 * 24 * HOUR


def test_a_time_of_deletion_in_the_future_counts_as_now():
    started = Moment(wall=1_000_000.0, elapsed=50.0)
    assert age_of(2_000_000.0, started, Moment(1_000_007.0, 57.0)) == 7.0


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e6), st.floats(-1e9, 1e9))
def test_ages_grow_by_elapsed_time_whatever_the_wall_clock_does(buried, wall, seconds, jump):
    started, later = Moment(wall, 5.0), Moment(wall + jump, 5.0 + seconds)
    assert age_of(buried, started, later) == pytest.approx(age_of(buried, started, started) + seconds)
