"""PersistentVolumes and claims: what is refused, in Kubernetes' words, and what may change."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.kinds.volume_claim_rules import resize_refusal
from support.api.kube_rules import CLAIM, VOLUME, changed, said, stored, update, wrong, wrong_change

PV = ("v1", "PersistentVolume")
PVC = ("v1", "PersistentVolumeClaim")
MODES = '"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"'
SECRET = {"name": "s", "namespace": "n"}


def volume(**fields: Any) -> list[str]:
    return wrong(*PV, {"spec": {key: value for key, value in {**VOLUME, **fields}.items() if value is not None}})


def claim(**fields: Any) -> list[str]:
    return wrong(*PVC, {"spec": {key: value for key, value in {**CLAIM, **fields}.items() if value is not None}})


TERM = "spec.nodeAffinity.required.nodeSelectorTerms[0]"
TWO_VALUES = {
    "matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1", "2"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}],
}
VOLUMES = [
    (
        {"capacity": None},
        ["spec.capacity: Required value", 'spec.capacity: Unsupported value: null: supported values: "storage"'],
    ),
    (
        {"capacity": {"storage": "1Gi", "cpu": "1"}},
        ['spec.capacity: Unsupported value: {"cpu":"1","storage":"1Gi"}: supported values: "storage"'],
    ),
    ({"capacity": {"storage": "0"}}, ['spec.capacity[storage]: Invalid value: "0": must be greater than zero']),
    ({"accessModes": None}, ["spec.accessModes: Required value"]),
    ({"accessModes": ["X"]}, [f'spec.accessModes: Unsupported value: "X": supported values: {MODES}']),
    (
        {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        ["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
    ),
    (
        {"persistentVolumeReclaimPolicy": "Keep"},
        [
            (
                'spec.persistentVolumeReclaimPolicy: Unsupported value: "Keep": '
                'supported values: "Delete", "Recycle", "Retain"'
            )
        ],
    ),
    ({"volumeMode": "Raw"}, ['spec.volumeMode: Unsupported value: "Raw": supported values: "Block", "Filesystem"']),
    ({"csi": None}, ["spec: Required value: must specify a volume type"]),
    ({"hostPath": {"path": "/x"}}, ["spec.csi: Forbidden: may not specify more than 1 volume type"]),
    ({"csi": {}}, ["spec.csi.driver: Required value", "spec.csi.volumeHandle: Required value"]),
    (
        {"csi": {"driver": "d" * 64, "volumeHandle": "h"}},
        ["spec.csi.driver: Too long: may not be more than 63 bytes"],
    ),
    (
        {"csi": {**VOLUME["csi"], "controllerExpandSecretRef": {}}},
        [
            "spec.csi.controllerExpandSecretRef.name: Required value",
            "spec.csi.controllerExpandSecretRef.namespace: Required value",
        ],
    ),
    (
        {"csi": None, "local": {"path": "/mnt/x"}},
        ["spec.nodeAffinity: Required value: Local volume requires node affinity"],
    ),
    (
        {"csi": None, "hostPath": {"path": "/a/../b"}},
        ["spec.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
    ),
    (
        {"csi": None, "nfs": {"server": "s", "path": "x"}},
        ['spec.nfs.path: Invalid value: "x": must be an absolute path'],
    ),
    (
        {"csi": None, "rbd": {"image": ""}},
        ["spec.rbd.image: Required value", "spec.rbd.monitors: Required value"],
    ),
    (
        {"nodeAffinity": {}},
        ["spec.nodeAffinity.required: Required value: must specify required node constraints"],
    ),
    (
        {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}},
        ["spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term"],
    ),
    (
        {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In"}]}]}}},
        [
            (
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values: Required value: "
                "must be specified when `operator` is 'In' or 'NotIn'"
            )
        ],
    ),
    (
        {"capacity": {"storage": "-1"}},
        [
            "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
            'spec.capacity[storage]: Invalid value: "-1": must be greater than zero',
        ],
    ),
    (
        {"csi": None, "hostPath": {"path": "/./"}, "persistentVolumeReclaimPolicy": "Recycle"},
        ["spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'"],
    ),
    (
        {"csi": None, "hostPath": {"path": "/x"}, "volumeAttributesClassName": "a"},
        ["spec.csi: Required value: has to be specified when using volumeAttributesClassName"],
    ),
    ({"csi": None, "hostPath": {}}, ["spec.hostPath.path: Required value"]),
    (
        {"csi": None, "fc": {}},
        ["spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"],
    ),
    (
        {"csi": None, "fc": {"targetWWNs": ["a"]}},
        ["spec.fc.lun: Required value: lun is required if targetWWNs is specified"],
    ),
    (
        {"csi": None, "iscsi": {"targetPortal": "p", "iqn": "i", "lun": 300}},
        ["spec.iscsi.lun: Invalid value: 300: must be between 0 and 255, inclusive"],
    ),
    (
        {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [{"key": "k", "operator": "Gt"}]}]}}},
        [
            f'{TERM}.matchFields[0].operator: Invalid value: "Gt": not a valid selector operator',
            f'{TERM}.matchFields[0].key: Invalid value: "k": not a valid field selector key',
        ],
    ),
    (
        {"nodeAffinity": {"required": {"nodeSelectorTerms": [TWO_VALUES]}}},
        [
            (
                f"{TERM}.matchExpressions[0].values: Required value: "
                "must be specified single value when `operator` is 'Lt' or 'Gt'"
            ),
            (
                f"{TERM}.matchFields[0].values: Required value: "
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            ),
        ],
    ),
    (
        {"volumeAttributesClassName": ""},
        ["spec.volumeAttributesClassName: Required value: an empty string is disallowed"],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), VOLUMES, ids=[str(fields) for fields, _ in VOLUMES])
def test_a_wrong_volume_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    assert volume(**fields) == sentences


def test_a_driver_is_named_in_any_case():
    assert volume(csi={"driver": "CSI.Example.com", "volumeHandle": "h"}) == []


def test_mount_options_by_annotation_are_for_some_sources():
    annotated = {"metadata": {"annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}}, "spec": VOLUME}

    assert wrong(*PV, annotated) == [
        (
            "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: "
            "may not specify mount options for this volume type"
        )
    ]


def test_the_source_of_a_volume_is_fixed():
    old = stored(*PV, {"spec": VOLUME})

    (sentence,) = wrong_change(old, spec={"csi": {"driver": "csi.example.com", "volumeHandle": "other"}})

    assert sentence.startswith(
        "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n"
    )
    assert '+    "volumeHandle": "other"' in sentence


def test_the_secret_for_expanding_may_be_named_later_and_then_is_fixed():
    old = stored(*PV, {"spec": VOLUME})
    named = {**VOLUME["csi"], "controllerExpandSecretRef": SECRET}

    made = update(old, changed(old, spec={"csi": named}))

    assert made.causes == ()
    assert len(wrong_change(made.object, spec={"csi": VOLUME["csi"]})) == 1


def test_the_mode_and_the_affinity_of_a_volume_are_fixed_once_set():
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}}
    old = stored(*PV, {"spec": VOLUME})
    placed = update(old, changed(old, spec={"nodeAffinity": affinity}))

    assert wrong_change(old, spec={"volumeMode": "Block"}) == ['volumeMode: Invalid value: "Block": field is immutable']
    assert placed.causes == ()
    assert wrong_change(placed.object, spec={"nodeAffinity": None}) == [
        "nodeAffinity: Invalid value: null: field is immutable, except for updating from beta label to GA"
    ]


def test_the_rest_of_a_volume_is_free():
    old = stored(*PV, {"spec": VOLUME})
    free = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteMany"],
        "claimRef": {"name": "c", "namespace": "n"},
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "b",
        "mountOptions": ["ro"],
        "volumeAttributesClassName": "v",
    }

    made = update(old, changed(old, spec=free))

    assert made.causes == ()
    assert wrong_change(made.object, spec={"volumeAttributesClassName": None}) == [
        "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"
    ]


ONLY_CLAIMS = "Invalid value: \"K\": must be 'PersistentVolumeClaim' when referencing the default apiGroup"
CLAIMS = [
    ({"accessModes": None}, ["spec.accessModes: Required value: at least 1 access mode is required"]),
    ({"accessModes": ["X"]}, [f'spec.accessModes: Unsupported value: "X": supported values: {MODES}']),
    ({"resources": None}, ["spec.resources[storage]: Required value"]),
    (
        {"resources": {"requests": {"storage": "-1Gi"}}},
        ['spec.resources[storage]: Invalid value: "-1Gi": must be greater than zero'],
    ),
    ({"volumeMode": "Raw"}, ['spec.volumeMode: Unsupported value: "Raw": supported values: "Block", "Filesystem"']),
    (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
        ['spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator'],
    ),
    (
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        [
            (
                "spec.selector.matchExpressions[0].values: Forbidden: "
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
        ],
    ),
    (
        {"dataSourceRef": {"kind": "K"}},
        [
            "spec.dataSource.name: Required value",
            f"spec.dataSource: {ONLY_CLAIMS}",
            "spec.dataSourceRef.name: Required value",
            f"spec.dataSourceRef: {ONLY_CLAIMS}",
        ],
    ),
    (
        {
            "dataSource": {"kind": "PersistentVolumeClaim", "name": "a"},
            "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b"},
        },
        ['spec: Invalid value: "spec.dataSource": must match dataSourceRef'],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), CLAIMS, ids=[str(fields) for fields, _ in CLAIMS])
def test_a_wrong_claim_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    assert claim(**fields) == sentences


def bound(**spec: Any) -> dict[str, Any]:
    old = stored(*PVC, {"spec": {**CLAIM, "storageClassName": "std", **spec}})
    return changed(old, spec={"volumeName": "pv1"}, status={"phase": "Bound", "capacity": {"storage": "1Gi"}})


def sized(size: str) -> dict[str, Any]:
    return {"resources": {"requests": {"storage": size}}}


FIXED = (
    "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName "
    "for bound claims\n"
)


def test_a_claim_gets_its_volume_and_its_class_once():
    old = stored(*PVC, {"spec": CLAIM})

    made = update(old, changed(old, spec={"volumeName": "pv1", "storageClassName": "std"}))

    assert made.causes == ()
    for change in ({"volumeName": "pv2"}, {"storageClassName": "other"}, {"volumeName": None}):
        (sentence,) = wrong_change(made.object, spec=change)
        assert sentence.startswith(FIXED)


def test_a_claim_that_is_not_bound_keeps_its_size():
    (sentence,) = wrong_change(stored(*PVC, {"spec": CLAIM}), spec=sized("2Gi"))

    assert sentence.startswith(FIXED)
    assert '+      "storage": "2Gi"' in sentence


def test_a_bound_claim_may_ask_for_more_and_for_other_attributes():
    assert wrong_change(bound(), spec={**sized("2Gi"), "volumeAttributesClassName": "fast"}) == []


def test_the_same_size_in_other_words_is_no_change():
    assert wrong_change(stored(*PVC, {"spec": CLAIM}), spec=sized("1073741824")) == []


def test_a_bound_claim_shrinks_only_to_more_than_it_has():
    asked_for_more = changed(bound(), spec=sized("5Gi"))

    assert wrong_change(asked_for_more, spec=sized("2Gi")) == []
    assert wrong_change(asked_for_more, spec=sized("1Gi")) == [
        "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
    ]


def test_attributes_are_not_taken_back_once_they_are_current():
    old = changed(bound(volumeAttributesClassName="fast"), status={"currentVolumeAttributesClassName": "fast"})
    path = "spec.volumeAttributesClassName: Forbidden"

    assert wrong_change(old, spec={"volumeAttributesClassName": None}) == [
        f"{path}: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil"
    ]
    assert wrong_change(old, spec={"volumeAttributesClassName": ""}) == [
        f"{path}: update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil"
    ]


def test_the_mode_of_a_claim_is_fixed():
    assert wrong_change(bound(), spec={"volumeMode": "Block"})[-1] == (
        'volumeMode: Invalid value: "Block": field is immutable'
    )


def test_growing_needs_a_bound_claim_and_a_class_that_allows_it():
    old = bound()
    bigger = changed(old, spec=sized("2Gi"))
    class_refuses = "the storageclass that provisions the pvc must support resize"
    refusal = f"only dynamically provisioned pvc can be resized and {class_refuses}"

    assert resize_refusal(old, bigger, {"allowVolumeExpansion": True}) is None
    assert resize_refusal(old, bigger, {"allowVolumeExpansion": False}) == refusal
    assert resize_refusal(old, bigger, None) == refusal
    assert resize_refusal(old, old, None) is None
    unbound = stored(*PVC, {"spec": CLAIM})
    assert resize_refusal(unbound, changed(unbound, spec=sized("2Gi")), None) == (
        "Only bound persistent volume claims can be expanded"
    )


def test_the_state_of_a_resize_is_one_of_five_and_only_of_storage():
    old = bound()

    assert wrong_change(old, "status", status={"allocatedResourceStatuses": {"storage": "Odd"}})[0].startswith(
        'status.allocatedResourceStatuses: Unsupported value: "storage": supported values: "ControllerResizeInProgress"'
    )
    assert wrong_change(old, "status", status={"allocatedResources": {"cpu": "1"}}) == [
        'status.allocatedResources: Unsupported value: "cpu": supported values: "storage"'
    ]
    assert wrong_change(old, "status", status={"allocatedResources": {"storage": "2Gi"}}) == []


def test_a_source_elsewhere_stands_alone():
    source = {"kind": "PersistentVolumeClaim", "name": "a"}

    assert claim(dataSource=source, dataSourceRef={**source, "namespace": "n"}) == [
        'spec: Invalid value: "spec.dataSource": may not be specified when dataSourceRef.namespace is specified'
    ]


def test_capacities_of_a_claim_are_not_negative():
    assert wrong_change(bound(), "status", status={"capacity": {"storage": "-1"}}) == [
        "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity"
    ]


def test_a_class_moves_from_its_old_annotation_to_its_field():
    name = "volume.beta.kubernetes.io/storage-class"
    old = stored(*PVC, {"metadata": {"annotations": {name: "std"}}, "spec": CLAIM})

    assert wrong_change(old, metadata={"annotations": None}, spec={"storageClassName": "std"}) == []
    assert wrong_change(old, metadata={"annotations": {name: "other"}}) == [
        f'metadata.annotations.{name}: Invalid value: "other": field is immutable'
    ]


def test_several_causes_are_all_given():
    assert len(said(update(bound(), changed(bound(), spec={**sized("-1"), "accessModes": ["X"]})))) >= 3
