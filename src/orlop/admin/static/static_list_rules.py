"""The disks of static volumes as rows: what the worker lists, joined with the PersistentVolumes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orlop.admin.refusals import UnknownObject, WrongUse
from orlop.kube import objects
from orlop.records.provisioner_status import DeleteStatus, DiskProblem, LocalVolume, ProvisionerStatusStatus
from orlop.static_pv.node_disks_rules import ERROR, DiskReport
from orlop.static_pv.static_volume_rules import AS_IS, DELETE, WIPE, StaticVolume, read_static_volume

ApiObject = Mapping[str, Any]

NOT_OFFERED: Final = "NotOffered"
REQUESTED: Final = "Requested"
WIPING: Final = "Wiping"
WIPE_FAILS: Final = "WipeFails"
RETAINED: Final = "Retained"
TERMINATING: Final = "Terminating"
MISSING: Final = "DiskMissing"
NODE_LOST: Final = "NodeLost"
STATES: Final = (
    *(NOT_OFFERED, "Pending", "Available", "Bound", "Released", "Failed", REQUESTED, WIPING, WIPE_FAILS),
    *(RETAINED, TERMINATING, MISSING, NODE_LOST),
)
SHORTEST_BEGINNING: Final = 4


@dataclass(frozen=True, slots=True)
class StaticRow:
    """A disk, its PersistentVolume, or both."""

    name: str
    node: str
    storage_class: str
    entry: str
    capacity: int
    volume_mode: str
    state: str
    volume: StaticVolume | None
    version: str
    """The resourceVersion of the PersistentVolume."""
    listed: LocalVolume | None
    status: DeleteStatus | None
    why: str = ""

    @property
    def claim(self) -> str:
        return self.volume.claim if self.volume is not None else ""

    @property
    def words(self) -> tuple[str, ...]:
        """What an operator may call it."""
        return (self.name, f"{self.node}/{self.entry}", *((self.claim,) if self.claim else ()))


@dataclass(frozen=True, slots=True)
class StaticNode:
    """What is read of one node."""

    report: DiskReport
    status: ProvisionerStatusStatus

    @property
    def problems(self) -> tuple[DiskProblem, ...]:
        return self.status.problems


def static_rows(reports: Sequence[DiskReport], volumes: Iterable[ApiObject], nodes: Collection[str]) -> list[StaticRow]:
    """Return every disk and every static volume, by node and entry. `nodes` are the names of the Nodes that exist."""
    found = {
        (facts.node, facts.name): (facts, objects.resource_version(obj))
        for obj in volumes
        if (facts := read_static_volume(obj)) is not None
    }
    by_node = {report.node: report for report in reports}
    rows = [
        _row(facts, version, by_node.get(facts.node), node_exists=facts.node in nodes)
        for facts, version in found.values()
    ]
    rows += [row for report in reports for row in _unoffered(report, found)]
    return sorted(rows, key=lambda row: (row.node, row.storage_class, row.entry))


def _unoffered(report: DiskReport, found: Collection[tuple[str, str]]) -> Iterator[StaticRow]:
    wiped = {operation.volume: operation.uid for operation in report.operations}
    statuses = {each.uid: each for each in report.statuses}
    for listed in report.volumes or ():
        if (report.node, listed.name) in found:
            continue
        status = statuses.get(wiped.get(listed.name, ""))
        yield StaticRow(
            name=listed.name,
            node=report.node,
            storage_class=listed.storage_class,
            entry=listed.entry,
            capacity=listed.capacity_bytes,
            volume_mode=listed.volume_mode,
            state=_state_of_wipe(status) if listed.name in wiped else NOT_OFFERED,
            volume=None,
            version="",
            listed=listed,
            status=status,
        )


def _row(facts: StaticVolume, version: str, report: DiskReport | None, *, node_exists: bool) -> StaticRow:
    listed = next((each for each in (report.volumes or ()) if each.name == facts.name), None) if report else None
    status = next((each for each in report.statuses if each.uid == facts.uid), None) if report else None
    is_requested = report is not None and any(each.uid == facts.uid for each in report.operations)
    state, why = _state(facts, status, is_requested=is_requested, node_exists=node_exists)
    if (
        not why
        and report is not None
        and report.volumes is not None
        and listed is None
        and state in {"Available", "Bound"}
    ):
        state, why = MISSING, f"the node does not list {facts.path}"
    return StaticRow(
        name=facts.name,
        node=facts.node,
        storage_class=facts.storage_class,
        entry=facts.entry,
        capacity=facts.capacity,
        volume_mode=facts.volume_mode,
        state=state,
        volume=facts,
        version=version,
        listed=listed,
        status=status,
        why=why,
    )


def _state(
    facts: StaticVolume, status: DeleteStatus | None, *, is_requested: bool, node_exists: bool
) -> tuple[str, str]:
    if is_requested:
        return _state_of_wipe(status), status.message if status is not None else ""
    if not node_exists:
        return NODE_LOST, f"the node {facts.node} is gone"
    if not facts.is_being_deleted:
        return facts.phase or "Pending", ""
    if facts.is_bound:
        return TERMINATING, f"its claim {facts.claim} has it"
    is_to_be_wiped = facts.policy == DELETE or facts.release == WIPE or facts.is_wipe_decided
    if facts.was_ever_bound and not is_to_be_wiped and facts.release != AS_IS:
        return RETAINED, f"`orlop static release {facts.name}` offers its disk again"
    return TERMINATING, ""


def _state_of_wipe(status: DeleteStatus | None) -> str:
    if status is None:
        return REQUESTED
    return WIPE_FAILS if status.state == ERROR else WIPING


def find_row(rows: Sequence[StaticRow], word: str) -> StaticRow:
    """Return the row that a word means: a PersistentVolume or its beginning, NODE/ENTRY, or NAMESPACE/CLAIM."""
    exact = [row for row in rows if word in row.words]
    found = exact or [row for row in rows if len(word) >= SHORTEST_BEGINNING and row.name.startswith(word)]
    if not found:
        raise UnknownObject(f"There is no static volume or disk {word!r}: `orlop static list` shows all.")
    if len(found) > 1:
        names = ", ".join(f"{row.name} ({row.node}/{row.entry})" for row in found[:5])
        raise WrongUse(f"{word!r} means several: {names}.")
    return found[0]
