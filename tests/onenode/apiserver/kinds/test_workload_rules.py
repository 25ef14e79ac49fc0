"""Deployments, ReplicaSets, StatefulSets and DaemonSets: what is refused, in Kubernetes' words."""

from __future__ import annotations

import pytest

from support.api.kube_rules import CONTAINER, TEMPLATE, WORKLOAD, stored, wrong, wrong_change

ROLLING = "spec.updateStrategy.rollingUpdate"
WORKLOADS = [
    ("Deployment", {"selector": None}, ["spec.selector: Required value"]),
    (
        "Deployment",
        {"selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    (
        "Deployment",
        {"selector": {"matchLabels": {"app": "b"}}},
        ['spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'],
    ),
    ("Deployment", {"template": {"metadata": TEMPLATE["metadata"]}}, ["spec.template.spec.containers: Required value"]),
    ("Deployment", {"replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (
        "Deployment",
        {"strategy": {"type": "Recreate", "rollingUpdate": {}}},
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
    ),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}},
        ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    ),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    (
        "Deployment",
        {"minReadySeconds": 600},
        ["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"],
    ),
    (
        "Deployment",
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "Deployment",
        {"template": {**TEMPLATE, "spec": {"containers": [{"name": "c"}]}}},
        ["spec.template.spec.containers[0].image: Required value"],
    ),
    (
        "DaemonSet",
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "activeDeadlineSeconds": 1}}},
        ["spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported"],
    ),
    (
        "DaemonSet",
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        ["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
    ),
    (
        "StatefulSet",
        {"podManagementPolicy": "Odd"},
        ["spec.podManagementPolicy: Invalid value: \"Odd\": must be 'OrderedReady' or 'Parallel'"],
    ),
    (
        "StatefulSet",
        {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]},
        ["spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"],
    ),
    (
        "Deployment",
        {"strategy": {"type": "Odd"}},
        ['spec.strategy: Unsupported value: {"type":"Odd"}: supported values: "Recreate", "RollingUpdate"'],
    ),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxSurge": -1}}},
        ["spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0"],
    ),
    (
        "Deployment",
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "ephemeralContainers": [{"name": "e", "image": "x"}]}}},
        ["spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"],
    ),
    (
        "DaemonSet",
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}}},
        [f"{ROLLING}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"],
    ),
    (
        "DaemonSet",
        {"updateStrategy": {"type": "Odd"}},
        ['spec.updateStrategy: Unsupported value: {"type":"Odd"}: supported values: "RollingUpdate", "OnDelete"'],
    ),
    (
        "StatefulSet",
        {"updateStrategy": {"type": "Odd"}},
        ["spec.updateStrategy: Invalid value: {\"type\":\"Odd\"}: must be 'RollingUpdate' or 'OnDelete'"],
    ),
    (
        "StatefulSet",
        {"updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}},
        ["spec.updateStrategy.rollingUpdate: Invalid value: {}: only allowed for updateStrategy 'RollingUpdate'"],
    ),
    ("StatefulSet", {"serviceName": "a.b"}, ['spec.serviceName: Invalid value: "a.b": must not contain dots']),
    ("ReplicaSet", {"selector": {}}, ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]),
]


@pytest.mark.parametrize(("kind", "fields", "sentences"), WORKLOADS, ids=[str(s)[:90] for _, _, s in WORKLOADS])
def test_a_wrong_workload_is_refused_with_the_paths_and_words_of_kubernetes(kind, fields, sentences):
    spec = {key: value for key, value in {**WORKLOAD, **fields}.items() if value is not None}

    assert wrong("apps/v1", kind, {"spec": spec}) == sentences


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"])
def test_what_a_workload_selects_is_fixed(kind: str):
    old = stored("apps/v1", kind, {"spec": WORKLOAD})
    other = {"metadata": {"labels": {"app": "a", "b": "c"}}, "spec": TEMPLATE["spec"]}

    sentences = wrong_change(old, spec={"selector": {"matchLabels": {"b": "c"}}, "template": other})

    assert sentences == ['spec.selector: Invalid value: {"matchLabels":{"b":"c"}}: field is immutable']


@pytest.mark.parametrize(
    ("requirement", "selected"),
    [
        ({"operator": "In", "values": ["a", "b"]}, True),
        ({"operator": "In", "values": ["b"]}, False),
        ({"operator": "NotIn", "values": ["a"]}, False),
        ({"operator": "NotIn", "values": ["b"]}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_selects_the_template_by_expressions(requirement, selected):
    selector = {"matchExpressions": [{"key": "app", **requirement}]}

    sentences = wrong("apps/v1", "Deployment", {"spec": {**WORKLOAD, "selector": selector}})

    assert (sentences == []) == selected


def test_a_mount_of_a_claim_template_is_known():
    template = {
        **TEMPLATE,
        "spec": {"containers": [{**CONTAINER, "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]},
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}},
    }

    assert (
        wrong("apps/v1", "StatefulSet", {"spec": {**WORKLOAD, "template": template, "volumeClaimTemplates": [claim]}})
        == []
    )


def test_a_workloads_counts_make_sense():
    old = stored("apps/v1", "Deployment", {"spec": WORKLOAD})

    assert wrong_change(old, "status", status={"replicas": 1, "readyReplicas": 2, "updatedReplicas": -1}) == [
        "status.updatedReplicas: Invalid value: -1: must be greater than or equal to 0",
        "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
    ]
