"""Whether a pod's volumes can be used on a node, and how its late-binding claims get theirs there."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding.capacity_rules import free_space, node_selector, publishes_capacity, volume_size_limit
from orlop.binding.node_affinity_rules import label_pins
from orlop.binding.node_volume_rules import (
    AFFINITY_CONFLICT,
    BIND_CONFLICT,
    NO_ROOM,
    VOLUME_MISSING,
    ZONE_CONFLICT,
    NodeStorage,
    NodeVolumes,
    given_to_node,
    in_search_order,
    late_claim,
    reserved_for,
    volumes_on_node,
    zone_conflicts,
)
from orlop.foundation.quantity import Quantity
from orlop.kube.objects import name_of
from support.scheduling.searched_nodes import affinity_to, capacity, claim, claim_ref, late_class, volume

Object = dict[str, Any]
SELECTED = "volume.kubernetes.io/selected-node"
STATIC = late_class("late", "kubernetes.io/no-provisioner")


def on(
    *bound: Object | None, late: list[Object] | None = None, volumes: list[Object] | None = None, **rest: Any
) -> NodeVolumes:
    """On a node `n1` in zone `a`; `room` is what can be provisioned there."""
    storage_class = rest.pop("storage_class", late_class())
    wanted = in_search_order([late_claim(one, storage_class) for one in late or []])
    labels = {"host": "n1", "topology.kubernetes.io/zone": "a"}
    limits = {"late": Quantity.parse(rest["room"]) if rest["room"] else None} if "room" in rest else {}
    offered = {name_of(one): volumes or [] for one in late or []}
    return volumes_on_node(bound, wanted, NodeStorage("n1", labels, offered, limits))


IN_A, IN_B = {"topology.kubernetes.io/zone": "a"}, {"topology.kubernetes.io/zone": "b"}
ONLY_B = {"allowedTopologies": [{"matchLabelExpressions": [{"key": "host", "values": ["n2"]}]}]}
REASONS: list[tuple[str, NodeVolumes, tuple[str, ...]]] = [
    ("a bound volume that fits", on(volume(on="n1")), ()),
    ("a bound volume of another node", on(volume(on="n2")), (AFFINITY_CONFLICT,)),
    ("a bound volume that is gone", on(None), (VOLUME_MISSING,)),
    ("a volume of the node's zone", on(volume(labels=IN_A)), ()),
    ("a volume of another zone", on(volume(labels=IN_B)), (ZONE_CONFLICT,)),
    ("a volume in several zones", on(volume(labels={"topology.kubernetes.io/zone": "b__a"})), ()),
    ("no volume and no provisioner", on(late=[claim()], storage_class=STATIC), (BIND_CONFLICT,)),
    ("no volume and a class without one", on(late=[claim()], storage_class=late_class("late", "")), (BIND_CONFLICT,)),
    ("to be provisioned", on(late=[claim()]), ()),
    ("not allowed by the class", on(late=[claim()], storage_class=late_class(**ONLY_B)), (BIND_CONFLICT,)),
    ("room for it", on(late=[claim(size="2Gi")], room="2Gi"), ()),
    ("too little room", on(late=[claim(size="2Gi")], room="2047Mi"), (NO_ROOM,)),
    ("no capacity for this node", on(late=[claim()], room=""), (NO_ROOM,)),
    ("given to this node before", on(late=[claim(annotations={SELECTED: "n1"})]), ()),
    ("given to another node before", on(late=[claim(annotations={SELECTED: "n2"})]), (BIND_CONFLICT,)),
    ("given to the empty node", on(late=[claim(annotations={SELECTED: ""})]), (BIND_CONFLICT,)),
    (
        "bound and unbound",
        on(volume(on="n2"), late=[claim()], storage_class=STATIC),
        (AFFINITY_CONFLICT, BIND_CONFLICT),
    ),
    ("bound elsewhere and no room", on(volume(on="n2"), late=[claim()], room=""), (AFFINITY_CONFLICT, NO_ROOM)),
]


@pytest.mark.parametrize(("found", "reasons"), [row[1:] for row in REASONS], ids=[row[0] for row in REASONS])
def test_a_node_fits_or_says_why_not(found: NodeVolumes, reasons: tuple[str, ...]):
    assert found.reasons == reasons


def chosen(found: NodeVolumes) -> tuple[dict[str, str], list[str]]:
    bound = {one.claim["metadata"]["name"]: one.volume["metadata"]["name"] for one in found.bindings}
    return bound, [one["metadata"]["name"] for one in found.provisions]


def test_the_smallest_volume_that_fits_is_taken_and_the_rest_is_provisioned():
    volumes = [volume("large", "9Gi"), volume("small", "2Gi")]

    assert chosen(on(late=[claim("c", "2Gi"), claim("d", "3Gi"), claim("e", "8Gi")], volumes=volumes)) == (
        {"c": "small", "d": "large"},
        ["e"],
    )


def test_a_small_claim_does_not_take_the_only_volume_of_a_large_one():
    volumes = [volume("large", "9Gi"), volume("small", "1Gi")]

    assert chosen(on(late=[claim("b", "9Gi"), claim("c", "1Gi")], volumes=volumes)) == (
        {"b": "large", "c": "small"},
        [],
    )


def test_a_claim_with_a_node_is_provisioned_although_a_volume_would_fit():
    assert chosen(on(late=[claim(annotations={SELECTED: "n1"})], volumes=[volume()])) == ({}, ["c"])


def test_a_volume_reserved_for_the_claim_on_another_node_keeps_the_claim_from_this_one():
    reserved = volume("kept", on="n2", claimRef=claim_ref())

    assert on(late=[claim()], volumes=[reserved, volume("free")], storage_class=STATIC).reasons == (BIND_CONFLICT,)
    assert on(late=[claim()], volumes=[reserved, volume("free")]).reasons == (BIND_CONFLICT,)


def test_a_volume_reserved_for_the_claim_that_is_too_small_is_passed_over():
    reserved = volume("kept", "1Mi", on="n2", claimRef=claim_ref())

    assert chosen(on(late=[claim()], volumes=[reserved])) == ({}, ["c"])


# ---- what is written -------------------------------------------------------------------------------------------------


def test_a_free_volume_is_reserved_with_the_claims_uid_and_marked():
    written = reserved_for(volume(), claim(uid="u1"))

    assert written is not None
    assert written["spec"]["claimRef"]["uid"] == "u1"
    assert written["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}


def test_a_volume_that_an_admin_reserved_gets_the_uid_and_no_mark():
    written = reserved_for(volume(claimRef=claim_ref()), claim(uid="u1"))

    assert written is not None
    assert written["spec"]["claimRef"]["uid"] == "u1"
    assert written["metadata"]["annotations"] == {}


def test_nothing_is_written_where_it_is_so_already():
    assert reserved_for(volume(claimRef=claim_ref(uid="u1")), claim(uid="u1")) is None
    assert given_to_node(claim(annotations={SELECTED: "n1"}), "n1") is None


def test_a_claim_is_given_to_a_node_and_keeps_its_annotations():
    written = given_to_node(claim(annotations={"a": "b"}), "n1")

    assert written is not None
    assert written["metadata"]["annotations"] == {"a": "b", SELECTED: "n1"}


# ---- zones, pins, capacity -------------------------------------------------------------------------------------------

BETA = "failure-domain.beta.kubernetes.io/zone"
ZONES: list[tuple[Object, Object, bool]] = [
    (IN_A, IN_A, False),
    (IN_B, IN_A, True),
    (IN_B, {}, False),
    ({}, IN_A, False),
    ({BETA: "a"}, IN_A, False),
    ({BETA: "b"}, IN_A, True),
    (IN_A, {BETA: "a"}, True),
    ({"topology.kubernetes.io/region": "r"}, IN_A, True),
]


@pytest.mark.parametrize(("of_volume", "of_node", "conflicts"), ZONES)
def test_zone_labels_of_a_volume_exclude_nodes_elsewhere(of_volume: Object, of_node: Object, *, conflicts: bool):
    assert zone_conflicts(volume(labels=of_volume), of_node) == conflicts


def terms(*expressions: list[Object]) -> Object:
    return volume(nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": one} for one in expressions]}})


HOST = {"key": "host", "operator": "In", "values": ["n1", "n2"]}
ANY_DISK = {"key": "disk", "operator": "Exists"}
PINS: list[tuple[Object, set[tuple[str, str]] | None]] = [
    (volume(), None),
    (volume(nodeAffinity=affinity_to("n1")), {("host", "n1")}),
    (terms([ANY_DISK, HOST]), {("host", "n1"), ("host", "n2")}),
    (terms([HOST], [ANY_DISK]), None),
    (terms(), set()),
]


@pytest.mark.parametrize(("body", "pins"), PINS)
def test_a_volume_is_found_by_labels_that_all_its_nodes_have(body: Object, pins: set[tuple[str, str]] | None):
    assert label_pins(body) == pins


CAPACITIES: list[tuple[Object, str | None, str | None]] = [
    ({"capacity": "5Gi"}, "5Gi", "5Gi"),
    ({"capacity": "5Gi", "maximumVolumeSize": "2Gi"}, "2Gi", "5Gi"),
    ({"maximumVolumeSize": "2Gi"}, "2Gi", None),
    ({}, None, None),
    ({"capacity": "0"}, "0", "0"),
    ({"capacity": "much"}, None, None),
]


@pytest.mark.parametrize(("fields", "limit", "free"), CAPACITIES)
def test_the_maximum_size_counts_before_the_capacity(fields: Object, limit: str | None, free: str | None):
    body = capacity(**fields)

    assert volume_size_limit(body) == (None if limit is None else Quantity.parse(limit))
    assert free_space(body) == (None if free is None else Quantity.parse(free))


def test_a_capacity_without_topology_is_for_no_node_and_with_an_empty_one_for_all():
    broken = {"matchExpressions": [{"key": "a", "operator": "Sometimes"}]}
    everywhere = node_selector(capacity(topology={}))

    assert everywhere is not None
    assert everywhere.matches({})
    assert node_selector(capacity()) is None
    assert node_selector(capacity(topology=broken)) is None


def test_capacity_counts_for_drivers_that_say_so():
    assert publishes_capacity({"spec": {"storageCapacity": True}})
    assert not publishes_capacity({"spec": {"storageCapacity": False}})
    assert not publishes_capacity({"spec": {}})
    assert not publishes_capacity(None)
