"""What explanations are made of: sentences for people, fields for programs, and how long ago something was. Pure."""

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
    """What failed, and when."""
    next: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same, for programs."""
    table: tuple[Mapping[str, str], ...] = ()
    """What was compared, one row for each object; all rows have the same columns."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is the case with an object, and what to do."""

    state: str
    """One word for programs, such as `Bound`."""
    sentence: str
    next: str
    since: str | None = None
    """A time of the API server; None: as long as the object has had its phase, if that is known."""
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
