"""Which pod goes to which node, and what is said when it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers.scheduling.node_search import Found
from onenode.controllers.scheduling.pod_resource_rules import load, requests_of, shortages, used_by
from onenode.controllers.scheduling_rules import (
    Unschedulable,
    nodes_by_preference,
    refusal_message,
    wait_failure_message,
    waits_for_a_node,
    write_failure_message,
)
from support.scheduling.searched_nodes import SearchedNodes, bound_claim, node, pod, volume

Object = dict[str, Any]
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def decide(body: Object, nodes: list[Object]) -> Found | Unschedulable:
    return SearchedNodes(nodes=nodes).find(body)


def fits(body: Object, *nodes: Object) -> bool:
    return isinstance(decide(body, list(nodes)), Found)


def test_a_pod_goes_to_the_node_there_is():
    found = decide(pod(), [node()])

    assert isinstance(found, Found)
    assert found.node == "n1"


NOT_OURS: list[Object] = [
    {"spec": {"nodeName": "n1"}},
    {"spec": {"schedulerName": "mine"}},
    {"spec": {"schedulingGates": [{"name": "wait"}]}},
    {"status": {"phase": "Failed"}},
    {"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
]


@pytest.mark.parametrize("changes", NOT_OURS, ids=str)
def test_what_has_a_node_or_another_scheduler_or_a_gate_or_no_future_is_left_alone(changes: Object):
    assert not waits_for_a_node({**pod(), **changes})


SMALL = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "pods": "1"}
SAID: list[tuple[Object, list[Object], str]] = [
    ({}, [], "no nodes available to schedule pods"),
    ({}, [node(unschedulable=True)], "0/1 nodes are available: 1 node(s) were unschedulable."),
    ({}, [node(taints=[NOT_READY])], "0/1 nodes are available: 1 node(s) had untolerated taint(s)."),
    ({}, [node(ready=False)], "0/1 nodes are available: 1 node(s) were not ready."),
    (
        {"nodeSelector": {"disk": "ssd"}},
        [node(), node("n2", unschedulable=True), node("n3")],
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector.",
    ),
    (
        {"requests": {"cpu": "1001m", "memory": "2Gi", "ephemeral-storage": "2Gi", "example.com/gpu": "1"}},
        [node(allocatable=SMALL)],
        (
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient ephemeral-storage, "
            "1 Insufficient example.com/gpu, 1 Insufficient memory."
        ),
    ),
    ({}, [node(allocatable={**SMALL, "pods": "0"})], "0/1 nodes are available: 1 Too many pods."),
]


@pytest.mark.parametrize(("spec", "nodes", "message"), SAID, ids=[message for _, _, message in SAID])
def test_why_not_is_said_in_the_schedulers_words(spec: Object, nodes: list[Object], message: str):
    assert decide(pod(**spec), nodes) == Unschedulable(message)


def test_what_volumes_say_against_a_node_counts_like_everything_else():
    elsewhere = {"claims": [bound_claim()], "volumes": [volume(on="n2", phase="Bound")]}

    assert SearchedNodes(nodes=[node()], **elsewhere).message(pod("p", "c")) == (
        "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    )
    assert SearchedNodes(nodes=[node(), node("n2")], **elsewhere).message(pod("p", "c")) == "fits n2"


def test_a_refusal_of_all_nodes_has_no_count_and_failures_name_the_plugin():
    assert refusal_message(3, "it cannot be") == "0/3 nodes are available: it cannot be."
    assert write_failure_message("conflict") == 'running PreBind plugin "VolumeBinding": conflict'
    assert wait_failure_message("gone") == 'running PreBind plugin "VolumeBinding": binding volumes: gone'


TOLERATED: list[tuple[Object, Object, bool]] = [
    ({"operator": "Exists"}, {"key": "a", "effect": "NoSchedule"}, True),
    ({"key": "a", "operator": "Exists"}, {"key": "a", "value": "x", "effect": "NoExecute"}, True),
    ({"key": "a", "value": "x"}, {"key": "a", "value": "x", "effect": "NoSchedule"}, True),
    ({"key": "a", "value": "y"}, {"key": "a", "value": "x", "effect": "NoSchedule"}, False),
    ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}, False),
    ({"key": "b", "operator": "Exists"}, {"key": "a", "effect": "NoSchedule"}, False),
    ({"value": ""}, {"key": "a", "effect": "NoSchedule"}, False),
    ({"key": "b"}, {"key": "a", "effect": "PreferNoSchedule"}, True),
]


@pytest.mark.parametrize(("toleration", "taint", "expected"), TOLERATED)
def test_a_taint_forbids_the_node_unless_it_is_tolerated(toleration: Object, taint: Object, *, expected: bool):
    assert fits(pod(tolerations=[toleration]), node(taints=[taint])) == expected


def test_a_cordoned_node_takes_pods_that_tolerate_its_taint():
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}

    assert fits(pod(tolerations=[toleration]), node(unschedulable=True))


def required(*terms: Object) -> Object:
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": needed}}


CHOSEN: list[tuple[Object, bool]] = [
    ({"nodeSelector": {"zone": "a"}}, True),
    ({"nodeSelector": {"zone": "b"}}, False),
    (required({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}), True),
    (required({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), False),
    (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
    (required({}), False),
    (required({}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}), True),
    (required({"matchExpressions": [{"key": "zone", "operator": "Sometimes"}]}), False),
]


@pytest.mark.parametrize(("spec", "expected"), CHOSEN)
def test_a_pod_goes_only_where_it_wants_to(spec: Object, *, expected: bool):
    assert fits(pod(**spec), node(labels={"zone": "a"})) == expected


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_the_least_loaded_node_is_best_then_the_one_with_the_most_free_space():
    assert list(nodes_by_preference("u", {"a": 0.5, "b": 0.25}, {"a": 10})) == ["b", "a"]
    assert list(nodes_by_preference("u", {"a": 0.5, "b": 0.5}, {"a": 10, "b": 20})) == ["b", "a"]


def test_equal_nodes_are_taken_by_pod_so_that_pods_spread_and_a_retry_repeats_itself():
    loads = {f"n{number}": 0.0 for number in range(20)}
    reversed_loads = dict(reversed(loads.items()))

    orders = {uid: list(nodes_by_preference(uid, loads, {})) for uid in map(str, range(50))}
    assert orders == {uid: list(nodes_by_preference(uid, reversed_loads, {})) for uid in map(str, range(50))}
    assert len({order[0] for order in orders.values()}) > 10


def test_what_was_found_for_one_pod_does_not_hide_what_changed_for_the_next():
    s = SearchedNodes(nodes=[node(allocatable=SMALL)])
    body = pod(requests={"cpu": "1"})
    before = s.message(body)
    s.put("nodes", node(unschedulable=True))
    cordoned = s.message(body)
    s.put("nodes", node("n2", allocatable=SMALL))
    added = s.message(body)
    s.remove("nodes", "n2")
    s.remove("nodes", "n1")

    assert before == "fits n1"
    assert cordoned == "0/1 nodes are available: 1 node(s) were unschedulable."
    assert (added, s.message(body)) == ("fits n2", "no nodes available to schedule pods")


# ---- resources -------------------------------------------------------------------------------------------------------


def asking(*containers: Object, init: list[Object] | None = None, **spec: Any) -> Object:
    def with_requests(number: int, amounts: Object) -> Object:
        restart = {"restartPolicy": "Always"} if amounts.get("sidecar") else {}
        asked = {name: amount for name, amount in amounts.items() if name != "sidecar"}
        return {"name": f"c{number}", "resources": {"requests": asked}, **restart}

    return {
        "spec": {
            "containers": [with_requests(*one) for one in enumerate(containers)],
            "initContainers": [with_requests(*one) for one in enumerate(init or [])],
            **spec,
        }
    }


SUMS: list[tuple[str, Object, int]] = [
    ("containers add up", asking({"cpu": "1"}, {"cpu": "500m"}), 1500),
    ("of init containers the largest counts", asking({"cpu": "1"}, init=[{"cpu": "3"}, {"cpu": "2"}]), 3000),
    ("a small init container does not", asking({"cpu": "1"}, init=[{"cpu": "500m"}]), 1000),
    ("sidecars add up", asking({"cpu": "1"}, init=[{"cpu": "2", "sidecar": True}]), 3000),
    (
        "an init container beside a sidecar",
        asking({"cpu": "1"}, init=[{"cpu": "2", "sidecar": True}, {"cpu": "4"}]),
        6000,
    ),
    ("overhead is added", asking({"cpu": "1"}, overhead={"cpu": "250m"}), 1250),
    ("the pod's own requests replace the sum", asking({"cpu": "1"}, resources={"requests": {"cpu": "4"}}), 4000),
    ("a limit stands for a missing request", {"spec": {"containers": [{"resources": {"limits": {"cpu": "2"}}}]}}, 2000),
    ("what is no quantity is nothing", asking({"cpu": "many"}), 0),
]


@pytest.mark.parametrize(("body", "millis"), [row[1:] for row in SUMS], ids=[row[0] for row in SUMS])
def test_what_a_pod_requests_is_counted_as_kubernetes_does(body: Object, millis: int):
    assert requests_of(body).amounts.get("cpu", 0) == millis * 10**6


def test_a_node_is_full_to_the_last_millicpu_and_no_further():
    half = requests_of(asking({"cpu": "500m"}))
    allocatable = {"cpu": 10**9, "pods": 10 * 10**9}

    assert shortages(half, allocatable, used_by([half])) == ()
    assert shortages(half, allocatable, used_by([half, half])) == ("Insufficient cpu",)


def test_a_pod_without_requests_counts_in_the_load_so_that_such_pods_spread():
    nothing = requests_of(asking({}))
    allocatable = {"cpu": 4 * 10**9, "memory": 8 * 2**30 * 10**9}

    assert 0 < load(nothing, allocatable, used_by([])) < load(nothing, allocatable, used_by([nothing]))


def test_a_node_whose_kubelet_has_reported_nothing_has_no_limits():
    assert fits(pod(requests={"cpu": "1000"}), node())


NODES = st.lists(
    st.builds(
        node,
        name=st.sampled_from(["a", "b", "c"]),
        ready=st.booleans(),
        unschedulable=st.booleans(),
        taints=st.lists(st.just(NOT_READY), max_size=1),
    ),
    max_size=3,
    unique_by=lambda made: made["metadata"]["name"],
)


@given(NODES, st.randoms())
def test_the_decision_does_not_depend_on_the_order_of_nodes(nodes: list[Object], random: Any):
    shuffled = list(nodes)
    random.shuffle(shuffled)

    assert decide(pod(), nodes) == decide(pod(), shuffled)
