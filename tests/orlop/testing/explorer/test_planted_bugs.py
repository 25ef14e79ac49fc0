"""The explorer finds a bug of each class that was planted on purpose, and nothing in a controller without one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from orlop.testing.explorer import (
    Act,
    Bounds,
    Broken,
    EffectWithoutLease,
    EndedByItself,
    NoRest,
    Stage,
    explore,
    replay,
    stage,
)
from orlop.testing.explorer.api_answers import BEHIND
from orlop.testing.explorer.api_seam import CONFLICT, EVENT_FAULTS, SERVER_ERROR
from orlop.testing.explorer.driver_seam import FINAL, NOT_FINAL
from orlop.testing.explorer.effects import NAMES_IN_USE
from orlop.testing.explorer.histories import USUAL
from support.explorer import driver_renters, lagging_renters
from support.explorer import room_renters as renters

Scenario = Callable[[Stage, type[renters.Renter]], Awaitable[None]]
ONE = Bounds(faults=1, departures=1)
PLANTED: list[tuple[str, type[renters.Renter], Scenario]] = [
    ("a server's error", renters.TriesOnce, renters.comes_and_goes),
    ("conflict", renters.TakesConflictForSuccess, renters.comes_and_goes),
    ("the reply is lost", renters.RentsAnotherEachTime, renters.comes_and_goes),
    ("it is late", renters.DoesNotWait, renters.comes_and_goes),
    ("the reply is lost, and it is late", renters.GivesUpWhatItDoesNotSee, renters.comes_and_goes),
    ("it dies before it", renters.MissesWhatWasThere, renters.comes_and_goes),
    ("it dies after it", renters.RemembersInMemory, renters.comes_and_goes),
    ("it dies, and it lands late", renters.LooksBeforeItRents, renters.comes_and_goes),
    ("it loses its lease, and it lands late", renters.AsksNobody, renters.comes_and_goes),
    ("it comes late", renters.BelievesItsCache, renters.comes_and_goes),
    ("it comes twice", renters.CountsEvents, renters.comes_and_goes),
    ("it is one change behind", lagging_renters.ReadsOfAnyServer, renters.comes_and_goes),
    ("before it: the guest goes", renters.ProtectsAfterwards, renters.goes_at_any_moment),
]


@pytest.mark.parametrize(("option", "renter", "scenario"), PLANTED, ids=[renter.__name__ for _, renter, _ in PLANTED])
def test_a_planted_bug_is_found_by_the_one_departure_that_shows_it(
    option: str, renter: type[renters.Renter], scenario: Scenario
) -> None:
    with pytest.raises(Broken) as found:
        explore(partial(scenario, renter=renter), Bounds(faults=1, departures=1, only=frozenset({option})))
    assert [departure.option for departure in found.value.history] == [option]


FAULTS = (NAMES_IN_USE | {CONFLICT, SERVER_ERROR, *(fault.name for fault in EVENT_FAULTS)}) - {USUAL}
AT_DRIVERS = FAULTS | {FINAL, NOT_FINAL}
WITH_LAG = FAULTS | {"before it: the renter is restarted", *(option.name for option in BEHIND)}
FOUND_BY_ONE: list[tuple[str, type[renters.Renter], Scenario, frozenset[str]]] = [
    (FINAL, driver_renters.LetsGoWhatWasRefused, renters.comes_and_goes, AT_DRIVERS),
    (NOT_FINAL, driver_renters.TakesNoConnectionForALostReply, renters.comes_and_goes, AT_DRIVERS),
    (BEHIND[2].name, lagging_renters.EvictsWhomItDoesNotSee, lagging_renters.stays_while_all_begins_anew, WITH_LAG),
]


@pytest.mark.parametrize(
    ("option", "renter", "scenario", "all_options"), FOUND_BY_ONE, ids=[row[1].__name__ for row in FOUND_BY_ONE]
)
def test_a_bug_that_one_departure_shows_is_found_by_no_other(
    option: str, renter: type[renters.Renter], scenario: Scenario, all_options: frozenset[str]
) -> None:
    planted = partial(scenario, renter=renter)
    with pytest.raises(Broken) as found:
        explore(planted, Bounds(faults=1, departures=1, only=frozenset({option})))
    assert [departure.option for departure in found.value.history] == [option]
    others = all_options - {option}
    assert explore(planted, Bounds(faults=1, departures=1, only=others)).by_option.keys() == others


def test_a_bug_that_hides_in_what_was_never_observed_is_found_by_two_departures() -> None:
    unobserved = frozenset({"before it: a guest asks", "it never comes"})
    with pytest.raises(Broken) as found:
        explore(partial(renters.comes_again, renter=renters.KnowsGuestsByName), Bounds(only=unobserved))
    assert {departure.option for departure in found.value.history} == unobserved


def test_a_history_that_was_found_breaks_the_same_when_it_is_played_again() -> None:
    scenario = partial(renters.comes_and_goes, renter=renters.RentsAnotherEachTime)
    with pytest.raises(Broken) as found:
        explore(scenario, ONE)
    with pytest.raises(Broken) as again:
        replay(scenario, found.value.history)
    assert again.value.history == found.value.history
    assert str(again.value.error) == str(found.value.error)


def test_an_effect_of_a_leader_that_lost_its_lease_is_named() -> None:
    with pytest.raises(Broken) as found:
        explore(partial(renters.comes_and_goes, renter=renters.AsksNobody), ONE)
    assert isinstance(found.value.error, EffectWithoutLease)


@pytest.mark.parametrize(
    ("renter", "reason"),
    [(renters.TurnsInSlowCircles, "within 3600 seconds"), (renters.TurnsInCircles, "1000 effects and events")],
)
def test_a_controller_that_wakes_itself_for_ever_comes_to_no_rest(
    renter: type[renters.Renter], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "MOST_MOVES", 1_000)  # the default takes five times as long to reach
    with pytest.raises(Broken) as found:
        explore(partial(renters.comes_and_goes, renter=renter), ONE)
    assert isinstance(found.value.error, NoRest)
    assert reason in str(found.value.error)
    assert found.value.history == ()


def test_a_process_that_dies_of_an_error_is_a_finding() -> None:
    with pytest.raises(Broken) as found:
        explore(partial(renters.comes_and_goes, renter=renters.DiesOfErrors), ONE)
    assert isinstance(found.value.error, EndedByItself)


@pytest.mark.parametrize(
    ("renter", "scenario"),
    [
        (renters.Renter, renters.comes_and_goes),
        (renters.Renter, renters.goes_at_any_moment),
        (renters.Renter, renters.comes_again),
        (driver_renters.DriverRenter, renters.comes_and_goes),
    ],
)
def test_a_controller_without_a_bug_survives_every_single_departure(
    renter: type[renters.Renter], scenario: Scenario
) -> None:
    explored = explore(partial(scenario, renter=renter), ONE)
    assert explored.histories > len(explored.choices)


def test_a_check_that_answers_false_is_a_finding_as_one_that_raises() -> None:
    async def scenario(stage: Stage) -> None:
        stage.always(lambda: False)
        await stage.acts(Act("nothing", _nothing))

    with pytest.raises(Broken, match=r"the check <lambda> at .*test_planted_bugs.py:\d+ returned False"):
        explore(scenario)


def test_an_expectation_that_answers_false_is_a_finding() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.acts(Act("nothing", _nothing, expects=lambda: False))

    with pytest.raises(Broken, match="returned False"):
        explore(scenario)


async def _nothing() -> None:
    pass


def test_a_departure_that_can_never_happen_is_refused_instead_of_finding_nothing() -> None:
    with pytest.raises(
        ValueError, match=r"never occur: 'the replay is lost'\. Names that occur: .*'the reply is lost'"
    ):
        explore(partial(renters.comes_and_goes, renter=renters.Renter), Bounds(only=frozenset({"the replay is lost"})))
