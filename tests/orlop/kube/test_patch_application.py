"""RFC 6902 and RFC 7386 by their own examples, the laws of both, and every way a patch can be wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.patch_application import (
    MOST_COPIED_BYTES,
    MOST_OPERATIONS,
    PatchDoesNotApply,
    PatchError,
    PatchTooLarge,
    apply_json_patch,
    apply_merge_patch,
    equal,
    pointer,
    pointer_parts,
)
from support.random_tests import FEWER

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c/d", "~"]), inner),
    max_leaves=8,
)

# ---- JSON patch ------------------------------------------------------------------------------------------------------

# The document, the patch, and what comes of them.
APPLIED: list[tuple[str, str, str]] = [
    # RFC 6902, appendix A
    ('{"foo":"bar"}', '[{"op":"add","path":"/baz","value":"qux"}]', '{"foo":"bar","baz":"qux"}'),
    ('{"foo":["bar","baz"]}', '[{"op":"add","path":"/foo/1","value":"qux"}]', '{"foo":["bar","qux","baz"]}'),
    ('{"baz":"qux","foo":"bar"}', '[{"op":"remove","path":"/baz"}]', '{"foo":"bar"}'),
    ('{"foo":["bar","qux","baz"]}', '[{"op":"remove","path":"/foo/1"}]', '{"foo":["bar","baz"]}'),
    ('{"baz":"qux","foo":"bar"}', '[{"op":"replace","path":"/baz","value":"boo"}]', '{"baz":"boo","foo":"bar"}'),
    (
        '{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}',
        '[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]',
        '{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}',
    ),
    (
        '{"foo":["all","grass","cows","eat"]}',
        '[{"op":"move","from":"/foo/1","path":"/foo/3"}]',
        '{"foo":["all","cows","eat","grass"]}',
    ),
    (
        '{"baz":"qux","foo":["a",2,"c"]}',
        '[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]',
        '{"baz":"qux","foo":["a",2,"c"]}',
    ),
    (
        '{"foo":"bar"}',
        '[{"op":"add","path":"/child","value":{"grandchild":{}}}]',
        '{"foo":"bar","child":{"grandchild":{}}}',
    ),
    ('{"foo":"bar"}', '[{"op":"add","path":"/baz","value":"qux","xyz":123}]', '{"foo":"bar","baz":"qux"}'),
    ('{"/":9,"~1":10}', '[{"op":"test","path":"/~01","value":10}]', '{"/":9,"~1":10}'),
    ('{"foo":["bar"]}', '[{"op":"add","path":"/foo/-","value":["abc","def"]}]', '{"foo":["bar",["abc","def"]]}'),
    # and beyond
    ("{}", "[]", "{}"),
    ('{"a":1}', '[{"op":"add","path":"/a","value":2}]', '{"a":2}'),
    ('{"a":1}', '[{"op":"add","path":"","value":[1]}]', "[1]"),
    ('{"a":1}', '[{"op":"replace","path":"","value":{"b":2}}]', '{"b":2}'),
    ('{"a":1}', '[{"op":"replace","path":"/b","value":2}]', '{"a":1,"b":2}'),
    ('{"a":1}', '[{"op":"test","path":"","value":{"a":1}}]', '{"a":1}'),
    ('{"":1}', '[{"op":"remove","path":"/"}]', "{}"),
    ("[1,2]", '[{"op":"add","path":"/2","value":3}]', "[1,2,3]"),
    ("[]", '[{"op":"add","path":"/0","value":1}]', "[1]"),
    ('{"a":{"b":1}}', '[{"op":"copy","from":"/a","path":"/a/c"}]', '{"a":{"b":1,"c":{"b":1}}}'),
    (
        '{"a":[1]}',
        '[{"op":"copy","from":"/a","path":"/b"},{"op":"add","path":"/b/-","value":2}]',
        '{"a":[1],"b":[1,2]}',
    ),
    ('{"a":1}', '[{"op":"move","from":"/a","path":"/a"}]', '{"a":1}'),
    ('{"a":1}', '[{"op":"copy","from":"","path":"/b"}]', '{"a":1,"b":{"a":1}}'),
    ('{"a":{"b":1}}', '[{"op":"move","from":"/a/b","path":""}]', "1"),
    ('{"a":null}', '[{"op":"test","path":"/a","value":null}]', '{"a":null}'),
    ('{"0":"x"}', '[{"op":"remove","path":"/0"}]', "{}"),
    ('{"a":1}', '[{"op":"test","path":"/a","value":1.0}]', '{"a":1}'),
    ('{"a":{"x":1,"y":2}}', '[{"op":"test","path":"/a","value":{"y":2,"x":1}}]', '{"a":{"x":1,"y":2}}'),
    # as in Kubernetes: null is what is missing
    ('{"a":{}}', '[{"op":"test","path":"/a/b","value":null}]', '{"a":{}}'),
]


@pytest.mark.parametrize(("document", "patch", "result"), APPLIED, ids=[f"{one} {two}" for one, two, _ in APPLIED])
def test_a_json_patch_is_applied_as_its_standard_says(document: str, patch: str, result: str):
    assert equal(apply_json_patch(json.loads(document), json.loads(patch)), json.loads(result))


DOES_NOT_APPLY: list[tuple[str, str, str]] = [
    ('{"foo":"bar"}', '[{"op":"add","path":"/baz/bat","value":"qux"}]', "there is no 'baz'"),
    ('{"baz":"qux"}', '[{"op":"test","path":"/baz","value":"bar"}]', "the value there is another one"),
    ('{"/":9,"~1":10}', '[{"op":"test","path":"/~01","value":"10"}]', "the value there is another one"),
    ('{"a":1}', '[{"op":"remove","path":"/b"}]', "there is no 'b'"),
    ('{"a":[1]}', '[{"op":"replace","path":"/a/1","value":1}]', "the list has no place 1"),
    ('{"a":[1]}', '[{"op":"remove","path":"/a/1"}]', "the list has no place 1"),
    ('{"a":[1]}', '[{"op":"add","path":"/a/2","value":1}]', "the list has no place 2"),
    ('{"a":[1]}', '[{"op":"remove","path":"/a/-"}]', "'-' is no index"),
    ('{"a":[1]}', '[{"op":"test","path":"/a/-","value":1}]', "'-' is no index"),
    ('{"a":[1]}', '[{"op":"remove","path":"/a/-1"}]', "'-1' is no index"),
    ('{"a":[1,2]}', '[{"op":"remove","path":"/a/01"}]', "'01' is no index"),
    ('{"a":[1,2]}', '[{"op":"remove","path":"/a/1e0"}]', "'1e0' is no index"),
    ('{"a":[1,2]}', '[{"op":"test","path":"/a/\\u0661","value":2}]', "is no index"),
    ('{"a":[1]}', '[{"op":"add","path":"/a/99999999999999999999","value":1}]', "is no index"),
    ('{"a":1}', '[{"op":"add","path":"/a/b","value":1}]', "only objects and lists have parts"),
    ('{"a":"text"}', '[{"op":"test","path":"/a/0","value":"t"}]', "only objects and lists have parts"),
    ('{"a":1}', '[{"op":"remove","path":""}]', "the whole document cannot be taken away"),
    ('{"a":1}', '[{"op":"move","from":"/b","path":"/c"}]', "there is no 'b'"),
    ('{"a":1}', '[{"op":"move","from":"/b","path":"/b"}]', "there is no 'b'"),
    ('{"a":1}', '[{"op":"copy","from":"/b","path":"/c"}]', "there is no 'b'"),
    ('{"a":true}', '[{"op":"test","path":"/a","value":1}]', "another one"),
    ('{"a":0}', '[{"op":"test","path":"/a","value":false}]', "another one"),
    ('{"a":[]}', '[{"op":"test","path":"/a","value":null}]', "another one"),
    ("{}", '[{"op":"test","path":"/a/b","value":null}]', "there is no 'a'"),
    ("[]", '[{"op":"test","path":"/0","value":null}]', "the list has no place 0"),
    ("{}", '[{"op":"test","path":"/a","value":1}]', "there is no 'a'"),
]


@pytest.mark.parametrize(
    ("document", "patch", "message"), DOES_NOT_APPLY, ids=[f"{one} {two}" for one, two, _ in DOES_NOT_APPLY]
)
def test_a_json_patch_that_does_not_fit_the_document_changes_nothing(document: str, patch: str, message: str):
    before = json.loads(document)
    operations = [{"op": "add", "path": "", "value": before}, *json.loads(patch)]
    with pytest.raises(PatchDoesNotApply) as caught:
        apply_json_patch(before, operations)
    assert message in str(caught.value)
    assert str(caught.value).startswith("operation 1 of the JSON patch (")
    assert before == json.loads(document)


WRONG: list[tuple[Any, str]] = [
    ({}, "a JSON patch is a list of operations"),
    ("add", "a JSON patch is a list of operations"),
    (None, "a JSON patch is a list of operations"),
    ([1], "operation 0 of the JSON patch: it is no object"),
    ([{}], "None is no operation; there are add, remove, replace, move, copy, test"),
    ([{"op": "spam", "path": "/a"}], "'spam' is no operation"),
    ([{"op": ["add"], "path": "/a"}], "is no operation"),
    ([{"op": "add", "value": 1}], "add needs a path"),
    ([{"op": "add", "path": 1, "value": 1}], "add needs a path"),
    ([{"op": "add", "path": "/a"}], "add needs a value"),
    ([{"op": "replace", "path": "/a"}], "replace needs a value"),
    ([{"op": "test", "path": "/a"}], "test needs a value"),
    ([{"op": "move", "path": "/a"}], "move needs a from"),
    ([{"op": "copy", "path": "/a", "from": None}], "copy needs a from"),
    ([{"op": "remove", "path": "a"}], "'a' is no JSON pointer"),
    ([{"op": "remove", "path": "/a~2"}], 'after "~" comes 0 or 1'),
    ([{"op": "remove", "path": "/a~"}], 'after "~" comes 0 or 1'),
    ([{"op": "move", "from": "/a", "path": "/a/b"}], "cannot be moved into itself"),
    ([{"op": "move", "from": "", "path": "/a"}], "cannot be moved into itself"),
    ([{"op": "remove", "path": "/a"}, {"op": "add"}], "operation 1 of the JSON patch"),
]


@pytest.mark.parametrize(("patch", "message"), WRONG, ids=[repr(patch) for patch, _ in WRONG])
def test_what_is_no_json_patch_is_refused(patch: Any, message: str):
    with pytest.raises(PatchError) as caught:
        apply_json_patch({"a": 1}, patch)
    assert message in str(caught.value)


def test_a_name_that_only_begins_alike_is_not_inside():
    moved = apply_json_patch({"a": 1}, [{"op": "move", "from": "/a", "path": "/ab"}])
    assert moved == {"ab": 1}


def test_a_patch_of_too_many_operations_is_refused_before_it_is_applied():
    allowed = [{"op": "test", "path": "/a", "value": 1}] * MOST_OPERATIONS
    assert apply_json_patch({"a": 1}, allowed) == {"a": 1}
    with pytest.raises(PatchTooLarge, match="10000, got 10001"):
        apply_json_patch({"a": 1}, [*allowed, allowed[0]])


def test_a_document_that_copies_itself_into_itself_does_not_fill_the_memory():
    doubling = [{"op": "copy", "from": "", "path": f"/{number}"} for number in range(64)]
    with pytest.raises(PatchTooLarge, match=f"copies more than {MOST_COPIED_BYTES} bytes"):
        apply_json_patch({"a": "x" * 100}, doubling)


def test_a_document_nested_without_end_is_refused():
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(PatchTooLarge, match="nested too deeply"):
        apply_json_patch({}, [{"op": "add", "path": "/a", "value": deep}])
    with pytest.raises(PatchTooLarge, match="nested too deeply"):
        apply_merge_patch({}, deep)


@FEWER
@given(DOCUMENTS, DOCUMENTS)
def test_what_was_given_stays_as_it_was_and_the_result_shares_nothing_with_it(document: Any, value: Any):
    given_document, patch = copy.deepcopy(document), [{"op": "add", "path": "", "value": {"x": value, "y": value}}]
    result = apply_json_patch(document, [*patch, {"op": "copy", "from": "/x", "path": "/z"}])
    for key in "xyz":
        if isinstance(result[key], dict):
            result[key]["planted"] = key
        elif isinstance(result[key], list):
            result[key].append(key)
    assert equal(document, given_document)
    assert "planted" not in json.dumps(value)
    merged = apply_merge_patch({"k": document}, {"n": value})
    if isinstance(merged["k"], dict):
        merged["k"]["planted"] = True
    assert equal(document, given_document)


@FEWER
@given(DOCUMENTS)
def test_the_test_of_a_document_against_itself_passes(document: Any):
    patch = [{"op": "test", "path": "", "value": copy.deepcopy(document)}]
    assert equal(apply_json_patch(document, patch), document)


@FEWER
@given(st.dictionaries(st.text(max_size=4), st.integers(), min_size=1), st.data())
def test_adding_and_removing_one_member_gives_the_document_back(document: dict[str, int], data: st.DataObject):
    new = data.draw(st.text(max_size=4).filter(lambda key: key not in document))
    patch = [{"op": "add", "path": pointer(new), "value": [1]}, {"op": "remove", "path": pointer(new)}]
    assert apply_json_patch(document, patch) == document


@FEWER
@given(st.lists(st.text(max_size=4)))
def test_a_pointer_leads_back_to_its_parts(parts: list[str]):
    assert pointer_parts(pointer(*parts)) == tuple(parts)


PATCHES = st.lists(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"])},
        optional={
            "path": st.sampled_from(["", "/a", "/b", "/a/b", "/a/0", "/a/-", "/c~1d", "/~0", "/~"]),
            "from": st.sampled_from(["", "/a", "/b", "/a/b", "/a/0", "/c~1d"]),
            "value": DOCUMENTS,
        },
    ),
    max_size=4,
)


@FEWER
@given(DOCUMENTS, PATCHES)
def test_any_patch_is_applied_or_refused_and_the_document_given_is_untouched(document: Any, patch: list[Any]):
    before = copy.deepcopy(document)
    try:
        result = apply_json_patch(document, patch)
    except (PatchError, PatchDoesNotApply):
        result = None
    assert equal(document, before)
    json.dumps(result)


# ---- merge patch -----------------------------------------------------------------------------------------------------

# RFC 7386, appendix A: original, patch, result
MERGED = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ('{"a":1}', '{"a":{"b":null,"c":[null]}}', '{"a":{"c":[null]}}'),
]


@pytest.mark.parametrize(("original", "patch", "result"), MERGED, ids=[f"{one} {two}" for one, two, _ in MERGED])
def test_a_merge_patch_is_applied_as_its_standard_says(original: str, patch: str, result: str):
    assert equal(apply_merge_patch(json.loads(original), json.loads(patch)), json.loads(result))


@FEWER
@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_applied_twice_is_as_good_as_once(document: Any, patch: Any):
    once = apply_merge_patch(document, patch)
    assert equal(apply_merge_patch(once, patch), once)


@FEWER
@given(DOCUMENTS)
def test_the_empty_merge_patch_changes_no_object(document: Any):
    assert equal(apply_merge_patch({"k": document}, {}), {"k": document})
