"""Read Volume objects for lists, select them, and find the volume that an operator names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from orlop.admin.drives.drive_list_rules import DriveRow
from orlop.admin.refusals import UnknownObject, WrongUse
from orlop.kube import objects
from orlop.records.api_record import part_of
from orlop.records.volume import DriveVolumeSpec, DriveVolumeStatus

ApiObject = Mapping[str, Any]
STATES: Final = ("Pending", "Staged", "Published", "Deleting", "Erasing", "Erased", "Lost", "Abnormal")
IN_USE: Final = frozenset({"Staged", "Published"})


@dataclass(frozen=True, slots=True)
class VolumeRow:
    """A Volume object, as lists show it."""

    obj: ApiObject
    spec: DriveVolumeSpec
    status: DriveVolumeStatus
    drive: DriveRow | None = None
    """None: there is no such drive any more."""

    @property
    def name(self) -> str:
        return objects.name(self.obj)

    @property
    def claim(self) -> str:
        claim = self.spec.claim
        return f"{claim.namespace}/{claim.name}" if claim is not None else ""

    @property
    def pods(self) -> tuple[str, ...]:
        return tuple(f"{each.pod_namespace}/{each.pod_name}" for each in self.status.published if each.pod_name)

    @property
    def place(self) -> str:
        return self.drive.place if self.drive is not None else ""

    @property
    def is_deleted(self) -> bool:
        return self.spec.erase or objects.is_being_deleted(self.obj)

    @property
    def is_abnormal(self) -> bool:
        return self.status.condition is not None and self.status.condition.abnormal

    @property
    def is_in_use(self) -> bool:
        return self.status.phase in IN_USE or bool(self.status.staged_path or self.status.published)

    @property
    def state(self) -> str:
        """The phase; Lost also while only the drive is known to be lost, Deleting until its node begins to erase it."""
        phase = self.status.phase or "Pending"
        if self.drive is not None and self.drive.base_state == "Lost" and phase not in {"Erasing", "Erased"}:
            phase = "Lost"
        words: list[str] = [phase]
        if self.is_deleted and phase not in {"Erasing", "Erased"}:
            words.append("Deleting")
        if self.is_abnormal:
            words.append("Abnormal")
        return ",".join(words)

    @property
    def why(self) -> str:
        """The reason for the state, as a sentence; empty if none is known."""
        if self.status.condition is not None and self.status.condition.abnormal:
            return self.status.condition.message
        drive = self.drive
        if drive is not None and drive.base_state != "Ready" and drive.status.message:
            return f"its drive is {drive.base_state}: {drive.status.message}"
        return self.status.message


def volume_rows(volumes: Iterable[ApiObject], drives: Sequence[DriveRow]) -> list[VolumeRow]:
    """Return the volumes by node, drive and name. Objects with invalid fields are left out."""
    by_name = {row.name: row for row in drives}
    rows = []
    for obj in volumes:
        try:
            spec, status = part_of(obj, "spec", DriveVolumeSpec), part_of(obj, "status", DriveVolumeStatus)
        except ValueError:
            continue
        rows.append(VolumeRow(obj, spec, status, by_name.get(spec.drive)))
    return sorted(rows, key=lambda row: (row.spec.node_name, row.place, row.name))


@dataclass(frozen=True, slots=True)
class VolumeFilter:
    """An empty field matches every volume. `claim` and `pod` are NAME or NAMESPACE/NAME, with `*` and `?`."""

    nodes: tuple[str, ...] = ()
    drives: tuple[str, ...] = ()
    """Names of drives."""
    namespace: str = ""
    claim: str = ""
    pod: str = ""
    states: tuple[str, ...] = ()

    def includes(self, row: VolumeRow) -> bool:
        words = {word.lower() for word in row.state.split(",")}
        claim_namespace = row.claim.partition("/")[0]
        return (
            (not self.nodes or row.spec.node_name in self.nodes)
            and (not self.drives or row.spec.drive in self.drives)
            and (not self.namespace or claim_namespace == self.namespace)
            and (not self.claim or _is_named(row.claim, self.claim))
            and (not self.pod or any(_is_named(pod, self.pod) for pod in row.pods))
            and (not self.states or not words.isdisjoint(state.lower() for state in self.states))
        )


def _is_named(name: str, pattern: str) -> bool:
    return bool(name) and fnmatchcase(name if "/" in pattern else name.partition("/")[2], pattern)


def find_volume(rows: Sequence[VolumeRow], word: str) -> VolumeRow:
    """Return the volume that a word names: by its name, its beginning, or the name of its PersistentVolume or claim."""
    exact = [row for row in rows if word in {row.name, row.spec.persistent_volume, row.claim}]
    matching = exact or [row for row in rows if row.name.startswith(word)]
    if not matching:
        raise UnknownObject(f"There is no volume {word}. `orlop volumes list` shows the volumes.")
    if len(matching) > 1:
        raise WrongUse(
            f"{word} names {len(matching)} volumes: {', '.join(sorted(row.name for row in matching))}. Write more."
        )
    return matching[0]
