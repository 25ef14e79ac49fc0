"""A history: at which choices of a run something else happened than it should. Pure.

A run comes by one choice after the other, each with what may happen there; the first is what should. Given a history,
it takes what that says, and what should happen everywhere else: so a history is a handful of departures, and the same
one leads through the same run again.

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
    """What is counted by itself when histories are bounded."""

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
    """The choices of a run are numbered from 1."""

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
            raise ValueError(f"{part!r} is no departure: write a choice's number, a colon, and what happens there")
        departures.append(Departure(int(number), option.strip()))
    return tuple(departures)


@dataclass(frozen=True, slots=True)
class Choice:
    """One that a run came by, and what was taken."""

    number: int
    at: float
    what: str
    options: tuple[Option, ...]
    taken: Option
    ending: str = ""
    """What the caller got, unless a plain success."""


def quoted(names: Iterable[str]) -> str:
    """Names have commas of their own."""
    return ", ".join(map(repr, names))


class DoesNotRepeatItself(Exception):
    """The same history led somewhere else than before: the scenario depends on more than its choices."""


Chooser: TypeAlias = Callable[[int, Sequence[Option]], Option]
"""By the choice's number and its options."""


def following(history: History) -> Chooser:
    wanted = {departure.number: departure.option for departure in history}

    def choose(number: int, options: Sequence[Option]) -> Option:
        name = wanted.get(number)
        if name is None:
            return options[0]
        for option in options:
            if option.name == name:
                return option
        raise DoesNotRepeatItself(
            f"at choice {number} this cannot happen: {name!r}. What can: {quoted(option.name for option in options)}"
        )

    return choose


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many faults a history has at most, how many acts before their time, and how many of both together.

    `choices`: how many of a run's may be departed from, counted from its beginning. `only`: names of what may happen
    there; none: everything.
    """

    faults: int = 2
    early_acts: int = 1
    departures: int = 2
    choices: int = 14
    only: frozenset[str] = frozenset()

    def allow(self, trail: Sequence[Choice], number: int, option: Option) -> bool:
        """Whether this departure may be added to those already taken."""
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
    """All histories with one departure more, behind the last one there is: so each is found in one way alone."""
    history = departures_of(trail)
    last = history[-1].number if history else 0
    return [
        (*history, Departure(choice.number, option.name))
        for choice in trail[last:]
        for option in choice.options
        if bounds.allow(trail, choice.number, option)
    ]
