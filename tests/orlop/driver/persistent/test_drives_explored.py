"""The controller of drives in every history of faults within bounds: no overcommit (I2), no leak, no loss."""

from __future__ import annotations

import pytest

from conftest import SOAK
from orlop.testing.explorer import Bounds, explore, explore_randomly
from orlop.testing.explorer.effects import DIES_AFTER, DIES_AND_LATE, REPLY_LOST
from orlop.testing.explorer.search import Scenario
from support.drives.drive_drama import DRIVE_SCENARIOS, created_and_deleted, drive_lost

HARDEST = frozenset({REPLY_LOST.name, DIES_AFTER.name, DIES_AND_LATE.name})
"""The faults that leave something half done."""
ONE = Bounds(faults=1, departures=1, choices=14, only=HARDEST)
ANY_ONE = Bounds(faults=1, departures=1, choices=24)
TWO = Bounds(choices=14, only=HARDEST)
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=60)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", DRIVE_SCENARIOS if SOAK else (created_and_deleted, drive_lost))
def test_whatever_fails_no_space_is_lost_or_given_twice(scenario: Scenario) -> None:
    explore(scenario, ANY_ONE if SOAK else ONE)
    if SOAK:
        explore(scenario, TWO)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", DRIVE_SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_faults(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=7, histories=100 if SOAK else 1, bounds=MANY)
