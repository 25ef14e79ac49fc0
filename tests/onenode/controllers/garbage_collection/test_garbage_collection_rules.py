"""An object lives exactly as long as one of its owners, whatever is known of the others."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers.garbage_collection import garbage_collection_rules as rules
from onenode.controllers.garbage_collection.garbage_collection_rules import OwnerStanding
from onenode.controllers.garbage_collection.ownership_graph import (
    Member,
    ObjectPlace,
    OwnershipGraph,
    member_of,
    owners_of,
)
from orlop.kube.kinds import CONFIG_MAP
from orlop.kube.objects import ObjectName

PLACES = [ObjectPlace(CONFIG_MAP, ObjectName("default", name)) for name in "abcd"]


def obj(*owners: str, uid: str = "u", **metadata: Any) -> dict[str, Any]:
    references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"{name}-1"} for name in owners]
    about = {"name": "x", "namespace": "default", "uid": uid, "resourceVersion": "5", "ownerReferences": references}
    return {"metadata": {**about, **metadata}}


@given(st.lists(st.sampled_from(OwnerStanding), max_size=4), st.sampled_from([0, 1]))
def test_an_object_is_deleted_only_if_nothing_solid_or_unknown_remains(standings: list[OwnerStanding], parent: int):
    it = obj(*"abcd"[: len(standings)])
    dependents = [Member(PLACES[0], "d")] if parent else []
    step = rules.next_step(it, dict(zip(owners_of(it), standings, strict=True)), dependents)
    ends = bool(standings) and not set(standings) & {
        OwnerStanding.SOLID,
        OwnerStanding.UNKNOWN_KIND,
        OwnerStanding.UNREACHABLE,
    }

    assert isinstance(step, rules.DeleteDependent) == ends
    if isinstance(step, rules.DeleteDependent):
        assert step.propagation == ("Foreground" if parent and OwnerStanding.WAITING in standings else "Background")
    if isinstance(step, rules.DropOwners):
        kept = step.patch.changes["metadata"]["ownerReferences"]
        assert len(kept) == standings.count(OwnerStanding.SOLID) > 0
        assert step.patch.changes["metadata"]["resourceVersion"] == "5"


def test_a_finalizer_that_is_there_already_decides_how_an_object_is_deleted():
    for finalizer, propagation in (("orphan", "Orphan"), ("foregroundDeletion", "Foreground")):
        it = obj("a", finalizers=[finalizer])
        step = rules.next_step(it, dict.fromkeys(owners_of(it), OwnerStanding.ABSENT), ())

        assert step == rules.DeleteDependent(propagation)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(PLACES),
        st.sampled_from([None, 1, 2]),
        st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
        st.booleans(),
    ),
    max_size=12,
)


@given(CHANGES)
def test_every_object_without_a_living_owner_is_examined_after_the_change_that_made_it_so(changes: list[Any]):
    """Whatever the order: all that needs examination now was returned by the change that is its reason."""
    graph, due = OwnershipGraph(), set[ObjectPlace]()
    alive: dict[ObjectPlace, Member] = {}
    for place, life, owners, ending in changes:
        if life is None:
            alive.pop(place, None)
            due |= graph.remove(place)
        else:
            ends = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]} if ending else {}
            member = member_of(place, obj(*owners, uid=f"{place.name.name}-{life}", **ends))
            alive[place] = member
            due |= graph.put(member)

    living = {member.uid: member for member in alive.values()}
    for place, member in alive.items():
        solid = [owner for owner in member.owners if owner.uid in living]
        lacks = len(solid) < len(member.owners) or any(living[owner.uid].waits_for_dependents for owner in solid)
        assert graph.needs_examination(member) == (lacks or member.waits_for_dependents)
        assert not graph.needs_examination(member) or place in due
    assert len(graph) == len(alive)
