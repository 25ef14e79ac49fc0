from __future__ import annotations

from typing import Any

from hypothesis import given

from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import mismatch
from orlop.csi.proto import csi_pb2
from orlop.records.volume_order import SecretReference, VolumeOrder
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER, persistent_volume
from support.provisioning.volume_orders import CLAIM, GIB, order, orders

DRIVER = "csi.example.com"
DELETION = "volume.kubernetes.io/provisioner-deletion-secret-"


def made(volume: Any = None, **fields: Any) -> dict[str, Any]:
    created = volume or csi_pb2.Volume(volume_id="vol-1", capacity_bytes=2 * GIB, volume_context={"path": "/a"})
    return persistent_volume(order(**fields), created, DRIVER, "me")


def test_the_whole_object_is_external_provisioners():
    assert made(storage={"fs_type": "xfs", "mount_options": ("noatime",)}) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{CLAIM.uid}",
            "annotations": {
                "pv.kubernetes.io/provisioned-by": DRIVER,
                f"{DELETION}name": "",
                f"{DELETION}namespace": "",
            },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "mountOptions": ["noatime"],
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": "team",
                "name": "data",
                "uid": CLAIM.uid,
            },
            "csi": {
                "driver": DRIVER,
                "volumeHandle": "vol-1",
                "fsType": "xfs",
                "volumeAttributes": {"path": "/a", "storage.kubernetes.io/csiProvisionerIdentity": "me"},
            },
        },
    }


def test_a_driver_that_does_not_say_the_size_has_made_what_was_asked_for():
    assert made(csi_pb2.Volume(volume_id="vol-1"))["spec"]["capacity"] == {"storage": "1Gi"}


def test_topology_of_the_answer_becomes_node_affinity_one_term_for_each_entry():
    entries = [csi_pb2.Topology(segments={"zone": "a", "rack": "1"}), csi_pb2.Topology(segments={"zone": "b"})]
    affinity = made(csi_pb2.Volume(volume_id="v", accessible_topology=entries))["spec"]["nodeAffinity"]

    first, second = affinity["required"]["nodeSelectorTerms"]
    assert [one["key"] for one in first["matchExpressions"]] == ["rack", "zone"]
    assert second["matchExpressions"] == [{"key": "zone", "operator": "In", "values": ["b"]}]


def test_secrets_are_named_where_those_who_need_them_look():
    uses = ("controller-expand", "controller-modify", "controller-publish", "node-expand", "node-publish", "node-stage")
    secrets = tuple((use, SecretReference("vault", f"for-{use}")) for use in (*uses, "provisioner"))

    volume = made(secrets=secrets)

    annotations, source = volume["metadata"]["annotations"], volume["spec"]["csi"]
    assert annotations[f"{DELETION}name"] == "for-provisioner"
    assert annotations[f"{DELETION}namespace"] == "vault"
    assert annotations["volume.kubernetes.io/controller-modify-secret-name"] == "for-controller-modify"
    assert {field: value["name"] for field, value in source.items() if field.endswith("SecretRef")} == {
        "controllerExpandSecretRef": "for-controller-expand",
        "controllerPublishSecretRef": "for-controller-publish",
        "nodeExpandSecretRef": "for-node-expand",
        "nodePublishSecretRef": "for-node-publish",
        "nodeStageSecretRef": "for-node-stage",
    }


def test_what_is_retained_has_no_finalizer_and_a_raw_volume_no_file_system():
    assert "finalizers" not in made(storage={"reclaim_policy": "Retain"})["metadata"]
    assert "fsType" not in made(storage={"fs_type": "xfs"}, volume_mode="Block")["spec"]["csi"]
    assert made(read_only=True)["spec"]["csi"]["readOnly"] is True
    assert made(attributes_class="gold")["spec"]["volumeAttributesClassName"] == "gold"


@given(orders)
def test_every_volume_fits_the_claim_it_was_made_for(asked: VolumeOrder):
    volume = persistent_volume(asked, csi_pb2.Volume(volume_id="v"), DRIVER, "me")
    claim = {
        "metadata": {"namespace": asked.claim.namespace, "name": asked.claim.name, "uid": asked.claim.uid},
        "spec": {
            "accessModes": list(asked.access_modes),
            "resources": {"requests": {"storage": str(asked.size_bytes)}},
            "storageClassName": asked.storage.name,
            "volumeMode": asked.volume_mode,
        },
    }

    assert mismatch(claim, volume) is None
    assert state.refers_to(volume, claim)
