"""The generated file says what kube-api facts A3.8 and the kinds' documentation say."""

from __future__ import annotations

import pytest

from onenode.apiserver.schema.schemas import (
    FILE,
    ListType,
    MapType,
    ReferenceType,
    Scalar,
    Schemas,
    UnknownField,
    UnknownKind,
    files,
)
from orlop.kube.kinds import STORED_ONLY

SERVED = [
    *(("v1", kind) for kind in ("Namespace", "Node", "Pod", "PersistentVolume", "PersistentVolumeClaim", "Secret")),
    *(("v1", kind) for kind in ("ConfigMap", "ServiceAccount", "Event", "Binding", "DeleteOptions", "Status")),
    ("events.k8s.io/v1", "Event"),
    *(("storage.k8s.io/v1", kind) for kind in ("StorageClass", "CSIDriver", "CSINode", "VolumeAttachment")),
    *(("storage.k8s.io/v1", kind) for kind in ("CSIStorageCapacity", "VolumeAttributesClass")),
    ("coordination.k8s.io/v1", "Lease"),
    *(("apps/v1", kind) for kind in ("ControllerRevision", "DaemonSet", "Deployment", "StatefulSet", "ReplicaSet")),
    *(("rbac.authorization.k8s.io/v1", kind) for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")),
    *(("authentication.k8s.io/v1", kind) for kind in ("TokenReview", "TokenRequest", "SelfSubjectReview")),
    *(("authorization.k8s.io/v1", kind) for kind in ("SubjectAccessReview", "SelfSubjectAccessReview")),
    *(("authorization.k8s.io/v1", kind) for kind in ("LocalSubjectAccessReview", "SelfSubjectRulesReview")),
    ("policy/v1", "Eviction"),
    *((kind.api_version, kind.kind) for kind in STORED_ONLY),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
]

MERGED = [
    *(("v1", "Pod", f"spec.{name}", "name") for name in ("containers", "initContainers", "ephemeralContainers")),
    *(("v1", "Pod", f"spec.{name}", "name") for name in ("imagePullSecrets", "schedulingGates", "resourceClaims")),
    ("v1", "Pod", "spec.volumes", "name"),
    ("v1", "Pod", "spec.hostAliases", "ip"),
    ("v1", "Pod", "spec.topologySpreadConstraints", "topologyKey"),
    ("v1", "Pod", "spec.containers.env", "name"),
    ("v1", "Pod", "spec.containers.ports", "containerPort"),
    ("v1", "Pod", "spec.containers.volumeMounts", "mountPath"),
    ("v1", "Pod", "spec.containers.volumeDevices", "devicePath"),
    *((*kind, "status.conditions", "type") for kind in (("v1", "Pod"), ("v1", "Node"), ("v1", "Namespace"))),
    ("v1", "PersistentVolumeClaim", "status.conditions", "type"),
    *(
        ("apps/v1", kind, "status.conditions", "type")
        for kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")
    ),
    ("v1", "Pod", "status.podIPs", "ip"),
    ("v1", "Pod", "status.hostIPs", "ip"),
    ("v1", "Node", "status.addresses", "type"),
    ("v1", "Node", "spec.podCIDRs", None),
    ("v1", "Pod", "metadata.finalizers", None),
    ("v1", "Pod", "metadata.ownerReferences", "uid"),
    ("v1", "ServiceAccount", "secrets", "name"),
    ("storage.k8s.io/v1", "CSINode", "spec.drivers", "name"),
]

REPLACED = [
    ("v1", "Node", "spec.taints"),
    ("v1", "Pod", "spec.tolerations"),
    ("v1", "PersistentVolume", "spec.accessModes"),
    ("v1", "ServiceAccount", "imagePullSecrets"),
    ("v1", "Node", "status.volumesAttached"),
    ("v1", "Node", "status.volumesInUse"),
    ("v1", "Pod", "spec.containers.command"),
    ("v1", "Pod", "spec.containers.args"),
]


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    return Schemas.load()


def test_the_file_holds_every_kind_the_server_knows_and_no_other(schemas: Schemas):
    assert sorted(schemas.kinds()) == sorted(SERVED)


def test_the_file_is_of_the_kubernetes_that_the_server_says_it_is(schemas: Schemas):
    assert schemas.kubernetes_version == "1.37.0"


@pytest.mark.parametrize(("api_version", "kind"), SERVED)
def test_every_definition_a_kind_refers_to_is_in_the_file(schemas: Schemas, api_version: str, kind: str):
    seen: set[str] = set()
    waiting = [schemas.kind(api_version, kind)]
    while waiting:
        definition = waiting.pop()
        seen.add(definition.name)
        inner = (schemas.inside(field.type) for field in definition.fields.values())
        waiting += [each for each in inner if each is not None and each.name not in seen]

    assert seen


@pytest.mark.parametrize(("api_version", "kind", "path", "key"), MERGED)
def test_a_list_is_merged_by_the_key_kubernetes_documents(schemas, api_version, kind, path, key):
    field = schemas.field_at(schemas.kind(api_version, kind), path)

    assert field.is_merged
    assert field.merge_key == key


@pytest.mark.parametrize(("api_version", "kind", "path"), REPLACED)
def test_a_list_that_is_not_named_there_is_replaced_whole(schemas, api_version, kind, path):
    assert not schemas.field_at(schemas.kind(api_version, kind), path).is_merged


def test_volumes_and_a_deployments_strategy_retain_keys(schemas: Schemas):
    volumes = schemas.field_at(schemas.kind("v1", "Pod"), "spec.volumes")
    strategy = schemas.field_at(schemas.kind("apps/v1", "Deployment"), "spec.strategy")

    assert volumes.patch_strategies == {"merge", "retainKeys"}
    assert strategy.patch_strategies == {"retainKeys"}


def test_types_are_read_whole(schemas: Schemas):
    pod = schemas.kind("v1", "Pod")

    assert schemas.field_at(pod, "metadata.labels").type == MapType(Scalar("string"))
    assert schemas.field_at(pod, "spec.containers").type == ListType(ReferenceType("core.v1.Container"))
    assert schemas.field_at(pod, "spec.overhead").type == MapType(Scalar("quantity"))
    assert schemas.field_at(pod, "metadata.creationTimestamp").type == Scalar("time")
    lease = schemas.kind("coordination.k8s.io/v1", "Lease")
    assert schemas.field_at(lease, "spec.renewTime").type == Scalar("microtime")
    secret = schemas.kind("v1", "Secret")
    assert schemas.field_at(secret, "data").type == MapType(Scalar("bytes"))


def test_list_types_and_their_keys_are_kept_for_server_side_apply(schemas: Schemas):
    ports = schemas.field_at(schemas.kind("v1", "Pod"), "spec.containers.ports")

    assert (ports.list_type, ports.list_map_keys) == ("map", ("containerPort", "protocol"))
    assert schemas.field_at(schemas.kind("v1", "Pod"), "spec.nodeSelector").map_type == "atomic"


def test_what_is_required_is_known(schemas: Schemas):
    assert schemas.kind("storage.k8s.io/v1", "StorageClass").required == ("provisioner",)
    assert schemas.definition("core.v1.CSIPersistentVolumeSource").required == ("driver", "volumeHandle")


def test_a_definition_is_built_once(schemas: Schemas):
    assert schemas.definition("core.v1.PodSpec") is schemas.definition("core.v1.PodSpec")


def test_a_kind_nobody_serves_is_named(schemas: Schemas):
    with pytest.raises(UnknownKind, match=r"no kind Ingress in networking.k8s.io/v1"):
        schemas.kind("networking.k8s.io/v1", "Ingress")


@pytest.mark.parametrize("path", ["spec.foo", "spec.nodeName.x", "metadata.labels.app"])
def test_a_path_that_leads_nowhere_is_named(schemas: Schemas, path: str):
    with pytest.raises(UnknownField, match=rf"core\.v1\.Pod has no field {path}"):
        schemas.field_at(schemas.kind("v1", "Pod"), path)


def test_the_file_is_compact_and_holds_no_descriptions():
    text = files("onenode.apiserver.schema").joinpath(FILE).read_bytes()

    assert len(text) < 110_000
    assert b"escription" not in text.replace(b'"description":"string"', b"")  # fields of that name
