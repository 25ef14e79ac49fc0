"""What the server adds to a new object, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.schema.creation_rules import default_class, missing_account
from support.api.kube_rules import (
    ATTACHMENT,
    CLAIM,
    CONTAINER,
    NOW,
    RBAC,
    STORAGE,
    VOLUME,
    WORKLOAD,
    changed,
    stored,
    update,
)

ACCOUNT = {"metadata": {"name": "default"}}


def pod(**spec: Any) -> dict[str, Any]:
    return stored("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}})


def test_a_pod_gets_its_defaults():
    made = pod()

    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    assert made["spec"] == {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
        "containers": [
            {
                "name": "c",
                "image": "busybox:1",
                "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "resources": {},
            }
        ],
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:00", "IfNotPresent"),
        ("nginx:latest@sha256:00", "Always"),
    ],
)
def test_an_image_without_a_tag_of_its_own_is_always_pulled(image: str, policy: str):
    made = pod(containers=[{"name": "c", "image": image}])

    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_requests_come_from_limits():
    resources = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}

    made = pod(containers=[{**CONTAINER, "resources": resources}])

    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    assert made["status"]["qosClass"] == "Burstable"


def test_a_pod_whose_requests_are_its_limits_is_guaranteed():
    limits = {"cpu": "1", "memory": "1Gi"}

    assert pod(containers=[{**CONTAINER, "resources": {"limits": limits}}])["status"]["qosClass"] == "Guaranteed"


def test_a_pod_of_which_one_container_asks_for_nothing_is_burstable():
    limited = {"name": "d", "image": "x:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}

    assert pod(containers=[CONTAINER, limited])["status"]["qosClass"] == "Burstable"


@pytest.mark.parametrize(
    ("source", "field", "value"),
    [
        ({"configMap": {"name": "c"}}, "defaultMode", 420),
        ({"secret": {"secretName": "s"}}, "defaultMode", 420),
        ({"projected": {"sources": []}}, "defaultMode", 420),
        ({"downwardAPI": {}}, "defaultMode", 420),
        ({"hostPath": {"path": "/x"}}, "type", ""),
    ],
)
def test_volumes_get_their_defaults(source: dict[str, Any], field: str, value: object):
    made = pod(volumes=[{"name": "v", **source}])

    assert made["spec"]["volumes"][0][next(iter(source))][field] == value


def test_an_image_is_pulled_like_a_containers():
    made = pod(volumes=[{"name": "v", "image": {"reference": "r"}}])

    assert made["spec"]["volumes"][0]["image"] == {"reference": "r", "pullPolicy": "Always"}


@pytest.mark.parametrize(
    ("status", "addresses"),
    [
        ({"podIP": "1.1.1.1"}, ("1.1.1.1", ["1.1.1.1"])),
        ({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}, ("1.1.1.1", ["1.1.1.1", "::1"])),
        ({"podIP": "2.2.2.2", "podIPs": [{"ip": "1.1.1.1"}]}, ("2.2.2.2", ["2.2.2.2"])),
    ],
)
def test_a_pods_address_and_its_addresses_say_the_same(status: dict[str, Any], addresses: tuple[str, list[str]]):
    old = pod()

    made = update(old, changed(old, status=status), "status").object["status"]

    assert (made["podIP"], [each["ip"] for each in made["podIPs"]]) == addresses


def test_a_finalizer_that_is_there_is_not_added_again():
    finalizers = ["kubernetes.io/pv-protection"]

    made = stored("v1", "PersistentVolume", {"metadata": {"finalizers": finalizers}, "spec": VOLUME})

    assert made["metadata"]["finalizers"] == finalizers


def test_the_secrets_for_pulling_images_come_from_the_account():
    account = {**ACCOUNT, "imagePullSecrets": [{"name": "s"}]}

    assert with_account(account)["imagePullSecrets"] == [{"name": "s"}]
    assert with_account(account, imagePullSecrets=[{"name": "t"}])["imagePullSecrets"] == [{"name": "t"}]


def test_a_volume_without_a_source_is_an_empty_dir():
    assert pod(volumes=[{"name": "v"}])["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]


def test_probes_and_ports_get_their_defaults():
    container = {
        **CONTAINER,
        "ports": [{"containerPort": 80}],
        "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0},
    }

    made = pod(containers=[container])["spec"]["containers"][0]

    assert made["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert made["livenessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


def test_ports_of_a_pod_on_the_hosts_network_are_the_hosts():
    made = pod(hostNetwork=True, containers=[{**CONTAINER, "ports": [{"containerPort": 80}]}])

    assert made["spec"]["containers"][0]["ports"][0]["hostPort"] == 80


def test_a_toleration_of_everything_is_not_added_to():
    tolerations = [{"operator": "Exists"}]

    assert pod(tolerations=tolerations)["spec"]["tolerations"] == tolerations


def test_a_negative_grace_period_is_one_second():
    assert pod(terminationGracePeriodSeconds=-5)["spec"]["terminationGracePeriodSeconds"] == 1


def test_a_pod_that_waits_at_a_gate_says_so():
    (condition,) = pod(schedulingGates=[{"name": "a/b"}])["status"]["conditions"]

    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


def with_account(account: dict[str, Any], **spec: Any) -> dict[str, Any]:
    made = stored("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}}, service_account=account)
    return made["spec"]


def test_the_token_of_the_service_account_is_mounted_read_only():
    spec = with_account(ACCOUNT)

    (volume,) = spec["volumes"]
    assert volume["name"] == "kube-api-access-bcdfg"
    sources = volume["projected"]["sources"]
    assert sources[0] == {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    assert sources[1]["configMap"]["name"] == "kube-root-ca.crt"
    assert sources[2]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.namespace"
    assert spec["containers"][0]["volumeMounts"] == [
        {
            "name": "kube-api-access-bcdfg",
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            "readOnly": True,
        }
    ]


def test_a_pod_whose_account_is_missing_is_refused_with_a_reason():
    assert missing_account("n", "a") == 'error looking up service account n/a: serviceaccount "a" not found'


def test_no_token_is_mounted_where_pod_or_account_say_so():
    refusing = {**ACCOUNT, "automountServiceAccountToken": False}

    assert "volumes" not in with_account(ACCOUNT, automountServiceAccountToken=False)
    assert "volumes" not in with_account(refusing)
    assert "volumes" in with_account(refusing, automountServiceAccountToken=True)


def test_a_container_with_something_mounted_there_gets_no_token():
    mount = {"name": "v", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}

    spec = with_account(ACCOUNT, volumes=[{"name": "v"}], containers=[{**CONTAINER, "volumeMounts": [mount]}])

    assert [volume["name"] for volume in spec["volumes"]] == ["v"]


def test_a_claim_gets_its_defaults_and_its_protection():
    made = stored("v1", "PersistentVolumeClaim", {"spec": CLAIM, "status": {"phase": "Bound"}})

    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["status"] == {"phase": "Pending"}
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "storageClassName" not in made["spec"]


@pytest.mark.parametrize(
    ("stated", "kept"), [({}, "std"), ({"storageClassName": ""}, ""), ({"storageClassName": "b"}, "b")]
)
def test_only_a_claim_that_names_no_class_gets_the_default(stated: dict[str, str], kept: str):
    made = stored("v1", "PersistentVolumeClaim", {"spec": {**CLAIM, **stated}}, default_class="std")

    assert made["spec"]["storageClassName"] == kept


def test_the_default_class_is_the_newest_then_the_first_by_name():
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}

    def storage_class(name: str, created: str, **annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "creationTimestamp": created, "annotations": annotations}}

    older = storage_class("old", "2026-01-01T00:00:00Z", **mark)
    newest = [storage_class(name, "2026-02-01T00:00:00Z", **mark) for name in ("b", "a")]

    assert default_class([older, *newest, storage_class("plain", "2026-03-01T00:00:00Z")]) == "a"
    assert default_class([storage_class("plain", NOW)]) is None


def test_data_sources_are_copied_to_each_other():
    snapshot = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}

    by_source = stored("v1", "PersistentVolumeClaim", {"spec": {**CLAIM, "dataSource": snapshot}})
    by_reference = stored("v1", "PersistentVolumeClaim", {"spec": {**CLAIM, "dataSourceRef": snapshot}})

    assert by_source["spec"]["dataSourceRef"] == snapshot
    assert by_reference["spec"]["dataSource"] == snapshot


def test_a_source_in_another_namespace_is_not_copied():
    reference = {"apiGroup": "a.b", "kind": "K", "name": "s", "namespace": "other"}

    made = stored("v1", "PersistentVolumeClaim", {"spec": {**CLAIM, "dataSourceRef": reference}})

    assert "dataSource" not in made["spec"]


def test_an_odd_data_source_is_dropped():
    odd = {"apiGroup": "a.b", "kind": "K", "name": "s"}

    assert "dataSource" not in stored("v1", "PersistentVolumeClaim", {"spec": {**CLAIM, "dataSource": odd}})["spec"]


def test_a_volume_gets_its_defaults_and_its_protection():
    made = stored("v1", "PersistentVolume", {"spec": VOLUME, "status": {"phase": "Bound"}})

    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["status"] == {"phase": "Pending", "lastPhaseTransitionTime": NOW}
    assert made["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]


def test_a_storage_class_gets_its_defaults():
    made = stored(STORAGE, "StorageClass", {"provisioner": "csi.example.com"})

    assert (made["reclaimPolicy"], made["volumeBindingMode"]) == ("Delete", "Immediate")
    assert "allowVolumeExpansion" not in made


def test_a_driver_gets_its_defaults():
    assert stored(STORAGE, "CSIDriver", {"spec": {}})["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "volumeLifecycleModes": ["Persistent"],
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "requiresRepublish": False,
        "seLinuxMount": False,
        "preventPodSchedulingIfMissing": False,
    }


def test_false_is_a_value():
    assert stored(STORAGE, "CSIDriver", {"spec": {"attachRequired": False}})["spec"]["attachRequired"] is False


def test_a_secrets_plain_texts_are_encoded_and_win():
    made = stored("v1", "Secret", {"data": {"a": "eA==", "b": "eA=="}, "stringData": {"b": "y"}})

    assert made["data"] == {"a": "eA==", "b": "eQ=="}
    assert made["type"] == "Opaque"
    assert "stringData" not in made


def test_a_namespace_is_active_labelled_and_finalized_by_kubernetes():
    made = stored(
        "v1", "Namespace", {"metadata": {"name": "", "generateName": "n-"}, "status": {"phase": "Terminating"}}
    )

    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n-bcdfg"}


def test_a_namespace_keeps_its_label_at_an_update():
    old = stored("v1", "Namespace", {})

    assert update(old, changed(old, metadata={"labels": None})).object["metadata"]["labels"] == {
        "kubernetes.io/metadata.name": "x"
    }


def test_a_node_is_tainted_until_it_is_ready_and_offers_what_it_has():
    made = stored("v1", "Node", {"status": {"capacity": {"cpu": "2"}}})

    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert made["status"]["allocatable"] == {"cpu": "2"}


def test_an_attachment_is_not_attached():
    made = stored(STORAGE, "VolumeAttachment", {"spec": ATTACHMENT, "status": {"attached": True}})

    assert made["status"] == {"attached": False}


def test_a_deployment_gets_its_defaults():
    made = stored("apps/v1", "Deployment", {"spec": WORKLOAD, "status": {"replicas": 5}})

    assert made["spec"]["replicas"] == 1
    assert made["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert (made["spec"]["revisionHistoryLimit"], made["spec"]["progressDeadlineSeconds"]) == (10, 600)
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    assert "enableServiceLinks" not in made["spec"]["template"]["spec"]
    assert made["status"] == {}
    assert made["metadata"]["generation"] == 1


def test_the_other_workloads_get_their_defaults():
    daemons = stored("apps/v1", "DaemonSet", {"spec": WORKLOAD})
    set_of_pods = stored("apps/v1", "StatefulSet", {"spec": WORKLOAD})
    replicas = stored("apps/v1", "ReplicaSet", {"spec": WORKLOAD})

    assert daemons["spec"]["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    assert daemons["status"]["numberReady"] == 0
    assert set_of_pods["spec"]["podManagementPolicy"] == "OrderedReady"
    rolling = {"partition": 0, "maxUnavailable": 1}
    assert set_of_pods["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    assert set_of_pods["spec"]["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    assert replicas["spec"]["replicas"] == 1


def test_a_binding_refers_to_roles_and_people_of_rbac():
    binding = {
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}],
    }

    made = stored(RBAC, "RoleBinding", binding)

    assert made["roleRef"]["apiGroup"] == RBAC.partition("/")[0]
    assert [subject.get("apiGroup") for subject in made["subjects"]] == [RBAC.partition("/")[0], None]


def test_of_a_service_accounts_secrets_the_name_is_kept():
    made = stored("v1", "ServiceAccount", {"secrets": [{"name": "s", "namespace": "n", "kind": "Secret"}]})

    assert made["secrets"] == [{"name": "s"}]
