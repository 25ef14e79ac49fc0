"""What the plugin watcher does next, and whom it refuses, in kubelet's words. Pure.

A socket is known by its path and by what distinguishes it from an earlier socket of the path. What is registered and no
longer there as it was is let go first; what is there and not registered is tried, one attempt at a time for each path,
and after a failure not before its time, whatever became of the socket meanwhile.

Of two plugins that claim one name the first has it, unless the second says a higher version of the interface.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Final

from orlop.csi.driver_name import driver_name_problem
from orlop.csi.endpoint import InvalidEndpoint, UnixEndpoint, parse_endpoint

CSI_PLUGIN: Final = "CSIPlugin"
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 122.0
SOCKET_NAME: Final = "csi.sock"


# ---- which socket is looked at ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A socket that registered a driver, or is about to."""

    identity: Hashable
    name: str


@dataclass(frozen=True, slots=True)
class PathBackoff:
    """After a failure: until when (of the elapsed time) a path is left alone, and how long that is."""

    until: float
    seconds: float


@dataclass(frozen=True, slots=True)
class WatcherState:
    """`busy` are the paths that somebody is at work on."""

    sockets: Mapping[str, Hashable]
    held: Mapping[str, Held]
    busy: Collection[str]
    waits: Mapping[str, PathBackoff]


@dataclass(frozen=True, slots=True)
class Steps:
    """`look_again` is when a path that is left alone now may be tried; None where nothing waits for time."""

    let_go: tuple[str, ...] = ()
    attempt: tuple[str, ...] = ()
    look_again: float | None = None


def next_steps(seen: WatcherState, elapsed: float) -> Steps:
    gone = [path for path, held in seen.held.items() if seen.sockets.get(path) != held.identity]
    unheld = [path for path in seen.sockets if path not in seen.held and path not in seen.busy]
    due = [path for path in unheld if elapsed >= _not_before(seen, path)]
    later = [_not_before(seen, path) for path in unheld if path not in due]
    return Steps(tuple(path for path in gone if path not in seen.busy), tuple(due), min(later, default=None))


def _not_before(seen: WatcherState, path: str) -> float:
    wait = seen.waits.get(path)
    return wait.until if wait else 0.0


def after_failure(before: PathBackoff | None, elapsed: float) -> PathBackoff:
    seconds = min(LONGEST_WAIT_SECONDS, 2 * before.seconds) if before else FIRST_WAIT_SECONDS
    return PathBackoff(elapsed + seconds, seconds)


# ---- versions --------------------------------------------------------------------------------------------------------


_VERSION: Final = re.compile(r"\s*v?([0-9]+(?:\.[0-9]+)+)(.*)", re.DOTALL)


class NoVersion(ValueError):
    """Kubelet's reason for which none of a plugin's versions will do."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class PluginVersion:
    """Numbers with dots between; zeros at the end count for nothing."""

    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluginVersion) and self._significant() == other._significant()

    def __lt__(self, other: PluginVersion) -> bool:
        return self._significant() < other._significant()

    def __hash__(self) -> int:
        return hash(self._significant())

    def _significant(self) -> tuple[int, ...]:
        numbers = self.numbers
        while numbers and not numbers[-1]:
            numbers = numbers[:-1]
        return numbers


UNANNOUNCED: Final = PluginVersion()
"""The version of a driver that was found without an announcement: lower than that of any announced driver."""


MOST_DIGITS: Final = 19
"""Of one number: Go's have 64 bits."""


def read_version(text: str) -> PluginVersion | None:
    """As Go's generic parser: two numbers or more, the first without a zero before it; what follows is passed over."""
    match = _VERSION.fullmatch(text)
    if match is None or (match[1].startswith("0") and not match[1].startswith("0.")):
        return None
    numbers = match[1].split(".")
    return PluginVersion(tuple(map(int, numbers))) if max(map(len, numbers)) <= MOST_DIGITS else None


def highest_version(texts: Sequence[str]) -> PluginVersion:
    """The highest 1.x that the plugin says; it may say others beside."""
    read = [read_version(text) for text in texts]
    usable = [version for version in read if version is not None and version.numbers[0] <= 1]
    if not usable:
        versions_text = " ".join(texts)
        raise NoVersion(
            f"could not find a highest supported version from versions ([{versions_text}]) reported by this driver"
        )
    if max(usable).numbers[0] != 1:
        raise NoVersion(f"highest supported version reported by driver is {max(usable)}, must be v1.x")
    return max(usable)


