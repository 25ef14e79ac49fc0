"""Volumes and claims as the scheduler must see them: from the cache, or newer by its own decisions and writes.

A decision counts at once (`decide`): the next pod sees that a volume is reserved before that is written, so one volume
is never chosen for two claims. The cache wins as soon as it has another version than the decision was made on, or one
as new as our write. `FreeVolumes` finds volumes for a claim without comparing each of them with each node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import AVAILABLE
from orlop.binding.node_affinity_rules import label_pins
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.objects import ObjectName

ApiObject = Mapping[str, Any]
ANYWHERE: Final = ("", "")
Place = tuple[str, str, str]
"""A class, and a label of the nodes where a volume can be used, or `ANYWHERE`."""


class AssumedObjects:
    """The objects of one kind; `refresh` must be called for each name that the cache reports."""

    def __init__(self, informer: Informer) -> None:
        self._informer = informer
        self._decided: dict[ObjectName, ApiObject] = {}
        """As they are to be written, in the version they were read in."""
        self._written: dict[ObjectName, ApiObject] = {}
        """As the API server returned them."""

    def get(self, name: ObjectName) -> ApiObject | None:
        return self._decided.get(name) or self._written.get(name) or self._informer.get(name)

    def decide(self, obj: ApiObject) -> None:
        """Show this object from now on, as it will be written."""
        self._decided[objects.name_of(obj)] = obj

    def wrote(self, obj: ApiObject) -> None:
        """Show this object, as a write returned it, until the cache has it."""
        name = objects.name_of(obj)
        self._decided.pop(name, None)
        self._written[name] = obj
        self.refresh(name)

    def give_up(self, name: ObjectName) -> None:
        """Forget a decision that was not written. What was written is so, whether or not it is still wanted."""
        self._decided.pop(name, None)

    def refresh(self, name: ObjectName) -> None:
        """Drop what the cache knows better."""
        cached = self._informer.get(name)
        decided, written = self._decided.get(name), self._written.get(name)
        if decided is not None and (cached is None or _order(cached) > _order(decided)):
            del self._decided[name]
        if written is not None and (cached is None or _order(cached) >= _order(written)):
            del self._written[name]

    def __len__(self) -> int:
        """Return how many objects are kept besides the cache's."""
        return len(self._decided) + len(self._written)


def _order(obj: ApiObject) -> tuple[int, str]:
    return objects.version_order(objects.resource_version(obj))


class FreeVolumes:
    """Volumes that a claim could get, by class and label: those that nobody has, and those reserved for a claim."""

    def __init__(self) -> None:
        self._volumes: dict[str, ApiObject] = {}
        self._places: dict[str, tuple[Place, ...]] = {}
        self._at: dict[Place, dict[str, None]] = {}
        self._reserved: dict[tuple[str, str], dict[str, None]] = {}
        self._count: dict[str, int] = {}

    def look_at(self, name: str, volume: ApiObject | None) -> None:
        """Take over how the volume is to be seen from now on."""
        self._remove(name)
        if volume is None or objects.is_being_deleted(volume):
            return
        reference = state.claim_reference(volume)
        if reference is not None:
            self._volumes[name] = volume
            self._reserved.setdefault(_key(reference), {})[name] = None
        elif state.phase(volume) == AVAILABLE:
            self._volumes[name] = volume
            places = self._places[name] = tuple(_places(volume))
            for place in places:
                self._at.setdefault(place, {})[name] = None
            class_name = state.class_name(volume)
            self._count[class_name] = self._count.get(class_name, 0) + 1

    def reserved_for(self, claim: ApiObject) -> list[ApiObject]:
        """Return the volumes of the claim's class that name it; the node does not matter."""
        key = objects.namespace(claim) or "", objects.name(claim)
        found = [self._volumes[name] for name in self._reserved.get(key, ())]
        return [volume for volume in found if state.class_name(volume) == state.class_name(claim)]

    def on_node(self, class_name: str, labels: Mapping[str, str]) -> list[ApiObject]:
        """Return the free volumes of a class that may be usable on a node with these labels."""
        if not self._count.get(class_name):
            return []
        names = dict(self._at.get((class_name, *ANYWHERE), {}))
        for label in labels.items():
            names.update(self._at.get((class_name, *label), {}))
        return [self._volumes[name] for name in names]

    def _remove(self, name: str) -> None:
        volume = self._volumes.pop(name, None)
        if volume is None:
            return
        places = self._places.pop(name, None)
        if places is None:
            _discard(self._reserved, _key(state.claim_reference(volume) or {}), name)
            return
        self._count[state.class_name(volume)] -= 1
        for place in places:
            _discard(self._at, place, name)


def _places(volume: ApiObject) -> Iterator[Place]:
    pins, class_name = label_pins(volume), state.class_name(volume)
    for key, value in (ANYWHERE,) if pins is None else sorted(pins):
        yield class_name, key, value


def _key(reference: ApiObject) -> tuple[str, str]:
    return str(reference.get("namespace") or ""), str(reference.get("name") or "")


def _discard(index: dict[Any, dict[str, None]], key: Any, name: str) -> None:
    names = index[key]
    del names[name]
    if not names:
        del index[key]
