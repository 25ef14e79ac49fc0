"""Build the PersistentVolume of a created volume. Pure.

Its fields, annotations and finalizer are upstream's, so that either provisioner can delete what the other created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.binding.claim_state_rules import BLOCK, PROVISIONED_BY
from orlop.binding.class_rules import DELETE
from orlop.binding.topology_rules import node_affinity
from orlop.csi.proto import csi_pb2
from orlop.foundation.quantity import Quantity
from orlop.records.volume_order import SecretReference, VolumeOrder
from orlop.sidecars.provisioner.parameter_rules import SecretUse

FINALIZER: Final = "external-provisioner.volume.kubernetes.io/finalizer"
DELETION_SECRET_NAME: Final = "volume.kubernetes.io/provisioner-deletion-secret-name"  # noqa: S105 - a key
DELETION_SECRET_NAMESPACE: Final = "volume.kubernetes.io/provisioner-deletion-secret-namespace"  # noqa: S105 - a key
MODIFY_SECRET_NAME: Final = "volume.kubernetes.io/controller-modify-secret-name"  # noqa: S105 - a key
MODIFY_SECRET_NAMESPACE: Final = "volume.kubernetes.io/controller-modify-secret-namespace"  # noqa: S105 - a key
IDENTITY: Final = "storage.kubernetes.io/csiProvisionerIdentity"
SECRET_FIELDS: Final[Mapping[SecretUse, str]] = {
    SecretUse.CONTROLLER_PUBLISH: "controllerPublishSecretRef",
    SecretUse.NODE_STAGE: "nodeStageSecretRef",
    SecretUse.NODE_PUBLISH: "nodePublishSecretRef",
    SecretUse.CONTROLLER_EXPAND: "controllerExpandSecretRef",
    SecretUse.NODE_EXPAND: "nodeExpandSecretRef",
}


def persistent_volume(order: VolumeOrder, volume: csi_pb2.Volume, driver: str, identity: str) -> dict[str, Any]:
    """Return the object to create. `identity` names the provisioner's process, as upstream does."""
    spec: dict[str, Any] = {
        "capacity": {"storage": str(Quantity.of(volume.capacity_bytes or order.size_bytes))},
        "accessModes": list(order.access_modes),
        "persistentVolumeReclaimPolicy": order.storage.reclaim_policy,
        "storageClassName": order.storage.name,
        "volumeMode": order.volume_mode,
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": order.claim.namespace,
            "name": order.claim.name,
            "uid": order.claim.uid,
        },
        "csi": _source(order, volume, driver, identity),
    }
    if order.storage.mount_options:
        spec["mountOptions"] = list(order.storage.mount_options)
    if order.attributes_class:
        spec["volumeAttributesClassName"] = order.attributes_class
    if (affinity := node_affinity([dict(entry.segments) for entry in volume.accessible_topology])) is not None:
        spec["nodeAffinity"] = affinity
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": _metadata(order, driver), "spec": spec}


def _metadata(order: VolumeOrder, driver: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": order.volume_name, "annotations": {PROVISIONED_BY: driver, **_secrets(order)}}
    # Only with the policy Delete does the object have to stay until its volume is deleted.
    if order.storage.reclaim_policy == DELETE:
        metadata["finalizers"] = [FINALIZER]
    return metadata


def _secrets(order: VolumeOrder) -> dict[str, str]:
    """Return annotations with the secrets for later calls: by then the class may be gone."""
    # Upstream reads these two keys at deletion and expects both, also when there is no secret.
    deletion = order.secret_for(SecretUse.PROVISION.value) or SecretReference("", "")
    annotations = {DELETION_SECRET_NAME: deletion.name, DELETION_SECRET_NAMESPACE: deletion.namespace}
    if (modify := order.secret_for(SecretUse.CONTROLLER_MODIFY.value)) is not None:
        annotations |= {MODIFY_SECRET_NAME: modify.name, MODIFY_SECRET_NAMESPACE: modify.namespace}
    return annotations


def _source(order: VolumeOrder, volume: csi_pb2.Volume, driver: str, identity: str) -> dict[str, Any]:
    source: dict[str, Any] = {
        "driver": driver,
        "volumeHandle": volume.volume_id,
        "volumeAttributes": {**volume.volume_context, IDENTITY: identity},
    }
    if order.volume_mode != BLOCK and order.storage.fs_type:
        source["fsType"] = order.storage.fs_type
    if order.read_only:
        source["readOnly"] = True
    for use, field in SECRET_FIELDS.items():
        if (secret := order.secret_for(use.value)) is not None:
            source[field] = {"name": secret.name, "namespace": secret.namespace}
    return source