# ---- whom kubelet refuses --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What a plugin says of itself: GetInfo's answer; an empty endpoint is the registration socket itself."""

    kind: str
    name: str
    endpoint: str
    versions: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Accepted:
    name: str
    endpoint: UnixEndpoint
    version: PluginVersion


class RegistrationRefused(Exception):
    """The error that kubelet sends to the plugin. `why` is its sentence.

    `is_about_name`: the name is refused, and no other plugin of this name would be accepted.
    """

    def __init__(self, sentence: str, *, is_about_name: bool = False) -> None:
        super().__init__(f"RegisterPlugin error -- {sentence}")
        self.why = sentence
        self.is_about_name = is_about_name


def accept(claim: Claim, socket: str, registered: Mapping[str, PluginVersion]) -> Accepted:
    """Return what to install. Raises `RegistrationRefused`. `registered`: versions of the drivers by their names."""
    if claim.kind != CSI_PLUGIN:
        raise RegistrationRefused(f"no handler registered for plugin type: {claim.kind} at socket {socket}")
    if fault := driver_name_problem(claim.name):
        raise _invalid(claim, f"the name {json.dumps(claim.name)} is no driver's: {fault}", is_about_name=True)
    endpoint = _endpoint(claim, claim.endpoint or socket)
    version = _version(claim)
    refuse_taken_name(claim, version, registered)
    return Accepted(claim.name, endpoint, version)


def refuse_taken_name(claim: Claim, version: PluginVersion, registered: Mapping[str, PluginVersion]) -> None:
    present = registered.get(claim.name)
    if present is not None and not present < version:
        higher = f'Another driver with the same name is already registered with a higher supported version: "{present}"'
        raise _invalid(claim, f"{_failed(claim)} {higher}")


def _version(claim: Claim) -> PluginVersion:
    if not claim.versions:
        raise _invalid(claim, f"{_failed(claim)} Plugin returned an empty list for supported versions")
    try:
        return highest_version(claim.versions)
    except NoVersion as error:
        versions_text = " ".join(json.dumps(text, ensure_ascii=False) for text in claim.versions)
        none = f"None of the versions specified [{versions_text}] are supported. err={error}"
        raise _invalid(claim, f"{_failed(claim)} {none}") from None


def _endpoint(claim: Claim, text: str) -> UnixEndpoint:
    """Kubelet dials a plain path: what else works with other clients would fail there."""
    if not text.startswith("/"):
        raise _invalid(claim, f"the endpoint {json.dumps(text)} is no absolute path of a socket")
    try:
        endpoint = parse_endpoint(text)
    except InvalidEndpoint as error:
        raise _invalid(claim, str(error)) from None
    if not isinstance(endpoint, UnixEndpoint):
        raise _invalid(claim, f"the endpoint {json.dumps(text)} is no absolute path of a socket")
    return endpoint


def _failed(claim: Claim) -> str:
    return f"kubernetes.io/csi: ValidatePlugin for CSI driver {json.dumps(claim.name)} failed."


def _invalid(claim: Claim, why: str, *, is_about_name: bool = False) -> RegistrationRefused:
    where = f"validation failed for CSI Driver {claim.name} at endpoint {claim.endpoint}"
    return RegistrationRefused(f"plugin validation failed with err: {where}: {why}", is_about_name=is_about_name)


# ---- the place where a driver is looked for that nobody announced ----------------------------------------------------


def fixed_path(plugins_folder: str, driver_name: str) -> str:
    """`ValueError` for a name that could lead elsewhere: the rule for names is what makes this one path."""
    if fault := driver_name_problem(driver_name):
        raise ValueError(f"the name {json.dumps(driver_name)} is no driver's: {fault}")
    return f"{plugins_folder}/{driver_name}/{SOCKET_NAME}"


def due_and_next(wanted: Mapping[str, float], elapsed: float) -> tuple[list[str], float | None]:
    """The names whose instant has come, and the next instant of the others."""
    due = [name for name, instant in wanted.items() if elapsed >= instant]
    return due, earliest(instant for name, instant in wanted.items() if name not in due)


def earliest(instants: Iterable[float | None]) -> float | None:
    return min((instant for instant in instants if instant is not None), default=None)
