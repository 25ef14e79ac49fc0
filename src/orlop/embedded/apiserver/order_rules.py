"""In which order the items of a merged list stand after a patch, as Kubernetes orders them.

Items that the patch (or its `$setElementOrder`) names stand in its order, the others in the order they had; the two
sequences are interleaved by where their items stood before, as far as both are known. Pure; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from orlop.embedded.apiserver.go_text import as_json, go_type


def identity(value: Any) -> Hashable:
    """What makes two JSON values the same to Kubernetes: 1, 1.0 and true are three values."""
    return go_type(value), as_json(value)


def position(items: Sequence[Any], value: Any, key: str) -> int | None:
    """Where the first item stands whose merge key has this value."""
    wanted = identity(value)
    for place, item in enumerate(items):
        if key in item and identity(item[key]) == wanted:
            return place
    return None


def in_order(merged: list[Any], named: Sequence[Any], before: Sequence[Any], key: str | None) -> list[Any]:
    """The merged items in their final order; `key` is the merge key, None in a list of plain values."""
    places = _places(named, key)
    old_places = _places(before, key)
    ours = [item for item in merged if _of(item, key) in places]
    theirs = [item for item in merged if _of(item, key) not in places]
    return _interleaved(_sorted(theirs, old_places, key), _sorted(ours, places, key), old_places, key)


def _of(item: Any, key: str | None) -> Hashable:
    return identity(item if key is None else item.get(key))


def _places(items: Sequence[Any], key: str | None) -> dict[Hashable, int]:
    """The first place of each item."""
    places: dict[Hashable, int] = {}
    for place, item in enumerate(items):
        places.setdefault(_of(item, key), place)
    return places


def _sorted(items: list[Any], places: dict[Hashable, int], key: str | None) -> list[Any]:
    """Sorted by insertion, and an item of no known place moves before whatever stands before it, as in Kubernetes."""
    result: list[Any] = []
    for item in items:
        place = len(result)
        while place > 0 and _less(item, result[place - 1], places, key):
            place -= 1
        result.insert(place, item)
    return result


def _less(one: Any, other: Any, places: dict[Hashable, int], key: str | None) -> bool:
    first, second = places.get(_of(one, key)), places.get(_of(other, key))
    return True if first is None or second is None else first < second


def _interleaved(theirs: list[Any], ours: list[Any], places: dict[Hashable, int], key: str | None) -> list[Any]:
    """An item of theirs goes before the first of ours that stood behind it; what has no such place goes to the end."""
    result: list[Any] = []
    left, right = 0, 0
    while left < len(theirs) and right < len(ours):
        stood, other = places.get(_of(theirs[left], key)), places.get(_of(ours[right], key))
        if stood is not None and other is not None and stood < other:
            result.append(theirs[left])
            left += 1
        else:
            result.append(ours[right])
            right += 1
    return [*result, *theirs[left:], *ours[right:]]
