"""Which objects own which others, as the caches show it. Pure.

The graph says which objects must be examined after a change; what is done is decided on objects that are read from the
API server then (`garbage_collection_rules`). An object that was once seen and then gone never comes back with its uid,
so its dependents need no request to find out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
MOST_GONE: Final = 10_000
"""How many uids of objects that are gone are kept. For one that was dropped, the API server is asked."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where an object is: its kind and its name."""

    kind: Kind
    name: ObjectName

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class OwnerReference:
    """An owner reference."""

    api_version: str
    kind: str
    name: str
    uid: str
    blocks: bool
    """The owner's foreground deletion waits for the object."""


@dataclass(frozen=True, slots=True)
class Member:
    """An object, as far as its owners and dependents are concerned."""

    place: ObjectPlace
    uid: str
    owners: tuple[OwnerReference, ...] = ()
    waits_for_dependents: bool = False
    """It is being deleted in the foreground."""
    orphans_dependents: bool = False
    """It is being deleted, and its dependents must lose their references first."""


def member_of(place: ObjectPlace, obj: Mapping[str, Any]) -> Member:
    ending = objects.is_being_deleted(obj)
    return Member(
        place,
        objects.uid(obj),
        owners_of(obj),
        waits_for_dependents=ending and objects.has_finalizer(obj, FOREGROUND),
        orphans_dependents=ending and objects.has_finalizer(obj, ORPHAN),
    )


def owners_of(obj: Mapping[str, Any]) -> tuple[OwnerReference, ...]:
    return tuple(_owner(reference) for reference in objects.owner_references(obj))


def _owner(reference: Mapping[str, Any]) -> OwnerReference:
    version, kind, name, uid = (str(reference.get(field, "")) for field in ("apiVersion", "kind", "name", "uid"))
    return OwnerReference(version, kind, name, uid, blocks=reference.get("blockOwnerDeletion") is True)


def names(owner: OwnerReference, of: ObjectPlace, place: ObjectPlace) -> bool:
    """Return whether a reference in the object at `of` names the object at `place`, which has its uid."""
    group = owner.api_version.rpartition("/")[0]
    is_named = (group, owner.kind, owner.name) == (place.kind.group, place.kind.kind, place.name.name)
    # A namespaced owner is in the namespace of its dependents; a cluster-scoped one may have them anywhere.
    return is_named and place.name.namespace in {None, of.name.namespace}


class OwnershipGraph:
    """`put` and `remove` return the places that must be examined because of the change."""

    def __init__(self) -> None:
        self._members: dict[ObjectPlace, Member] = {}
        self._by_uid: dict[str, Member] = {}
        self._dependents: dict[str, dict[ObjectPlace, None]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._members)

    def get(self, place: ObjectPlace) -> Member | None:
        return self._members.get(place)

    def with_uid(self, uid: str) -> Member | None:
        return self._by_uid.get(uid)

    def is_gone(self, uid: str) -> bool:
        """Return whether an object with this uid was seen, and is no more."""
        return uid in self._gone

    def dependents(self, uid: str) -> tuple[Member, ...]:
        """Return the objects with a reference to this owner; one that names itself is none of them."""
        members = (self._members[place] for place in self._dependents.get(uid, ()))
        return tuple(member for member in members if member.uid != uid)

    def needs_examination(self, member: Member) -> bool:
        """Return whether anything is to be done for it, if the graph is right."""
        if member.waits_for_dependents or member.orphans_dependents:
            return True
        return any(not self._is_solid(member, owner) for owner in member.owners)

    def put(self, member: Member) -> set[ObjectPlace]:
        before = self._members.get(member.place)
        if before == member:
            return set()
        affected: set[ObjectPlace] = set()
        if before is not None and before.uid != member.uid:
            affected |= self.remove(member.place)
            before = None
        self._store(member, before)
        if self.needs_examination(member):
            affected.add(member.place)
        # Its dependents: they may have been examined before it was seen, and an owner that waits for them ends them.
        affected |= {each.place for each in self.dependents(member.uid) if self.needs_examination(each)}
        if before is not None:
            affected |= self._waiting_owners(before)
        return affected

    def remove(self, place: ObjectPlace) -> set[ObjectPlace]:
        member = self._members.pop(place, None)
        if member is None:
            return set()
        self._forget_owners(member)
        if self._by_uid.get(member.uid) is member:
            del self._by_uid[member.uid]
        self._gone[member.uid] = None
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
        return {each.place for each in self.dependents(member.uid)} | self._waiting_owners(member)

    def forget_kind(self, kind: Kind) -> None:
        """Forget the objects of a kind that is no longer followed. They may exist all the same."""
        for place in [place for place in self._members if place.kind == kind]:
            member = self._members.pop(place)
            self._forget_owners(member)
            if self._by_uid.get(member.uid) is member:
                del self._by_uid[member.uid]

    def _store(self, member: Member, before: Member | None) -> None:
        if before is not None:
            self._forget_owners(before)
        self._members[member.place] = member
        self._by_uid[member.uid] = member
        for owner in member.owners:
            self._dependents.setdefault(owner.uid, {})[member.place] = None

    def _forget_owners(self, member: Member) -> None:
        for owner in member.owners:
            places = self._dependents.get(owner.uid, {})
            places.pop(member.place, None)
            if not places:
                self._dependents.pop(owner.uid, None)

    def _waiting_owners(self, member: Member) -> set[ObjectPlace]:
        return {owner.place for owner in self._found(member.owners) if owner.waits_for_dependents}

    def _found(self, owners: Iterable[OwnerReference]) -> Iterable[Member]:
        return (found for owner in owners if (found := self._by_uid.get(owner.uid)) is not None)

    def _is_solid(self, member: Member, owner: OwnerReference) -> bool:
        found = self._by_uid.get(owner.uid)
        return found is not None and not found.waits_for_dependents and names(owner, member.place, found.place)
