"""Decide which child a workload adopts or releases, and whether its status must be written. Pure.

A child without a controller that the workload selects is adopted; one that it controls and no longer selects is
released. Both patches name the uid and the version that were read, so they never change another object of the name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers.garbage_collection.garbage_collection_rules import without_owners
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.patches import merge_patch
from orlop.kube.selectors import LabelSelector

Object = Mapping[str, Any]

API_VERSION: Final = "apps/v1"
HASH_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' letters for random names: without vowels they form no words."""
HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class ChangeOwners:
    """Adopt or release a child."""

    child: Object
    patch: MergePatch


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status, then reconcile again after `seconds`, if any."""

    patch: MergePatch
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or until `seconds` have passed."""

    seconds: float | None = None


def selects(workload: Object, child: Object) -> bool:
    return LabelSelector.of_object(workload["spec"].get("selector")).matches(objects.labels(child))


def is_controlled(owner: Object, child: Object) -> bool:
    return (objects.controller_of(child) or {}).get("uid") == objects.uid(owner)


def ownership_step(
    owner: Object, kind: str, children: Iterable[Object], belongs: Callable[[Object, Object], bool] = selects
) -> ChangeOwners | None:
    """Return the next adoption or release. An owner that is being deleted does neither."""
    if objects.is_being_deleted(owner):
        return None
    for child in children:
        if is_controlled(owner, child):
            if not belongs(owner, child):
                return ChangeOwners(child, without_owners(child, [objects.uid(owner)]))
        elif objects.controller_of(child) is None and not objects.is_being_deleted(child) and belongs(owner, child):
            reference = objects.controller_reference(owner, API_VERSION, kind)
            return ChangeOwners(child, with_owners(child, [*objects.owner_references(child), reference]))
    return None


def with_owners(child: Object, owners: Iterable[Object]) -> MergePatch:
    """Return a patch that replaces the owners of a child, and fails if the child has changed."""
    return MergePatch({"metadata": {**_as_read(child), "ownerReferences": [dict(each) for each in owners] or None}})


def guarded(obj: Object, **changes: Any) -> MergePatch:
    """Return a merge patch that fails if the object has changed since it was read."""
    metadata = changes.pop("metadata", {})
    return MergePatch({"metadata": {**_as_read(obj), **metadata}, **changes})


def _as_read(obj: Object) -> dict[str, str]:
    return {"resourceVersion": objects.resource_version(obj), "uid": objects.uid(obj)}


def status_step(
    owner: Object, status: Object, seconds: float | None, zeros: tuple[str, ...] = ()
) -> WriteStatus | Wait:
    """Write the status if it differs from the stored one. Kubernetes leaves out zeros, except in the fields `zeros`."""
    shown = {name: value for name, value in status.items() if value or name in zeros}
    changes = merge_patch(owner.get("status") or {}, {**shown, "observedGeneration": objects.generation(owner)})
    if not changes:
        return Wait(seconds)
    return WriteStatus(guarded(owner, status=changes), seconds)


def content_hash(content: Any, collisions: int) -> str:
    """Return a suffix for the name of an object with this content; `collisions` counts the names that were taken."""
    text = json.dumps([content, collisions], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(HASH_LETTERS[byte % len(HASH_LETTERS)] for byte in digest[:HASH_LENGTH])


def collisions(workload: Object) -> int:
    return int((workload.get("status") or {}).get("collisionCount") or 0)
