"""Read what binding needs from claims, volumes and classes: annotation keys, class, size, modes, references. Pure.

Objects come from the API server, but `orlop explain` and a provisioner may read objects of any version: a field that is
missing or of the wrong type reads as Kubernetes' default, and never raises. Quantities are the exception: for a size
that cannot be parsed, `storage_size` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube import objects

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO: Final = "pv.kubernetes.io/migrated-to"
STORAGE_PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER: Final = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
ALPHA_SELECTED_NODE: Final = "volume.alpha.kubernetes.io/selected-node"
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
PV_PROTECTION: Final = "kubernetes.io/pv-protection"
PVC_PROTECTION: Final = "kubernetes.io/pvc-protection"

FILESYSTEM: Final = "Filesystem"
BLOCK: Final = "Block"

Object = Mapping[str, Any]


def class_name(claim_or_volume: Object) -> str:
    """Return the effective storage class; "" for none. The beta annotation wins over the field, also when empty."""
    annotations = objects.annotations(claim_or_volume)
    if BETA_CLASS in annotations:
        return annotations[BETA_CLASS]
    return _text(_spec(claim_or_volume), "storageClassName")


def has_class(claim: Object) -> bool:
    """Return whether the claim sets a class; `""` (explicitly no class) counts, a missing field does not."""
    return BETA_CLASS in objects.annotations(claim) or _spec(claim).get("storageClassName") is not None


def attributes_class_name(claim_or_volume: Object) -> str:
    """Return the VolumeAttributesClass; "" for none."""
    return _text(_spec(claim_or_volume), "volumeAttributesClassName")


def volume_mode(claim_or_volume: Object) -> str:
    return _text(_spec(claim_or_volume), "volumeMode") or FILESYSTEM


def access_modes(claim_or_volume: Object) -> frozenset[str]:
    modes = _spec(claim_or_volume).get("accessModes")
    return (
        frozenset(mode for mode in modes if isinstance(mode, str)) if isinstance(modes, list | tuple) else frozenset()
    )


def volume_name(claim: Object) -> str:
    """Return the name of the PersistentVolume that the claim names; "" while it names none."""
    return _text(_spec(claim), "volumeName")


def phase(obj: Object) -> str:
    return _text(_mapping(obj, "status"), "phase")


def is_bound(claim: Object) -> bool:
    """Return whether the binder has finished: the claim names a volume and carries the mark of a completed bind."""
    return bool(volume_name(claim)) and BIND_COMPLETED in objects.annotations(claim)


def selected_node(claim: Object) -> str:
    """Return the node the scheduler chose; "" for none.

    Only the current key starts provisioning. As in external-provisioner, the alpha key is read if the current one is
    present but empty.
    """
    annotations = objects.annotations(claim)
    return annotations.get(SELECTED_NODE) or annotations.get(ALPHA_SELECTED_NODE) or ""


def is_marked_for_late_provisioning(claim: Object) -> bool:
    return bool(objects.annotations(claim).get(SELECTED_NODE))


def provisioner_of(claim: Object) -> str:
    """Return the driver that is to provision the claim; "" while the binder has not asked for one."""
    annotations = objects.annotations(claim)
    return annotations.get(STORAGE_PROVISIONER) or annotations.get(BETA_STORAGE_PROVISIONER) or ""


def requested_size(claim: Object) -> Quantity | None:
    """Return `requests.storage`; None if it is missing or not a quantity."""
    return storage_size(_mapping(_mapping(_spec(claim), "resources"), "requests"))


def capacity(volume: Object) -> Quantity | None:
    """Return the PersistentVolume's capacity; None if it is missing or not a quantity."""
    return storage_size(_mapping(_spec(volume), "capacity"))


def storage_size(amounts: Object) -> Quantity | None:
    text = amounts.get("storage")
    return _parsed(str(text)) if text is not None else None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Quantity | None:
    """Parse a size once: searches compare the same few sizes over and over."""
    try:
        return Quantity.parse(text)
    except InvalidQuantity:
        return None


def claim_reference(volume: Object) -> Object | None:
    """Return `claimRef`; None where the PersistentVolume names no claim."""
    reference = _spec(volume).get("claimRef")
    return reference if isinstance(reference, Mapping) else None


def refers_to(volume: Object, claim: Object) -> bool:
    """Return whether the volume is reserved for this claim: same namespace and name, uid equal or left out."""
    reference = claim_reference(volume)
    if reference is None:
        return False
    names_claim = reference.get("name") == objects.name(claim) and reference.get("namespace") == objects.namespace(
        claim
    )
    return names_claim and (reference.get("uid") or "") in {"", objects.uid(claim)}


def _spec(obj: Object) -> Object:
    return _mapping(obj, "spec")


def _mapping(obj: Object, field: str) -> Object:
    value = obj.get(field)
    return value if isinstance(value, Mapping) else {}


def _text(obj: Object, field: str) -> str:
    value = obj.get(field)
    return value if isinstance(value, str) else ""
