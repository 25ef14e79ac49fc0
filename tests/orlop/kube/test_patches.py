"""Patches change one thing, fail when that thing has changed meanwhile, and touch nothing that others wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import objects, patches
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch, apply_merge_patch, equal
from orlop.kube.patches import JsonPatch, merge_patch
from support.random_tests import FEWER

OURS = "external-attacher/csi-orlop-dev"
OTHERS = st.sampled_from(["a.io/x", "b.io/y", "kubernetes.io/pv-protection"])
LISTS = st.none() | st.lists(OTHERS | st.just(OURS), max_size=4)
MISSING = object()


def pv(**metadata: Any) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if value is not MISSING}
    return {"metadata": {"name": "pv", "uid": "u-1", "resourceVersion": "7", **kept}, "spec": {"x": 1}}


def apply(patch: JsonPatch | None, obj: dict[str, Any]) -> dict[str, Any]:
    return obj if patch is None else apply_json_patch(obj, patch.body())


# ---- finalizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [MISSING, None, []], ids=["missing", "null", "empty"])
def test_a_first_finalizer_is_added_wherever_there_is_no_list(present: Any):
    obj = pv(finalizers=present)
    assert objects.finalizers(apply(patches.add_finalizer(obj, OURS), obj)) == (OURS,)
    assert patches.remove_finalizer(obj, OURS) is None


@FEWER
@given(LISTS)
def test_adding_a_finalizer_puts_it_after_all_others(present: list[str] | None):
    obj = pv(finalizers=present)
    added = apply(patches.add_finalizer(obj, OURS), obj)
    before = objects.finalizers(obj)
    assert objects.finalizers(added) == (before if OURS in before else (*before, OURS))


@FEWER
@given(LISTS)
def test_removing_a_finalizer_leaves_all_others_in_their_order(present: list[str] | None):
    obj = pv(finalizers=present)
    removed = apply(patches.remove_finalizer(obj, OURS), obj)
    assert objects.finalizers(removed) == tuple(one for one in objects.finalizers(obj) if one != OURS)


@FEWER
@given(st.lists(OTHERS, unique=True))
def test_adding_and_removing_a_finalizer_gives_the_object_back(present: list[str]):
    obj = pv(finalizers=present or MISSING)
    added = apply(patches.add_finalizer(obj, OURS), obj)
    assert apply(patches.remove_finalizer(added, OURS), added) == obj


@FEWER
@given(LISTS, LISTS)
def test_adding_a_finalizer_fails_when_the_list_has_changed_since_it_was_read(
    seen: list[str] | None, meanwhile: list[str] | None
):
    patch, changed = patches.add_finalizer(pv(finalizers=seen), OURS), pv(finalizers=meanwhile)
    if patch is None or seen == meanwhile:
        apply(patch, changed)
    else:
        with pytest.raises(PatchDoesNotApply):
            apply(patch, changed)


@FEWER
@given(st.lists(OTHERS, unique=True), st.lists(OTHERS, unique=True), st.data())
def test_removing_a_finalizer_removes_it_or_fails_whatever_became_of_the_others(
    seen: list[str], meanwhile: list[str], data: st.DataObject
):
    before = [*seen]
    before.insert(data.draw(st.integers(0, len(seen))), OURS)
    now = [*meanwhile]
    now.insert(data.draw(st.integers(0, len(meanwhile))), OURS)
    patch, changed = patches.remove_finalizer(pv(finalizers=before), OURS), pv(finalizers=now)
    try:
        removed = apply(patch, changed)
    except PatchDoesNotApply:
        assert before != now
    else:
        assert objects.finalizers(removed) == tuple(meanwhile)


def test_a_finalizer_is_removed_although_another_one_behind_it_was_removed_meanwhile():
    patch = patches.remove_finalizer(pv(finalizers=[OURS, "kubernetes.io/pv-protection"]), OURS)
    assert objects.finalizers(apply(patch, pv(finalizers=[OURS]))) == ()


def test_no_other_finalizer_is_removed_from_the_place_of_ours():
    patch = patches.remove_finalizer(pv(finalizers=["a.io/x", OURS, "b.io/y"]), OURS)
    with pytest.raises(PatchDoesNotApply):
        apply(patch, pv(finalizers=[OURS, "b.io/y"]))


def test_nothing_is_to_be_done_where_the_finalizer_is_as_it_should_be():
    assert patches.add_finalizer(pv(finalizers=["a.io/x", OURS]), OURS) is None
    assert patches.remove_finalizer(pv(finalizers=["a.io/x"]), OURS) is None


def test_a_finalizer_patch_applied_a_second_time_fails_instead_of_adding_two():
    obj = pv(finalizers=["a.io/x"])
    patch = patches.add_finalizer(obj, OURS)
    with pytest.raises(PatchDoesNotApply):
        apply(patch, apply(patch, obj))


EVERY_PATCH = [
    lambda obj: patches.add_finalizer(obj, "new.io/x"),
    lambda obj: patches.remove_finalizer(obj, OURS),
    lambda obj: patches.set_annotation(obj, "k", "new"),
    lambda obj: patches.unset_annotation(obj, "k"),
    lambda obj: patches.set_label(obj, "k", "new"),
    lambda obj: patches.unset_label(obj, "k"),
    lambda obj: patches.guarded_by_version(obj).replace("spec", "x", value=2),
]


@pytest.mark.parametrize("make", EVERY_PATCH)
def test_no_patch_meets_another_object_of_the_same_name(make):
    seen = pv(finalizers=[OURS], annotations={"k": "v"}, labels={"k": "v"})
    reborn = copy.deepcopy(seen)
    reborn["metadata"]["uid"] = "u-2"
    assert apply(make(seen), seen) != seen
    with pytest.raises(PatchDoesNotApply):
        apply(make(seen), reborn)


def test_a_patch_guarded_by_the_version_fails_after_any_change():
    patch = patches.guarded_by_version(pv()).replace("spec", "x", value=2)
    assert apply(patch, pv())["spec"] == {"x": 2}
    with pytest.raises(PatchDoesNotApply):
        apply(patch, pv(resourceVersion="8"))


def test_an_object_without_a_uid_is_patched_without_that_guard():
    obj = {"metadata": {"name": "x"}}
    assert apply(patches.add_finalizer(obj, OURS), obj) == {"metadata": {"name": "x", "finalizers": [OURS]}}


# ---- annotations and labels ------------------------------------------------------------------------------------------

FIELDS = [
    ("annotations", patches.set_annotation, patches.unset_annotation),
    ("labels", patches.set_label, patches.unset_label),
]
ENTRY_KEYS = st.sampled_from(["k", "a.io/k~1", "~", "x/y"])
ENTRIES = st.just(MISSING) | st.none() | st.dictionaries(ENTRY_KEYS, st.sampled_from(["", "1"]), max_size=3)


@pytest.mark.parametrize(("field", "set_entry", "unset_entry"), FIELDS)
@FEWER
@given(entries=ENTRIES, key=ENTRY_KEYS, value=st.sampled_from(["", "1", "2"]))
def test_one_entry_is_set_or_taken_out_and_no_other_touched(field, set_entry, unset_entry, entries, key, value):
    obj = pv(**{field: entries})
    before = obj["metadata"].get(field) or {}
    assert (apply(set_entry(obj, key, value), obj)["metadata"].get(field) or {}) == {**before, key: value}
    without = {one: other for one, other in before.items() if one != key}
    assert (apply(unset_entry(obj, key), obj)["metadata"].get(field) or {}) == without
    assert (set_entry(obj, key, value) is None) == (before.get(key) == value)
    assert (unset_entry(obj, key) is None) == (key not in before)


@pytest.mark.parametrize(("field", "set_entry", "unset_entry"), FIELDS)
@FEWER
@given(seen=ENTRIES, meanwhile=st.dictionaries(ENTRY_KEYS, st.sampled_from(["", "1", "3"]), min_size=1, max_size=3))
def test_an_entry_that_changed_meanwhile_is_not_overwritten(field, set_entry, unset_entry, seen, meanwhile):
    obj, changed = pv(**{field: seen}), pv(**{field: meanwhile})
    before = obj["metadata"].get(field) or {}
    for patch in (set_entry(obj, "k", "2"), unset_entry(obj, "k")):
        if patch is None:
            continue
        try:
            after = apply(patch, changed)
        except PatchDoesNotApply:
            continue
        assert before.get("k") == meanwhile.get("k")
        assert {**after["metadata"][field], "k": None} == {**meanwhile, "k": None}


def test_an_entry_others_added_meanwhile_does_not_stand_in_the_way():
    patch = patches.set_annotation(pv(annotations={"a": "1"}), "k", "v")
    assert apply(patch, pv(annotations={"a": "1", "b": "2"}))["metadata"]["annotations"] == {
        "a": "1",
        "b": "2",
        "k": "v",
    }


def test_the_body_of_a_patch_is_what_goes_on_the_wire():
    patch = patches.set_annotation(pv(annotations={}), "a.io/k~", "v")
    assert patch is not None
    assert patch.body() == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "test", "path": "/metadata/annotations/a.io~1k~0", "value": None},
        {"op": "add", "path": "/metadata/annotations/a.io~1k~0", "value": "v"},
    ]
    assert not JsonPatch()
    assert patch


# ---- merge patches ---------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return value


@FEWER
@given(OBJECTS, OBJECTS)
def test_the_merge_patch_between_two_objects_makes_the_one_the_other(before: dict[str, Any], after: dict[str, Any]):
    result = apply_merge_patch(before, merge_patch(before, after))
    assert equal(without_nulls(result), without_nulls(after))


@FEWER
@given(OBJECTS)
def test_nothing_is_patched_between_an_object_and_itself(obj: dict[str, Any]):
    assert merge_patch(obj, copy.deepcopy(obj)) == {}


@FEWER
@given(OBJECTS, OBJECTS, OBJECTS)
def test_a_merge_patch_touches_no_member_that_was_the_same_before_and_after(before, after, other):
    patch = merge_patch(before, after)
    unchanged = {key for key in {*before, *after} if equal(before.get(key), after.get(key))}
    assert not unchanged & patch.keys()
    result = apply_merge_patch(other, patch)
    assert all(equal(result.get(key), other.get(key)) for key in unchanged)


def test_true_becoming_one_is_a_change():
    assert merge_patch({"a": True, "b": 1}, {"a": 1, "b": True}) == {"a": 1, "b": True}


def test_a_merge_patch_says_only_what_differs():
    before = {"spec": {"a": 1, "list": [1, 2]}, "status": {"phase": "x"}, "gone": {"k": 1}}
    after = {"spec": {"a": 1, "list": [2]}, "status": {"phase": "x", "n": {"k": None, "l": [None]}}}
    assert merge_patch(before, after) == {"spec": {"list": [2]}, "status": {"n": {"l": [None]}}, "gone": None}
