"""A wrong object is refused with 422, and with the path and the reason of each thing that is wrong."""

from __future__ import annotations

from copy import deepcopy
from enum import Enum
from typing import Any

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import SMALLEST, named
from support.api.api_under_test import Api

REQUIRED, INVALID, DUPLICATE = "FieldValueRequired", "FieldValueInvalid", "FieldValueDuplicate"
UNSUPPORTED, FORBIDDEN, TOO_LONG = "FieldValueNotSupported", "FieldValueForbidden", "FieldValueTooLong"


class Absent(Enum):
    """Taken away from the object; an enum, so that it has the same name in every process."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.value


ABSENT = Absent.ABSENT
Change = dict[str, Any]


def wrong(kind: Kind, api: Api, changes: Change) -> dict:
    """The smallest good object with some fields, named by their paths, given other values or none."""
    obj = deepcopy(SMALLEST[kind]("x" if kind.namespaced else api.unique("x"), api.namespace))
    for path, value in changes.items():
        *parents, last = path.split("/")
        part: Any = obj
        for parent in parents:
            part = part[int(parent)] if isinstance(part, list) else part.setdefault(parent, {})
        if value is ABSENT:
            del part[last]
        elif isinstance(part, list):
            part[int(last)] = value
        else:
            part[last] = value
    return obj


WRONG: list[tuple[Kind, Change, list[tuple[str, str]]]] = [
    # what all kinds share
    (kinds.CONFIG_MAP, {"metadata/name": "Upper"}, [(INVALID, "metadata.name")]),
    (kinds.CONFIG_MAP, {"metadata/name": "a_b"}, [(INVALID, "metadata.name")]),
    (kinds.CONFIG_MAP, {"metadata/name": "x" * 254}, [(INVALID, "metadata.name")]),
    (kinds.CONFIG_MAP, {"metadata/labels": {"a b": "c"}}, [(INVALID, "metadata.labels")]),
    (kinds.CONFIG_MAP, {"metadata/labels": {"a": "b c"}}, [(INVALID, "metadata.labels")]),
    (kinds.CONFIG_MAP, {"metadata/labels": {"a": "x" * 64}}, [(INVALID, "metadata.labels")]),
    (kinds.CONFIG_MAP, {"metadata/annotations": {"a/b/c": ""}}, [(INVALID, "metadata.annotations")]),
    (kinds.CONFIG_MAP, {"metadata/annotations": {"a": "x" * 262145}}, [(TOO_LONG, "metadata.annotations")]),
    (
        kinds.CONFIG_MAP,
        {"metadata/ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]},
        [(REQUIRED, "metadata.ownerReferences[0].uid")],
    ),
    (
        kinds.CONFIG_MAP,
        {
            "metadata/ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in ("a", "b")
            ]
        },
        [(INVALID, "metadata.ownerReferences")],
    ),
    # core
    (kinds.CONFIG_MAP, {"data": {"a b": ""}}, [(INVALID, "data[a b]")]),
    (kinds.CONFIG_MAP, {"data": {"a": ""}, "binaryData": {"a": ""}}, [(INVALID, "data[a]")]),
    (kinds.CONFIG_MAP, {"data": {"a": "x" * 1048577}}, [(TOO_LONG, "[]")]),
    (kinds.SECRET, {"data": {"a b": ""}}, [(INVALID, "data[a b]")]),
    (
        kinds.SECRET,
        {"type": "kubernetes.io/tls"},
        [(REQUIRED, "data[tls.crt]"), (REQUIRED, "data[tls.key]")],
    ),
    (
        kinds.SECRET,
        {"type": "kubernetes.io/service-account-token"},
        [(REQUIRED, "metadata.annotations[kubernetes.io/service-account.name]")],
    ),
    (kinds.NAMESPACE, {"metadata/name": "with.dots"}, [(INVALID, "metadata.name")]),
    (kinds.SERVICE_ACCOUNT, {"metadata/name": "A"}, [(INVALID, "metadata.name")]),
    (kinds.NODE, {"spec/taints": [{"key": "", "effect": "NoSchedule"}]}, [(INVALID, "metadata.taints[0].key")] * 2),
    (kinds.NODE, {"spec/taints": [{"key": "a", "effect": "Fancy"}]}, [(UNSUPPORTED, "metadata.taints[0].effect")]),
    (kinds.NODE, {"spec/podCIDRs": ["nonsense"]}, [(INVALID, "spec.podCIDRs[0]")]),
    # volumes and claims
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/capacity": ABSENT},
        [(REQUIRED, "spec.capacity"), (UNSUPPORTED, "spec.capacity")],
    ),
    (kinds.PERSISTENT_VOLUME, {"spec/accessModes": []}, [(REQUIRED, "spec.accessModes")]),
    (kinds.PERSISTENT_VOLUME, {"spec/accessModes": ["Fancy"]}, [(UNSUPPORTED, "spec.accessModes")]),
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        [(FORBIDDEN, "spec.accessModes")],
    ),
    (kinds.PERSISTENT_VOLUME, {"spec/csi": ABSENT}, [(REQUIRED, "spec")]),
    (kinds.PERSISTENT_VOLUME, {"spec/hostPath": {"path": "/x"}}, [(FORBIDDEN, "spec.csi")]),
    (kinds.PERSISTENT_VOLUME, {"spec/csi/driver": ""}, [(REQUIRED, "spec.csi.driver")]),
    (kinds.PERSISTENT_VOLUME, {"spec/csi/volumeHandle": ""}, [(REQUIRED, "spec.csi.volumeHandle")]),
    (kinds.PERSISTENT_VOLUME, {"spec/capacity/storage": "0"}, [(INVALID, "spec.capacity[storage]")]),
    (kinds.PERSISTENT_VOLUME, {"spec/capacity/storage": "-1"}, [(INVALID, "spec.capacity[storage]")] * 2),
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/persistentVolumeReclaimPolicy": "Fancy"},
        [(UNSUPPORTED, "spec.persistentVolumeReclaimPolicy")],
    ),
    (kinds.PERSISTENT_VOLUME, {"spec/volumeMode": "Fancy"}, [(UNSUPPORTED, "spec.volumeMode")]),
    (kinds.PERSISTENT_VOLUME, {"spec/storageClassName": "A B"}, [(INVALID, "spec.storageClassName")]),
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/csi": ABSENT, "spec/local": {"path": "/d"}},
        [(REQUIRED, "spec.nodeAffinity")],
    ),
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/nodeAffinity": {"required": {"nodeSelectorTerms": []}}},
        [(REQUIRED, "spec.nodeAffinity.required.nodeSelectorTerms")],
    ),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"spec/accessModes": []}, [(REQUIRED, "spec.accessModes")]),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"spec/accessModes": ["Fancy"]}, [(UNSUPPORTED, "spec.accessModes")]),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"spec/resources": {}}, [(REQUIRED, "spec.resources[storage]")]),
    (
        kinds.PERSISTENT_VOLUME_CLAIM,
        {"spec/resources/requests/storage": "0"},
        [(INVALID, "spec.resources[storage]")],
    ),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"spec/volumeMode": "Fancy"}, [(UNSUPPORTED, "spec.volumeMode")]),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"spec/storageClassName": "A B"}, [(INVALID, "spec.storageClassName")]),
    (
        kinds.PERSISTENT_VOLUME_CLAIM,
        {"spec/selector": {"matchExpressions": [{"key": "a", "operator": "Fancy"}]}},
        [(INVALID, "spec.selector.matchExpressions[0].operator")],
    ),
    (
        kinds.PERSISTENT_VOLUME_CLAIM,
        {"spec/dataSource": {"kind": "", "name": ""}},
        [],
    ),
    # pods
    (kinds.POD, {"spec/containers": []}, [(REQUIRED, "spec.containers")]),
    (kinds.POD, {"spec/containers/0/name": ""}, [(REQUIRED, "spec.containers[0].name")]),
    (kinds.POD, {"spec/containers/0/name": "A"}, [(INVALID, "spec.containers[0].name")]),
    (kinds.POD, {"spec/containers/0/image": ""}, [(REQUIRED, "spec.containers[0].image")]),
    (kinds.POD, {"spec/restartPolicy": "Fancy"}, [(UNSUPPORTED, "spec.restartPolicy")]),
    (kinds.POD, {"spec/dnsPolicy": "Fancy"}, [(UNSUPPORTED, "spec.dnsPolicy")]),
    (
        kinds.POD,
        {"spec/containers/0/volumeMounts": [{"name": "ghost", "mountPath": "/x"}]},
        [("FieldValueNotFound", "spec.containers[0].volumeMounts[0].name")],
    ),
    (
        kinds.POD,
        {"spec/volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
        [(FORBIDDEN, "spec.volumes[0].hostPath")],
    ),
    (
        kinds.POD,
        {"spec/volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]},
        [(DUPLICATE, "spec.volumes[1].name")],
    ),
    (
        kinds.POD,
        {"spec/volumes": [{"name": "v", "csi": {"driver": ""}}]},
        [(REQUIRED, "spec.volumes[0].csi.driver")],
    ),
    (
        kinds.POD,
        {"spec/volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": ""}}]},
        [(REQUIRED, "spec.volumes[0].persistentVolumeClaim.claimName")],
    ),
    (
        kinds.POD,
        {"spec/volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]},
        [(INVALID, "spec.volumes[0].hostPath.path")],
    ),
    (
        kinds.POD,
        {"spec/containers/0/env": [{"name": "1 =", "value": "x"}]},
        [(INVALID, "spec.containers[0].env[0].name")],
    ),
    (
        kinds.POD,
        {"spec/containers/0/resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        [(INVALID, "spec.containers[0].resources.requests")],
    ),
    (
        kinds.POD,
        {"spec/containers/0/ports": [{"containerPort": 70000}]},
        [(INVALID, "spec.containers[0].ports[0].containerPort")],
    ),
    (kinds.POD, {"spec/nodeSelector": {"a": "b c"}}, [(INVALID, "spec.nodeSelector")]),
    (kinds.POD, {"spec/terminationGracePeriodSeconds": -5}, []),
    # storage.k8s.io
    (kinds.STORAGE_CLASS, {"provisioner": ""}, [(REQUIRED, "provisioner")]),
    (kinds.STORAGE_CLASS, {"provisioner": "a b"}, [(INVALID, "provisioner")]),
    (kinds.STORAGE_CLASS, {"reclaimPolicy": "Fancy"}, [(UNSUPPORTED, "reclaimPolicy")]),
    (kinds.STORAGE_CLASS, {"volumeBindingMode": "Fancy"}, [(UNSUPPORTED, "volumeBindingMode")]),
    (kinds.STORAGE_CLASS, {"parameters": {"": "x"}}, [(INVALID, "parameters")]),
    (
        kinds.STORAGE_CLASS,
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": []}]}]},
        [(REQUIRED, "allowedTopologies[0].matchLabelExpressions[0].values")],
    ),
    (kinds.CSI_DRIVER, {"spec/volumeLifecycleModes": ["Fancy"]}, [(UNSUPPORTED, "spec.volumeLifecycleModes")]),
    (kinds.CSI_DRIVER, {"spec/fsGroupPolicy": "Fancy"}, [(UNSUPPORTED, "spec.fsGroupPolicy")]),
    (
        kinds.CSI_DRIVER,
        {"spec/tokenRequests": [{"audience": "a", "expirationSeconds": 5}]},
        [(INVALID, "spec.tokenRequests[0].expirationSeconds")],
    ),
    (
        kinds.CSI_NODE,
        {"spec/drivers": [{"name": "d", "nodeID": ""}]},
        [(REQUIRED, "spec.drivers[0].nodeID")],
    ),
    (
        kinds.CSI_NODE,
        {"spec/drivers": [{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": "n"}]},
        [(DUPLICATE, "spec.drivers[1].name")],
    ),
    (kinds.VOLUME_ATTACHMENT, {"spec/attacher": ""}, [(REQUIRED, "spec.attacher")]),
    (kinds.VOLUME_ATTACHMENT, {"spec/nodeName": ""}, [(INVALID, "spec.nodeName")]),
    (kinds.VOLUME_ATTACHMENT, {"spec/source": {}}, [(REQUIRED, "spec.source")]),
    (kinds.CSI_STORAGE_CAPACITY, {"storageClassName": "A B"}, [(INVALID, "storageClassName")]),
    (kinds.CSI_STORAGE_CAPACITY, {"capacity": "-1"}, [(INVALID, "capacity")]),
    # leases
    (kinds.LEASE, {"spec/leaseDurationSeconds": 0}, [(INVALID, "spec.leaseDurationSeconds")]),
    (kinds.LEASE, {"spec/leaseTransitions": -1}, [(INVALID, "spec.leaseTransitions")]),
    # workloads
    (kinds.DEPLOYMENT, {"spec/replicas": -1}, [(INVALID, "spec.replicas")]),
    (
        kinds.DEPLOYMENT,
        {"spec/template/metadata/labels": {"app": "y"}},
        [(INVALID, "spec.template.metadata.labels")],
    ),
    (
        kinds.DEPLOYMENT,
        {"spec/template/spec/restartPolicy": "Never"},
        [(UNSUPPORTED, "spec.template.spec.restartPolicy")],
    ),
    (kinds.DEPLOYMENT, {"spec/strategy": {"type": "Fancy"}}, [(UNSUPPORTED, "spec.strategy")]),
    (kinds.REPLICA_SET, {"spec/replicas": -1}, [(INVALID, "spec.replicas")]),
    (kinds.STATEFUL_SET, {"spec/podManagementPolicy": "Fancy"}, [(INVALID, "spec.podManagementPolicy")]),
    (kinds.DAEMON_SET, {"spec/template/spec/containers": []}, [(REQUIRED, "spec.template.spec.containers")]),
    # access
    (kinds.ROLE, {"rules": [{"verbs": [], "resources": ["a"], "apiGroups": [""]}]}, [(REQUIRED, "rules[0].verbs")]),
    (kinds.ROLE, {"rules": [{"verbs": ["get"], "apiGroups": [""]}]}, [(REQUIRED, "rules[0].resources")]),
    (
        kinds.ROLE,
        {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]},
        [(INVALID, "rules[0].nonResourceURLs")],
    ),
    (kinds.CLUSTER_ROLE, {"rules": [{"verbs": ["get"], "resources": ["a"]}]}, [(REQUIRED, "rules[0].apiGroups")]),
    (kinds.ROLE_BINDING, {"roleRef/kind": "Fancy"}, [(UNSUPPORTED, "roleRef.kind")]),
    (kinds.ROLE_BINDING, {"roleRef/name": ""}, [(REQUIRED, "roleRef.name")]),
    (kinds.ROLE_BINDING, {"subjects/0/kind": "Fancy"}, [(UNSUPPORTED, "subjects[0].kind")]),
    (kinds.CLUSTER_ROLE_BINDING, {"roleRef/kind": "Role"}, [(UNSUPPORTED, "roleRef.kind")]),
    (kinds.CLUSTER_ROLE_BINDING, {"subjects/0/name": ""}, [(REQUIRED, "subjects[0].name")]),
    # events
    (kinds.CORE_EVENT, {"involvedObject/namespace": "elsewhere"}, [(INVALID, "involvedObject.namespace")]),
    (kinds.EVENT, {"reason": ""}, [(REQUIRED, "reason")]),
    (kinds.EVENT, {"type": "Fancy"}, [(INVALID, "type")]),
    (kinds.EVENT, {"reason": "x" * 129}, [(INVALID, "reason")]),
    (kinds.EVENT, {"note": "x" * 1025}, [(INVALID, "message")]),
    (kinds.EVENT, {"eventTime": ABSENT}, [(REQUIRED, "eventTime")]),
    (kinds.EVENT, {"reportingController": "a b"}, [(INVALID, "reportingController")]),
]


def sentence(case: object) -> str:
    return str(case)[:60] if isinstance(case, Kind | dict) else ""


@pytest.mark.parametrize(("kind", "changes", "causes"), WRONG, ids=sentence)
async def test_a_wrong_object_is_refused_with_the_paths_of_what_is_wrong(
    api: Api, kind: Kind, changes: Change, causes: list[tuple[str, str]]
):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    obj = wrong(kind, api, changes)
    answer = await api.create(kind, obj)
    if not causes:
        assert answer.status == 201
        return

    answer.is_invalid(*causes)
    details = answer.json["details"]
    told = kinds.CORE_EVENT if kind is kinds.EVENT else kind
    name = obj["metadata"]["name"]
    assert (details["kind"], details.get("group", ""), details["name"]) == (told.kind, told.group, name)
    assert answer.json["message"].startswith(f'{told.qualified_kind} "{name}" is invalid: ')


WRONG_TYPES: list[tuple[Kind, Change, str]] = [
    (kinds.CONFIG_MAP, {"data": {"a": 1}}, "ConfigMap.data of type string"),
    (kinds.CONFIG_MAP, {"data": "x"}, "ConfigMap.data of type map[string]string"),
    (kinds.CONFIG_MAP, {"metadata/labels": {"a": True}}, "ObjectMeta.metadata.labels of type string"),
    (kinds.LEASE, {"spec/leaseDurationSeconds": "x"}, "of type int32"),
    (kinds.POD, {"spec/containers": "x"}, "of type []v1.Container"),
    (kinds.PERSISTENT_VOLUME, {"spec/capacity/storage": "big"}, "quantities must match the regular expression"),
    (kinds.SECRET, {"data": {"a": "%%"}}, "illegal base64 data at input byte 0"),
    (kinds.LEASE, {"spec/renewTime": "noon"}, "parsing time"),
    (kinds.STORAGE_CLASS, {"allowVolumeExpansion": "yes"}, "of type bool"),
]


@pytest.mark.parametrize(("kind", "changes", "part"), WRONG_TYPES, ids=sentence)
async def test_a_value_of_the_wrong_type_is_a_bad_request(api: Api, kind: Kind, changes: Change, part: str):
    answer = await api.create(kind, wrong(kind, api, changes))

    answer.says(400, "BadRequest", part)
    begin = f'{kind.kind} in version "v1" cannot be handled as a {kind.kind}: '
    assert answer.json["message"].startswith(begin)


async def test_several_wrong_fields_are_told_together(api: Api):
    answer = await api.create(kinds.PERSISTENT_VOLUME, named(api.unique("x"), spec={}))

    answer.is_invalid(
        (REQUIRED, "spec.accessModes"), (REQUIRED, "spec.capacity"), (UNSUPPORTED, "spec.capacity"), (REQUIRED, "spec")
    )
    assert answer.json["message"].startswith(f'PersistentVolume "{api.unique("x")}" is invalid: [spec.accessModes: ')


MESSAGES: list[tuple[Kind, Change, str, str]] = [
    (
        kinds.CONFIG_MAP,
        {"metadata/name": "Upper"},
        "metadata.name",
        (
            'Invalid value: "Upper": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters'
            ", '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
            "validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ),
    ),
    (
        kinds.CONFIG_MAP,
        {"data": {"a b": ""}},
        "data[a b]",
        (
            "Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
            "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        ),
    ),
    (kinds.PERSISTENT_VOLUME, {"spec/csi": ABSENT}, "spec", "Required value: must specify a volume type"),
    (
        kinds.PERSISTENT_VOLUME,
        {"spec/accessModes": ["Fancy"]},
        "spec.accessModes",
        (
            'Unsupported value: "Fancy": supported values: "ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", '
            '"ReadWriteOncePod"'
        ),
    ),
    (
        kinds.LEASE,
        {"spec/leaseDurationSeconds": 0},
        "spec.leaseDurationSeconds",
        "Invalid value: 0: must be greater than 0",
    ),
    (
        kinds.STORAGE_CLASS,
        {"volumeBindingMode": "Fancy"},
        "volumeBindingMode",
        'Unsupported value: "Fancy": supported values: "Immediate", "WaitForFirstConsumer"',
    ),
    (
        kinds.DEPLOYMENT,
        {"spec/template/metadata/labels": {"app": "y"}},
        "spec.template.metadata.labels",
        'Invalid value: {"app":"y"}: `selector` does not match template `labels`',
    ),
]


@pytest.mark.parametrize(("kind", "changes", "field", "message"), MESSAGES, ids=sentence)
async def test_a_cause_is_told_in_kubernetes_words(api: Api, kind: Kind, changes: Change, field: str, message: str):
    answer = await api.create(kind, wrong(kind, api, changes))

    assert answer.cause_messages == {field: message}
