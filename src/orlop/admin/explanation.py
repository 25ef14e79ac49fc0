"""The parts of an explanation: sentences for people, fields for programs, and lengths of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.kube.kinds import Kind
from orlop.kube.objects import InvalidTime, read_time

ApiObject = Mapping[str, Any]
UNREADABLE: Final = "may not be read with these credentials"
CONTROLLER_MANAGER: Final = "(part of kube-controller-manager) does not run."
IF_NOT_BOUND: Final = f"If this lasts longer than a minute, the PersistentVolume controller {CONTROLLER_MANAGER}"
IF_STILL_PROTECTED: Final = (
    f"Nothing to do. If this lasts longer than a minute, the protection controller {CONTROLLER_MANAGER}"
)
MOST_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that the user may not read: not even its existence is known. Without a name, all of the kind."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.name}" if self.name else f"list of {self.kind.plural}"


@dataclass(frozen=True, slots=True)
class Explanation:
    what: str
    state: str
    tried: tuple[str, ...]
    """The failed attempts, and when they were."""
    next: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same facts, for programs."""
    table: tuple[Mapping[str, str], ...] = ()
    """The objects that were compared, one row each; all rows have the same columns."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of an object, and what to do next."""

    state: str
    """One word for programs, such as `Bound`."""
    sentence: str
    next: str
    since: str | None = None
    """A time as the API server writes it; None: since the object has had its phase, if that time is known."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[Mapping[str, str], ...] = ()


def is_unreadable(unreadable: Iterable[Unreadable], kind: Kind) -> bool:
    return any(each.kind == kind for each in unreadable)


def unknown(unreadable: Iterable[Unreadable], *kinds: Kind) -> str:
    """Return the sentence that names what may not be read of these kinds."""
    return f"{joined(f'the {each}' for each in unreadable if each.kind in kinds)} {UNREADABLE}"


def joined(words: Iterable[str]) -> str:
    """Return words as a sentence lists them; of many only the first."""
    listed = list(words)
    shown = listed[:MOST_NAMES] + ([f"{len(listed) - MOST_NAMES} more"] if len(listed) > MOST_NAMES else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def ago(text: Any, now: datetime) -> str:
    """Return ` 3m ago`, or nothing if the text is no time."""
    time = moment(text)
    return "" if time is None else f" {length(now - time)} ago"


def lasting(text: Any, now: datetime) -> str:
    """Return ` for 3m`, or nothing if the text is no time."""
    time = moment(text)
    return "" if time is None else f" for {length(now - time)}"


def moment(text: Any) -> datetime | None:
    try:
        return read_time(text)
    except (InvalidTime, TypeError):
        return None


def length(elapsed: timedelta) -> str:
    seconds = max(0, int(elapsed.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
