"""A strategic merge patch makes of an object what Kubernetes makes of it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.schema.json_values import copied
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.verbs.merge_rules import MergeRefused, apply
from onenode.apiserver.verbs.order_rules import KeyedItems, in_order
from support.api.kube_patches import PatchMaker
from support.processes.kubectl_local import KUBECTL, patched_by_kubectl

SCHEMAS = Schemas.load()
KINDS = [
    ("v1", "Pod"),
    ("v1", "Node"),
    ("v1", "PersistentVolumeClaim"),
    ("apps/v1", "Deployment"),
    ("v1", "ServiceAccount"),
    ("storage.k8s.io/v1", "CSINode"),
]
SEEDS = st.integers(min_value=0, max_value=2**32)
# kubectl takes its time to start: 10 objects with each patch, and few patches.
PATCHES_FOR_KUBECTL = 400 if os.environ.get("ORLOP_SOAK") else 6


def patched(kind: tuple[str, str], original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return apply(SCHEMAS, SCHEMAS.kind(*kind), original, patch)


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def patched_pod(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return patched(("v1", "Pod"), original, {"spec": patch})["spec"]


CONTAINERS = [{"name": "a", "image": "x", "env": [{"name": "A", "value": "1"}]}, {"name": "b", "image": "y"}]


def test_a_field_of_the_patch_replaces_and_null_takes_away():
    made = patched_pod(pod(nodeName="n", hostname="h"), {"nodeName": "m", "hostname": None, "subdomain": None})

    assert made == {"nodeName": "m"}


def test_objects_are_merged_field_by_field():
    made = patched(("v1", "Pod"), {"metadata": {"labels": {"a": "1", "b": "2"}}}, {"metadata": {"labels": {"b": "3"}}})

    assert made == {"metadata": {"labels": {"a": "1", "b": "3"}}}


def test_items_are_merged_by_their_key_and_new_ones_come_first():
    made = patched_pod(
        pod(containers=CONTAINERS),
        {"containers": [{"name": "c", "image": "z"}, {"name": "a", "env": [{"name": "B", "value": "2"}]}]},
    )

    assert [each["name"] for each in made["containers"]] == ["c", "a", "b"]
    assert made["containers"][1] == {
        "name": "a",
        "image": "x",
        "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}],
    }


def test_a_list_without_a_key_is_replaced_whole():
    made = patched_pod(pod(tolerations=[{"key": "a"}, {"key": "b"}]), {"tolerations": [{"key": "c"}]})

    assert made == {"tolerations": [{"key": "c"}]}


def test_finalizers_are_a_set():
    original = {"metadata": {"finalizers": ["a/b", "c/d"]}}

    made = patched(("v1", "Pod"), original, {"metadata": {"finalizers": ["e/f", "a/b"]}})

    assert sorted(made["metadata"]["finalizers"]) == ["a/b", "c/d", "e/f"]


def test_values_are_taken_out_of_a_set_by_name():
    original = {"metadata": {"finalizers": ["a/b", "c/d"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b", "not/there"], "finalizers": ["e/f"]}}

    made = patched(("v1", "Pod"), original, patch)

    assert sorted(made["metadata"]["finalizers"]) == ["c/d", "e/f"]


def test_an_item_is_deleted_by_its_key():
    made = patched_pod(pod(containers=CONTAINERS), {"containers": [{"name": "a", "$patch": "delete"}]})

    assert made == {"containers": [CONTAINERS[1]]}


def test_a_list_is_replaced_by_directive():
    made = patched_pod(pod(containers=CONTAINERS), {"containers": [{"$patch": "replace"}, {"name": "c"}]})

    assert made == {"containers": [{"name": "c"}]}


def test_an_object_is_replaced_or_emptied_by_directive():
    original = pod(securityContext={"runAsUser": 1, "fsGroup": 2})

    assert patched_pod(original, {"securityContext": {"$patch": "replace", "fsGroup": 3}}) == {
        "securityContext": {"fsGroup": 3}
    }
    assert patched_pod(original, {"securityContext": {"$patch": "delete"}}) == {"securityContext": {}}


def test_a_volume_of_a_deployment_turns_from_empty_dir_into_config_map():
    template = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    deployment = {"spec": {"template": template}}
    volume = {"name": "v", "$retainKeys": ["configMap", "name"], "configMap": {"name": "c"}}
    patch = {"spec": {"template": {"spec": {"$setElementOrder/volumes": [{"name": "v"}], "volumes": [volume]}}}}

    made = patched(("apps/v1", "Deployment"), deployment, patch)

    assert made["spec"]["template"]["spec"]["volumes"] == [{"name": "v", "configMap": {"name": "c"}}]


def test_without_retained_keys_a_volume_has_both_sources():
    made = patched_pod(pod(volumes=[{"name": "v", "emptyDir": {}}]), {"volumes": [{"name": "v", "configMap": {}}]})

    assert made == {"volumes": [{"name": "v", "emptyDir": {}, "configMap": {}}]}


def test_the_strategy_of_a_deployment_loses_what_is_not_retained():
    original = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}

    assert patched(("apps/v1", "Deployment"), original, patch) == {"spec": {"strategy": {"type": "Recreate"}}}


def test_a_patch_of_one_condition_leaves_the_others():
    conditions = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}

    made = patched(("v1", "Node"), {"status": {"conditions": conditions}}, patch)

    assert made["status"]["conditions"] == [{"type": "Ready", "status": "False"}, conditions[1]]


def test_an_order_puts_the_named_items_in_it_and_leaves_the_others_where_they_were():
    original = pod(containers=[{"name": name} for name in "abcd"])

    made = patched_pod(original, {"$setElementOrder/containers": [{"name": "d"}, {"name": "b"}]})

    assert [each["name"] for each in made["containers"]] == ["a", "c", "d", "b"]


def test_with_an_order_a_new_item_stands_where_a_deleted_one_stood():
    original = pod(containers=[{"name": name} for name in "abd"])
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c"}, {"name": "d", "$patch": "delete"}, {"name": "a"}],
    }

    assert [each["name"] for each in patched_pod(original, patch)["containers"]] == ["b", "c", "a"]


@pytest.mark.parametrize("names", ["ab", "a", "", "abz", "zab"])
def test_an_order_that_is_the_order_already_changes_nothing(names: str):
    original = pod(containers=CONTAINERS)

    assert patched_pod(original, {"$setElementOrder/containers": [{"name": n} for n in names]}) == original["spec"]


def test_an_order_for_a_list_that_is_not_there_changes_nothing():
    assert patched_pod(pod(), {"$setElementOrder/volumes": [{"name": "v"}]}) == {}


def test_an_order_stands_beside_retained_keys_though_it_is_none_of_them():
    patch = {
        "$retainKeys": ["containers"],
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "a", "image": "z"}],
    }

    made = patched_pod(pod(containers=CONTAINERS, hostname="h"), patch)

    assert made == {"containers": [CONTAINERS[1], {**CONTAINERS[0], "image": "z"}]}


def test_values_to_delete_stand_beside_retained_keys_though_they_are_none_of_them():
    original = {"metadata": {"finalizers": ["a/b", "c/d"], "labels": {"a": "1"}}}
    patch = {"metadata": {"$retainKeys": ["finalizers"], "$deleteFromPrimitiveList/finalizers": ["a/b"]}}

    assert patched(("v1", "Pod"), original, patch) == {"metadata": {"finalizers": ["c/d"]}}


def test_a_list_that_is_not_retained_goes_though_the_patch_orders_it():
    patch = {"$retainKeys": ["hostname"], "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}

    assert patched_pod(pod(containers=CONTAINERS, hostname="h"), patch) == {"hostname": "h"}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"$setElementOrder/finalizers": ["d/d", "b/b"]}, ["a/a", "c/c", "d/d", "b/b"]),
        ({"$setElementOrder/finalizers": ["d/d", "e/e"], "finalizers": ["e/e"]}, ["a/a", "b/b", "c/c", "d/d", "e/e"]),
        ({"$setElementOrder/finalizers": ["e/e", "a/a"], "finalizers": ["e/e"]}, ["e/e", "a/a", "b/b", "c/c", "d/d"]),
        (
            {"$setElementOrder/finalizers": ["c/c", "a/a"], "$deleteFromPrimitiveList/finalizers": ["b/b", "d/d"]},
            ["c/c", "a/a"],
        ),
    ],
)
def test_an_order_puts_plain_values_in_it_too(patch: dict[str, Any], expected: list[str]):
    original = {"metadata": {"finalizers": ["a/a", "b/b", "c/c", "d/d"]}}

    assert patched(("v1", "Pod"), original, {"metadata": patch})["metadata"]["finalizers"] == expected


@pytest.mark.parametrize("order", [["a/a"], ["c/c", "a/a", "b/b"]], ids=["not named", "in another order"])
def test_plain_values_that_the_patch_sets_must_stand_in_its_order(order: list[str]):
    patch = {"$setElementOrder/finalizers": order, "finalizers": ["b/b", "c/c"]}

    with pytest.raises(MergeRefused, match=r"The order in patch list doesn't match \$setElementOrder list"):
        patched(("v1", "Pod"), {"metadata": {"finalizers": ["a/a"]}}, {"metadata": patch})


@pytest.mark.parametrize("before", ["text", 5, ["a"], None], ids=["string", "number", "list", "not there"])
def test_deleting_an_object_takes_away_what_stands_there_of_another_type(before: Any):
    original = pod(nodeName="n", **({} if before is None else {"securityContext": before}))

    made = patched_pod(original, {"securityContext": {"$patch": "delete", "fsGroup": 1}})

    assert made == {"nodeName": "n"}


def test_a_new_field_loses_its_nulls_and_directives():
    made = patched_pod(pod(), {"securityContext": {"fsGroup": None, "runAsUser": 1}, "affinity": {"$patch": "delete"}})

    assert made == {"securityContext": {"runAsUser": 1}}


def test_one_and_true_are_different_keys():
    original = pod(containers=[{"name": "a", "ports": [{"containerPort": 1, "name": "one"}]}])

    made = patched_pod(original, {"containers": [{"name": "a", "ports": [{"containerPort": True, "name": "true"}]}]})

    assert [port["name"] for port in made["containers"][0]["ports"]] == ["true", "one"]


REFUSED = [
    (
        {"containers": [{"image": "q"}]},
        500,
        "map: map[image] does not contain declared merge key: name",
    ),
    ({"$patch": "merge"}, 500, "unknown patch type in map: map[$patch]"),
    ({"$patch": 5}, 500, "unknown patch type in map: map[$patch]"),
    ({"containers": [{"$patch": "merge", "name": "a"}]}, 500, "merging lists cannot yet be specified in the patch"),
    (
        {"containers": [{"$patch": "x", "name": "a"}]},
        500,
        "unknown patch type in map: map[$patch name]",
    ),
    ({"containers": [{"$patch": "delete"}]}, 500, "map: map[$patch] does not contain declared merge key: name"),
    ({"$retainKeys": 5}, 400, "invalid patch format of retainKeys"),
    ({"$retainKeys": ["nodeName"], "hostname": "h"}, 400, "invalid patch format of retainKeys"),
    (
        {"$retainKeys": ["hostname"], "$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a"}]},
        400,
        "invalid patch format of retainKeys",
    ),
    ({"$setElementOrdercontainers": []}, 400, "invalid patch format of setElementOrder list"),
    ({"$setElementOrder/nonsense": []}, 400, "invalid patch format of setElementOrder list"),
    ({"$deleteFromPrimitiveListx": []}, 400, "invalid patch format of primitive list"),
    ({"$setElementOrder/containers": {}}, 500, "expected a []interface {}, but received a map[string]interface {}"),
    ({"$setElementOrder/containers": ["a"]}, 500, "expected a map[string]interface {}, but received a string"),
    (
        {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]},
        500,
        "The order in patch list doesn't match $setElementOrder list",
    ),
    (
        {"containers": ["a"]},
        500,
        "list element types are not identical: [map[string]interface {}, string]",
    ),
    ({"containers": [["a"]]}, 422, "lists of lists are not supported"),
    (
        {"containers": [None]},
        500,
        "list element types are not identical: [%!s(<nil>), map[string]interface {}]",
    ),
]


@pytest.mark.parametrize(("patch", "code", "message"), REFUSED, ids=[str(patch) for patch, _, _ in REFUSED])
def test_a_wrong_patch_is_refused_with_the_words_of_kubernetes_and_without_values(patch, code, message):
    with pytest.raises(MergeRefused) as refused:
        patched_pod(pod(containers=CONTAINERS), patch)

    assert (refused.value.code, str(refused.value)) == (code, message)


def test_a_refusal_quotes_nothing_of_the_object_or_the_patch():
    secret = {"data": {"password": "c2VjcmV0"}, "metadata": {"ownerReferences": [{"uid": "c2VjcmV0", "name": "o"}]}}
    patches = [
        {"data": {"$patch": "c2VjcmV0", "other": "c2VjcmV0"}},
        {"metadata": {"ownerReferences": [{"name": "c2VjcmV0"}]}},
        {"metadata": {"ownerReferences": [{"uid": "c2VjcmV0", "$patch": "c2VjcmV0"}]}},
        {"metadata": {"ownerReferences": ["c2VjcmV0"]}},
        {"metadata": {"$setElementOrder/ownerReferences": [{"uid": "c2VjcmV0"}], "ownerReferences": [{"uid": "x"}]}},
    ]
    for patch in patches:
        with pytest.raises(MergeRefused) as refused:
            patched(("v1", "Secret"), secret, patch)
        assert "c2VjcmV0" not in str(refused.value)


def test_a_refusal_names_no_more_fields_than_fit_into_a_line():
    with pytest.raises(MergeRefused) as refused:
        patched_pod(pod(), {"$patch": "x", **{f"field{number}": 1 for number in range(1000)}})

    assert len(str(refused.value)) < 300


def test_long_lists_are_merged_and_ordered_without_comparing_all_with_all():
    """Were each item looked for among all others, this would take hours."""
    names = [f"n{number}" for number in range(40_000)]
    order = names[::-1]
    original = pod(containers=[{"name": name} for name in names[:30_000]])
    gone = [{"name": name, "$patch": "delete"} for name in names[:10_000]]
    patch = {
        "containers": [*({"name": name, "image": "i"} for name in order[:30_000]), *gone],
        "$setElementOrder/containers": [{"name": name} for name in order],
    }

    made = patched_pod(original, patch)["containers"]

    assert made == [{"name": name, "image": "i"} for name in order[:30_000]]


def test_new_items_among_long_lists_are_sorted_without_comparing_all_with_all():
    known, new = [f"k{number}" for number in range(20_000)], [f"n{number}" for number in range(20_000)]
    original = {"metadata": {"finalizers": known}}

    made = patched(("v1", "Pod"), original, {"metadata": {"finalizers": [*new, *known[::-1]]}})

    assert sorted(made["metadata"]["finalizers"]) == sorted([*known, *new])


def test_many_keys_are_retained_without_comparing_all_with_all():
    labels = {f"k{number}": "v" for number in range(60_000)}
    patch = {"metadata": {"labels": {**labels, "$retainKeys": list(labels)}}}

    made = patched(("v1", "Pod"), {"metadata": {"labels": {**labels, "x": "y"}}}, patch)

    assert made == {"metadata": {"labels": labels}}


def test_a_patch_that_merges_a_long_list_again_and_again_is_refused():
    """Each naming of the container merges its variables once more."""
    variables = [{"name": f"v{number}"} for number in range(10_000)]
    original = pod(containers=[{"name": "a", "env": variables}])

    with pytest.raises(MergeRefused, match="merges more than 250000 items") as refused:
        patched_pod(original, {"containers": [{"name": "a", "env": [{"name": "v0"}]}] * 10_000})

    assert refused.value.code == 413


def test_an_item_that_loses_its_key_is_not_found_again():
    original = pod(containers=[{"name": "a"}])

    with pytest.raises(MergeRefused, match="map: map\\[image\\] does not contain declared merge key: name"):
        patched_pod(original, {"containers": [{"name": None, "image": "x"}] * 2})


ITEMS = st.lists(st.sampled_from("abcdefgh") | st.sampled_from([1, 1.0, True]), max_size=12)


@given(ITEMS, ITEMS, ITEMS)
def test_the_order_is_that_of_an_insertion_sort(merged: list[Any], named: list[Any], before: list[Any]):
    assert [repr(each) for each in in_order(merged, named, before, None)] == _ordered(merged, named, before)


def _ordered(merged: list[Any], named: list[Any], before: list[Any]) -> list[str]:
    """As Kubernetes does it, item by item."""
    items, named, before = ([repr(each) for each in values] for values in (merged, named, before))
    ours = _inserted([each for each in items if each in named], named)
    theirs = _inserted([each for each in items if each not in named], before)
    made = []
    while ours and theirs:
        first, second = theirs[0], ours[0]
        earlier = first in before and second in before and before.index(first) < before.index(second)
        made.append((theirs if earlier else ours).pop(0))
    return [*made, *theirs, *ours]


def _inserted(items: list[str], order: list[str]) -> list[str]:
    made: list[str] = []
    for item in items:
        place = len(made)
        while place and _goes_before(item, made[place - 1], order):
            place -= 1
        made.insert(place, item)
    return made


def _goes_before(one: str, other: str, order: list[str]) -> bool:
    return one not in order or other not in order or order.index(one) < order.index(other)


@given(st.lists(st.sampled_from([None, "a", "b", 1, True]), max_size=6), st.data())
def test_an_item_is_found_by_its_key_whatever_changed_before(keys: list[Any], data: st.DataObject):
    keyed = KeyedItems([_keyed(key) for key in keys], "k")
    for _ in range(8):
        key = data.draw(st.sampled_from([None, "a", "b", 1, True]))
        if keyed.items and data.draw(st.booleans()):
            keyed.replace(data.draw(st.integers(0, len(keyed.items) - 1)), _keyed(key))
        else:
            keyed.append(_keyed(key))
        for wanted in ("a", "b", 1, True, "absent"):
            places = [place for place, item in enumerate(keyed.items) if repr(item.get("k")) == repr(wanted)]
            assert keyed.position(wanted) == (places[0] if places else None)


def _keyed(key: Any) -> dict[str, Any]:
    return {} if key is None else {"k": key}


HAND_MADE = Schemas(
    b"""{"kubernetes": "0", "kinds": {"v1/Thing": "Thing"}, "definitions": {"Thing": {"fields": {
    "whole": {"type": "@Thing", "patchStrategy": "replace"},
    "keyless": {"type": "[]@Thing", "patchStrategy": "merge"}, "name": "string", "part": "float64"}}}}"""
)


def test_an_object_whose_strategy_is_to_replace_is_replaced():
    thing = HAND_MADE.kind("v1", "Thing")

    made = apply(HAND_MADE, thing, {"whole": {"name": "a", "part": 1.5}}, {"whole": {"name": "b"}})

    assert made == {"whole": {"name": "b"}}


def test_objects_without_a_merge_key_cannot_be_merged():
    with pytest.raises(MergeRefused, match="cannot merge lists without merge key for struct"):
        apply(HAND_MADE, HAND_MADE.kind("v1", "Thing"), {"keyless": [{}]}, {"keyless": [{}]})


def test_objects_are_not_deleted_like_plain_values():
    with pytest.raises(MergeRefused, match="invalid patch format of primitive list"):
        patched_pod(pod(containers=CONTAINERS), {"$deleteFromPrimitiveList/containers": [{"name": "a"}]})


@given(SEEDS, st.sampled_from(KINDS))
def test_an_empty_patch_changes_nothing(seed: int, kind: tuple[str, str]):
    original = PatchMaker(SCHEMAS, Random(seed)).object_of(*kind)

    assert patched(kind, original, {}) == original


@given(SEEDS, st.sampled_from(KINDS))
def test_a_patch_without_directives_applied_twice_equals_once(seed: int, kind: tuple[str, str]):
    maker = PatchMaker(SCHEMAS, Random(seed))
    original, patch = maker.object_of(*kind), maker.patch_of(*kind, directives=False)

    once = patched(kind, original, patch)

    assert as_stored(patched(kind, once, patch)) == as_stored(once)


def as_stored(value: Any) -> Any:
    """Nulls inside a new item of a list stay until the object is decoded."""
    if isinstance(value, dict):
        return {key: as_stored(inner) for key, inner in value.items() if inner is not None}
    return [as_stored(item) for item in value] if isinstance(value, list) else value


@given(SEEDS, st.sampled_from(KINDS))
def test_neither_the_object_nor_the_patch_is_changed(seed: int, kind: tuple[str, str]):
    maker = PatchMaker(SCHEMAS, Random(seed))
    original, patch = maker.object_of(*kind), maker.patch_of(*kind)
    before = copied([original, patch])

    try:
        made = patched(kind, original, patch)
        made["metadata"]["name"] = "changed"
    except MergeRefused:
        pass

    assert [original, patch] == before


@given(st.permutations("abcd"), st.permutations("abcd"), st.integers(0, 4))
def test_an_order_alone_moves_items_and_loses_none(before: list[str], order: list[str], named: int):
    original = pod(containers=[{"name": name} for name in before])
    wanted = order[:named]

    made = patched_pod(original, {"$setElementOrder/containers": [{"name": name} for name in wanted]})
    names = [each["name"] for each in made["containers"]]

    assert sorted(names) == list("abcd")
    assert [name for name in names if name in wanted] == list(wanted)
    assert [name for name in names if name not in wanted] == [name for name in before if name not in wanted]


@pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl is not unpacked: run make")
@pytest.mark.timeout(600)
def test_kubectl_makes_the_same_of_random_patches(tmp_path: Path):
    differences = []
    for number in range(PATCHES_FOR_KUBECTL):
        random = Random(f"patch {number}")
        differences += _differences(random, tmp_path)

    assert differences == []


def _differences(random: Random, home: Path) -> list[dict[str, Any]]:
    kind = random.choice(KINDS)
    maker = PatchMaker(SCHEMAS, random)
    patch = maker.patch_of(*kind)
    objects = [maker.object_of(*kind, name=f"o{number}") for number in range(10)]
    theirs = patched_by_kubectl(objects, patch, home)
    found = []
    for each in objects:
        ours, expected = _outcome(kind, each, patch), theirs[each["metadata"]["name"]]
        if not _agree(ours, expected):
            found.append({"object": each, "patch": patch, "ours": ours, "kubectl": expected})
    return found


def _outcome(kind: tuple[str, str], original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any] | str:
    try:
        return patched(kind, original, patch)
    except MergeRefused as refused:
        return str(refused)


def _agree(ours: dict[str, Any] | str, theirs: dict[str, Any] | str) -> bool:
    """kubectl stops at the first object it refuses, so that its refusal stands for all that follow."""
    return isinstance(theirs, str) or ours == theirs
