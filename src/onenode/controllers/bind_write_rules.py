"""The objects that binding writes: a claim and a PersistentVolume bound, unbound, or in another phase. Pure.

Each function returns the whole object to PUT, with the resourceVersion it was decided on; None where nothing differs.
Binding a pair is four writes, always in this order:

    volume spec → volume status → claim spec → claim status

The volume is reserved first: from then on no other claim can get it, whatever dies in between. The claim's status comes
last: pods are started when it says Bound. As each write is skipped where nothing differs, a bind that was interrupted
is continued by asking for the next write again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube import objects

PENDING: Final = "Pending"
AVAILABLE: Final = "Available"
BOUND: Final = "Bound"
RELEASED: Final = "Released"
FAILED: Final = "Failed"
LOST: Final = "Lost"
YES: Final = "yes"
PRE_RESIZE_CAPACITY: Final = "volume.alpha.kubernetes.io/pre-resize-capacity"

Object = Mapping[str, Any]
Changed = dict[str, Any]


# ---- the four writes of a bind ---------------------------------------------------------------------------------------


def bound_volume(volume: Object, claim: Object) -> Changed | None:
    """Return the volume with a complete `claimRef`; the scheduler reserves volumes with the same write.

    `bound-by-controller` marks a volume that did not name the claim before: unbinding then removes the whole claimRef,
    and leaves a user's own reservation in place otherwise.
    """
    reference = state.claim_reference(volume) or {}
    expected = {"namespace": objects.namespace(claim), "name": objects.name(claim), "uid": objects.uid(claim)}
    was_reserved = state.refers_to(volume, claim)
    if was_reserved and all(reference.get(key) == value for key, value in expected.items()):
        return None
    version = {"resourceVersion": version} if (version := objects.resource_version(claim)) else {}
    full = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **expected, **version}
    changed = _with_spec(volume, claimRef=full)
    return changed if was_reserved else _with_annotations(changed, {state.BOUND_BY_CONTROLLER: YES})


def bound_claim(claim: Object, volume: Object) -> Changed | None:
    """Return the claim with `volumeName` and the marks of a completed bind."""
    annotations = objects.annotations(claim)
    is_named = state.volume_name(claim) == objects.name(volume)
    if is_named and state.BIND_COMPLETED in annotations:
        return None
    marks = {state.BIND_COMPLETED: YES, **({} if is_named else {state.BOUND_BY_CONTROLLER: YES})}
    changed = claim if is_named else _with_spec(claim, volumeName=objects.name(volume))
    return _with_annotations(changed, {key: value for key, value in marks.items() if key not in annotations})


def bound_claim_status(claim: Object, volume: Object) -> Changed | None:
    """Return the claim with the status of a bound one.

    Capacity and the current VolumeAttributesClass change only together with the phase: afterwards they are the
    resizer's and kubelet's. A claim that was Lost keeps no VolumeAttributesClass, as in Kubernetes.
    """
    status: Changed = dict(_status(claim))
    modes = list((volume.get("spec") or {}).get("accessModes") or ())
    if list(status.get("accessModes") or ()) != modes:
        status["accessModes"] = modes
    if (before := state.phase(claim)) != BOUND:
        status |= {"phase": BOUND, "capacity": _capacity_at_bind(volume)}
        attributes_class = (volume.get("spec") or {}).get("volumeAttributesClassName")
        if before in {"", PENDING} and attributes_class is not None:
            status["currentVolumeAttributesClassName"] = attributes_class
    return {**claim, "status": status} if status != _status(claim) else None


def _capacity_at_bind(volume: Object) -> Changed:
    """Return the volume's capacity, or the size from before an expansion that has not finished."""
    capacity = dict((volume.get("spec") or {}).get("capacity") or {})
    before_resize = objects.annotations(volume).get(PRE_RESIZE_CAPACITY, "")
    try:
        Quantity.parse(before_resize)
    except InvalidQuantity:
        return capacity
    return {**capacity, "storage": before_resize}


# ---- phases ----------------------------------------------------------------------------------------------------------


def unbound_claim_status(claim: Object, phase: str) -> Changed | None:
    """Return the claim as Pending or Lost, without what its status held of a volume."""
    of_volume = ("accessModes", "capacity", "currentVolumeAttributesClassName")
    kept = {key: value for key, value in _status(claim).items() if key not in of_volume}
    status = {**kept, "phase": phase}
    return {**claim, "status": status} if status != _status(claim) else None


def volume_in_phase(volume: Object, phase: str, message: str = "") -> Changed | None:
    """Return the volume in this phase. The message of the same phase stays: the first failure is the one to show."""
    if state.phase(volume) == phase:
        return None
    status = {key: value for key, value in _status(volume).items() if key != "message"}
    return {**volume, "status": {**status, "phase": phase, **({"message": message} if message else {})}}


# ---- other writes ----------------------------------------------------------------------------------------------------


def unbound_volume(volume: Object) -> Changed:
    """Return the volume released from a claim that is bound elsewhere; a user's reservation loses only its uid."""
    spec = dict(volume.get("spec") or {})
    if state.BOUND_BY_CONTROLLER not in objects.annotations(volume):
        reference = {key: value for key, value in spec.get("claimRef", {}).items() if key != "uid"}
        return {**volume, "spec": {**spec, "claimRef": reference}}
    del spec["claimRef"]
    annotations = {key: value for key, value in objects.annotations(volume).items() if key != state.BOUND_BY_CONTROLLER}
    return {**volume, "spec": spec, "metadata": {**objects.metadata(volume), "annotations": annotations}}


def claim_of_class(claim: Object, class_name: str) -> Changed:
    return _with_spec(claim, storageClassName=class_name)


def claim_for_provisioner(claim: Object, provisioner: str) -> Changed | None:
    """Return the claim with both keys by which a provisioner knows its claims; only the new key is compared."""
    if objects.annotations(claim).get(state.STORAGE_PROVISIONER) == provisioner:
        return None
    keys = (state.STORAGE_PROVISIONER, state.BETA_STORAGE_PROVISIONER)
    return _with_annotations(claim, dict.fromkeys(keys, provisioner))


def _with_spec(obj: Object, **fields: Any) -> Changed:
    return {**obj, "spec": {**(obj.get("spec") or {}), **fields}}


def _with_annotations(obj: Object, added: Mapping[str, str]) -> Changed:
    annotations = {**objects.annotations(obj), **added}
    return {**obj, "metadata": {**objects.metadata(obj), "annotations": annotations}}


def _status(obj: Object) -> Object:
    return obj.get("status") or {}
