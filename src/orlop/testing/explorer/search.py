"""Play a scenario in every history within bounds, fewest departures first; or in random histories; or in one, again.

    explore(scenario)                                  # at most two departures among the first 14 choices
    explore(scenario, Bounds(faults=3, departures=3))  # deeper
    explore_randomly(scenario, seed=7, histories=500, bounds=Bounds(faults=5, departures=6, choices=80))
    replay(scenario, "5: the reply is lost; 9: it dies after it")

The first history that breaks something is raised as `Broken`. It has the fewest departures, since all with fewer were
played before. A random one is shortened: departures are left out as long as it still breaks.

Order of a search: all histories with one departure more than those played, depth first within each. Each is played from
its beginning, on a virtual loop of its own: nothing is kept from one to the next.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import TypeAlias

from orlop.testing.explorer.histories import (
    AS_IT_SHOULD,
    Bounds,
    Choice,
    Chooser,
    DoesNotRepeatItself,
    History,
    Option,
    Sort,
    departures_of,
    extensions,
    following,
    history_text,
    quoted,
    read_history,
)
from orlop.testing.explorer.stage import Stage
from orlop.testing.virtual_clock import VirtualClock, run_virtual

Scenario: TypeAlias = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Played:
    """One run: its choices, and what it broke."""

    trail: tuple[Choice, ...]
    error: BaseException | None

    @property
    def history(self) -> History:
        return departures_of(self.trail)


@dataclass(frozen=True, slots=True)
class ExplorerReport:
    """The result of a search. `choices` are those of the undisturbed run."""

    histories: int
    choices: tuple[str, ...]
    by_option: Counter[str]
    """How often each departure was taken."""

    def __str__(self) -> str:
        departures = ", ".join(f"{name!r} ({count})" for name, count in sorted(self.by_option.items()))
        if not departures:
            return f"the undisturbed history of {len(self.choices)} choices only: these bounds allow no other"
        return f"{self.histories} histories of {len(self.choices)} choices: {departures}"


class Broken(AssertionError):
    """The shortest history found that breaks something, choice by choice."""

    def __init__(self, played: Played, histories: int) -> None:
        self.history = played.history
        self.error = played.error
        super().__init__(_report(played, histories))


def explore(scenario: Scenario, bounds: Bounds = Bounds()) -> ExplorerReport:  # noqa: B008 - a value, and frozen
    with _without_old_garbage():
        search = _Search(scenario)
        undisturbed = search.play(following(()))
        level = [undisturbed]
        for departures in range(1, bounds.departures + 1):
            extended = (
                search.extend(played, history) for played in level for history in extensions(played.trail, bounds)
            )
            # Runs that are not extended outnumber all others by far, so do not keep them in memory.
            level = [played for played in extended if departures < bounds.departures]
        return search.explored(undisturbed, bounds)


def explore_randomly(
    scenario: Scenario,
    *,
    seed: int,
    histories: int,
    bounds: Bounds = Bounds(),  # noqa: B008 - a value, and frozen
) -> ExplorerReport:
    """Play random histories; the same seed plays the same ones."""
    with _without_old_garbage():
        search = _Search(scenario)
        undisturbed = search.play(following(()))
        for number in range(histories):
            random = Random(f"{seed}/{number}")  # noqa: S311 - a search, no secret
            search.play(_drawing(random, bounds, min(bounds.choices, 2 * len(undisturbed.trail))))
        return search.explored(undisturbed, bounds)


def replay(scenario: Scenario, history: str | History) -> Played:
    """Play one history. Raise `Broken` if it breaks something."""
    departures = read_history(history) if isinstance(history, str) else history
    played = play(scenario, following(departures))
    if played.error is None and played.history != departures:
        raise DoesNotRepeatItself(f"the run ended before {history_text(departures[len(played.history) :])}")
    if played.error is not None:
        raise Broken(played, 1) from played.error
    return played


def play(scenario: Scenario, chooser: Chooser) -> Played:
    """Play one run, from its beginning, on an event loop of its own."""
    stages: list[Stage] = []

    async def run(clock: VirtualClock) -> None:
        stages.append(Stage(clock, chooser))
        await stages[0].play(scenario)

    error: BaseException | None = None
    try:
        run_virtual(run)
    except (KeyboardInterrupt, DoesNotRepeatItself):
        raise
    except BaseException as raised:  # noqa: BLE001 - every failure is a finding, reported with its history
        error = raised
    return Played(tuple(stages[0].trail), error)


class _Search:
    """Counts histories, and stops at the first that breaks something."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._histories = 0
        self._by_option: Counter[str] = Counter()
        self._offered: set[str] = set()

    def play(self, chooser: Chooser) -> Played:
        played = play(self._scenario, chooser)
        self._histories += 1
        self._by_option.update(departure.option for departure in played.history)
        self._offered.update(option.name for choice in played.trail for option in choice.options)
        if played.error is not None:
            shortest = self._shortened(played)
            broken = Broken(shortest, self._histories)
            if play(self._scenario, following(shortest.history)).error is None:
                raise DoesNotRepeatItself(f"replayed, the history breaks nothing:\n{broken}") from shortest.error
            raise broken from shortest.error
        return played

    def extend(self, before: Played, history: History) -> Played:
        """Play a history extended by one departure; all choices before it must repeat."""
        played = self.play(following(history))
        for was, now in zip_longest(before.trail[: history[-1].number], played.trail[: history[-1].number]):
            if now is None or (was.at, was.what, was.options) != (now.at, now.what, now.options):
                raise DoesNotRepeatItself(f"{history_text(history)}: {_passage(was)} has become {_passage(now)}")
        return played

    def explored(self, undisturbed: Played, bounds: Bounds) -> ExplorerReport:
        """Return the report. Raises ValueError for a name in `only` that was never met: it may be misspelt."""
        if unknown := sorted(bounds.only - self._offered):
            can = quoted(sorted(self._offered)) or "nothing"
            raise ValueError(f"`only` has names that never occur: {quoted(unknown)}. Names that occur: {can}")
        return ExplorerReport(self._histories, tuple(choice.what for choice in undisturbed.trail), self._by_option)

    def _shortened(self, played: Played) -> Played:
        """Return the history without the departures that it does not need to break."""
        for departure in played.history:
            fewer = tuple(kept for kept in played.history if kept != departure)
            try:
                again = play(self._scenario, following(fewer))
            except DoesNotRepeatItself:  # later departures depend on this one
                continue
            if again.error is not None:
                return self._shortened(again)
        return played


