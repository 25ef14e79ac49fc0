"""A node's reports in every history within bounds: nothing is erased without an order, and in the end objects are true.

`make test` plays a few random histories; `make soak` all with one departure, and many random ones.
"""

from __future__ import annotations

import pytest

from conftest import SOAK
from orlop.driver.persistent.upkeep import volume_erasure
from orlop.driver.persistent.upkeep.volume_erasure_rules import DataIsGone, ErasureSighting, ErasureStep
from orlop.testing.explorer import Bounds, Broken, explore, explore_randomly
from orlop.testing.explorer.search import Scenario
from support.drives.node_drama import SCENARIOS, a_volume_is_erased_while_its_disk_comes_and_goes

FAULTS = frozenset(
    {
        *("the reply is lost", "it is late", "the reply is lost, and it is late", "it dies before it"),
        *("it dies after it", "it dies, and it lands late", "it comes late", "it comes twice", "it never comes"),
    }
)
"""All but the loss of a lease: a node has none."""
ONE = Bounds(faults=1, departures=1, choices=60, only=FAULTS)
MANY = Bounds(faults=3, departures=4, choices=60, only=FAULTS)
UNDISTURBED = Bounds(faults=0, early_acts=0, departures=0)
rules = volume_erasure.next_erasure_step


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_every_history_the_objects_are_true_in_the_end(scenario: Scenario) -> None:
    explore(scenario, ONE if SOAK else UNDISTURBED)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=3, histories=300 if SOAK else 4, bounds=MANY)


def reports_without_looking(volume: ErasureSighting) -> ErasureStep:
    return DataIsGone() if volume.has_folder and volume.order is not None and volume.order.erase else rules(volume)


@pytest.mark.parametrize("mistake", [reports_without_looking])
def test_a_node_that_reports_too_early_is_found_out(mistake: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume_erasure, "next_erasure_step", mistake)

    with pytest.raises(Broken) as found:
        explore(a_volume_is_erased_while_its_disk_comes_and_goes, UNDISTURBED)

    assert "the data are there" in str(found.value.error)
