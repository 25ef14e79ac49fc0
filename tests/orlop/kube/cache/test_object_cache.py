"""The cache by itself: what is found by name and by key, and what a new list changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.cache.object_cache import ObjectCache
from orlop.kube.objects import ObjectName, name_of


def volume(name: str, version: int = 1, node: str | None = None) -> dict[str, Any]:
    spec = {"node": node} if node else {}
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": spec}


def by_node(obj: Any) -> list[str]:
    return [obj["spec"]["node"]] if "node" in obj["spec"] else []


def test_an_object_is_found_by_its_key_while_it_has_it():
    cache = ObjectCache()
    cache.add_index("node", by_node)
    cache.put(ObjectName(None, "a"), volume("a", node="n1"))
    cache.put(ObjectName(None, "b"), volume("b", node="n1"))

    cache.put(ObjectName(None, "a"), volume("a", 2, node="n2"))

    assert [name_of(obj).name for obj in cache.by_index("node", "n1")] == ["b"]
    assert [name_of(obj).name for obj in cache.by_index("node", "n2")] == ["a"]
    cache.remove(ObjectName(None, "b"))
    assert cache.by_index("node", "n1") == ()


def test_an_index_added_late_finds_what_was_there_before():
    cache = ObjectCache()
    cache.put(ObjectName(None, "a"), volume("a", node="n1"))
    cache.add_index("node", by_node)

    assert len(cache.by_index("node", "n1")) == 1


def test_a_name_means_one_index():
    cache = ObjectCache()
    cache.add_index("node", by_node)
    cache.add_index("node", by_node)

    with pytest.raises(ValueError, match="with other keys"):
        cache.add_index("node", lambda _: [])
    with pytest.raises(ValueError, match="no index 'zone'; the indexes are: node"):
        cache.by_index("zone", "z")


def test_a_new_list_names_what_is_new_changed_or_gone_and_nothing_else():
    cache = ObjectCache()
    cache.replace([volume("same"), volume("changed"), volume("gone")])

    changed = cache.replace([volume("same"), volume("changed", 2), volume("new")])

    assert {name.name for name in changed} == {"changed", "gone", "new"}
    assert {name.name for name in cache.names()} == {"same", "changed", "new"}


def test_reading_is_not_disturbed_by_changes_meanwhile():
    cache = ObjectCache()
    cache.replace([volume("a"), volume("b")])

    for obj in cache:
        cache.remove(name_of(obj))

    assert len(cache) == 0


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["n1", "n2", None, "removed"])) | st.just("list"), max_size=40
)


@given(STEPS, st.integers(0, 40))
def test_an_index_finds_exactly_what_has_the_key_whatever_happened(steps: list[Any], when_added: int):
    cache, model = ObjectCache(), {}
    for number, step in enumerate([*steps, "list"]):
        if number == min(when_added, len(steps)):
            cache.add_index("node", by_node)
        if step == "list":
            cache.replace(list(model.values()))
        elif step[1] == "removed":
            model.pop(step[0], None)
            cache.remove(ObjectName(None, step[0]))
        else:
            model[step[0]] = volume(step[0], number, step[1])
            cache.put(ObjectName(None, step[0]), model[step[0]])

    assert {name.name: cache.get(name) for name in cache.names()} == model
    for node in ("n1", "n2"):
        found = {name_of(obj).name for obj in cache.by_index("node", node)}
        assert found == {name for name, obj in model.items() if obj["spec"].get("node") == node}
