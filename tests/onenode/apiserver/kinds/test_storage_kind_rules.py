"""Classes, drivers, attachments and capacities: what is refused, in Kubernetes' words, and what may change."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.kube_rules import ATTACHMENT, STORAGE, VOLUME, stored, wrong, wrong_change

CLASS = {"provisioner": "csi.example.com", "parameters": {"a": "b"}}
CLASSES = [
    (
        {"allowedTopologies": [{"matchLabelExpressions": [{"key": "k", "values": ["a"]}]}] * 2},
        ['allowedTopologies[1].matchLabelExpressions: Duplicate value: ""'],
    ),
    ({"provisioner": None}, ["provisioner: Required value"]),
    (
        {"reclaimPolicy": "Recycle"},
        ['reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"'],
    ),
    (
        {"volumeBindingMode": "Later"},
        ['volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"'],
    ),
    ({"parameters": {"": "x"}}, ['parameters: Invalid value: "": field can not be empty.']),
    ({"parameters": {"a": "x" * 262144}}, ["parameters: Too long: may not be more than 262144 bytes"]),
    ({"parameters": {str(n): "" for n in range(513)}}, ["parameters: Too long: may not be more than 512 bytes"]),
    (
        {
            "allowedTopologies": [
                {"matchLabelExpressions": [{"key": "k", "values": []}, {"key": "k", "values": ["a", "a"]}]}
            ]
        },
        [
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
            'allowedTopologies[0].matchLabelExpressions[1].values[1]: Duplicate value: "a"',
            'allowedTopologies[0].matchLabelExpressions[1].key: Duplicate value: "k"',
        ],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), CLASSES, ids=[str(sentences)[:80] for _, sentences in CLASSES])
def test_a_wrong_class_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    given = {key: value for key, value in {**CLASS, **fields}.items() if value is not None}

    assert wrong(STORAGE, "StorageClass", given) == sentences


def test_a_class_keeps_what_provisioning_goes_by():
    old = stored(STORAGE, "StorageClass", CLASS)

    assert wrong_change(old, provisioner="b", parameters={"a": "c"}, reclaimPolicy="Retain") == [
        "provisioner: Invalid value: null: field is immutable",
        "parameters: Invalid value: null: field is immutable",
        "reclaimPolicy: Invalid value: null: field is immutable",
    ]
    assert wrong_change(old, allowVolumeExpansion=True, mountOptions=["ro"]) == []


def test_a_driver_keeps_how_it_attaches_and_lives():
    old = stored(STORAGE, "CSIDriver", {"spec": {}})

    assert wrong_change(old, spec={"attachRequired": False, "volumeLifecycleModes": ["Ephemeral"]}) == [
        "spec.attachedRequired: Invalid value: false: field is immutable",
        'spec.volumeLifecycleModes: Invalid value: ["Ephemeral"]: field is immutable',
    ]
    assert wrong_change(old, spec={"storageCapacity": True, "requiresRepublish": True}) == []


def test_a_wrong_driver_is_refused():
    tokens = [{"audience": "a", "expirationSeconds": 10}, {"audience": "a"}]
    spec = {"fsGroupPolicy": "All", "volumeLifecycleModes": ["Forever"], "tokenRequests": tokens}

    assert wrong(STORAGE, "CSIDriver", {"spec": spec}) == [
        'spec.fsGroupPolicy: Unsupported value: "All": supported values: "File", "None", "ReadWriteOnceWithFSType"',
        "spec.tokenRequests[0].expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes",
        'spec.tokenRequests[1].audience: Duplicate value: "a"',
        'spec.volumeLifecycleModes: Unsupported value: "Forever": supported values: "Persistent", "Ephemeral"',
    ]


def node_driver(**fields: Any) -> dict[str, Any]:
    return {"name": "csi.example.com", "nodeID": "n1", "topologyKeys": ["a/b"], **fields}


def test_a_nodes_drivers_are_named_and_different():
    drivers = [node_driver(), node_driver(nodeID="", allocatable={"count": -1})]

    assert wrong(STORAGE, "CSINode", {"spec": {"drivers": drivers}}) == [
        "spec.drivers[1].nodeID: Required value",
        "spec.drivers[1].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
        'spec.drivers[1].name: Duplicate value: "csi.example.com"',
    ]


def test_a_wrong_entry_of_a_node_is_named():
    drivers = [node_driver(nodeID="n" * 257, topologyKeys=["a", "a", ""])]

    assert [text.partition(": Inv")[0] for text in wrong(STORAGE, "CSINode", {"spec": {"drivers": drivers}})] == [
        "spec.drivers[0].nodeID",
        'spec.drivers[0]: Duplicate value: "a"',
        "spec.drivers[0]: Required value",
        "spec.drivers[0]",
        "spec.drivers[0]",
    ]


def test_the_health_of_a_nodes_storage_is_checked():
    old = stored(STORAGE, "CSINode", {"spec": {"drivers": []}})
    odd = {"name": "d.x", "healthConditions": [{"status": "Fine", "reason": "R"}]}

    assert wrong_change(old, "status", status={"storageHealth": [odd, {"name": "d.x"}]}) == [
        (
            'status.storageHealth[0].healthConditions[0].status: Unsupported value: "Fine": '
            'supported values: "StorageDegraded", "StorageUnreachable"'
        ),
        'status.storageHealth[1]: Duplicate value: "d.x"',
    ]


def test_a_drivers_period_and_tokens_make_sense():
    spec = {"nodeAllocatableUpdatePeriodSeconds": 9, "serviceAccountTokenInSecrets": True}

    assert wrong(STORAGE, "CSIDriver", {"spec": spec}) == [
        "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
        (
            "spec.serviceAccountTokenInSecrets: Invalid value: true: "
            "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        ),
    ]


def test_a_nodes_driver_changes_only_its_limit_and_may_come_and_go():
    old = stored(STORAGE, "CSINode", {"spec": {"drivers": [node_driver()]}})

    assert wrong_change(old, spec={"drivers": [node_driver(allocatable={"count": 5}), node_driver(name="b")]}) == []
    assert wrong_change(old, spec={"drivers": []}) == []
    (sentence,) = wrong_change(old, spec={"drivers": [node_driver(nodeID="n2")]})
    assert sentence.startswith("spec.drivers: Invalid value: {")
    assert sentence.endswith(": field is immutable")


ODD_INLINE = {
    "accessModes": ["ReadWriteOnce"],
    "hostPath": {"path": "/x"},
    "persistentVolumeReclaimPolicy": "Delete",
    "volumeMode": "Block",
}
ATTACHMENTS = [
    ({"attacher": ""}, ["spec.attacher: Required value"]),
    (
        {"source": {}},
        ["spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
    ),
    (
        {"source": {"persistentVolumeName": "a", "inlineVolumeSpec": VOLUME}},
        ["spec.source: Forbidden: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
    ),
    ({"source": {"persistentVolumeName": ""}}, None),
    (
        {"source": {"inlineVolumeSpec": ODD_INLINE}},
        [
            "spec.source.inlineVolumeSpec.csi: Required value: has to be specified in the context of inline volumes",
            (
                "spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy: Forbidden: "
                "may only be Retain in the context of inline volumes"
            ),
            (
                "spec.source.inlineVolumeSpec.volumeMode: Forbidden: "
                "may not specify volumeMode other than Filesystem in the context of inline volumes"
            ),
        ],
    ),
    (
        {"source": {"inlineVolumeSpec": VOLUME}},
        ["spec.source.inlineVolumeSpec.capacity: Forbidden: may not be specified in the context of inline volumes"],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), ATTACHMENTS, ids=[str(fields) for fields, _ in ATTACHMENTS])
def test_a_wrong_attachment_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    found = wrong(STORAGE, "VolumeAttachment", {"spec": {**ATTACHMENT, **fields}})

    assert found == sentences if sentences is not None else len(found) == 2


def test_an_attachment_is_fixed_and_its_errors_are_short():
    old = stored(STORAGE, "VolumeAttachment", {"spec": ATTACHMENT})

    (sentence,) = wrong_change(old, spec={"nodeName": "n2"})
    assert sentence.startswith("spec: Invalid value: null")
    assert sentence.endswith("field is immutable")
    long_error = {"attached": False, "attachError": {"message": "x" * 1025, "errorCode": -1}}
    much = {"attached": False, "attachmentMetadata": {"a": "x" * 262144}}
    assert wrong_change(old, "status", status=much) == [
        "status.attachmentMetadata: Too long: may not be more than 262144 bytes"
    ]
    assert wrong_change(old, "status", status=long_error) == [
        "status.attachError.message: Too long: may not be more than 1024 bytes",
        "status.attachError.errorCode: Invalid value: -1: must be between 0 and 2147483647, inclusive",
    ]


def test_a_capacity_keeps_what_it_is_about():
    old = stored(STORAGE, "CSIStorageCapacity", {"storageClassName": "std", "nodeTopology": {}, "capacity": "1Gi"})

    assert wrong_change(old, capacity="2Gi", maximumVolumeSize="1Gi") == []
    assert wrong_change(old, storageClassName="b", nodeTopology=None) == [
        "nodeTopology: Invalid value: null: field is immutable",
        'storageClassName: Invalid value: "b": field is immutable',
    ]
    assert wrong_change(old, capacity="-1") == ['capacity: Invalid value: "-1": must be greater than or equal to 0']


def test_a_class_of_attributes_names_a_driver_and_at_least_one_parameter_and_keeps_both():
    old = stored(STORAGE, "VolumeAttributesClass", {"driverName": "d.example", "parameters": {"iops": "1"}})

    assert wrong(STORAGE, "VolumeAttributesClass", {"driverName": "", "parameters": {}}) == [
        "driverName: Required value",
        "parameters: Required value: must contain at least one key/value pair",
    ]
    assert wrong_change(old, driverName="e.example", parameters={"iops": "2"}) == [
        'driverName: Invalid value: "e.example": field is immutable',
        'parameters: Invalid value: {"iops":"2"}: field is immutable',
    ]
