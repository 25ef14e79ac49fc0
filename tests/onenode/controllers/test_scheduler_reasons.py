"""What the scheduler says of pods that fit nowhere: each row of Kubernetes' tables, with its text."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers.scheduling.node_search import Found
from onenode.controllers.scheduling_rules import waits_for_a_node
from support.scheduling.searched_nodes import (
    SearchedNodes,
    attachment,
    bound_claim,
    capacity,
    claim,
    csi_driver,
    csi_node,
    late_class,
    node,
    placed,
    pod,
    volume,
)

Object = dict[str, Any]
FULL = {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "0"}}
AVAILABLE = "0/1 nodes are available: "
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def said(body: Object, **objects: Any) -> str:
    """On one node, unless the test has its own; of the class `late` unless it has its own."""
    return SearchedNodes(**{"nodes": [node()], "classes": [late_class()], **objects}).message(body)


# ---- messages --------------------------------------------------------------------------------------------------------


def test_a_refusal_before_any_node_has_no_count():
    assert said(pod("p", "c")) == f'{AVAILABLE}persistentvolumeclaim "c" not found.'
    assert said(pod("p", "c"), nodes=[node(), node("n2")]) == (
        '0/2 nodes are available: persistentvolumeclaim "c" not found.'
    )


def test_reasons_of_nodes_are_counted_and_sorted_as_text():
    nodes = [node("n1"), node("n2", unschedulable=True), node("n3", **FULL), node("n4")]
    objects = {"nodes": nodes, "claims": [bound_claim()], "volumes": [volume(on="n3", phase="Bound")]}

    assert said(pod("p", "c"), **objects) == (
        "0/4 nodes are available: 1 Too many pods, 1 node(s) were unschedulable, "
        "2 node(s) didn't match PersistentVolume's node affinity."
    )


def test_all_reasons_of_the_first_check_that_fails_count_and_no_later_check():
    objects = {"nodes": [node(**FULL)], "claims": [claim()], "classes": [late_class(provisioner="")]}

    assert said(pod("p", "c", requests={"cpu": "2"}), **objects) == f"{AVAILABLE}1 Insufficient cpu, 1 Too many pods."


def test_bound_and_unbound_unsatisfied():
    objects = {
        "claims": [bound_claim("a", "v"), claim("b", class_name="static")],
        "volumes": [volume(on="n2", phase="Bound")],
        "classes": [late_class("static", "kubernetes.io/no-provisioner")],
    }

    assert said(pod("p", "a", "b"), **objects) == (
        f"{AVAILABLE}1 node(s) didn't find available persistent volumes to bind, "
        "1 node(s) didn't match PersistentVolume's node affinity."
    )


def test_a_claim_for_one_pod_that_another_has():
    one_pod = claim(accessModes=["ReadWriteOncePod"])

    assert said(pod("p", "c"), claims=[one_pod], pods=[placed(pod("q", "c"), "n1")]) == f"{AVAILABLE}1 {IN_USE}."
    assert said(pod("p", "c"), claims=[one_pod], pods=[pod("q", "c")]) == "fits n1"
    finished = {**placed(pod("q", "c"), "n1"), "status": {"phase": "Succeeded"}}
    assert said(pod("p", "c"), claims=[one_pod], pods=[finished]) == "fits n1"
    assert said(pod("p", "c"), claims=[claim()], pods=[placed(pod("q", "c"), "n1")]) == "fits n1"


def test_a_claim_for_one_pod_that_a_dying_pod_has_is_in_use():
    dying = placed(pod("q", "c"), "n1")
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert (
        said(pod("p", "c"), claims=[claim(accessModes=["ReadWriteOncePod"])], pods=[dying]) == f"{AVAILABLE}1 {IN_USE}."
    )


def test_a_driver_that_must_be_there_is_missing():
    needed = {"claims": [claim()], "csi_drivers": [csi_driver(preventPodSchedulingIfMissing=True)]}

    assert said(pod("p", "c"), **needed) == f"{AVAILABLE}1 d.example CSI driver is not installed on the node."
    assert said(pod("p", "c"), **needed, csi_nodes=[csi_node()]) == "fits n1"
    assert said(pod("p", "c"), claims=[claim()], csi_drivers=[csi_driver()]) == "fits n1"


def test_no_node_at_all_and_a_dying_pod():
    dying = pod()
    dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert said(pod("p", "c"), nodes=[]) == "no nodes available to schedule pods"
    assert not waits_for_a_node(dying)


def test_a_volume_that_is_gone_is_missed_before_any_node_unless_the_claim_is_ephemeral():
    ephemeral = pod(volumes=[{"name": "data", "ephemeral": {}}])

    assert said(pod("p", "c"), claims=[bound_claim()]) == f'{AVAILABLE}persistentvolume "v" not found.'
    assert said(ephemeral, claims=[bound_claim("p-data", owner="uid-of-p")]) == (
        f"{AVAILABLE}1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."
    )


def test_a_volume_of_another_zone():
    zone = "topology.kubernetes.io/zone"
    objects = {"claims": [bound_claim()], "volumes": [volume(labels={zone: "b"}, phase="Bound")]}

    assert said(pod("p", "c"), nodes=[node(labels={zone: "a"})], **objects) == (
        f"{AVAILABLE}1 node(s) had no available volume zone."
    )


# ---- capacity --------------------------------------------------------------------------------------------------------

OPTED_IN = [csi_driver(storageCapacity=True)]
HERE, THERE = {"matchLabels": {"host": "n1"}}, {"matchLabels": {"host": "n2"}}
NO_ROOM = f"{AVAILABLE}1 node(s) did not have enough free storage."
CAPACITIES: list[tuple[str, list[Object], str]] = [
    ("network-attached", [capacity(topology={}, capacity="1Gi")], "fits n1"),
    ("of this node", [capacity(topology=HERE, capacity="1Gi")], "fits n1"),
    ("wrong-node", [capacity(topology=THERE, capacity="1Gi")], NO_ROOM),
    ("wrong class", [capacity(class_name="other", topology=HERE, capacity="1Gi")], NO_ROOM),
    ("no topology", [capacity(capacity="1Gi")], NO_ROOM),
    ("insufficient-volume-size", [capacity(topology=HERE, capacity="9Gi", maximumVolumeSize="1Mi")], NO_ROOM),
    ("the maximum alone", [capacity(topology=HERE, maximumVolumeSize="1Gi")], "fits n1"),
    ("zero-storage", [capacity(topology=HERE, capacity="0")], NO_ROOM),
    ("nil-storage", [capacity(topology=HERE)], NO_ROOM),
    (
        "one of several",
        [capacity("a", topology=HERE, capacity="0"), capacity("b", topology=HERE, capacity="1Gi")],
        "fits n1",
    ),
    ("none at all", [], NO_ROOM),
]


@pytest.mark.parametrize(("capacities", "message"), [row[1:] for row in CAPACITIES], ids=[row[0] for row in CAPACITIES])
def test_capacity_counts_for_drivers_that_publish_it(capacities: list[Object], message: str):
    objects = {"claims": [claim()], "capacities": capacities}

    assert said(pod("p", "c"), csi_drivers=OPTED_IN, **objects) == message
    assert said(pod("p", "c"), csi_drivers=[csi_driver(storageCapacity=False)], **objects) == "fits n1"
    assert said(pod("p", "c"), **objects) == "fits n1"


def test_capacity_is_asked_again_for_a_claim_with_a_node_and_never_for_a_free_volume():
    given = claim(annotations={"volume.kubernetes.io/selected-node": "n1"})

    assert said(pod("p", "c"), csi_drivers=OPTED_IN, claims=[given]) == NO_ROOM
    assert said(pod("p", "c"), csi_drivers=OPTED_IN, claims=[claim()], volumes=[volume(on="n1")]) == "fits n1"


def test_claims_of_one_pod_are_not_added_up_and_nothing_is_subtracted():
    s = SearchedNodes(
        nodes=[node()],
        classes=[late_class()],
        csi_drivers=OPTED_IN,
        capacities=[capacity(topology=HERE, capacity="1Gi")],
        claims=[claim(name) for name in ("a", "b", "c")],
    )

    assert s.reserve(pod("p", "a", "b")) is not None
    assert s.message(pod("q", "c")) == "fits n1"


def test_of_equally_loaded_nodes_the_one_with_most_free_capacity_is_chosen():
    capacities = [capacity("a", topology=HERE, capacity="5Gi"), capacity("b", topology=THERE, capacity="9Gi")]
    objects = {"nodes": [node(), node("n2")], "claims": [claim()], "csi_drivers": OPTED_IN, "capacities": capacities}

    assert said(pod("p", "c"), **objects) == "fits n2"


def test_what_changed_in_capacities_and_labels_counts_at_once():
    s = SearchedNodes(nodes=[node()], classes=[late_class()], csi_drivers=OPTED_IN, claims=[claim()])
    s.put("capacities", capacity(topology=HERE, capacity="1Gi"))
    before = s.message(pod("p", "c"))
    s.put("nodes", node(labels={"host": "renamed"}))
    renamed = s.message(pod("p", "c"))
    s.put("nodes", node())
    s.remove("capacities", "k", "kube-system")

    assert (before, renamed, s.message(pod("p", "c"))) == ("fits n1", NO_ROOM, NO_ROOM)


# ---- attach limits ---------------------------------------------------------------------------------------------------

TOO_MANY = f"{AVAILABLE}1 node(s) exceed max volume count."


def bound(name: str) -> tuple[Object, Object]:
    return bound_claim(f"c-{name}", f"v-{name}"), volume(f"v-{name}", phase="Bound")


def limited(limit: int | None, *names: str, **objects: Any) -> SearchedNodes:
    """A node with a limit; claims `c-…` that are bound."""
    pairs = [bound(name) for name in names]
    claims = [*(one for one, _ in pairs), *objects.pop("claims", [])]
    volumes = [*(one for _, one in pairs), *objects.pop("volumes", [])]
    csi_nodes = [csi_node(count=limit)]
    return SearchedNodes(
        nodes=[node()], classes=[late_class()], csi_nodes=csi_nodes, claims=claims, volumes=volumes, **objects
    )


def test_volumes_of_the_nodes_pods_count_once_each():
    pods = [placed(pod("q", "c-a"), "n1"), placed(pod("r", "c-a"), "n1")]

    assert limited(2, "a", "b", pods=pods).message(pod("p", "c-b")) == "fits n1"
    assert limited(1, "a", "b", pods=pods).message(pod("p", "c-b")) == TOO_MANY
    assert limited(1, "a", "b", pods=pods).message(pod("p", "c-a")) == "fits n1"
    assert limited(None, "a", "b", pods=pods).message(pod("p", "c-b")) == "fits n1"
    assert limited(0, "a").message(pod("p", "c-a")) == TOO_MANY


def test_should_count_volume_attachments_towards_volume_limit_when_no_pods_exist():
    attached = [attachment("x", "v-a")]

    assert limited(1, "a", "b", attachments=attached).message(pod("p", "c-b")) == TOO_MANY
    assert limited(2, "a", "b", attachments=attached).message(pod("p", "c-b")) == "fits n1"
    assert limited(1, "b", attachments=[attachment("x", "gone")]).message(pod("p", "c-b")) == "fits n1"


def test_an_attachment_of_the_very_volume_counts_twice():
    assert limited(1, "a", attachments=[attachment("x", "v-a")]).message(pod("p", "c-a")) == TOO_MANY
    assert limited(2, "a", attachments=[attachment("x", "v-a")]).message(pod("p", "c-a")) == "fits n1"


def test_an_attachment_of_a_pods_volume_counts_once():
    pods = [placed(pod("q", "c-a"), "n1")]

    assert limited(2, "a", "b", pods=pods, attachments=[attachment("x", "v-a")]).message(pod("p", "c-b")) == "fits n1"


def test_claims_that_are_not_bound_count_under_the_provisioner_of_their_class():
    pods, claims = [placed(pod("q", "late-1"), "n1")], [claim("late-1"), claim("late-2")]

    assert limited(1, pods=pods, claims=claims).message(pod("p", "late-2")) == TOO_MANY
    assert limited(2, pods=pods, claims=claims).message(pod("p", "late-2")) == "fits n1"


def test_a_claim_that_is_bound_meanwhile_still_counts_once():
    s = limited(1, pods=[placed(pod("q", "c"), "n1")], claims=[claim(), claim("d")])
    before = s.message(pod("p", "d"))
    s.put("volumes", volume(phase="Bound"))
    s.put("claims", bound_claim())

    assert (before, s.message(pod("p", "d"))) == (TOO_MANY, TOO_MANY)


def test_a_pod_that_was_put_there_a_moment_ago_counts():
    s = limited(1, "a", "b")

    assert s.reserve(pod("p", "c-a")) is not None
    assert s.message(pod("q", "c-b")) == TOO_MANY


def test_inline_volumes_and_those_without_a_driver_do_not_count():
    inline = pod(volumes=[{"name": "i", "csi": {"driver": "d.example"}}])
    local = volume(phase="Bound", csi=None, local={"path": "/mnt"})

    assert limited(0).message(inline) == "fits n1"
    assert limited(0, claims=[bound_claim()], volumes=[local]).message(pod("p", "c")) == "fits n1"


# ---- what was decided a moment ago -----------------------------------------------------------------------------------


def test_one_volume_is_never_chosen_for_two_pods():
    s = SearchedNodes(
        nodes=[node()],
        classes=[late_class(provisioner="kubernetes.io/no-provisioner")],
        volumes=[volume(on="n1")],
        claims=[claim("c"), claim("d")],
    )
    first = s.reserve(pod("p", "c"))
    second = s.find(pod("q", "d"))
    assert first is not None
    s.reservations.give_up(first)

    assert not isinstance(second, Found)
    assert s.message(pod("q", "d")) == "fits n1"
    assert len(s.search.volumes) == len(s.search.claims) == len(s.reservations) == 0


def test_a_decision_is_dropped_when_the_cache_shows_another_version_of_the_volume():
    s = SearchedNodes(nodes=[node()], classes=[late_class()], volumes=[volume(on="n1")], claims=[claim(), claim("d")])
    assert s.reserve(pod("p", "c")) is not None
    s.put("volumes", volume(on="n1", labels={"new": "label"}))
    found = s.find(pod("q", "d"))

    assert isinstance(found, Found)
    assert [one.volume["metadata"]["name"] for one in found.volumes.bindings] == ["v"]


def test_a_pod_that_was_put_on_a_node_a_moment_ago_takes_its_place():
    s = SearchedNodes(nodes=[node(allocatable={"cpu": "1", "memory": "1Gi", "pods": "1"})])
    made = s.reserve(pod())
    assert made is not None
    full = s.message(pod("q"))
    s.reservations.keep_pod(made)
    still_full = s.message(pod("q"))
    s.put("pods", placed(pod(), "n1"))
    shown = s.message(pod("q"))
    s.remove("pods", "p", "default")

    assert full == still_full == shown == f"{AVAILABLE}1 Too many pods."
    assert s.message(pod("q")) == "fits n1"
