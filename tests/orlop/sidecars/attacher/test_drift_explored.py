"""The attacher that looks at the driver's list, in every history within bounds: both agree in the end, and nobody lies.

`make test` plays all histories with one departure, and a few random ones with more; `make soak` all with two, and
many random ones.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import SOAK
from orlop.sidecars.attacher import attach_handler, attach_rules
from orlop.sidecars.attacher.attach_rules import AttachmentFacts, Publish, Step, Unpublish
from orlop.testing.explorer import Bounds, Broken, explore, explore_randomly
from orlop.testing.explorer.search import Scenario
from support.attaching.attacher_listing_scenarios import (
    LISTING_SCENARIOS,
    driver_has_what_was_let_go,
    slow_driver_forgets,
)

CHOICES = 17
"""So many that what follows from the driver's list is among them."""
ONE = Bounds(faults=1, departures=1, choices=CHOICES)
TWO = Bounds(choices=CHOICES)
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=60)
UNDISTURBED = Bounds(faults=0, early_acts=0, departures=0)
UNHEARD = Bounds(faults=1, departures=1, choices=CHOICES, only=frozenset({"the reply is lost"}))
rules = attach_rules.next_step


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", LISTING_SCENARIOS)
def test_in_every_history_the_driver_has_in_the_end_what_the_objects_say_whatever_it_forgot(scenario: Scenario) -> None:
    explore(scenario, TWO if SOAK else ONE)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", LISTING_SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=7, histories=500 if SOAK else 4, bounds=MANY)


# ---- these checks have teeth: attachers with one mistake each --------------------------------------------------------


def believes_its_objects_alone(facts: AttachmentFacts) -> Step:
    return rules(replace(facts, published=None))


def takes_back_what_no_object_tells_yet(facts: AttachmentFacts) -> Step:
    step = rules(facts)
    return Unpublish(step.source, step.node_id) if facts.published and isinstance(step, Publish) else step


@pytest.mark.parametrize(
    ("mistake", "scenario", "bounds", "finding"),
    [
        (believes_its_objects_alone, slow_driver_forgets, UNDISTURBED, "published at set()"),
        (believes_its_objects_alone, driver_has_what_was_let_go, UNDISTURBED, "the driver has it published at"),
        (takes_back_what_no_object_tells_yet, slow_driver_forgets, UNHEARD, "taken from id-1, which wants it"),
    ],
)
def test_an_attacher_that_decides_wrongly_is_found_out(
    mistake: object, scenario: Scenario, bounds: Bounds, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_handler, "next_step", mistake)
    with pytest.raises(Broken) as found:
        explore(scenario, bounds)
    assert finding in str(found.value.error)
