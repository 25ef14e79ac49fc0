"""What of drivers stands on a Node and in its CSINode, whatever stood there before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.node import csi_node_rules as rules
from onenode.kubelet.node.csi_node_rules import NODE_IDS_ANNOTATION, CannotStand, DriverNodeInfo
from orlop.kube import objects
from orlop.kube.patch_application import apply_json_patch
from orlop.kube.patches import JsonPatch

NAMES = st.sampled_from(["a.e", "b.e", "c.e"])
TOPOLOGY = st.dictionaries(st.sampled_from(["zone", "rack", "host"]), st.sampled_from(["1", "2"]), max_size=3)
FACTS = st.builds(
    DriverNodeInfo,
    node_id=st.sampled_from(["n1", "n2"]),
    topology=TOPOLOGY.map(lambda segments: tuple(sorted(segments.items()))),
    max_volumes=st.sampled_from([0, 1, 7, 2**31 - 1, 2**31, 2**62]),
)
MAPS = st.none() | st.dictionaries(st.sampled_from(["zone", "x"]), st.sampled_from(["1", "2"]), max_size=2)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.none() | st.dictionaries(NAMES, st.sampled_from(["n1", "n3"]), max_size=3))
    annotations = draw(MAPS)
    if ids is not None:
        annotations = {**(annotations or {}), NODE_IDS_ANNOTATION: json.dumps(ids)}
    metadata = {"name": "n", "uid": "u", "labels": draw(MAPS), "annotations": annotations}
    return {"metadata": {field: value for field, value in metadata.items() if value is not None}}


def patched(node: dict[str, Any], patch: JsonPatch | None) -> dict[str, Any]:
    return node if patch is None else apply_json_patch(node, patch.body())


def others(entries: Any, driver: str) -> Any:
    return {key: value for key, value in entries.items() if key != driver}


@given(nodes(), NAMES, FACTS)
def test_a_driver_stands_on_the_node_with_all_else_as_it_was_or_collides(node: Any, driver: str, facts: DriverNodeInfo):
    labels = objects.labels(node)
    if any(labels.get(key, value) != value for key, value in facts.topology):
        with pytest.raises(CannotStand, match="detected topology value collision"):
            rules.node_patch(node, driver, facts)
        return
    after = patched(node, rules.node_patch(node, driver, facts))

    assert rules.node_ids(after)[driver] == facts.node_id
    assert others(rules.node_ids(after), driver) == others(rules.node_ids(node), driver)
    assert objects.labels(after) == {**labels, **dict(facts.topology)}
    assert others(objects.annotations(after), NODE_IDS_ANNOTATION) == others(
        objects.annotations(node), NODE_IDS_ANNOTATION
    )
    assert rules.node_patch(after, driver, facts) is None


@given(nodes(), NAMES)
def test_a_driver_that_goes_takes_its_entry_and_nothing_else(node: Any, driver: str):
    after = patched(node, rules.node_patch_without(node, driver))

    assert rules.node_ids(after) == others(rules.node_ids(node), driver)
    assert objects.labels(after) == objects.labels(node)
    assert objects.annotations(after).get(NODE_IDS_ANNOTATION) != "{}" or rules.node_ids(node) == {}
    assert rules.node_patch_without(after, driver) is None


@given(st.lists(st.tuples(NAMES, FACTS | st.none()), max_size=8))
def test_a_csinode_has_the_last_word_of_each_driver(history: list[tuple[str, DriverNodeInfo | None]]):
    csi_node = rules.new_csi_node({"metadata": {"name": "n", "uid": "u"}})
    for driver, facts in history:
        changed = (
            rules.without_driver(csi_node, driver) if facts is None else rules.with_driver(csi_node, driver, facts)
        )
        csi_node = changed or csi_node
    last = {driver: facts for driver, facts in dict(history).items() if facts is not None}
    entries = {entry["name"]: entry for entry in csi_node["spec"]["drivers"]}

    assert set(entries) == set(last)
    for driver, facts in last.items():
        assert entries[driver]["nodeID"] == facts.node_id
        assert entries[driver].get("topologyKeys", []) == [key for key, _ in facts.topology]
        count = entries[driver].get("allocatable", {}).get("count", 0)
        assert count == min(facts.max_volumes, 2**31 - 1)
        assert rules.with_driver(csi_node, driver, facts) is None


@given(st.lists(st.tuples(NAMES, FACTS), max_size=4), NAMES, st.integers(-1, 10))
def test_a_new_limit_changes_nothing_but_the_limit(history: list[tuple[str, DriverNodeInfo]], driver: str, limit: int):
    csi_node = rules.new_csi_node({"metadata": {"name": "n", "uid": "u"}})
    for name, facts in history:
        csi_node = rules.with_driver(csi_node, name, facts) or csi_node
    after = rules.with_allocatable(csi_node, driver, limit) or csi_node

    plain = [{key: value for key, value in entry.items() if key != "allocatable"} for entry in after["spec"]["drivers"]]
    before = [
        {key: value for key, value in entry.items() if key != "allocatable"} for entry in csi_node["spec"]["drivers"]
    ]
    assert plain == before
    limits = {entry["name"]: entry.get("allocatable", {}).get("count", 0) for entry in after["spec"]["drivers"]}
    assert driver not in limits or limits[driver] == max(0, limit)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '"x"', "[" * 100_000])
def test_an_annotation_that_cannot_be_read_is_somebody_else_s_and_stays(text: str):
    node = {"metadata": {"name": "n", "annotations": {NODE_IDS_ANNOTATION: text}}}

    with pytest.raises(CannotStand, match="mend it"):
        rules.node_patch(node, "a.e", DriverNodeInfo("n1"))


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_an_annotation_that_says_nothing_is_filled(text: str):
    node = {"metadata": {"name": "n", "annotations": {NODE_IDS_ANNOTATION: text}}}

    assert rules.node_ids(patched(node, rules.node_patch(node, "a.e", DriverNodeInfo("n1")))) == {"a.e": "n1"}


def test_a_driver_without_a_node_id_does_not_stand_anywhere():
    with pytest.raises(CannotStand, match="driverNodeID must not be empty"):
        rules.node_patch({"metadata": {"name": "n"}}, "a.e", DriverNodeInfo(""))


def test_empty_fields_that_a_server_writes_do_not_make_an_entry_another():
    entry = {"name": "a.e", "nodeID": "n1", "topologyKeys": None, "allocatable": {}}
    csi_node = {"metadata": {"name": "n"}, "spec": {"drivers": [entry]}}

    assert rules.with_driver(csi_node, "a.e", DriverNodeInfo("n1")) is None
