"""A history: the choices of a run at which something other than the normal case happened. Pure.

A run makes one choice after the other, each with a list of options; the first option is the normal case. A history
lists the departures from it, and everywhere else the first option is taken. So a history is short, and the same history
repeats the same run.

    5: the reply is lost; 9: it dies after it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

USUAL: Final = "as it should"
_BETWEEN_DEPARTURES: Final = re.compile(r";\s*(?=\d+\s*(?::|$)|$)")
"""Not within the name of an act, which may have semicolons of its own."""


class Sort(Enum):
    """The kinds of options that bounds count separately."""

    USUAL = "usual"
    FAULT = "fault"
    EARLY_ACT = "early act"


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    sort: Sort = Sort.FAULT


AS_IT_SHOULD: Final = Option(USUAL, Sort.USUAL)


@dataclass(frozen=True, slots=True)
class Departure:
    """One option taken instead of the normal case; the choices of a run are numbered from 1."""

    number: int
    option: str

    def __str__(self) -> str:
        return f"{self.number}: {self.option}"


History: TypeAlias = tuple[Departure, ...]


def history_text(history: History) -> str:
    return "; ".join(map(str, history))


def read_history(text: str) -> History:
    departures = []
    for part in filter(None, (part.strip() for part in _BETWEEN_DEPARTURES.split(text))):
        number, colon, option = part.partition(":")
        if not colon or not number.strip().isdigit() or not option.strip():
            raise ValueError(
                f"{part!r} is not a departure: write a choice's number, a colon, and the name of an option"
            )
        departures.append(Departure(int(number), option.strip()))
    return tuple(departures)


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of a run: its options, and the one taken."""

    number: int
    at: float
    what: str
    options: tuple[Option, ...]
    taken: Option
    ending: str = ""
    """What the caller got; empty for a plain success."""


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes: they may contain commas."""
    return ", ".join(map(repr, names))


class DoesNotRepeatItself(Exception):
    """The scenario is not deterministic: the same history led to another run than before."""


Chooser: TypeAlias = Callable[[int, Sequence[Option]], Option]
"""By the choice's number and its options."""


def following(history: History) -> Chooser:
    options_by_number = {departure.number: departure.option for departure in history}

    def choose(number: int, options: Sequence[Option]) -> Option:
        name = options_by_number.get(number)
        if name is None:
            return options[0]
        for option in options:
            if option.name == name:
                return option
        raise DoesNotRepeatItself(
            f"choice {number} has no option {name!r}. Its options: {quoted(option.name for option in options)}"
        )

    return choose


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a history: how many faults, how many early acts, and how many of both together.

    `choices`: departures are taken only at the first this many choices of a run. `only`: names of the options that may
    be taken; empty: all.
    """

    faults: int = 2
    early_acts: int = 1
    departures: int = 2
    choices: int = 14
    only: frozenset[str] = frozenset()

    def allow(self, trail: Sequence[Choice], number: int, option: Option) -> bool:
        """Return whether this departure may be added to those already taken."""
        if number > self.choices or option.sort is Sort.USUAL or (self.only and option.name not in self.only):
            return False
        sorts = [choice.taken.sort for choice in trail if choice.taken.sort is not Sort.USUAL] + [option.sort]
        return (
            len(sorts) <= self.departures
            and sorts.count(Sort.FAULT) <= self.faults
            and sorts.count(Sort.EARLY_ACT) <= self.early_acts
        )


def departures_of(trail: Sequence[Choice]) -> History:
    return tuple(Departure(choice.number, choice.taken.name) for choice in trail if choice.taken.sort is not Sort.USUAL)


def extensions(trail: Sequence[Choice], bounds: Bounds) -> list[History]:
    """Yield all histories with one departure more, after the last one: so each history is found exactly once."""
    history = departures_of(trail)
    last = history[-1].number if history else 0
    return [
        (*history, Departure(choice.number, option.name))
        for choice in trail[last:]
        for option in choice.options
        if bounds.allow(trail, choice.number, option)
    ]
