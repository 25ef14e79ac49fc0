"""The provisioner in every history within bounds: no volume is leaked, none is created twice, nothing is left (I4, I8).

`make test` plays all histories with one departure of each scenario, of one also those with two faults of the hardest
kinds or a fault and an early deletion, and a random sample of those with more. `make soak` plays all with at most two
departures: of one scenario to its end, of the others among the first 14 choices, and with two of the hardest kinds to
their ends.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from conftest import SOAK
from orlop.records.provision_journal import JournalEntry
from orlop.sidecars.provisioner import provision_handler
from orlop.sidecars.provisioner.claim_rules import (
    DeleteAgain,
    ForgetOrder,
    ProvisioningFacts,
    ProvisioningStep,
    next_claim_step,
)
from orlop.sidecars.provisioner.open_orders import OpenOrders
from orlop.sidecars.provisioner.order_journal import OrderJournal
from orlop.testing.explorer import Bounds, Broken, explore, explore_randomly, replay
from orlop.testing.explorer.driver_seam import FINAL
from orlop.testing.explorer.effects import DIES_AFTER, DIES_AND_LATE, LOST_AND_LATE, REPLY_LOST
from orlop.testing.explorer.histories import Sort, following
from orlop.testing.explorer.search import Scenario, play
from support.provisioning.provisioner_scenarios import (
    SCENARIOS,
    cloned,
    created_and_deleted,
    force_deleted,
)

CHOICES = 24
"""So many that the deletion of the volume and of its PersistentVolume is among them."""
LONG = (created_and_deleted, cloned)
"""The scenarios of which `make test` disturbs the end as well: the others end as these do."""
ONE = Bounds(faults=1, departures=1)
ONE_OF_MANY = Bounds(faults=1, departures=1, choices=CHOICES)
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=60)
HARDEST = frozenset({REPLY_LOST.name, DIES_AFTER.name, DIES_AND_LATE.name, FINAL})
"""What leaves something half done, or makes it seem so."""
DELETED_EARLY = "before it: the claim is deleted"
FORCE_DELETED_EARLY = "before it: the claim is force-deleted"
TWICE = Bounds(only=frozenset({DIES_AFTER.name, FINAL, DELETED_EARLY}))
THRICE = Bounds(departures=3, only=frozenset({REPLY_LOST.name, DIES_AFTER.name, FINAL, FORCE_DELETED_EARLY}))
LOST_AND_DELETED = Bounds(only=frozenset({LOST_AND_LATE.name, FORCE_DELETED_EARLY}))
DIES_AND_DELETED = Bounds(only=frozenset({DIES_AND_LATE.name, FORCE_DELETED_EARLY}))


def hardest_of(scenario: Scenario) -> Bounds:
    """Return the bounds for two departures of the hardest kinds, or one and an early act."""
    options = [option for choice in play(scenario, following(())).trail for option in choice.options]
    acts = frozenset(option.name for option in options if option.sort is Sort.EARLY_ACT)
    return Bounds(choices=CHOICES, only=HARDEST | acts)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whatever_happens_to_claim_class_node_and_source_no_volume_is_leaked(scenario: Scenario) -> None:
    explore(scenario, ONE_OF_MANY if SOAK or scenario in LONG else ONE)
    if SOAK:
        explore(scenario, hardest_of(scenario))


@pytest.mark.timeout(900)
def test_the_same_holds_in_every_history_with_two_departures() -> None:
    explored = explore(created_and_deleted, Bounds(choices=CHOICES) if SOAK else TWICE)
    assert explored.histories > (6_000 if SOAK else 100)
    assert len(explored.choices) < CHOICES, "the end is not disturbed"


@pytest.mark.skipif(not SOAK, reason="two minutes each: make soak")
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each is not created_and_deleted])
def test_the_same_holds_with_any_two_departures_among_the_first_choices(scenario: Scenario) -> None:
    explored = explore(scenario)
    assert explored.histories > 2_000


@pytest.mark.skipif(not SOAK, reason="a minute: make soak")
def test_the_same_holds_with_two_of_the_hardest_faults_and_an_early_deletion() -> None:
    explore(force_deleted, THRICE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=7, histories=100 if SOAK else 3, bounds=MANY)


@pytest.mark.parametrize(
    "history",
    [
        "4: it dies after it; 5: before it: the claim is force-deleted; 10: a final error",
        "4: the reply is lost; 5: before it: the claim is force-deleted; 9: a final error; 11: a final error",
    ],
)
def test_a_final_error_of_a_later_call_does_not_leak_what_an_earlier_one_created(history: str) -> None:
    # More departures than `explore` plays exhaustively.
    replay(force_deleted, history)


def test_a_request_is_not_repeated_after_the_lease_is_lost() -> None:
    # The first request was refused while the lease was valid; the client waits before it sends the second one.
    replay(cloned, "9: a server's error; 13: it loses its lease, and it lands late")


# ---- these checks have teeth: provisioners with one mistake each -----------------------------------------------------


def forgets_an_order_whose_call_may_still_run(facts: ProvisioningFacts) -> ProvisioningStep:
    step = next_claim_step(facts)
    opened = facts.open_order
    if opened is not None and opened.may_run_until > facts.now and facts.claim is None:
        return ForgetOrder(opened.order, "the claim is gone")
    return step


def undoes_before_calls_have_ended(facts: ProvisioningFacts) -> ProvisioningStep:
    if facts.open_order is None or facts.claim is not None:
        return next_claim_step(facts)
    return next_claim_step(replace(facts, open_order=replace(facts.open_order, may_run_until=0.0)))


def leaves_the_volume_of_a_claim_that_is_gone(facts: ProvisioningFacts) -> ProvisioningStep:
    step = next_claim_step(facts)
    if isinstance(step, DeleteAgain) and facts.claim is None:
        return ForgetOrder(step.order, "the claim is gone")
    return step


@pytest.mark.parametrize(
    "mistake",
    [
        forgets_an_order_whose_call_may_still_run,
        undoes_before_calls_have_ended,
        leaves_the_volume_of_a_claim_that_is_gone,
    ],
)
def test_a_provisioner_with_a_mistake_leaks_in_some_history(monkeypatch: pytest.MonkeyPatch, mistake: object) -> None:
    monkeypatch.setattr(provision_handler, "next_claim_step", mistake)

    with pytest.raises(Broken):
        explore(force_deleted, LOST_AND_DELETED)


def test_a_journal_that_is_not_durable_is_noticed_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def record(_journal: object, _entry: object) -> None:
        return

    monkeypatch.setattr(OrderJournal, "record", record)

    with pytest.raises(Broken, match="without an entry in the journal"):
        explore(created_and_deleted, ONE)


def test_a_successor_that_does_not_wait_for_its_predecessor_s_calls_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    resume = OpenOrders.resume

    def resume_at_once(orders: OpenOrders, entries: list[JournalEntry], now: float) -> list[str]:
        return resume(orders, [msgspec.structs.replace(entry, call_seconds=0.0) for entry in entries], now)

    monkeypatch.setattr(OpenOrders, "resume", resume_at_once)

    with pytest.raises(Broken):
        explore(force_deleted, DIES_AND_DELETED)
