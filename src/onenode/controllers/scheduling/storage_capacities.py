"""How large a volume of a class can be provisioned on a node, by what drivers publish as CSIStorageCapacity.

Objects are found by a label of the nodes they are for, and the result is kept for each class and node until one of the
class's objects or the node's labels change. Nothing is subtracted for volumes that are being provisioned, as in
Kubernetes: a provisioner that finds no room takes the node off the claim, and the pod is scheduled anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.binding import capacity_rules
from orlop.foundation.quantity import Quantity
from orlop.kube.objects import ObjectName
from orlop.kube.selectors import LabelSelector, Operator

ApiObject = Mapping[str, Any]
ANYWHERE: Final = ("", "")


@dataclass(frozen=True, slots=True)
class Room:
    """What a class offers on one node."""

    limit: Quantity | None = None
    """The largest volume; None: none fits."""
    free: int = 0
    """Bytes."""


@dataclass(frozen=True, slots=True)
class _Entry:
    class_name: str
    selector: LabelSelector
    limit: Quantity | None
    free: int
    pins: tuple[tuple[str, str], ...]


class StorageCapacities:
    def __init__(self) -> None:
        self._entries: dict[ObjectName, _Entry] = {}
        self._at: dict[tuple[str, str, str], dict[ObjectName, _Entry]] = {}
        self._rooms: dict[str, dict[str, Room]] = {}
        """By class and node: what was computed."""

    def look_at(self, name: ObjectName, capacity: ApiObject | None) -> str:
        """Take over what an object says; return the class for which more may fit now, or ""."""
        before, now = self._entries.pop(name, None), _entry(capacity)
        for entry in (before, now):
            if entry is not None:
                self._rooms.pop(entry.class_name, None)
        if before is not None:
            for key in _keys(before):
                del self._at[key][name]
        if now is None:
            return ""
        self._entries[name] = now
        for key in _keys(now):
            self._at.setdefault(key, {})[name] = now
        return now.class_name if before is None or _may_help(before, now) else ""

    def room(self, class_name: str, node: str, labels: Mapping[str, str]) -> Room:
        rooms = self._rooms.setdefault(class_name, {})
        known = rooms.get(node)
        if known is None:
            known = rooms[node] = self._room(class_name, labels)
        return known

    def node_changed(self, node: str) -> None:
        for rooms in self._rooms.values():
            rooms.pop(node, None)

    def _room(self, class_name: str, labels: Mapping[str, str]) -> Room:
        found: dict[ObjectName, _Entry] = {}
        for label in (ANYWHERE, *labels.items()):
            found.update(self._at.get((class_name, *label), {}))
        fitting = [entry for entry in found.values() if entry.selector.matches(labels)]
        limits = [entry.limit for entry in fitting if entry.limit is not None]
        return Room(max(limits, default=None), sum(entry.free for entry in fitting))


def _entry(capacity: ApiObject | None) -> _Entry | None:
    selector = capacity_rules.node_selector(capacity) if capacity is not None else None
    if capacity is None or selector is None:
        return None
    free = capacity_rules.free_space(capacity)
    pins = _pins(selector)
    return _Entry(
        capacity_rules.class_of(capacity),
        selector,
        capacity_rules.volume_size_limit(capacity),
        free.value() if free is not None else 0,
        pins,
    )


def _pins(selector: LabelSelector) -> tuple[tuple[str, str], ...]:
    """Return labels of which every node that the selector matches has one."""
    for one in selector.requirements:
        if one.operator in {Operator.IN, Operator.EQUALS}:
            return tuple((one.key, value) for value in one.values)
    return (ANYWHERE,)


def _keys(entry: _Entry) -> Iterator[tuple[str, str, str]]:
    for key, value in entry.pins:
        yield entry.class_name, key, value


def _may_help(before: _Entry, now: _Entry) -> bool:
    if before.class_name != now.class_name or before.selector != now.selector:
        return True
    return now.limit is not None and (before.limit is None or now.limit > before.limit)
