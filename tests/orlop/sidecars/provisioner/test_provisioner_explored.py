"""The provisioner in every history within bounds: no volume is leaked, none is created twice, nothing is left (I4, I8).

`make test` plays all histories with one departure of each scenario, and a random sample of those with more; `make soak`
plays all with at most two departures (two faults, or a fault and an early act) of each.
"""

from __future__ import annotations

import os

import pytest

from orlop.testing.explorer import Bounds, explore, explore_randomly
from orlop.testing.explorer.search import Scenario
from support.provisioning.provisioner_scenarios import SCENARIOS

SOAK = bool(os.environ.get("ORLOP_SOAK"))
ONE = Bounds(faults=1, departures=1)
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=60)
RANDOM_HISTORIES = 300 if SOAK else 15


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_happens_to_claim_class_and_node_no_volume_is_leaked(scenario: Scenario) -> None:
    explore(scenario, Bounds() if SOAK else ONE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=7, histories=RANDOM_HISTORIES, bounds=MANY)
