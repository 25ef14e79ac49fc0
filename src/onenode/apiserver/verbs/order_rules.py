"""In which order the items of a merged list stand after a patch, as Kubernetes orders them.

Items that the patch (or its `$setElementOrder`) names stand in its order, the others in the order they had; the two
sequences are interleaved by where their items stood before, as far as both are known. Both lists may come from a
client, so nothing here takes longer than sorting them does. Pure; nothing is changed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from onenode.go_text import as_json, go_type

# An item with its identity, which is found out once.
IdentifiedItem = tuple[Hashable, Any]


def identity(value: Any) -> Hashable:
    """What makes two JSON values the same to Kubernetes: 1, 1.0 and true are three values."""
    return ("string", value) if isinstance(value, str) else (go_type(value), as_json(value))


class KeyedItems:
    """The items of a list, found by the value of their merge key; they may change and become more on the way."""

    def __init__(self, items: list[dict[str, Any]], key: str) -> None:
        self.items = items
        self._key = key
        self._names: list[Hashable] = []
        # The places of each name, first ones first; an item that changed its name is still in its old heap.
        self._places: defaultdict[Hashable, list[int]] = defaultdict(list)
        for item in items:
            self._note(len(self._names), item)

    def position(self, value: Any) -> int | None:
        """Where the first item stands whose merge key has this value."""
        name = identity(value)
        places = self._places[name]
        while places and self._names[places[0]] != name:
            heappop(places)
        return places[0] if places else None

    def append(self, item: dict[str, Any]) -> None:
        self.items.append(item)
        self._note(len(self._names), item)

    def replace(self, place: int, item: dict[str, Any]) -> None:
        self.items[place] = item
        self._note(place, item)

    def _note(self, place: int, item: dict[str, Any]) -> None:
        name = identity(item[self._key]) if self._key in item else None
        if place == len(self._names):
            self._names.append(None)
        if name != self._names[place]:
            self._names[place] = name
            heappush(self._places[name], place)


def in_order(merged: list[Any], named: Sequence[Any], before: Sequence[Any], key: str | None) -> list[Any]:
    """The merged items in their final order; `key` is the merge key, None in a list of plain values."""
    places = _places(named, key)
    old_places = _places(before, key)
    known = [(_of(item, key), item) for item in merged]
    ours = [each for each in known if each[0] in places]
    theirs = [each for each in known if each[0] not in places]
    return _interleaved(_sorted(theirs, old_places), _sorted(ours, places), old_places)


def _of(item: Any, key: str | None) -> Hashable:
    return identity(item if key is None else item.get(key))


def _places(items: Sequence[Any], key: str | None) -> dict[Hashable, int]:
    """The first place of each item."""
    places: dict[Hashable, int] = {}
    for place, item in enumerate(items):
        places.setdefault(_of(item, key), place)
    return places


def _sorted(items: Sequence[IdentifiedItem], places: Mapping[Hashable, int]) -> list[IdentifiedItem]:
    """As Kubernetes' insertion sort leaves them, which moves an item of no known place before whatever it has sorted.

    So such an item ends right before what was then the lowest, those that came later before those that came earlier.
    """
    lowest = math.inf
    keyed: list[tuple[tuple[float, int, int], IdentifiedItem]] = []
    for number, item in enumerate(items):
        place = places.get(item[0])
        if place is None:
            keyed.append(((lowest, 0, -number), item))
        else:
            lowest = min(lowest, place)
            keyed.append(((place, 1, number), item))
    return [item for _, item in sorted(keyed, key=lambda each: each[0])]


def _interleaved(
    theirs: Sequence[IdentifiedItem], ours: Sequence[IdentifiedItem], places: Mapping[Hashable, int]
) -> list[Any]:
    """An item of theirs goes before the first of ours that stood behind it; what has no such place goes to the end."""
    result: list[IdentifiedItem] = []
    left, right = 0, 0
    while left < len(theirs) and right < len(ours):
        stood, other = places.get(theirs[left][0]), places.get(ours[right][0])
        if stood is not None and other is not None and stood < other:
            result.append(theirs[left])
            left += 1
        else:
            result.append(ours[right])
            right += 1
    return [item for _, item in [*result, *theirs[left:], *ours[right:]]]
