"""Names, paths and verbs of kinds; the built-in ones are compared with what Kubernetes' discovery says."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube import kinds
from orlop.kube.kinds import BUILT_IN, InvalidPath, Kind, kind_of_object, kind_of_resource
from support.random_tests import FEWER

DRIVE = Kind("orlop.dev", "v1", "Drive", "drives", namespaced=False, short_names=("dr",), subresources=(kinds.STATUS,))

PATHS = [
    (kinds.POD.collection_path(), "/api/v1/pods"),
    (kinds.POD.collection_path("default"), "/api/v1/namespaces/default/pods"),
    (kinds.POD.object_path("default", "web-0"), "/api/v1/namespaces/default/pods/web-0"),
    (kinds.POD.object_path("default", "web-0", "log"), "/api/v1/namespaces/default/pods/web-0/log"),
    (kinds.NAMESPACE.object_path(None, "default"), "/api/v1/namespaces/default"),
    (kinds.NAMESPACE.object_path(None, "x", "finalize"), "/api/v1/namespaces/x/finalize"),
    (kinds.VOLUME_ATTACHMENT.collection_path(), "/apis/storage.k8s.io/v1/volumeattachments"),
    (kinds.VOLUME_ATTACHMENT.object_path(None, "va", "status"), "/apis/storage.k8s.io/v1/volumeattachments/va/status"),
    (kinds.LEASE.object_path("kube-system", "x"), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"),
    (
        kinds.CLUSTER_ROLE.object_path(None, "system:node"),
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
    ),
    (DRIVE.object_path(None, "nvme0", "status"), "/apis/orlop.dev/v1/drives/nvme0/status"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS, ids=[expected for _, expected in PATHS])
def test_an_object_lives_where_kubernetes_has_it(path: str, expected: str):
    assert path == expected


# In the order `kubectl api-resources -o wide` prints them: name, short names, apiVersion, namespaced, kind, categories.
API_RESOURCES = """
endpoints              ep     v1                           true  Endpoints
limitranges            limits v1                           true  LimitRange
replicationcontrollers rc     v1                           true  ReplicationController all
resourcequotas         quota  v1                           true  ResourceQuota
services               svc    v1                           true  Service all
controllerrevisions    -      apps/v1                      true  ControllerRevision
horizontalpodautoscalers hpa  autoscaling/v2               true  HorizontalPodAutoscaler all
cronjobs               cj     batch/v1                     true  CronJob all
jobs                   -      batch/v1                     true  Job all
certificatesigningrequests csr certificates.k8s.io/v1      false CertificateSigningRequest
podcertificaterequests -      certificates.k8s.io/v1       true  PodCertificateRequest
endpointslices         -      discovery.k8s.io/v1          true  EndpointSlice
ipaddresses            ip     networking.k8s.io/v1         false IPAddress
servicecidrs           -      networking.k8s.io/v1         false ServiceCIDR
runtimeclasses         -      node.k8s.io/v1               false RuntimeClass
poddisruptionbudgets   pdb    policy/v1                    true  PodDisruptionBudget
deviceclasses          -      resource.k8s.io/v1           false DeviceClass
devicetaintrules       -      resource.k8s.io/v1           false DeviceTaintRule
resourceclaims         -      resource.k8s.io/v1           true  ResourceClaim
resourceclaimtemplates -      resource.k8s.io/v1           true  ResourceClaimTemplate
resourceslices         -      resource.k8s.io/v1           false ResourceSlice
priorityclasses        pc     scheduling.k8s.io/v1         false PriorityClass
storageversionmigrations -    storagemigration.k8s.io/v1   false StorageVersionMigration
bindings               -      v1                           true  Binding
customresourcedefinitions crd,crds apiextensions.k8s.io/v1  false CustomResourceDefinition api-extensions
validatingadmissionpolicies - admissionregistration.k8s.io/v1 false ValidatingAdmissionPolicy api-extensions
validatingadmissionpolicybindings - admissionregistration.k8s.io/v1 false ValidatingAdmissionPolicyBinding \
api-extensions
configmaps             cm     v1                           true  ConfigMap
events                 ev     v1                           true  Event
namespaces             ns     v1                           false Namespace
nodes                  no     v1                           false Node
persistentvolumeclaims pvc    v1                           true  PersistentVolumeClaim
persistentvolumes      pv     v1                           false PersistentVolume
pods                   po     v1                           true  Pod                     all
secrets                -      v1                           true  Secret
serviceaccounts        sa     v1                           true  ServiceAccount
daemonsets             ds     apps/v1                      true  DaemonSet               all
deployments            deploy apps/v1                      true  Deployment              all
replicasets            rs     apps/v1                      true  ReplicaSet              all
statefulsets           sts    apps/v1                      true  StatefulSet             all
selfsubjectreviews     -      authentication.k8s.io/v1     false SelfSubjectReview
tokenreviews           -      authentication.k8s.io/v1     false TokenReview
localsubjectaccessreviews -   authorization.k8s.io/v1      true  LocalSubjectAccessReview
selfsubjectaccessreviews -    authorization.k8s.io/v1      false SelfSubjectAccessReview
selfsubjectrulesreviews -     authorization.k8s.io/v1      false SelfSubjectRulesReview
subjectaccessreviews   -      authorization.k8s.io/v1      false SubjectAccessReview
leases                 -      coordination.k8s.io/v1       true  Lease
events                 ev     events.k8s.io/v1             true  Event
clusterrolebindings    -      rbac.authorization.k8s.io/v1 false ClusterRoleBinding
clusterroles           -      rbac.authorization.k8s.io/v1 false ClusterRole
rolebindings           -      rbac.authorization.k8s.io/v1 true  RoleBinding
roles                  -      rbac.authorization.k8s.io/v1 true  Role
csidrivers             -      storage.k8s.io/v1            false CSIDriver
csinodes               -      storage.k8s.io/v1            false CSINode
csistoragecapacities   -      storage.k8s.io/v1            true  CSIStorageCapacity
storageclasses         sc     storage.k8s.io/v1            false StorageClass
volumeattachments      -      storage.k8s.io/v1            false VolumeAttachment
volumeattributesclasses vac   storage.k8s.io/v1            false VolumeAttributesClass
"""


def test_the_built_in_kinds_are_called_as_in_kubernetes():
    ours = {
        (
            kind.plural,
            ",".join(kind.short_names) or "-",
            kind.api_version,
            str(kind.namespaced).lower(),
            kind.kind,
            *kind.categories,
        )
        for kind in BUILT_IN
    }
    assert ours == {tuple(line.split()) for line in API_RESOURCES.strip().splitlines()}
    assert all(kind.singular == kind.kind.lower() and kind.list_kind == f"{kind.kind}List" for kind in BUILT_IN)


def test_reviews_are_only_created_and_namespaces_are_not_deleted_all_at_once():
    all_verbs = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
    expected = dict.fromkeys(BUILT_IN, all_verbs)
    expected[kinds.NAMESPACE] = tuple(verb for verb in all_verbs if verb != "deletecollection")
    expected |= {kind: ("create",) for kind in BUILT_IN if kind is kinds.BINDING or kind.kind.endswith("Review")}
    assert {kind: kind.verbs for kind in BUILT_IN} == expected


def test_subresources_are_those_kubernetes_serves():
    found = {kind.kind: " ".join(sub.name for sub in kind.subresources) for kind in BUILT_IN if kind.subresources}
    assert found.pop("ReplicationController") == "scale status"
    stored_only = {found.pop(kind.kind, "status") for kind in kinds.STORED_ONLY if kind.subresources}
    assert stored_only == {"status"}
    assert found == {
        "CustomResourceDefinition": "status",
        "ValidatingAdmissionPolicy": "status",
        "Namespace": "finalize status",
        "Node": "proxy status",
        "Pod": "attach binding ephemeralcontainers eviction exec log portforward proxy resize status",
        "PersistentVolume": "status",
        "PersistentVolumeClaim": "status",
        "ServiceAccount": "token",
        "VolumeAttachment": "status",
        "DaemonSet": "status",
        "Deployment": "scale status",
        "StatefulSet": "scale status",
        "ReplicaSet": "scale status",
    }
    eviction = kinds.POD.subresource("eviction")
    assert eviction is not None
    assert (eviction.group, eviction.version, eviction.kind, eviction.verbs) == (
        "policy",
        "v1",
        "Eviction",
        ("create",),
    )
    assert kinds.POD.subresource("scale") is None
    assert not kinds.LEASE.has_status


def test_messages_name_a_resource_with_its_group():
    assert kinds.PERSISTENT_VOLUME.resource == "persistentvolumes"
    assert kinds.VOLUME_ATTACHMENT.resource == "volumeattachments.storage.k8s.io"
    assert kinds.VOLUME_ATTACHMENT.qualified_kind == "VolumeAttachment.storage.k8s.io"
    assert kinds.PERSISTENT_VOLUME.qualified_kind == "PersistentVolume"
    assert str(kinds.LEASE) == "coordination.k8s.io/v1 Lease"


def test_a_kind_is_found_by_its_resource_and_by_what_stands_in_its_objects():
    for kind in BUILT_IN:
        assert kind_of_resource(kind.group, kind.plural) is kind
        assert kind_of_object(kind.api_version, kind.kind) is kind
    assert kind_of_resource("orlop.dev", "drives") is None
    assert kind_of_object("v2", "Pod") is None


@pytest.mark.parametrize("trick", ["", ".", "..", "a/b", "../secrets", "%2e%2e", "a%2fb"])
def test_a_name_that_would_lead_elsewhere_is_refused(trick: str):
    with pytest.raises(InvalidPath, match="cannot be a name"):
        kinds.POD.object_path("default", trick)
    with pytest.raises(InvalidPath, match="cannot be a namespace"):
        kinds.POD.object_path(trick, "web-0")


def test_scope_and_namespace_must_agree():
    with pytest.raises(InvalidPath, match="needs a namespace"):
        kinds.POD.object_path(None, "web-0")
    with pytest.raises(InvalidPath, match="nodes have no namespace"):
        kinds.NODE.object_path("default", "n1")
    with pytest.raises(InvalidPath, match="have no namespace"):
        kinds.NODE.collection_path("default")


def test_a_kind_without_a_name_is_refused():
    with pytest.raises(ValueError, match="needs a plural"):
        Kind("orlop.dev", "v1", "Drive", "", namespaced=False)


@FEWER
@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/%"), min_size=1, max_size=20))
def test_any_other_name_is_exactly_one_segment_of_the_path(name: str):
    if name in {".", ".."}:
        return
    path = kinds.POD.object_path("default", name)
    assert urlsplit(path).path == path
    assert [unquote(segment) for segment in path.split("/")][-1] == name
    assert path.count("/") == 6
