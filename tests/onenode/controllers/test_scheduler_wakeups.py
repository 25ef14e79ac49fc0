"""Which changes wake which pods that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onenode.controllers.scheduling.node_search import Found
from onenode.controllers.scheduling.wakeups import topics_of
from orlop.kube.objects import name_of
from support.scheduling.searched_nodes import (
    SearchedNodes,
    attachment,
    bound_claim,
    capacity,
    claim,
    claim_ref,
    csi_driver,
    csi_node,
    late_class,
    node,
    placed,
    pod,
    volume,
)

Object = dict[str, Any]
SMALL = {"cpu": "1", "memory": "1Gi", "pods": "1"}
HERE = {"matchLabels": {"host": "n1"}}


def waiting(body: Object, **objects: Any) -> SearchedNodes:
    """A pod that fits nowhere, and waits."""
    s = SearchedNodes(**{"nodes": [node()], **objects})
    found = s.find(body)
    assert not isinstance(found, Found)
    claims = list(s.caches.claims.cache)
    s.wakeups.wait_for(name_of(body), topics_of(body, claims, found.reasons))
    s.woken.clear()
    return s


def for_a_volume() -> SearchedNodes:
    return waiting(pod("p", "c"), claims=[claim()], classes=[late_class(provisioner="kubernetes.io/no-provisioner")])


def for_capacity() -> SearchedNodes:
    return waiting(
        pod("p", "c"),
        claims=[claim()],
        classes=[late_class()],
        csi_drivers=[csi_driver(storageCapacity=True)],
        capacities=[capacity(topology=HERE, capacity="1Mi")],
    )


def for_a_claim() -> SearchedNodes:
    return waiting(pod("p", "c"))


def for_a_class() -> SearchedNodes:
    return waiting(pod("p", "c"), claims=[claim()])


def for_a_place() -> SearchedNodes:
    return waiting(pod(), nodes=[node(allocatable=SMALL)], pods=[placed(pod("q"), "n1")])


def for_a_detach() -> SearchedNodes:
    return waiting(
        pod("p", "c"),
        claims=[claim()],
        classes=[late_class()],
        csi_nodes=[csi_node(count=1)],
        volumes=[volume("old", class_name="other", phase="Bound")],
        attachments=[attachment("a", "old")],
        pods=[placed(pod("q"), "n1")],
    )


def for_the_other_pod() -> SearchedNodes:
    objects = {"claims": [claim(accessModes=["ReadWriteOncePod"])], "classes": [late_class()]}
    return waiting(pod("p", "c"), **objects, pods=[placed(pod("q", "c"), "n1")])


def for_its_node() -> SearchedNodes:
    return waiting(pod("p", "c"), claims=[bound_claim()], volumes=[volume(on="n2", phase="Bound")])


Change = Callable[[SearchedNodes], object]
WAKES: list[tuple[str, Callable[[], SearchedNodes], Change]] = [
    ("class added", for_a_class, lambda s: s.put("classes", late_class())),
    ("class changed", for_a_volume, lambda s: s.put("classes", late_class())),
    ("claim added", for_a_claim, lambda s: s.put("claims", claim())),
    ("claim changed", for_a_volume, lambda s: s.put("claims", claim(annotations={"a": "b"}))),
    ("free volume added", for_a_volume, lambda s: s.put("volumes", volume())),
    ("volume reserved for the claim", for_a_volume, lambda s: s.put("volumes", volume(claimRef=claim_ref()))),
    ("affinity of its volume changed", for_its_node, lambda s: s.put("volumes", volume(on="n1", phase="Bound"))),
    ("node added", for_a_volume, lambda s: s.put("nodes", node("n2"))),
    ("node's labels changed", for_its_node, lambda s: s.put("nodes", node(labels={"host": "n2"}))),
    ("node's allocatable raised", for_a_place, lambda s: s.put("nodes", node(allocatable={**SMALL, "pods": "2"}))),
    ("CSINode added", for_a_volume, lambda s: s.put("csi_nodes", csi_node())),
    ("driver's count raised", for_a_detach, lambda s: s.put("csi_nodes", csi_node(count=2))),
    ("CSIDriver changed", for_capacity, lambda s: s.put("csi_drivers", csi_driver(storageCapacity=False))),
    ("capacity added", for_capacity, lambda s: s.put("capacities", capacity("b", topology=HERE, capacity="1Gi"))),
    ("capacity raised", for_capacity, lambda s: s.put("capacities", capacity(topology=HERE, capacity="1Gi"))),
    (
        "limit raised (MaximumVolumeSize unset)",
        for_capacity,
        lambda s: s.put("capacities", capacity(topology=HERE, capacity="2Mi")),
    ),
    ("attachment deleted", for_a_detach, lambda s: s.remove("attachments", "a")),
    ("pod deleted, at the limit", for_a_detach, lambda s: s.remove("pods", "q", "default")),
    ("pod deleted, full node", for_a_place, lambda s: s.remove("pods", "q", "default")),
    (
        "pod finished, full node",
        for_a_place,
        lambda s: s.put("pods", {**placed(pod("q"), "n1"), "status": {"phase": "Succeeded"}}),
    ),
    ("pod with the claim deleted", for_the_other_pod, lambda s: s.remove("pods", "q", "default")),
]
WAKES_NOT: list[tuple[str, Callable[[], SearchedNodes], Change]] = [
    ("volume of another class", for_a_volume, lambda s: s.put("volumes", volume("w", class_name="other"))),
    ("volume that is not free", for_a_volume, lambda s: s.put("volumes", volume("w", phase="Bound"))),
    ("volume reserved for another", for_a_volume, lambda s: s.put("volumes", volume("w", claimRef=claim_ref("d")))),
    ("another claim", for_a_volume, lambda s: s.put("claims", claim("d"))),
    ("another class", for_a_class, lambda s: s.put("classes", late_class("other"))),
    ("a heartbeat", for_a_volume, lambda s: s.put("nodes", node() | {"status": node()["status"] | {"images": []}})),
    ("capacity lowered", for_capacity, lambda s: s.put("capacities", capacity(topology=HERE, capacity="1Ki"))),
    ("capacity deleted", for_capacity, lambda s: s.remove("capacities", "k", "kube-system")),
    (
        "capacity of another class",
        for_capacity,
        lambda s: s.put("capacities", capacity("b", "x", HERE, capacity="1Gi")),
    ),
    ("attachment deleted, not at the limit", for_a_volume, lambda s: s.remove("attachments", "a")),
    ("pod deleted, not for a place", for_a_volume, lambda s: s.remove("pods", "q", "default")),
    ("pod put on a node", for_a_place, lambda s: s.put("pods", placed(pod("r"), "n1"))),
]


@pytest.mark.parametrize(("made", "change"), [row[1:] for row in WAKES], ids=[row[0] for row in WAKES])
def test_a_change_that_may_help_wakes_the_pod(made: Callable[[], SearchedNodes], change: Change):
    s = made()
    change(s)

    assert name_of(pod()) in s.woken


@pytest.mark.parametrize(("made", "change"), [row[1:] for row in WAKES_NOT], ids=[row[0] for row in WAKES_NOT])
def test_a_change_that_cannot_help_wakes_nobody_that_waits(made: Callable[[], SearchedNodes], change: Change):
    s = made()
    change(s)

    assert name_of(pod()) not in s.woken


def test_the_condition_that_says_why_a_pod_waits_does_not_wake_it():
    s = for_a_claim()
    s.put("pods", pod("p", "c"))
    assert s.woken == [name_of(pod())]
    s.put("pods", {**pod("p", "c"), "status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}})

    assert s.woken == [name_of(pod())]


def test_a_pod_that_left_is_woken_by_nothing():
    s = for_a_volume()
    s.wakeups.leave(name_of(pod()))
    s.put("volumes", volume())

    assert s.woken == []
    assert len(s.wakeups) == 0