def _drawing(random: Random, bounds: Bounds, choices: int) -> Chooser:
    """Return a chooser that departs at choices drawn beforehand, at most as many as the bounds allow."""
    count = random.randint(1, bounds.departures)
    numbers = set(random.sample(range(1, choices + 1), min(count, choices)))
    trail: list[Choice] = []

    def choose(number: int, options: Sequence[Option]) -> Option:
        allowed = [option for option in options if bounds.allow(trail, number, option)]
        if number not in numbers or not allowed:
            return options[0]
        option = random.choice(allowed)
        trail.append(Choice(number, 0.0, "", tuple(options), option))
        return option

    return choose


@contextmanager
def _without_old_garbage() -> Iterator[None]:
    """Exempt existing objects from garbage collection during a search: its runs take a quarter less time.

    A caller that froze its objects itself keeps them frozen: `gc.unfreeze` would release those as well.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _report(played: Played, histories: int) -> str:
    were = "was" if histories == 1 else "were"
    lines = [f"a history with {_counted(played.history)} breaks it; {histories} {were} played:"]
    for choice in played.trail:
        mark = "  " if choice.taken.sort is Sort.USUAL else "→ "
        instead = "" if choice.taken == AS_IT_SHOULD else f": {choice.taken.name}"
        ending = f" → {choice.ending}" if choice.ending else ""
        lines.append(f"  {mark}{choice.number:>3}  {choice.at:8.2f} s  {choice.what}{instead}{ending}")
    lines.append(f"{type(played.error).__name__}: {_message(played.error)}")
    lines.append(f"play it again: replay(scenario, {json.dumps(history_text(played.history), ensure_ascii=False)})")
    return "\n".join(lines)


def _counted(history: History) -> str:
    if not history:
        return "no departure"
    return "1 departure" if len(history) == 1 else f"{len(history)} departures"


def _passage(choice: Choice | None) -> str:
    return f"choice {choice.number} at {choice.at:g} s, {choice.what!r}," if choice is not None else "the run's end"


def _message(error: BaseException | None) -> str:
    return str(error) or "(no message)" if not isinstance(error, asyncio.CancelledError) else "cancelled"
