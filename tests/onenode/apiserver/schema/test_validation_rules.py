"""What of an object survives on its main endpoint and on /status, and when its generation counts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.kinds.kind_rules import rules_of
from onenode.apiserver.schema.json_values import copied
from onenode.apiserver.schema.validation_rules import decode_object
from support.api.kube_patches import PatchMaker
from support.api.kube_rules import (
    ATTACHMENT,
    CLAIM,
    CONTAINER,
    LATER,
    NOW,
    SCHEMAS,
    STORAGE,
    TEMPLATE,
    VOLUME,
    WORKLOAD,
    changed,
    create,
    stored,
    update,
)

POD = {"spec": {"containers": [CONTAINER]}}
WITH_STATUS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("v1", "Pod"): (POD, {"phase": "Running", "qosClass": "BestEffort"}),
    ("v1", "PersistentVolume"): ({"spec": VOLUME}, {"phase": "Bound", "lastPhaseTransitionTime": LATER}),
    ("v1", "PersistentVolumeClaim"): ({"spec": CLAIM}, {"phase": "Bound"}),
    ("v1", "Node"): ({}, {"phase": "Running"}),
    ("v1", "Namespace"): ({}, {"phase": "Active", "conditions": [{"type": "A", "status": "True"}]}),
    (STORAGE, "VolumeAttachment"): ({"spec": ATTACHMENT}, {"attached": True}),
    (STORAGE, "CSINode"): ({"spec": {"drivers": []}}, {"storageHealth": [{"name": "d.x"}]}),
    ("apps/v1", "Deployment"): ({"spec": WORKLOAD}, {"replicas": 1}),
}
META = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["a/b"]}
KEEPS = [("v1", kind) for kind in ("Pod", "PersistentVolume", "PersistentVolumeClaim", "Node", "Namespace")]
DROPS = [(STORAGE, kind) for kind in ("VolumeAttachment", "CSINode")]


def with_more(old: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    labels = {**old["metadata"].get("labels", {}), **extra["labels"]}
    finalizers = [*old["metadata"].get("finalizers", []), *extra["finalizers"]]
    return changed(old, metadata={**extra, "labels": labels, "finalizers": finalizers})


@pytest.mark.parametrize("kind", WITH_STATUS, ids=lambda kind: kind[1])
def test_the_main_endpoint_never_changes_status(kind: tuple[str, str]):
    body, status = WITH_STATUS[kind]
    old = stored(*kind, body)

    made = update(old, {**old, "status": status})

    assert made.causes == ()
    assert made.object == old


@pytest.mark.parametrize("kind", [kind for kind in WITH_STATUS if kind[1] != "Node"], ids=lambda kind: kind[1])
def test_status_given_at_creation_is_dropped(kind: tuple[str, str]):
    body, status = WITH_STATUS[kind]

    assert create(*kind, {**body, "status": status}).object.get("status") == stored(*kind, body).get("status")


def test_a_kubelet_registers_its_node_with_its_status():
    made = stored("v1", "Node", {"status": {"phase": "Running"}})["status"]

    assert made["phase"] == "Running"
    assert made["nodeInfo"]["kubeletVersion"] == ""
    assert made["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}


@pytest.mark.parametrize("kind", WITH_STATUS, ids=lambda kind: kind[1])
def test_the_status_endpoint_changes_status_and_never_the_spec(kind: tuple[str, str]):
    body, status = WITH_STATUS[kind]
    old = stored(*kind, body)

    made = update(old, {**old, "spec": {}, "status": status}, "status")

    assert made.causes == ()
    assert made.object["status"].items() >= status.items()
    assert made.object.get("spec") == old.get("spec")
    assert made.object["metadata"] == old["metadata"]


@pytest.mark.parametrize("kind", KEEPS, ids=lambda kind: kind[1])
def test_the_status_endpoint_keeps_changes_of_metadata(kind: tuple[str, str]):
    body, status = WITH_STATUS[kind]
    old = stored(*kind, body)
    wanted = with_more(old, META)

    made = update(old, {**wanted, "status": status}, "status")

    assert made.causes == ()
    assert made.object["metadata"] == wanted["metadata"]


@pytest.mark.parametrize("kind", DROPS, ids=lambda kind: kind[1])
def test_the_status_endpoint_of_some_kinds_drops_changes_of_metadata(kind: tuple[str, str]):
    body, status = WITH_STATUS[kind]
    old = stored(*kind, body)

    made = update(old, {**with_more(old, META), "status": status}, "status")

    assert made.object["metadata"] == old["metadata"]
    assert made.object["status"] == status


def test_the_status_of_a_pod_keeps_its_owners_and_that_of_a_deployment_its_labels():
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
    pod = stored("v1", "Pod", POD)
    deployment = stored("apps/v1", "Deployment", {"spec": WORKLOAD})

    with_owner = update(pod, changed(pod, metadata={"ownerReferences": owner}), "status")
    labelled = update(deployment, changed(deployment, metadata={"labels": {"a": "b"}}), "status")

    assert "ownerReferences" not in with_owner.object["metadata"]
    assert "labels" not in labelled.object["metadata"]


def test_a_volume_remembers_when_its_phase_changed():
    old = stored("v1", "PersistentVolume", {"spec": VOLUME})

    def moment(**status: Any) -> str:
        return update(old, changed(old, status=status), "status").object["status"]["lastPhaseTransitionTime"]

    assert moment(phase="Bound") == LATER
    assert moment(phase="Bound", lastPhaseTransitionTime=None) == LATER
    assert moment(phase="Pending", lastPhaseTransitionTime=None) == NOW
    assert moment(phase="Bound", lastPhaseTransitionTime="2026-08-01T12:30:00Z") == "2026-08-01T12:30:00Z"


def test_a_namespaces_finalizers_go_by_the_finalize_endpoint_alone():
    old = stored("v1", "Namespace", {})
    wanted = changed(old, spec={"finalizers": []}, status={"phase": "Terminating"})

    assert update(old, wanted).object == old
    finalized = update(old, wanted, "finalize")
    assert finalized.causes == ()
    assert finalized.object["spec"] == {}
    assert finalized.object["status"] == old["status"]


GENERATIONS = [
    ("v1", "Pod", POD, {"spec": {"activeDeadlineSeconds": 5}}, 1, 2),
    ("apps/v1", "Deployment", {"spec": WORKLOAD}, {"spec": {"replicas": 3}}, 1, 2),
    ("apps/v1", "StatefulSet", {"spec": WORKLOAD}, {"spec": {"replicas": 3}}, 1, 2),
    ("apps/v1", "DaemonSet", {"spec": WORKLOAD}, {"spec": {"minReadySeconds": 3}}, 1, 2),
    (STORAGE, "CSIDriver", {}, {"spec": {"storageCapacity": True}}, None, 1),
    ("v1", "PersistentVolume", {"spec": VOLUME}, {"spec": {"storageClassName": "b"}}, None, None),
    ("v1", "ConfigMap", {}, {"data": {"a": "b"}}, None, None),
    ("coordination.k8s.io/v1", "Lease", {}, {"spec": {"holderIdentity": "a"}}, None, None),
]


@pytest.mark.parametrize(("api_version", "kind", "body", "change", "first", "second"), GENERATIONS)
def test_the_generation_counts_changes_of_the_spec(api_version, kind, body, change, first, second):
    old = stored(api_version, kind, body)
    made = update(old, changed(old, **change))
    labelled = update(old, changed(old, metadata={"labels": {"a": "b"}}))

    assert old["metadata"].get("generation") == first
    assert made.object["metadata"].get("generation") == second
    assert labelled.object["metadata"].get("generation") == first


def test_an_update_that_says_the_same_in_other_words_changes_nothing():
    old = stored("v1", "PersistentVolume", {"spec": VOLUME})

    made = update(old, changed(old, spec={"capacity": {"storage": "1024Mi"}}, metadata={"labels": {}}))

    assert made.object == old


def test_only_some_kinds_are_created_by_replacing():
    creating = {kind for kind in SCHEMAS.kinds() if rules_of(*kind).created_by_replacing}

    assert {kind for _, kind in creating} == {
        *("Lease", "Event", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"),
    }


def test_a_kind_without_rules_is_checked_by_its_metadata_alone():
    assert rules_of("orlop.dev/v1", "Drive") == rules_of("any", "Thing")


VALID: dict[tuple[str, str], dict[str, Any]] = {
    **{kind: body for kind, (body, _) in WITH_STATUS.items()},
    ("v1", "Secret"): {"stringData": {"a": "b"}},
    ("v1", "ConfigMap"): {"data": {"a": "b"}},
    ("v1", "ServiceAccount"): {"secrets": [{"name": "s"}]},
    ("apps/v1", "StatefulSet"): {
        "spec": {**WORKLOAD, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": CLAIM}]}
    },
    ("apps/v1", "DaemonSet"): {"spec": {**WORKLOAD, "template": TEMPLATE}},
    (STORAGE, "StorageClass"): {"provisioner": "p"},
    (STORAGE, "CSIDriver"): {},
    (STORAGE, "CSIStorageCapacity"): {"storageClassName": "c"},
    (STORAGE, "VolumeAttributesClass"): {"driverName": "d.example", "parameters": {"iops": "100"}},
    ("coordination.k8s.io/v1", "Lease"): {"spec": {"renewTime": "2026-08-01T12:00:00.000000Z"}},
}


@pytest.mark.parametrize("kind", VALID, ids=lambda kind: kind[1])
def test_what_is_stored_is_replaced_by_itself_without_a_change(kind: tuple[str, str]):
    old = stored(*kind, VALID[kind])

    for subresource in ("", "status") if rules_of(*kind).has_status else ("",):
        made = update(old, old, subresource)
        assert made.causes == ()
        assert made.object == old


@given(st.integers(0, 2**32), st.sampled_from(sorted(VALID)))
def test_any_object_is_judged_without_changing_what_was_given(seed: int, kind: tuple[str, str]):
    maker = PatchMaker(SCHEMAS, Random(seed))
    one, two = (decode_object(SCHEMAS, *kind, maker.object_of(*kind)).object for _ in range(2))
    before = copied([one, two])

    made = create(*kind, one)
    update(made.object, two)
    update(made.object, two, "status")

    assert [one, two] == before
    assert all(cause.message for cause in made.causes)
