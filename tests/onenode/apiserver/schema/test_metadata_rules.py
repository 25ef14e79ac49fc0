"""Names, labels, finalizers and owners: what the server sets, and Kubernetes' sentences about what is wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import (
    Cause,
    forbidden,
    invalid,
    invalid_message,
    not_supported,
    required,
    too_long,
)
from onenode.apiserver.schema.metadata_rules import at_creation
from onenode.go_text import as_json, printed, quoted
from support.api.kube_rules import NOW, changed, create, said, stored, update, wrong, wrong_change

SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)

SENTENCES = [
    (name_rules.dns_subdomain, "a.b-c.9", []),
    (name_rules.dns_subdomain, "A", [SUBDOMAIN]),
    (name_rules.dns_subdomain, "a" * 254, ["must be no more than 253 characters"]),
    (name_rules.dns_subdomain, "a\n", [SUBDOMAIN]),
    (name_rules.dns_label, "a-b", []),
    (name_rules.dns_label, "a.b", ["must not contain dots"]),
    (name_rules.dns_label, "-a", [LABEL]),
    (name_rules.dns_label, "a" * 64, ["must be no more than 63 characters"]),
    (name_rules.path_segment, "system:node", []),
    (name_rules.path_segment, "..", ["may not be '..'"]),
    (name_rules.path_segment, "a/b%", ["may not contain '/'", "may not contain '%'"]),
    (name_rules.label_key, "example.com/My_Name.1", []),
    (name_rules.label_key, "", ["name part must be non-empty", NAME_PART]),
    (name_rules.label_key, "/a", ["prefix part must be non-empty"]),
    (name_rules.label_key, "A_/a", [f"prefix part {SUBDOMAIN}"]),
    (name_rules.label_key, "a" * 64, ["name part must be no more than 63 bytes"]),
    (
        name_rules.label_key,
        "a/b/c",
        [
            (
                f"a valid label key {NAME_PART.removeprefix('name part ')} "
                "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )
        ],
    ),
    (name_rules.label_value, "", []),
    (name_rules.label_value, "a" * 64, ["must be no more than 63 bytes"]),
    (name_rules.config_key, "a.b_C-1", []),
    (name_rules.config_key, "..", ["must not be '..'"]),
    (name_rules.config_key, "..a", ["must not start with '..'"]),
    (name_rules.port_name, "http-2", []),
    (name_rules.port_name, "1-2", ["must contain at least one letter (a-z)"]),
    (name_rules.port_name, "a--b", ["must not contain consecutive hyphens"]),
    (name_rules.port_name, "a-", ["must not begin or end with a hyphen"]),
    (name_rules.port_name, "a" * 16, ["must be no more than 15 characters"]),
    (name_rules.environment_name, "A b.c-1", []),
    (
        name_rules.environment_name,
        "A=B",
        ["a valid environment variable name must consist only of printable ASCII characters other than '='"],
    ),
    (name_rules.condition_reason, "Disk:Full", []),
    (name_rules.driver_name, "CSI.Example", []),
    (
        name_rules.header_name,
        "a b",
        [
            (
                "a valid HTTP header must consist of alphanumeric characters or '-' "
                "(e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"
            )
        ],
    ),
    (name_rules.percent, "25%", []),
]


@pytest.mark.parametrize(("check", "text", "sentences"), SENTENCES)
def test_a_name_is_judged_in_the_words_of_kubernetes(check, text, sentences):
    assert check(text) == sentences


@given(st.text(max_size=80))
def test_a_label_is_a_subdomain_of_one_part(text: str):
    if not name_rules.dns_label(text):
        assert not name_rules.dns_subdomain(text)
        assert "." not in text


def test_a_name_of_megabytes_is_judged_at_once():
    assert name_rules.dns_subdomain("a" * 3_000_000 + "!")[0] == "must be no more than 253 characters"
    assert name_rules.label_key("a" * 3_000_000 + "!")


@given(st.text(max_size=30))
def test_a_quoted_text_is_one_line(text: str):
    assert re.fullmatch(r'"[^\n]*"', quoted(text), re.DOTALL)


def test_values_are_shown_as_go_shows_them():
    assert quoted('a"b\n\x00é\U000e0001') == '"a\\"b\\n\\x00é\\U000e0001"'
    assert as_json({"b": [1, None], "a": "<é>"}) == '{"a":"\\u003cé\\u003e","b":[1,null]}'
    assert printed({"b": [1, None], "a": True}) == "map[a:true b:[1 <nil>]]"


def test_causes_have_the_shapes_of_an_answer():
    assert required("spec.capacity") == Cause("FieldValueRequired", "Required value", "spec.capacity")
    assert required("a", "hint").message == "Required value: hint"
    assert invalid("a", "x", "why") == Cause("FieldValueInvalid", 'Invalid value: "x": why', "a")
    assert invalid("a", {"k": 1}).message == 'Invalid value: {"k":1}'
    assert not_supported("a", "X", ("A", "B")).message == 'Unsupported value: "X": supported values: "A", "B"'
    assert not_supported("a", "X", ("A",)).reason == "FieldValueNotSupported"
    assert forbidden("a", "why") == Cause("FieldValueForbidden", "Forbidden: why", "a")
    assert too_long("a", 63) == Cause("FieldValueTooLong", "Too long: may not be more than 63 bytes", "a")


def test_the_message_of_an_answer_lists_the_causes_once_each():
    one, two = required("spec.capacity"), required("spec.accessModes")

    assert invalid_message("", "PersistentVolume", "x", [one]) == (
        'PersistentVolume "x" is invalid: spec.capacity: Required value'
    )
    assert invalid_message("storage.k8s.io", "CSINode", "x", [one, two, one]) == (
        'CSINode.storage.k8s.io "x" is invalid: [spec.capacity: Required value, spec.accessModes: Required value]'
    )


def test_a_new_object_is_dated_placed_and_numbered_by_the_server():
    given_metadata = {
        "uid": "mine",
        "creationTimestamp": "2000-01-01T00:00:00Z",
        "deletionTimestamp": "2000-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5,
        "selfLink": "/x",
        "generation": 9,
    }

    assert stored("v1", "ConfigMap", {"metadata": given_metadata})["metadata"] == {
        "name": "x",
        "namespace": "default",
        "uid": "uid-1",
        "creationTimestamp": NOW,
        "resourceVersion": "7",
    }


@pytest.mark.parametrize(("base", "name"), [("a-", "a-bcdfg"), ("a" * 60, "a" * 58 + "bcdfg")])
def test_a_name_is_generated_of_58_letters_and_five(base: str, name: str):
    made = at_creation({"generateName": base}, uid="u", now=NOW, namespace=None, name_suffix="bcdfg")

    assert made["name"] == name
    assert made["generateName"] == base


def test_a_given_name_wins_over_a_generated_one():
    made = create("v1", "ConfigMap", {"metadata": {"name": "mine", "generateName": "other-"}})

    assert made.object["metadata"]["name"] == "mine"


def test_an_object_needs_a_name():
    assert wrong("v1", "ConfigMap", {"metadata": {"name": ""}}) == [
        "metadata.name: Required value: name or generateName is required"
    ]


def test_a_wrong_beginning_is_named_with_what_was_made_of_it():
    causes = create("v1", "ConfigMap", {"metadata": {"name": "", "generateName": "A-b-"}}).causes

    assert [cause.field for cause in causes] == ["metadata.generateName", "metadata.name"]


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        (("v1", "ConfigMap"), "A", SUBDOMAIN),
        (("v1", "Namespace"), "a.b", "must not contain dots"),
        (("apps/v1", "StatefulSet"), "a.b", "must not contain dots"),
        (("rbac.authorization.k8s.io/v1", "Role"), "a/b", "may not contain '/'"),
        (("v1", "Node"), "N_1", SUBDOMAIN),
    ],
)
def test_each_kind_takes_names_of_its_own_form(kind, name, sentence):
    assert f'metadata.name: Invalid value: "{name}": {sentence}' in wrong(*kind, {"metadata": {"name": name}})


def test_an_rbac_name_is_any_path_segment():
    assert wrong("rbac.authorization.k8s.io/v1", "Role", {"metadata": {"name": "system:node A"}}) == []


def test_a_kind_of_the_whole_cluster_has_no_namespace():
    made = create("v1", "Node", {"metadata": {"namespace": "default"}})

    assert said(made) == ["metadata.namespace: Forbidden: not allowed on this type"]


def test_labels_and_annotations_have_their_forms():
    metadata = {"labels": {"a/b/c": "ok", "b": "-"}, "annotations": {"UPPER/Case": "any thing\n", "_": ""}}

    fields = [cause.field for cause in create("v1", "ConfigMap", {"metadata": metadata}).causes]

    assert fields == ["metadata.labels", "metadata.labels", "metadata.annotations"]


def test_annotations_hold_a_quarter_of_a_mebibyte():
    assert wrong("v1", "ConfigMap", {"metadata": {"annotations": {"a": "x" * 262143}}}) == []
    assert wrong("v1", "ConfigMap", {"metadata": {"annotations": {"a": "x" * 262144}}}) == [
        "metadata.annotations: Too long: may not be more than 262144 bytes"
    ]


def test_a_finalizer_is_qualified_or_one_of_three():
    assert wrong("v1", "ConfigMap", {"metadata": {"finalizers": ["kubernetes", "orphan", "a.b/c"]}}) == []
    assert wrong("v1", "ConfigMap", {"metadata": {"finalizers": ["a.b/c", "mine"]}}) == [
        (
            'metadata.finalizers[1]: Invalid value: "mine": '
            "name is neither a standard finalizer name nor is it fully qualified"
        )
    ]
    assert wrong("v1", "ConfigMap", {"metadata": {"finalizers": ["orphan", "foregroundDeletion"]}}) == [
        (
            'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: '
            "finalizer orphan and foregroundDeletion cannot be both set"
        )
    ]


def owner(**fields: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", **fields}


def test_an_owner_is_named_whole():
    made = create("v1", "ConfigMap", {"metadata": {"ownerReferences": [{}, owner(apiVersion="a/b/c")]}})

    assert said(made) == [
        *(
            f"metadata.ownerReferences[0].{f}: Required value: must not be empty"
            for f in ("apiVersion", "kind", "name", "uid")
        ),
        'metadata.ownerReferences[1].apiVersion: Invalid value: "a/b/c": must be <group>/<version> or <version>',
    ]


def test_one_owner_controls():
    owners = [owner(controller=True), owner(controller=True, name="q", uid="v")]

    (sentence,) = wrong("v1", "ConfigMap", {"metadata": {"ownerReferences": owners}})

    assert sentence.endswith(
        'Only one reference can have Controller set to true. Found "true" in references for Pod/p and Pod/q'
    )


MANAGED = [
    ({"operation": "Apply", "manager": "m"}, []),
    ({"operation": ""}, ["operation: Required value: must not be empty"]),
    ({"operation": "Take"}, ['operation: Unsupported value: "Take": supported values: "Apply", "Update"']),
    ({"operation": "Update", "fieldsType": "F2"}, ['fieldsType: Invalid value: "F2": must be `FieldsV1`']),
    ({"operation": "Update", "manager": "m" * 129}, ["manager: Too long: may not be more than 128 bytes"]),
    ({"operation": "Update", "subresource": "s" * 257}, ["subresource: Too long: may not be more than 256 bytes"]),
]


@pytest.mark.parametrize(("entry", "sentences"), MANAGED, ids=[str(sentences) for _, sentences in MANAGED])
def test_managed_fields_are_checked(entry, sentences):
    assert wrong("v1", "ConfigMap", {"metadata": {"managedFields": [entry]}}) == [
        f"metadata.managedFields[0].{sentence}" for sentence in sentences
    ]


def test_an_rbac_name_is_generated_from_any_path_segment():
    assert wrong("rbac.authorization.k8s.io/v1", "Role", {"metadata": {"name": "", "generateName": "A:"}}) == []


def test_a_namespace_is_a_label():
    (sentence,) = said(create("v1", "ConfigMap", {}, namespace="a.b"))

    assert sentence == 'metadata.namespace: Invalid value: "a.b": must not contain dots'


def test_an_object_of_a_namespace_needs_one():
    assert said(create("v1", "ConfigMap", {}, namespace="")) == ["metadata.namespace: Required value"]


def test_an_event_owns_nothing():
    (sentence,) = wrong("v1", "ConfigMap", {"metadata": {"ownerReferences": [owner(kind="Event")]}})

    assert sentence.endswith("/v1, Kind=Event is disallowed from being an owner")


def test_an_update_cannot_change_what_the_server_set():
    old = stored("v1", "ConfigMap", {})
    attempt = {"creationTimestamp": "2000-01-01T00:00:00Z", "generation": 5, "uid": None}

    made = update(old, changed(old, metadata=attempt))

    assert made.causes == ()
    assert made.object == old


def test_no_update_lets_an_object_die():
    old = stored("v1", "ConfigMap", {})

    assert wrong_change(old, metadata={"deletionTimestamp": NOW}) == [
        f'metadata.deletionTimestamp: Invalid value: "{NOW}": field is immutable'
    ]


def test_names_and_uids_never_change():
    old = stored("v1", "ConfigMap", {})

    assert wrong_change(old, metadata={"name": "y", "namespace": "other", "uid": "other"}) == [
        'metadata.name: Invalid value: "y": field is immutable',
        'metadata.namespace: Invalid value: "other": field is immutable',
        'metadata.uid: Invalid value: "other": field is immutable',
    ]


def test_a_dying_object_gets_no_new_finalizer_and_may_lose_its_own():
    old = changed(stored("v1", "ConfigMap", {}), metadata={"deletionTimestamp": NOW, "finalizers": ["a/x"]})

    assert wrong_change(old, metadata={"finalizers": ["a/x", "a/y"]}) == [
        (
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
            'found new finalizers []string{"a/y"}'
        )
    ]
    assert wrong_change(old, metadata={"finalizers": None}) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (("coordination.k8s.io/v1", "Lease"), {}),
        (("storage.k8s.io/v1", "CSINode"), {"spec": {"drivers": []}}),
        (("storage.k8s.io/v1", "CSIDriver"), {}),
    ],
)
def test_some_kinds_are_never_replaced_without_a_version(kind, body):
    old = stored(*kind, body)

    assert wrong_change(old, metadata={"resourceVersion": None}) == [
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ]


def test_other_kinds_are_replaced_without_a_version():
    old = stored("v1", "ConfigMap", {})

    made = update(old, changed(old, metadata={"resourceVersion": None}, data={"a": "b"}))

    assert made.causes == ()
    assert made.object["metadata"] == old["metadata"]
