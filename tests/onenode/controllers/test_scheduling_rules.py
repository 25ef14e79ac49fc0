"""Which pod goes to which node, and what is said when it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers.scheduling_rules import Bind, NotOurs, Unschedulable, decide, waits_for_a_node

Object = dict[str, Any]
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def node(name: str = "n1", *, ready: bool = True, labels: Object | None = None, **spec: Any) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"conditions": conditions}}


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"containers": [], **spec}}


def test_a_pod_goes_to_the_node_there_is():
    assert decide(pod(), [node()]) == Bind("n1")


def test_of_several_nodes_the_first_that_fits_is_taken_however_they_are_listed():
    nodes = [node("c"), node("b"), node("a", unschedulable=True)]

    assert decide(pod(), nodes) == decide(pod(), nodes[::-1]) == Bind("b")


NOT_OURS: list[Object] = [
    {"spec": {"nodeName": "n1"}},
    {"spec": {"schedulerName": "mine"}},
    {"spec": {"schedulingGates": [{"name": "wait"}]}},
    {"status": {"phase": "Failed"}},
    {"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
]


@pytest.mark.parametrize("changes", NOT_OURS, ids=str)
def test_what_has_a_node_or_another_scheduler_or_a_gate_or_no_future_is_left_alone(changes: Object):
    found = {**pod(), **changes}

    assert not waits_for_a_node(found)
    assert decide(found, [node()]) == NotOurs()


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
]


@pytest.mark.parametrize(("spec", "nodes", "message"), SAID, ids=[message for _, _, message in SAID])
def test_why_not_is_said_in_the_schedulers_words(spec: Object, nodes: list[Object], message: str):
    assert decide(pod(**spec), nodes) == Unschedulable(message)


def test_what_volumes_say_against_a_node_counts_like_everything_else():
    against = {"n1": ("node(s) didn't match PersistentVolume's node affinity",)}

    assert decide(pod(), [node()], against) == Unschedulable(
        "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
    )
    assert decide(pod(), [node(), node("n2")], against) == Bind("n2")


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


@pytest.mark.parametrize(("toleration", "taint", "fits"), TOLERATED)
def test_a_taint_forbids_the_node_unless_it_is_tolerated(toleration: Object, taint: Object, *, fits: bool):
    found = decide(pod(tolerations=[toleration]), [node(taints=[taint])])

    assert isinstance(found, Bind) == fits


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


@pytest.mark.parametrize(("spec", "fits"), CHOSEN)
def test_a_pod_goes_only_where_it_wants_to(spec: Object, *, fits: bool):
    assert isinstance(decide(pod(**spec), [node(labels={"zone": "a"})]), Bind) == fits


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
