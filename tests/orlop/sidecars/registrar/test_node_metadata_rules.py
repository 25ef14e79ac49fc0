"""What stands on the Node after the patch: the driver's own, and everything of everybody else as it was."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch
from orlop.sidecars.registrar.node_metadata_rules import (
    NODE_IDS_ANNOTATION,
    AnnotationEntry,
    DesiredMetadata,
    UnreadableAnnotation,
    merged_annotation,
    node_change,
    read_annotation,
)

DRIVERS = st.sampled_from(["a.example.com", "b.example.com", "c.example.com"]) | st.text(max_size=5)
MAPS = st.dictionaries(DRIVERS, st.text(max_size=8) | st.none(), max_size=4)
SPELLINGS = st.builds(
    lambda found, indent, ascii_only: json.dumps(found, indent=indent, ensure_ascii=ascii_only),
    MAPS,
    st.sampled_from([None, 2]),
    st.booleans(),
)
ENTRIES = st.builds(AnnotationEntry, DRIVERS, st.text(min_size=1, max_size=8))


def a_node(annotation: str | None = None, **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "node-1", "uid": "u1"}
    if annotation is not None:
        metadata["annotations"] = {NODE_IDS_ANNOTATION: annotation, "other": "kept"}
    if labels:
        metadata["labels"] = {key.replace("__", "/"): value for key, value in labels.items()}
    return {"metadata": metadata}


def applied(node: dict[str, Any], wish: DesiredMetadata) -> dict[str, Any]:
    change = node_change(node, wish)
    assert change.problems == ()
    return apply_json_patch(node, change.patch.body()) if change.patch else node  # type: ignore[no-any-return]


# ---- the annotation --------------------------------------------------------------------------------------------------


@given(st.none() | SPELLINGS, ENTRIES)
def test_the_entry_is_there_and_every_other_driver_s_is_as_it_was(present: str | None, entry: AnnotationEntry):
    after = read_annotation(merged_annotation(present, entry))

    assert after == {**read_annotation(present), entry.driver: entry.node_id}


@given(st.none() | SPELLINGS, ENTRIES)
def test_written_twice_is_written_once(present: str | None, entry: AnnotationEntry):
    once = merged_annotation(present, entry)

    assert merged_annotation(once, entry) == once
    assert node_change(a_node(once), DesiredMetadata(entry)).patch is None


@given(SPELLINGS, ENTRIES, ENTRIES)
def test_two_drivers_may_write_in_any_order(present: str, one: AnnotationEntry, other: AnnotationEntry):
    there = read_annotation(merged_annotation(merged_annotation(present, one), other))
    back = read_annotation(merged_annotation(merged_annotation(present, other), one))

    assert one.driver == other.driver or there == back


@given(MAPS, ENTRIES)
def test_what_says_so_already_is_left_in_its_own_spelling(found: dict[str, str | None], entry: AnnotationEntry):
    present = json.dumps({**found, entry.driver: entry.node_id}, indent=3)

    assert merged_annotation(present, entry) == present


@given(MAPS, ENTRIES, ENTRIES, st.sampled_from(["", "!"]))
def test_a_former_name_goes_only_while_it_is_as_we_wrote_it(
    found: dict[str, str | None], entry: AnnotationEntry, former: AnnotationEntry, changed: str
):
    before = {**found, former.driver: former.node_id + changed}
    after = read_annotation(merged_annotation(json.dumps(before), entry, (former,)))

    assert after[entry.driver] == entry.node_id
    if former.driver != entry.driver:
        assert (former.driver in after) is bool(changed)
    assert {key: value for key, value in after.items() if key not in {entry.driver, former.driver}} == {
        key: value for key, value in before.items() if key not in {entry.driver, former.driver}
    }


UNREADABLE = ["x", "{", "[]", '"a"', "1", '{"a":1}', '{"a":{}}', '{"a":["b"]}', "NaN", "[" * 100_000]


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:10])
def test_what_cannot_be_read_is_somebody_s_and_stays(text: str):
    with pytest.raises(UnreadableAnnotation, match=r"csi\.volume\.kubernetes\.io/nodeid"):
        read_annotation(text)

    change = node_change(a_node(text), DesiredMetadata(AnnotationEntry("a", "1"), (("zone", "a"),)))
    assert len(change.problems) == 1
    assert change.patch is not None  # the labels are another matter
    assert apply_json_patch(a_node(text), change.patch.body())["metadata"]["labels"] == {"zone": "a"}


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str):
    with suppress(UnreadableAnnotation):
        read_annotation(text)


@pytest.mark.parametrize("text", [None, "", "null", "{}"])
def test_nothing_is_read_as_nothing(text: str | None):
    assert json.loads(merged_annotation(text, AnnotationEntry("a", "1"))) == {"a": "1"}


def test_it_is_spelled_as_kubelet_spells_it():
    assert merged_annotation('{"b": "2"}', AnnotationEntry("a", "1")) == '{"a":"1","b":"2"}'


def test_a_driver_without_a_node_id_is_not_annotated():
    change = node_change(a_node(), DesiredMetadata(AnnotationEntry("a", "")))

    assert change.patch is None
    assert "returned no node id" in change.problems[0]


# ---- labels ----------------------------------------------------------------------------------------------------------


def test_topology_becomes_labels_and_those_of_others_stay():
    after = applied(a_node(role="db"), DesiredMetadata(labels=(("example.com/zone", "a"), ("rack", "1"))))

    assert after["metadata"]["labels"] == {"role": "db", "example.com/zone": "a", "rack": "1"}


def test_a_node_without_labels_or_annotations_gets_them():
    after = applied(a_node(), DesiredMetadata(AnnotationEntry("a", "1"), (("zone", "a"), ("rack", "1"))))

    assert after["metadata"]["labels"] == {"zone": "a", "rack": "1"}
    assert after["metadata"]["annotations"] == {NODE_IDS_ANNOTATION: '{"a":"1"}'}


def test_a_label_with_another_value_refuses_all_of_the_driver_s_labels_in_kubelet_s_words():
    node = a_node(zone="b")
    change = node_change(node, DesiredMetadata(AnnotationEntry("a", "1"), (("rack", "1"), ("zone", "a"))))

    assert change.problems == (
        'detected topology value collision: driver reported "zone":"a" but existing label is "zone":"b"',
    )
    assert change.patch is not None
    after = apply_json_patch(node, change.patch.body())
    assert after["metadata"]["labels"] == {"zone": "b"}
    assert after["metadata"]["annotations"] == {NODE_IDS_ANNOTATION: '{"a":"1"}'}


@pytest.mark.parametrize(("key", "value"), [("a b", "x"), ("/x", "x"), ("zone", "a b"), ("zone", "x" * 64)])
def test_a_topology_that_can_be_no_label_is_named(key: str, value: str):
    change = node_change(a_node(), DesiredMetadata(labels=((key, value),)))

    assert change.patch is None
    assert f"the topology {key}={value} is not a valid label" in change.problems[0]


# ---- the patch -------------------------------------------------------------------------------------------------------

WISHES = st.builds(
    DesiredMetadata,
    st.none() | ENTRIES,
    st.dictionaries(st.sampled_from(["zone", "rack", "x/y"]), st.sampled_from(["a", "b"])).map(
        lambda found: tuple(sorted(found.items()))
    ),
)
NODES = st.builds(
    lambda annotation, labels: a_node(annotation, **labels),
    st.none() | SPELLINGS,
    st.dictionaries(st.sampled_from(["zone", "rack", "role"]), st.sampled_from(["a", "b"])),
)


@given(NODES, WISHES)
def test_the_patch_is_made_once_and_changes_nothing_it_was_given(node: dict[str, Any], wish: DesiredMetadata):
    before = deepcopy(node)
    change = node_change(node, wish)
    assert node == before
    if change.patch is None:
        return

    after = apply_json_patch(node, change.patch.body())
    assert node_change(after, wish).patch is None
    kept = dict(before["metadata"].get("labels", {}))
    assert {key: after["metadata"].get("labels", {}).get(key) for key in kept} == kept


@given(NODES, WISHES, WISHES)
def test_a_patch_made_before_somebody_else_wrote_the_same_does_not_apply_or_undoes_nothing(
    node: dict[str, Any], mine: DesiredMetadata, others: DesiredMetadata
):
    my_patch, their_patch = node_change(node, mine).patch, node_change(node, others).patch
    if my_patch is None or their_patch is None:
        return
    theirs = apply_json_patch(node, their_patch.body())
    try:
        both = apply_json_patch(theirs, my_patch.body())
    except PatchDoesNotApply:
        return
    # Applied after all: then each wrote another part, and both stand there.
    assert node_change(both, others).patch is None
    assert node_change(both, mine).patch is None


def test_a_node_of_the_same_name_is_not_the_node_that_was_read():
    change = node_change(a_node(), DesiredMetadata(AnnotationEntry("a", "1")))
    assert change.patch is not None

    with pytest.raises(PatchDoesNotApply):
        apply_json_patch({"metadata": {"name": "node-1", "uid": "u2"}}, change.patch.body())
