"""Read Drive objects for lists, select them, and find the drives that an operator names. Pure.

Free bytes are the capacity less the sum of the listed allocations, as for the controller: what a node reported last is
older.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orlop.admin.refusals import UnknownObject, WrongUse
from orlop.kube import objects
from orlop.kube.selectors import EVERYTHING, LabelSelector
from orlop.records.api_record import part_of
from orlop.records.drive import DriveSpec, DriveStatus

ApiObject = Mapping[str, Any]

UNKNOWN_STATE = "Unknown"
"""The node has not reported a state yet."""
SHORTEST_PREFIX = 4


@dataclass(frozen=True, slots=True)
class DriveRow:
    """A Drive object, as lists show it."""

    obj: ApiObject
    spec: DriveSpec
    status: DriveStatus

    @property
    def name(self) -> str:
        return objects.name(self.obj)

    @property
    def node(self) -> str:
        return self.spec.node_name

    @property
    def labels(self) -> Mapping[str, str]:
        return objects.labels(self.obj)

    @property
    def place(self) -> str:
        """The name of the device, or the path of the folder."""
        return self.status.device.name if self.status.device is not None else self.status.path

    @property
    def capacity(self) -> int:
        return self.status.capacity_bytes

    @property
    def allocated(self) -> int:
        return sum(each.bytes for each in self.spec.allocations)

    @property
    def free(self) -> int:
        return self.capacity - self.allocated

    @property
    def base_state(self) -> str:
        return self.status.state.value if self.status.state is not None else UNKNOWN_STATE

    @property
    def state(self) -> str:
        """The state that lists show, with Cordoned and Removing if an operator has set them."""
        decided = {"Cordoned": self.spec.unschedulable, "Removing": self.is_removing}
        return ",".join(
            [self.base_state, *(word for word, holds in decided.items() if holds and word != self.base_state)]
        )

    @property
    def is_removing(self) -> bool:
        return self.spec.removing or objects.is_being_deleted(self.obj)

    @property
    def title(self) -> str:
        """The name of the drive in a sentence."""
        # The path of a folder has its own slash.
        place = f"/{self.place.removeprefix('/')}" if self.place else ""
        return f"{self.name} ({self.node}{place})"


def read_drive_row(obj: ApiObject) -> DriveRow:
    """Return a Drive object as a row. Raises `ValueError` for one that its definition does not allow."""
    return DriveRow(obj, part_of(obj, "spec", DriveSpec), part_of(obj, "status", DriveStatus))


@dataclass(frozen=True, slots=True)
class DriveFilter:
    """An empty field matches every drive."""

    nodes: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """Any of the words that lists show, in any case."""
    tiers: tuple[str, ...] = ()
    selector: LabelSelector = EVERYTHING

    def includes(self, row: DriveRow) -> bool:
        words = {word.lower() for word in row.state.split(",")}
        return (
            (not self.nodes or row.node in self.nodes)
            and (not self.states or not words.isdisjoint(state.lower() for state in self.states))
            and (not self.tiers or row.spec.tier in self.tiers)
            and self.selector.matches(row.labels)
        )


def chosen_drives(rows: Iterable[DriveRow], drive_filter: DriveFilter) -> list[DriveRow]:
    """Return the matching rows by node and place."""
    return sorted((row for row in rows if drive_filter.includes(row)), key=lambda row: (row.node, row.place, row.name))


def find_drive(rows: Sequence[DriveRow], word: str) -> DriveRow:
    """Return the drive that a word names: by its name, the beginning of its name, or NODE/DEVICE."""
    if exact := [row for row in rows if row.name == word]:
        return exact[0]
    node, slash, place = word.partition("/")
    # The path of a folder begins with a slash: NODE//var/lib/… names it exactly, NODE/var/lib/… is what people write.
    by_place = [row for row in rows if slash and row.node == node and row.place in {place, f"/{place}"}]
    begun = [row for row in rows if len(word) >= SHORTEST_PREFIX and row.name.startswith(word)]
    matching = by_place or begun
    if not matching:
        raise UnknownObject(f"There is no drive {word}. `orlop drives list` shows the drives, and how they are named.")
    if len(matching) > 1:
        names = ", ".join(sorted(row.name for row in matching))
        raise WrongUse(f"{word} names {len(matching)} drives: {names}. Write more of the name.")
    return matching[0]


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """The drives of a node together; `node` is empty for all nodes."""

    node: str
    drives: int
    ready: int
    capacity: int
    allocated: int
    volumes: int

    @property
    def free(self) -> int:
        return self.capacity - self.allocated


def totals_of(rows: Sequence[DriveRow]) -> list[NodeTotals]:
    """Return the totals of each node, and of all nodes as the last row."""
    nodes = sorted({row.node for row in rows})
    by_node = [_totals(node, [row for row in rows if row.node == node]) for node in nodes]
    return [*by_node, _totals("", rows)]


def _totals(node: str, rows: Sequence[DriveRow]) -> NodeTotals:
    return NodeTotals(
        node=node,
        drives=len(rows),
        ready=sum(1 for row in rows if row.base_state == "Ready"),
        capacity=sum(row.capacity for row in rows),
        allocated=sum(row.allocated for row in rows),
        volumes=sum(len(row.spec.allocations) for row in rows),
    )
