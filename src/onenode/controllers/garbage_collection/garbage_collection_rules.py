"""Decide the next step for an object that has owners, or that is being deleted and has dependents. Pure.

Kubernetes' rules: an object lives while one of its owners does. References to owners that are gone are removed from an
object that lives. One without a living owner is deleted: in the foreground if an owner waits for it and it has
dependents of its own, else in the background. An owner whose existence cannot be found out counts as neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from onenode.controllers.garbage_collection.ownership_graph import (
    FOREGROUND,
    ORPHAN,
    Member,
    ObjectPlace,
    OwnerReference,
    owners_of,
)
from orlop.kube import objects, patches
from orlop.kube.client import MergePatch
from orlop.kube.patches import JsonPatch

WRONG_NAMESPACE: Final = "OwnerRefInvalidNamespace"


class OwnerStanding(Enum):
    """What is known of an owner."""

    SOLID = auto()
    ABSENT = auto()
    """It does not exist, or another object has its name."""
    WAITING = auto()
    """It is being deleted in the foreground."""
    UNKNOWN_KIND = auto()
    """The server does not serve its kind; it may do so again."""
    UNREACHABLE = auto()
    """A namespaced owner of a cluster-scoped object: nothing says in which namespace it is."""


@dataclass(frozen=True, slots=True)
class Keep:
    pass


@dataclass(frozen=True, slots=True)
class ExamineLater:
    """An owner is of a kind that is not served."""


@dataclass(frozen=True, slots=True)
class DropOwners:
    """Remove these references from an object that lives."""

    patch: MergePatch


@dataclass(frozen=True, slots=True)
class DeleteDependent:
    """`unblock` comes first where objects own each other: both would wait for the other."""

    propagation: str
    unblock: MergePatch | None = None


DependentStep: TypeAlias = Keep | ExamineLater | DropOwners | DeleteDependent


def next_step(
    obj: Mapping[str, Any], standings: Mapping[OwnerReference, OwnerStanding], dependents: Sequence[Member]
) -> DependentStep:
    """Return the step for an object that is not being deleted, as it was just read; `dependents` are its own."""
    found = set(standings.values())
    if not found or OwnerStanding.UNREACHABLE in found:
        return Keep()
    if OwnerStanding.UNKNOWN_KIND in found:
        return ExamineLater()
    if OwnerStanding.SOLID in found:
        stale = {owner.uid for owner, standing in standings.items() if standing is not OwnerStanding.SOLID}
        return DropOwners(without_owners(obj, stale)) if stale else Keep()
    if OwnerStanding.WAITING in found and dependents:
        is_cycle = any(each.waits_for_dependents for each in dependents)
        return DeleteDependent("Foreground", _unblocking(obj) if is_cycle else None)
    return DeleteDependent(_own_propagation(obj))


def without_owners(obj: Mapping[str, Any], uids: Iterable[str]) -> MergePatch:
    """Remove the references to these owners; the patch fails if the object has changed."""
    dropped = frozenset(uids)
    return _with_owners(obj, [dict(each) for each in objects.owner_references(obj) if each.get("uid") not in dropped])


def _unblocking(obj: Mapping[str, Any]) -> MergePatch:
    return _with_owners(obj, [{**each, "blockOwnerDeletion": False} for each in objects.owner_references(obj)])


def _with_owners(obj: Mapping[str, Any], owners: list[dict[str, Any]]) -> MergePatch:
    # A merge patch, which custom resources take too, replaces the whole list: without the version it could undo
    # another's change of the list.
    metadata = {"resourceVersion": objects.resource_version(obj), "uid": objects.uid(obj)}
    return MergePatch({"metadata": {**metadata, "ownerReferences": owners or None}})


def _own_propagation(obj: Mapping[str, Any]) -> str:
    """Somebody may have put a finalizer on it so that its deletion will be of that sort."""
    if objects.has_finalizer(obj, ORPHAN):
        return "Orphan"
    return "Foreground" if objects.has_finalizer(obj, FOREGROUND) else "Background"


# ---- objects that are being deleted and have dependents --------------------------------------------------------------


def blocking(owner_uid: str, dependents: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the foreground deletion of the owner must wait for any of these objects."""
    return any(owner.uid == owner_uid and owner.blocks for each in dependents for owner in owners_of(each))


def release(obj: Mapping[str, Any], finalizer: str) -> JsonPatch | None:
    return patches.remove_finalizer(obj, finalizer)


# ---- owners in another namespace -------------------------------------------------------------------------------------


def wrong_namespace_note(owner: OwnerReference, place: ObjectPlace) -> str:
    """Return Kubernetes' text for an owner that exists, but not where the reference says."""
    namespace = place.name.namespace or ""
    named = f"{owner.api_version}/{owner.kind}, namespace: {namespace}, name: {owner.name}, uid: {owner.uid}"
    return f'ownerRef [{named}] does not exist in namespace "{namespace}"'
