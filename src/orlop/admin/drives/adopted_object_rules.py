"""Build the Volume and the PersistentVolume of a volume that was found on a drive. Pure.

The node reports size, drive and form, as the record on the drive has them. All other fields are those of the
PersistentVolume, if it still exists; if not, class and access modes are those of the claim. If the claim does not exist
either, the access mode is the recorded one, and the operator names the class. The policy is Retain: no
object that is made again may delete data. The reference to a claim has the claim's uid only if the claim was bound to
this PersistentVolume: Kubernetes treats a volume whose reference has another uid as Released. Any other claim is bound
by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import DELETE
from orlop.binding.topology_rules import node_affinity
from orlop.foundation.quantity import Quantity
from orlop.kube import objects
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.drive import UnrecordedVolume
from orlop.records.volume import ERASE_FINALIZER, DriveVolumeSpec, VolumeClaim
from orlop.records.volume_context import TOPOLOGY_NODE, context_of, encode_context

ApiObject = Mapping[str, Any]

TO_MAKE: Final = "orlop.dev/persistent-volume"
"""Annotation of a Volume while it is adopted: the PersistentVolume that has to be made for it, as JSON."""
FORMER_POLICY: Final = "orlop.dev/former-reclaim-policy"
"""Annotation of a PersistentVolume that has the policy Retain while it is replaced."""
RETAIN: Final = "Retain"
COPIED: Final = ("labels", "annotations")
"""Parts of the metadata that the new PersistentVolume has from the old one."""


def spec_of(unrecorded: UnrecordedVolume, drive: str, node: str) -> DriveVolumeSpec:
    """Return the spec of the Volume object. The node compares it with the record on the drive before it erases.

    The parameters of the StorageClass are not on the drive: only a repeated CreateVolume compares them, and after an
    adoption no provisioner repeats it.
    """
    claim = (
        VolumeClaim(namespace=unrecorded.claim_namespace, name=unrecorded.claim_name) if unrecorded.claim_name else None
    )
    return DriveVolumeSpec(
        drive=drive,
        node_name=node,
        bytes=max(1, unrecorded.bytes),
        backing=unrecorded.backing or "image",
        file_system=unrecorded.file_system or "",
        volume_mode=unrecorded.volume_mode or "Filesystem",
        thin=unrecorded.thin,
        access_mode=unrecorded.access_mode,
        persistent_volume=unrecorded.persistent_volume,
        claim=claim,
        volume_claim_id=unrecorded.volume_claim_id,
    )


def volume_body(volume_id: str, spec: DriveVolumeSpec, to_make: ApiObject | None) -> dict[str, Any]:
    """Return the Volume object, with the PersistentVolume that is made next."""
    annotations = {TO_MAKE: encode_planned(to_make)} if to_make is not None else {}
    return new_object("Volume", volume_id, spec, finalizers=[ERASE_FINALIZER], annotations=annotations)


def encode_planned(body: ApiObject) -> str:
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def read_planned(volume: ApiObject) -> dict[str, Any] | None:
    """Return the PersistentVolume that TO_MAKE plans for a Volume; None if there is no plan, or it cannot be read."""
    text = objects.annotations(volume).get(TO_MAKE)
    try:
        body = json.loads(text) if text else None
    except ValueError:
        return None
    return body if isinstance(body, dict) and isinstance(body.get("spec"), dict) else None


def name_of_persistent_volume(volume_id: str, spec: DriveVolumeSpec) -> str:
    return spec.persistent_volume or volume_id


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """The fields of a PersistentVolume that come from its claim and the operator, not from the drive."""

    claim_name: ObjectName | None = None
    """The claim that the PersistentVolume is reserved for; None: unknown."""
    claim: ApiObject | None = None
    """That claim, if it exists."""
    class_name: str = ""
    """The StorageClass, if the claim does not exist."""


def persistent_volume_body(
    volume_id: str, spec: DriveVolumeSpec, old: ApiObject | None, terms: ClaimTerms
) -> dict[str, Any]:
    """Return the PersistentVolume to make. Whether it names its claim with the uid is decided when it is made."""
    own = _replaced(old) if old is not None else _new(spec, terms)
    own["metadata"]["name"] = objects.name(old) if old is not None else name_of_persistent_volume(volume_id, spec)
    own["spec"] |= {
        "persistentVolumeReclaimPolicy": RETAIN,
        "nodeAffinity": node_affinity([{TOPOLOGY_NODE: spec.node_name}]),
    }
    source = own["spec"].setdefault("csi", _source(volume_id, spec))
    source["volumeAttributes"] = {**source.get("volumeAttributes", {}), **encode_context(context_of(spec))}
    return {"apiVersion": "v1", "kind": "PersistentVolume", **own}


def _source(volume_id: str, spec: DriveVolumeSpec) -> dict[str, Any]:
    fs_type = {"fsType": spec.file_system} if spec.file_system else {}
    return {"driver": DRIVER_NAME, "volumeHandle": volume_id, **fs_type}


def _replaced(old: ApiObject) -> dict[str, Any]:
    """Return what a PersistentVolume keeps when it is replaced under its name."""
    metadata = objects.metadata(old)
    copied = {part: dict(metadata[part]) for part in COPIED if metadata.get(part)}
    spec = json.loads(json.dumps(old.get("spec") or {}))
    policy = spec.get("persistentVolumeReclaimPolicy") or RETAIN
    if policy != RETAIN:
        copied["annotations"] = {**copied.get("annotations", {}), FORMER_POLICY: policy}
    return {"metadata": copied, "spec": spec}


def _new(spec: DriveVolumeSpec, terms: ClaimTerms) -> dict[str, Any]:
    claim = terms.claim
    body: dict[str, Any] = {
        "capacity": {"storage": str(Quantity.of(spec.bytes))},
        "accessModes": sorted(state.access_modes(claim or {})) or [spec.access_mode],
        "storageClassName": state.class_name(claim) if claim is not None else terms.class_name,
        "volumeMode": spec.volume_mode,
    }
    if terms.claim_name is not None:
        body["claimRef"] = {"namespace": terms.claim_name.namespace, "name": terms.claim_name.name}
    # Without the annotation, a released volume becomes Failed instead of waiting for its provisioner.
    return {"metadata": {"annotations": {state.PROVISIONED_BY: DRIVER_NAME}}, "spec": body}


def with_claim(body: Mapping[str, Any], claim: ApiObject | None) -> dict[str, Any]:
    """Return the PersistentVolume with the reference to its claim, as the claim is now."""
    spec = dict(body["spec"])
    reference = dict(spec.get("claimRef") or {})
    name, uid = str((body.get("metadata") or {}).get("name") or ""), reference.pop("uid", "")
    reference.pop("resourceVersion", None)
    if claim is not None and state.volume_name(claim) == name:
        uid = objects.uid(claim)
    elif claim is not None or not uid:
        uid = ""
    if reference:
        identity = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference}
        spec["claimRef"] = {**identity, "uid": uid} if uid else identity
    return {**body, "spec": spec}


def restored_policy(persistent_volume: ApiObject) -> str:
    """Return the policy that a replaced PersistentVolume gets back; empty if it has it."""
    former = objects.annotations(persistent_volume).get(FORMER_POLICY, "")
    return former if former == DELETE else ""
