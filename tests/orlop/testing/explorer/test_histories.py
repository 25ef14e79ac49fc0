"""Histories: what they are, that each within bounds is played once, and how one is told and played again."""

from __future__ import annotations

import asyncio
import gc
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.testing.explorer import Act, Bounds, Broken, DoesNotRepeatItself, Stage, explore, explore_randomly, replay
from orlop.testing.explorer.histories import Departure, Option, history_text, read_history
from orlop.testing.explorer.search import Scenario
from support.random_tests import A_HANDFUL

NAMES = st.text(st.characters(blacklist_characters=";:\n", blacklist_categories=["Cs", "Zs", "Cc"]), min_size=1)
HISTORIES = st.lists(st.builds(Departure, st.integers(1, 99), NAMES), max_size=4).map(tuple)


def of_choices(count: int, faults: int, seen: list[tuple[str, ...]]) -> Scenario:
    """A run of so many choices, each with so many faults; what was taken is noted."""

    async def scenario(stage: Stage) -> None:
        options = [Option(f"fault {number}") for number in range(faults)]
        seen.append(tuple([(await stage.choose(f"choice {number}", options)).name for number in range(count)]))

    return scenario


@given(HISTORIES)
def test_a_history_is_read_as_it_was_told(history: tuple[Departure, ...]) -> None:
    assert read_history(history_text(history)) == history


@pytest.mark.parametrize("text", ["5", "x: it dies", "5:", ": it dies", "5: it dies; 6"])
def test_what_is_no_history_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not a departure"):
        read_history(text)


@A_HANDFUL
@given(st.integers(0, 5), st.integers(1, 3), st.integers(0, 3))
def test_every_history_within_the_bounds_is_played_once(count: int, faults: int, departures: int) -> None:
    seen: list[tuple[str, ...]] = []
    explored = explore(of_choices(count, faults, seen), Bounds(faults=departures, departures=departures))
    assert explored.histories == sum(comb(count, some) * faults**some for some in range(departures + 1))
    assert len(set(seen)) == len(seen) == explored.histories


def test_only_the_first_choices_are_departed_from() -> None:
    seen: list[tuple[str, ...]] = []
    explore(of_choices(5, 1, seen), Bounds(faults=5, departures=5, choices=2))
    assert {taken[2:] for taken in seen} == {("as it should",) * 3}
    assert len(seen) == 4


def test_acts_before_their_time_are_counted_by_themselves() -> None:
    async def scenario(stage: Stage) -> None:
        async def act() -> None:
            """Somebody does something."""

        async def choices(_life: object) -> None:
            for number in range(3):
                await stage.choose(f"choice {number}", [Option("fault")])

        stage.run("process", choices)
        await stage.acts(Act("act", act))

    def histories(**bounds: int) -> int:
        return explore(scenario, Bounds(choices=3, **bounds)).histories

    assert histories(faults=0, early_acts=0, departures=2) == 1
    assert histories(faults=0, early_acts=1, departures=2) == 4
    assert histories(faults=1, early_acts=0, departures=2) == 4


def test_acts_before_their_time_are_carried_out_one_after_another() -> None:
    overlapping: list[str] = []

    async def scenario(stage: Stage) -> None:
        running: list[str] = []

        def act(name: str) -> Act:
            async def do() -> None:
                overlapping.extend(running)
                running.append(name)
                await stage.clock.sleep(1.0)
                running.remove(name)

            return Act(name, do)

        async def choice(number: int) -> None:
            await stage.choose(f"choice {number}", [])

        async def choices(_life: object) -> None:
            await asyncio.gather(*map(choice, range(3)))

        stage.run("process", choices)
        await stage.acts(act("first"), act("second"), act("third"))

    explored = explore(scenario, Bounds(faults=0, early_acts=3, departures=3))
    assert explored.histories > 3
    assert overlapping == []


def test_the_same_seed_plays_the_same_histories_and_another_seed_others() -> None:
    def played(seed: int) -> list[tuple[str, ...]]:
        seen: list[tuple[str, ...]] = []
        explore_randomly(of_choices(12, 3, seen), seed=seed, histories=30, bounds=Bounds(faults=4, departures=4))
        return seen

    assert played(1) == played(1)
    assert played(1) != played(2)
    assert all(sum(name != "as it should" for name in taken) <= 4 for taken in played(3))


def test_objects_that_the_caller_exempted_from_garbage_collection_stay_exempt() -> None:
    def is_collected(thing: object) -> bool:
        return any(tracked is thing for tracked in gc.get_objects())

    # Not the number of frozen objects: that falls whenever one of them loses its last reference.
    assert not is_collected(of_choices), "conftest.py freezes what was there after the collection of tests"
    explore(of_choices(2, 1, []))
    assert not is_collected(of_choices)


def test_the_shortest_history_that_breaks_something_is_told_with_each_of_its_choices() -> None:
    async def scenario(stage: Stage) -> None:
        taken = [(await stage.choose(f"step {number}", [Option("fault")])).name for number in range(6)]
        assert taken[1] != "fault" or taken[4] != "fault", "both failed"

    with pytest.raises(Broken) as found:
        explore(scenario, Bounds(faults=4, departures=4))
    assert history_text(found.value.history) == "2: fault; 5: fault"
    told = str(found.value)
    assert "→   2      0.00 s  step 1: fault" in told
    assert "    3      0.00 s  step 2\n" in told
    assert "AssertionError: both failed" in told
    assert 'replay(scenario, "2: fault; 5: fault")' in told


def test_what_nothing_need_happen_to_break_is_told_so() -> None:
    async def scenario(_stage: Stage) -> None:
        raise AssertionError("it never worked")

    with pytest.raises(Broken, match=r"^a history with no departure breaks it; 1 was played:"):
        explore(scenario)


def test_names_with_commas_are_told_apart() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.choose("step", [Option("it dies, and it lands late"), Option("conflict")])

    explored = explore(scenario)
    assert str(explored) == "3 histories of 1 choices: 'conflict' (1), 'it dies, and it lands late' (1)"
    with pytest.raises(DoesNotRepeatItself, match=r"Its options: .*, 'it dies, and it lands late', 'conflict'$"):
        replay(scenario, "1: it dies")


def test_a_random_history_is_shortened_to_what_breaks_it() -> None:
    async def scenario(stage: Stage) -> None:
        taken = [(await stage.choose(f"step {number}", [Option("fault")])).name for number in range(20)]
        assert taken[7] != "fault", "the eighth failed"

    bounds = Bounds(faults=6, departures=6, choices=20)
    with pytest.raises(Broken) as found:
        explore_randomly(scenario, seed=5, histories=100, bounds=bounds)
    assert history_text(found.value.history) == "8: fault"


def test_a_history_whose_choices_are_not_there_is_not_taken_for_played() -> None:
    scenario = of_choices(3, 1, [])
    with pytest.raises(DoesNotRepeatItself, match="Its options: 'as it should', 'fault 0'"):
        replay(scenario, "2: it dies")
    with pytest.raises(DoesNotRepeatItself, match="9: fault 0"):
        replay(scenario, "1: fault 0; 9: fault 0")


def test_a_scenario_that_depends_on_more_than_its_choices_is_found_out() -> None:
    runs: list[None] = []

    async def scenario(stage: Stage) -> None:
        runs.append(None)
        for number in range(3):
            await stage.choose(f"step {number}", [Option(f"fault of run {len(runs)}")])

    with pytest.raises(DoesNotRepeatItself):
        explore(scenario)
