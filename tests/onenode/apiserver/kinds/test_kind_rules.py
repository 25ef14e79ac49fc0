"""The other kinds: what is refused, in Kubernetes' words, and what may change."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from support.api.kube_rules import NOW, RBAC, changed, create, said, stored, wrong, wrong_change

SECRET, CONFIG_MAP = ("v1", "Secret"), ("v1", "ConfigMap")
LEASE = ("coordination.k8s.io/v1", "Lease")
FROZEN = "Forbidden: field is immutable when `immutable` is set"
MIB = 1024 * 1024


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WRONG = [
    (
        CONFIG_MAP,
        {"data": {"a b": ""}},
        [
            (
                'data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric characters, '
                "'-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', "
                "regex used for validation is '[-._a-zA-Z0-9]+')"
            )
        ],
    ),
    (
        CONFIG_MAP,
        {"data": {"a": ""}, "binaryData": {"a": ""}},
        ['data[a]: Invalid value: "a": duplicate of key present in binaryData'],
    ),
    (CONFIG_MAP, {"data": {"a": "x" * (MIB + 1)}}, ["[]: Too long: may not be more than 1048576 bytes"]),
    (CONFIG_MAP, {"data": {"a": "x" * MIB}}, []),
    (SECRET, {"data": {"a": encoded("x" * (MIB + 1))}}, ["data: Too long: may not be more than 1048576 bytes"]),
    (SECRET, {"data": {"a": encoded("x" * MIB)}}, []),
    (
        SECRET,
        {"type": "kubernetes.io/tls"},
        ["data[tls.crt]: Required value", "data[tls.key]: Required value"],
    ),
    (
        SECRET,
        {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": encoded("{")}},
        [
            (
                'data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": '
                "invalid character looking for beginning of value"
            )
        ],
    ),
    (
        SECRET,
        {"type": "kubernetes.io/service-account-token"},
        ["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
    ),
    (
        SECRET,
        {"type": "kubernetes.io/basic-auth"},
        ["data[username]: Required value", "data[password]: Required value"],
    ),
    (
        LEASE,
        {"spec": {"leaseDurationSeconds": 0}},
        ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
    ),
    (
        LEASE,
        {"spec": {"leaseTransitions": -1}},
        ["spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        ("v1", "Node"),
        {"spec": {"taints": [{"key": "a"}, {"key": "b", "effect": "X"}]}},
        [
            "metadata.taints[0].effect: Required value",
            (
                'metadata.taints[1].effect: Unsupported value: "X": '
                'supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'
            ),
        ],
    ),
    (
        ("v1", "Node"),
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]}},
        [
            (
                'metadata.taints[1]: Duplicate value: {"effect":"NoExecute","key":"a"}: '
                "taints must be unique by key and effect pair"
            )
        ],
    ),
    (
        ("v1", "Namespace"),
        {"spec": {"finalizers": ["mine"]}},
        ['spec.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified'],
    ),
    (
        (RBAC, "Role"),
        {"rules": [{"verbs": ["get"]}]},
        [
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ],
    ),
    (
        (RBAC, "Role"),
        {"rules": [{"verbs": [], "nonResourceURLs": ["/x"]}]},
        [
            "rules[0].verbs: Required value: verbs must contain at least one value",
            'rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs',
        ],
    ),
    ((RBAC, "ClusterRole"), {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}, []),
    (
        (RBAC, "ClusterRole"),
        {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}]},
        [
            (
                'rules[0].nonResourceURLs: Invalid value: ["/x"]: '
                "rules cannot apply to both regular resources and non-resource URLs"
            )
        ],
    ),
    (
        (RBAC, "RoleBinding"),
        {
            "roleRef": {"kind": "Role", "name": "r", "apiGroup": "x"},
            "subjects": [
                {"kind": "ServiceAccount", "name": "a", "apiGroup": "y"},
                {"kind": "User", "name": "u", "apiGroup": "z"},
            ],
        },
        [
            'roleRef.apiGroup: Unsupported value: "x": supported values: "rbac.authorization.k8s.io"',
            'subjects[0].apiGroup: Unsupported value: "y": supported values: ""',
            'subjects[1].apiGroup: Unsupported value: "z": supported values: "rbac.authorization.k8s.io"',
        ],
    ),
    (
        SECRET,
        {"type": "kubernetes.io/dockercfg", "data": {".dockercfg": encoded("[]")}},
        [
            (
                'data[.dockercfg]: Invalid value: "<secret contents redacted>": '
                "json: cannot unmarshal into Go value of type map[string]interface {}"
            )
        ],
    ),
    (
        LEASE,
        {"spec": {"preferredHolder": "a"}},
        ["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"],
    ),
    (
        ("v1", "Node"),
        {"status": {"addresses": [{"type": "a", "address": "b"}] * 2, "capacity": {"cpu": "-1"}}},
        [
            'status.capacity.cpu: Invalid value: "-1": must be greater than or equal to 0',
            'status.allocatable.cpu: Invalid value: "-1": must be greater than or equal to 0',
            'status.addresses[1]: Duplicate value: {"address":"b","type":"a"}',
        ],
    ),
    (
        (RBAC, "ClusterRole"),
        {"aggregationRule": {}},
        [
            (
                "aggregationRule.clusterRoleSelectors: Required value: "
                "at least one clusterRoleSelector required if aggregationRule is non-nil"
            )
        ],
    ),
    (
        (RBAC, "ClusterRoleBinding"),
        {"roleRef": {"kind": "Role"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}, {"kind": "Robot"}]},
        [
            'roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"',
            "roleRef.name: Required value",
            "subjects[0].namespace: Required value",
            "subjects[1].name: Required value",
            'subjects[1].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"',
        ],
    ),
]


@pytest.mark.parametrize(
    ("kind", "body", "sentences"), WRONG, ids=[f"{kind[1]} {str(body)[:60]}" for kind, body, _ in WRONG]
)
def test_a_wrong_object_is_refused_with_the_paths_and_words_of_kubernetes(kind, body, sentences):
    assert wrong(*kind, body) == sentences


def test_the_type_of_a_secret_is_fixed():
    assert wrong_change(stored(*SECRET, {}), type="mine") == ['type: Invalid value: "mine": field is immutable']


def test_an_immutable_secret_stays_so():
    old = stored(*SECRET, {"immutable": True, "data": {"a": "eA=="}})

    assert wrong_change(old, immutable=None, data={"a": "eQ=="}) == [f"immutable: {FROZEN}", f"data: {FROZEN}"]
    assert wrong_change(old, metadata={"labels": {"a": "b"}}) == []


def test_an_immutable_config_map_stays_so():
    old = stored(*CONFIG_MAP, {"immutable": True, "data": {"a": "x"}})

    assert wrong_change(old, immutable=False, data={"a": "y"}, binaryData={"b": "eA=="}) == [
        f"immutable: {FROZEN}",
        f"data: {FROZEN}",
        f"binaryData: {FROZEN}",
    ]


def test_a_binding_keeps_its_role():
    old = stored(RBAC, "RoleBinding", {"roleRef": {"kind": "Role", "name": "a"}})

    (sentence,) = wrong_change(old, roleRef={"name": "b"})

    assert sentence.startswith("roleRef: Invalid value: {")
    assert sentence.endswith(": field is immutable")


def test_a_node_keeps_its_networks_and_its_provider():
    old = stored("v1", "Node", {"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "p"}})

    assert wrong_change(old, spec={"podCIDRs": ["10.1.0.0/24"], "providerID": None}) == [
        'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid',
        "spec.providerID: Invalid value: null: field cannot be cleared once set",
    ]
    assert wrong_change(stored("v1", "Node", {}), spec={"podCIDRs": ["10.0.0.0/24"], "providerID": "p"}) == []


def test_the_phase_of_a_namespace_goes_with_its_deletion():
    old = stored("v1", "Namespace", {})
    dying = changed(old, metadata={"deletionTimestamp": NOW})

    assert wrong_change(old, "status", status={"phase": "Terminating"}) == [
        "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    ]
    assert wrong_change(dying, "status", status={"phase": "Terminating"}) == []
    assert wrong_change(dying, "status", status={"phase": "Active"}) == [
        "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"
    ]


def test_the_value_of_a_taint_is_a_labels():
    (sentence,) = wrong("v1", "Node", {"spec": {"taints": [{"key": "a", "value": "-", "effect": "NoExecute"}]}})

    assert sentence.startswith('metadata.taints[0].value: Invalid value: "-": a valid label must be')


OLD_EVENT = {"involvedObject": {"namespace": "default", "name": "p"}, "reason": "R", "message": "m", "count": 1}
NEW_EVENT = {
    "regarding": {"namespace": "default", "name": "p"},
    "eventTime": "2026-08-01T12:00:00.000000Z",
    "reportingController": "orlop.dev/x",
    "reportingInstance": "i",
    "action": "Act",
    "reason": "R",
    "type": "Normal",
}


def event(**fields: Any) -> list[str]:
    given = {key: value for key, value in {**NEW_EVENT, **fields}.items() if value is not None}
    return wrong("events.k8s.io/v1", "Event", given)


def test_events_of_both_forms_are_stored():
    assert wrong("v1", "Event", OLD_EVENT) == []
    assert event() == []


def test_an_event_is_where_its_object_is():
    sentence = 'involvedObject.namespace: Invalid value: "other": does not match event.namespace'

    assert wrong("v1", "Event", {**OLD_EVENT, "involvedObject": {"namespace": "other"}}) == [sentence]
    assert wrong("v1", "Event", {**OLD_EVENT, "involvedObject": {"name": "node"}}) == []


def test_an_event_about_the_cluster_is_in_default_or_kube_system():
    surroundings = [("default", []), ("kube-system", []), ("mine", ["involvedObject.namespace"])]

    for namespace, fields in surroundings:
        made = create("events.k8s.io/v1", "Event", {**NEW_EVENT, "regarding": {"name": "n"}}, namespace=namespace)
        assert [cause.field for cause in made.causes] == fields


EVENTS = [
    ({"type": "Loud"}, ['type: Invalid value: "": has invalid value: Loud']),
    ({"reason": "r" * 129}, ['reason: Invalid value: "": can have at most 128 characters']),
    ({"note": "n" * 1025}, ['message: Invalid value: "": can have at most 1024 characters']),
    ({"action": None}, ["action: Required value"]),
    ({"eventTime": None}, ["eventTime: Required value"]),
    ({"reportingInstance": None}, ["reportingInstance: Required value"]),
    ({"deprecatedCount": 2}, ['count: Invalid value: "": needs to be unset']),
    (
        {"series": {"count": 1}},
        ['series.count: Invalid value: "": should be at least 2', "series.lastObservedTime: Required value"],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), EVENTS, ids=[str(fields)[:50] for fields, _ in EVENTS])
def test_a_wrong_event_of_the_new_form_is_refused(fields, sentences):
    assert event(**fields) == sentences


def test_an_event_of_the_new_form_changes_only_its_series():
    old = stored("events.k8s.io/v1", "Event", NEW_EVENT)
    series = {"count": 2, "lastObservedTime": "2026-08-01T12:01:00.000000Z"}

    assert wrong_change(old, series=series) == []
    assert wrong_change(old, note="other", reason="S") == [
        'reason: Invalid value: "S": field is immutable',
        'message: Invalid value: "other": field is immutable',
    ]


def test_an_event_of_the_old_form_counts():
    assert wrong_change(stored("v1", "Event", OLD_EVENT), count=2, message="again") == []


def test_a_review_asks_one_question_of_somebody():
    authorization = "authorization.k8s.io/v1"
    question = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    nobody = 'spec.user: Invalid value: "": at least one of user or group must be specified'
    both = "exactly one of nonResourceAttributes or resourceAttributes must be specified"

    def review(kind: str, spec: dict[str, Any], **metadata: str) -> list[str]:
        return wrong(authorization, kind, {"spec": spec, "metadata": metadata})

    assert review("SubjectAccessReview", {**question, "user": "u"}) == []
    assert review("SubjectAccessReview", question) == [nobody]
    assert review("SelfSubjectAccessReview", question, name="x") == [
        'metadata: Invalid value: {"name":"x"}: must be empty'
    ]
    assert review("SelfSubjectAccessReview", {}) == [f"spec: Invalid value: null: {both}"]


def test_a_review_in_a_namespace_asks_about_that_namespace():
    def review(namespace: str) -> list[str]:
        spec = {"user": "u", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": namespace}}
        given = {"metadata": {"namespace": "a"}, "spec": spec}
        return wrong("authorization.k8s.io/v1", "LocalSubjectAccessReview", given)

    assert review("a") == []
    assert review("b") == ['spec.resourceAttributes.namespace: Invalid value: "b": must match metadata.namespace']


def test_a_token_lives_ten_minutes_at_least_and_an_hour_unless_told():
    request = ("authentication.k8s.io/v1", "TokenRequest")

    assert create(*request, {}).object["spec"]["expirationSeconds"] == 3600
    assert said(create(*request, {"spec": {"expirationSeconds": 599}})) == [
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
    ]


def test_a_pod_is_bound_to_a_node():
    assert said(create("v1", "Binding", {"target": {"kind": "Pod"}})) == [
        'target.kind: Unsupported value: "Pod": supported values: "Node", "<empty>"',
        "target.name: Required value",
    ]
    assert said(create("v1", "Binding", {"target": {"kind": "Node", "name": "n1"}})) == []
