"""What Kubernetes understands of an object, and its words for what it does not."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.schema.decoding_rules import (
    Undecodable,
    cannot_be_handled,
    decode,
    strict_errors,
    strict_refusal,
)
from onenode.apiserver.schema.default_rules import DEFAULTS
from support.api.kube_patches import PatchMaker
from support.api.kube_rules import SCHEMAS, STORAGE


def read(api_version: str, kind: str, value: Any) -> Any:
    return decode(SCHEMAS, SCHEMAS.kind(api_version, kind), value)


def test_unknown_fields_are_left_out_and_named_with_their_paths():
    pod = {"foo": 1, "metadata": {"labels": {"any": "thing"}}, "spec": {"containers": [{"name": "a"}, {"bar": {}}]}}

    decoded = read("v1", "Pod", pod)

    assert decoded.unknown == ("foo", "spec.containers[1].bar")
    assert decoded.object == {"metadata": {"labels": {"any": "thing"}}, "spec": {"containers": [{"name": "a"}, {}]}}


def test_names_differ_by_case():
    assert read("v1", "ConfigMap", {"Data": {}}).unknown == ("Data",)


def test_at_most_a_hundred_unknown_fields_are_named():
    assert len(read("v1", "ConfigMap", {f"f{number}": 1 for number in range(200)}).unknown) == 100


def test_strict_validation_names_unknown_and_duplicate_fields():
    errors = strict_errors(("foo", "foo"), ("data.a",))

    assert errors == ['unknown field "foo"', 'duplicate field "data.a"']
    assert cannot_be_handled("v1", "ConfigMap", strict_refusal(errors)) == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: '
        'strict decoding error: unknown field "foo", duplicate field "data.a"'
    )


def test_null_and_empty_lists_and_maps_are_absent_and_empty_objects_are_not():
    pod = {
        "metadata": {"creationTimestamp": None, "labels": {}},
        "spec": {"tolerations": [], "volumes": [{"emptyDir": {}}]},
    }

    assert read("v1", "Pod", pod).object == {"metadata": {}, "spec": {"volumes": [{"emptyDir": {}}]}}


def test_a_list_that_is_required_may_be_empty():
    assert read(STORAGE, "CSINode", {"spec": {"drivers": []}}).object == {"spec": {"drivers": []}}


def test_an_empty_text_stays():
    assert read("v1", "PersistentVolumeClaim", {"spec": {"storageClassName": ""}}).object == {
        "spec": {"storageClassName": ""}
    }


def test_null_inside_a_list_or_map_is_the_zero_value():
    decoded = read(
        "v1", "Pod", {"metadata": {"labels": {"a": None}}, "spec": {"containers": [None], "overhead": {"cpu": None}}}
    )

    assert decoded.object == {"metadata": {"labels": {"a": ""}}, "spec": {"containers": [{}], "overhead": {"cpu": "0"}}}


CANONICAL = [
    ("v1", "PersistentVolume", "spec.capacity.storage", "1024Mi", "1Gi"),
    ("v1", "PersistentVolume", "spec.capacity.storage", 5, "5"),
    ("v1", "PersistentVolume", "spec.capacity.storage", "0.5Gi", "512Mi"),
    ("v1", "PersistentVolume", "spec.capacity.storage", "1u", "1m"),
    (STORAGE, "CSIStorageCapacity", "capacity", " 1000 ", "1k"),
    ("v1", "Pod", "metadata.creationTimestamp", "2026-08-01T14:00:00.75+02:00", "2026-08-01T12:00:00Z"),
    ("v1", "Pod", "metadata.creationTimestamp", "0001-01-01T00:00:00Z", None),
    (
        "coordination.k8s.io/v1",
        "Lease",
        "spec.renewTime",
        "2026-08-01T14:00:00.123456+02:00",
        "2026-08-01T12:00:00.123456Z",
    ),
    ("v1", "Secret", "data.a", "YQ\n==", "YQ=="),
    ("apps/v1", "Deployment", "spec.strategy.rollingUpdate.maxSurge", "25%", "25%"),
    ("apps/v1", "Deployment", "spec.strategy.rollingUpdate.maxSurge", 1, 1),
    ("v1", "Pod", "metadata.managedFields", [{"fieldsV1": {"f:x": {}}}], [{"fieldsV1": {"f:x": {}}}]),
]


@pytest.mark.parametrize(("api_version", "kind", "path", "given_value", "kept"), CANONICAL)
def test_values_are_kept_in_canonical_form(api_version, kind, path, given_value, kept):
    names = path.split(".")

    found = read(api_version, kind, nested(names, given_value)).object
    for name in names[:-1]:
        found = found[name]

    assert found.get(names[-1]) == kept


def nested(names: list[str], value: Any) -> Any:
    return {names[0]: nested(names[1:], value)} if names else value


MISMATCHED = [
    (
        {"data": {"a": 1}},
        "ConfigMap",
        "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
    ),
    (
        {"data": "x"},
        "ConfigMap",
        "json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
    ),
    (
        {"metadata": {"labels": {"a": True}}},
        "ConfigMap",
        "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
    ),
    (
        {"metadata": {"name": 5}},
        "Pod",
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
    ),
    (
        {"spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": 1}]}]}},
        "Pod",
        "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
    ),
    (
        {"spec": {"containers": {}}},
        "Pod",
        "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
    ),
    (
        {"spec": {"containers": [{"name": "a"}, "x"]}},
        "Pod",
        "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type v1.Container",
    ),
    ({"spec": []}, "Pod", "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec"),
    (
        {"spec": {"priority": 3000000000}},
        "Pod",
        "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
    ),
    (
        {"spec": {"priority": 1.5}},
        "Pod",
        "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
    ),
    (
        {"spec": {"hostNetwork": "yes"}},
        "Pod",
        "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
    ),
    ([], "Pod", "json: cannot unmarshal array into Go value of type v1.Pod"),
    ({"data": {"a": "%"}}, "Secret", "illegal base64 data at input byte 0"),
    (
        {"data": {"a": 1}},
        "Secret",
        "json: cannot unmarshal number into Go struct field Secret.data of type []uint8",
    ),
    (
        {"spec": {"capacity": {"storage": "lots"}}},
        "PersistentVolume",
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    ),
    ({"spec": {"capacity": {"storage": "1Kii"}}}, "PersistentVolume", "unable to parse quantity's suffix"),
    (
        {"metadata": {"creationTimestamp": "today"}},
        "Pod",
        'parsing time "today" as "2006-01-02T15:04:05Z07:00": cannot parse "today" as "2006"',
    ),
    (
        {"metadata": {"creationTimestamp": "2026-13-01T00:00:00Z"}},
        "Pod",
        'parsing time "2026-13-01T00:00:00Z": out of range',
    ),
]


@pytest.mark.parametrize(("value", "kind", "words"), MISMATCHED, ids=[words[:70] for _, _, words in MISMATCHED])
def test_a_value_of_the_wrong_type_is_refused_in_the_words_of_go(value, kind, words):
    with pytest.raises(Undecodable) as refused:
        read("v1", kind, value)

    assert str(refused.value) == words


def test_a_lease_is_dated_to_the_microsecond():
    with pytest.raises(Undecodable, match="000000Z07:00"):
        read("coordination.k8s.io/v1", "Lease", {"spec": {"renewTime": "2026-08-01T12:00:00Z"}})


@given(st.integers(0, 2**32), st.sampled_from(sorted(SCHEMAS.kinds())))
def test_what_was_decoded_is_decoded_to_itself(seed: int, kind: tuple[str, str]):
    definition = SCHEMAS.kind(*kind)
    once = decode(SCHEMAS, definition, PatchMaker(SCHEMAS, Random(seed)).object_of(*kind), DEFAULTS).object

    again = decode(SCHEMAS, definition, once, DEFAULTS)

    assert again.object == once
    assert again.unknown == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["metadata", "spec", "name", "x"]), inner),
    max_leaves=10,
)


@given(JSON, st.sampled_from(sorted(SCHEMAS.kinds())))
def test_any_value_is_understood_or_refused_with_a_sentence(value: Any, kind: tuple[str, str]):
    assert outcome(kind, value)


def outcome(kind: tuple[str, str], value: Any) -> str:
    try:
        decode(SCHEMAS, SCHEMAS.kind(*kind), value, DEFAULTS)
    except Undecodable as refused:
        return str(refused)
    return "understood"
